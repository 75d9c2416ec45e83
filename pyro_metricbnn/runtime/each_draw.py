"""In: a function of one draw, and draws stacked along their first axis.  Out: its results, stacked in the same way."""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from .out_of_memory import is_out_of_memory
from .threads import in_turn
from .written_out import written_out


def for_each(function: Callable[[Any], Any], draws: Any, *, chunk_size: int | None = None) -> Any:
    """function(draw) for each of the draws, a tree of tensors (S, ...), at most `chunk_size` at once: results (S, ...).

    Where vmap fails, the loop does the same, or raises what is wrong in the function's own words. vmap lacks rules for
    some samplers (multivariate normals, Student's t, Dirichlet) and for what reads numbers out of tensors.
    """
    try:
        with in_turn(), written_out():
            return vmap(function, randomness="different", chunk_size=chunk_size)(draws)
    except Exception as error:
        if is_out_of_memory(error):
            raise
    num_draws = len(tree_leaves(draws)[0])
    rows = [function(tree_map(lambda value, s=s: value[s], draws)) for s in range(num_draws)]
    return tree_map(lambda *values: torch.stack(values), *rows)
