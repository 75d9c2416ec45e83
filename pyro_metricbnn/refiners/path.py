"""How far `Steer` walks, how much of that before the record begins, and what it may cost.

In: a Ground and the knobs of `Steer`.  Out: lengths in its units, and gradients.
"""

import math
from dataclasses import dataclass

from ..energy.curvature import by_size, smallness
from .state import Ground
from .step_size import StepSize, walked_dim

SHORTEST_PATH = 304.0  # of models in posterior units: with a quarter of it 6 of 20 ordinary Pyro models were off
CHEAP = 800  # gradients of a network's walk: they take about as long as the search for its MAP and tracing it,
FEW_WEIGHTS = 5000  # if it has at most so many
MOST_WORK, LEAST = 6.25e9, 1000  # gradients of a network's walk times its weights and rows; gradients of any
FEW_ROWS = 125  # below, a gradient costs no less
WARMUP = 0.2  # of a small model's path; a network's way from the MAP is part of the posterior, as in the paper


@dataclass(frozen=True)
class Path:
    """The plan of a walk; the knobs are those of `Steer`."""

    effort: float
    path: float | None
    warmup: float | None
    step: StepSize

    def length(self, ground: Ground) -> float:
        """The whole path; up to twice it on a soft posterior, where a walk takes less time than what comes before."""
        dim = len(ground.scale)
        root = math.sqrt(self.effort * walked_dim(ground))
        if self.path:
            return self.path * root

        def of_a_network() -> float:
            cheap = CHEAP * min(1.0, FEW_WEIGHTS / dim) * self.effort * self.step.expected(ground)
            return min(max(cheap, 6 * root), 12 * root)

        return by_size(dim, lambda: max(SHORTEST_PATH * math.sqrt(self.effort), 6 * root), of_a_network)

    def approach_length(self, ground: Ground) -> float:
        """How much of it comes before the record."""
        default = WARMUP * smallness(len(ground.scale))
        return self.length(ground) * (default if self.warmup is None else self.warmup)

    def reach(self, ground: Ground) -> float:
        """From one recorded point to the next, as planned."""
        return (self.length(ground) - self.approach_length(ground)) / ground.num_steps

    def stride(self, ground: Ground, step_size: float) -> float:
        """How far a recorded step goes: `reach`, or as far as the gradients for one do.

        Sharper and sharper on the way from the MAP, deep regression networks would otherwise take no end of them.
        """
        return min(self.reach(ground), max(1.0, self._most_gradients(ground) / ground.num_steps) * step_size)

    def num_gradients(self, ground: Ground) -> int:
        """About how many the walk takes."""
        return int(min(self.length(ground) / self.step.expected(ground), self._most_gradients(ground)))

    def _most_gradients(self, ground: Ground) -> float:
        """Who asks for a path, or for a step, gets all of it; so does a small model."""
        dim = len(ground.scale)
        large = 1 - smallness(dim)
        if self.path is not None or self.step.fixed is not None or large == 0:
            return math.inf
        return self.effort * max(LEAST, MOST_WORK / dim / max(FEW_ROWS, ground.potential.num_rows)) / large
