"""The no-U-turn sampler (Hoffman and Gelman, 2014): one chain of Pyro's kernel from the MAP.

Its trees reach the limit of 255 leapfrog steps on the UCI sets, where a step is about 0.004 long: a U-turn of the prior
would need three times as many. A leapfrog step takes 0.6 ms, of which the gradient is a fifth.
"""

from __future__ import annotations

from pyro.infer import NUTS
from torch import Tensor

from ..task import Task
from .hmc import energy_of_one, predictor, run
from .method import Method, Predictor

DEPTH = 8  # of the tree
NUM_WARMUP = 100
NUM_DRAWS = 100


def chain(task: Task, num_warmup: int, num_draws: int) -> Tensor:
    """The points of the chain: (num_draws, D)."""
    energy = energy_of_one(task, (num_warmup + num_draws) * 2**DEPTH)
    kernel = NUTS(potential_fn=energy, step_size=1e-2, adapt_mass_matrix=False, max_tree_depth=DEPTH)
    return run(task, kernel, num_warmup, num_draws)


def fit(task: Task) -> Predictor:
    """The chain's points."""
    return predictor(task, chain(task, task.count(NUM_WARMUP, 5), task.count(NUM_DRAWS, 5)))


METHODS = (Method("NUTS", fit, cite="Hoffman and Gelman, The no-U-turn sampler, JMLR 2014"),)
