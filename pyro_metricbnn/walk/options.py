"""What `walk` and `run` take beside the model's arguments.

In: keyword arguments.  Out: `WalkOptions`, checked, and the keyword arguments that are the model's.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from ..energy.potential import BatchedPotential
from ..files.storage import FilePath
from ..model.structure import Model
from ..runtime.arguments import check_count, check_mapping, check_type, real_device
from ..search.map_search import MAX_ITERATIONS
from ..search.starts import Start


@dataclass(frozen=True, kw_only=True, eq=False)
class WalkOptions:
    """Options of one walk.

    Args:
        num_particles: N.
        potential: The energy to walk on, in place of arguments: one with another gradient estimator, say.
        initial_params: Constrained values to start the MAP search from.
        map_params: Your own MAP, constrained, by site: left from as it is, without a search.
        starts: Networks of the same kind that you have trained, or values by site: particles leave from all of them as
            they are, without a search.
        num_networks: Where a network's noise is inferred, so many in all are left from, those beside yours trained here
            in a few seconds; None for 8 of a small network, else 1. Where labels may be wrong, all 8 are trained here,
            because yours has learned the wrong ones; 1 keeps to it.
        max_iterations: Of the search for the MAP.
        batch_size: Take minibatches of this many rows of the arguments.
        thin: Record only every so many steps.
        storage_dtype: Precision of the record, for large D (torch.float16 halves it).
        storage_device: Where the record is kept, for large D ("cpu").
        checkpoint: A file to write the state of the walk to and, if it is there, to go on from. It stays when the walk
            is over: delete it, or take another path, to walk anew. It is for one process at a time.
        checkpoint_every: Seconds between two writes; 0 to write at each step.
        progress: Show progress bars.
    """

    num_particles: int = 20
    potential: BatchedPotential | None = None
    initial_params: Mapping[str, Tensor] | None = None
    map_params: Mapping[str, Tensor] | None = None
    starts: Sequence[Start] | None = None
    num_networks: int | None = None
    max_iterations: int = MAX_ITERATIONS
    batch_size: int | None = None
    thin: int = 1
    storage_dtype: torch.dtype | None = None
    storage_device: torch.device | str | None = None
    checkpoint: FilePath | None = None
    checkpoint_every: float = 60.0
    progress: bool = True

    @classmethod
    def split(cls, settings: Mapping[str, Any], model: Model | None = None) -> tuple[WalkOptions, dict[str, Any]]:
        """The options among keyword arguments, and the others, which are the model's."""
        names = {one.name for one in fields(cls)}
        if both := [name for name in settings if name in names and name in _arguments(model)]:
            raise ValueError(
                f"{both[0]} is an argument of the model and an option of the walk: which of them is meant cannot be "
                "told. Pass the model's by position, or give it another name in the model."
            )
        options = cls(**{name: value for name, value in settings.items() if name in names})
        return options, {name: value for name, value in settings.items() if name not in names}

    def __post_init__(self) -> None:
        check_count("num_particles", self.num_particles, "without a particle nothing walks. The default is 20.")
        check_count("max_iterations", self.max_iterations, "the search takes some.")
        check_count("num_networks", self.num_networks, "yours is one of them.", or_none=True)
        check_count("thin", self.thin, "it counts steps.")
        kind = self.storage_dtype
        check_type("storage_dtype", kind, torch.dtype, "a torch.dtype, such as torch.float16", or_none=True)
        if kind is not None and not kind.is_floating_point:
            raise ValueError(f"storage_dtype is {kind}, which cuts off fractions: pass a real one, as torch.float16.")
        if self.storage_device is not None:
            real_device("storage_device", self.storage_device)
        wanted = "a BatchedPotential of the kernel's model"
        check_type("potential", self.potential, BatchedPotential, wanted, or_none=True)
        given = [name for name in ("initial_params", "map_params", "starts") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} say two things: initial_params are where a search for the MAP starts, "
                "map_params the MAP itself, without a search, starts several points to leave from. Pass one of them."
            )
        if self.starts is not None:
            check_type("starts", self.starts, (list, tuple), "a list of networks, or of values by site")
            if not self.starts:
                raise ValueError("starts is empty: pass at least one trained network, or leave it out.")
            for start in self.starts:
                check_type("a start", start, (nn.Module, Mapping), "a network, or a dict of values by site")
        for name in ("initial_params", "map_params"):
            if getattr(self, name) is not None:
                check_mapping(name, getattr(self, name), "constrained values")


def _arguments(model: Model | None) -> Collection[str]:
    """The names of a model's arguments, if it has a signature."""
    function: Any = model.forward if isinstance(model, nn.Module) else model
    with suppress(TypeError, ValueError):
        return inspect.signature(function).parameters
    return ()
