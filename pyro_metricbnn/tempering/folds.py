"""Rows that a network has not seen, where there are no others: folds of the data, and networks trained without them.

In: a network and its data.  Out: a `Trial` for each fold.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from ..energy.prior_units import prior_units
from ..model.structure import find_layout
from ..predictions.pointwise import Pointwise
from ..refiners.state import Ground
from ..search.starts import fresh_point
from ..walk.kernel import cold_units
from .trial import Trial

NUM_FOLDS, FEWEST_FOLDS, FEWEST_ROWS = 4, 2, 20  # fewer folds: the first ones, of as many rows as with all


def folds(num_rows: int) -> list[tuple[Tensor, Tensor]]:
    """Rows to train on and rows held out, of equal numbers in each fold; what is over is never held out."""
    order, size = torch.randperm(num_rows, device="cpu"), num_rows // NUM_FOLDS
    cuts = [(i * size, (i + 1) * size) for i in range(NUM_FOLDS)]
    return [(torch.cat([order[:first], order[last:]]), order[first:last]) for first, last in cuts]


def fold_trials(kind: type[Trial], whole: BatchedPotential, x: Tensor, y: Tensor, count: int) -> Iterator[Trial]:
    """Fold after fold: a network that begins anew, trained on the others.

    One network a fold: an average over several would predict better than the run will, and best where it is cold.
    """
    model, parts = whole.model, folds(len(y))[:count]
    kept, held = parts[0]
    potential = BatchedPotential(model, x[kept], y[kept]).at(whole.temperature).using(mode="trace")
    scale = prior_units(potential).scale * cold_units(whole.temperature)
    layout = find_layout(model, (x[held], y[held]), {})
    for kept, held in parts:
        here = potential.on(x[kept], y[kept])  # folds have equal shapes: one traced graph serves all
        ground = Ground(here, fresh_point(here), scale, 1, 1)
        yield kind.of_fresh(ground, Pointwise(model, (x[held], y[held]), {}, layout))
