"""Short walks at many values at once, and what they predict of rows that they have not seen.

In: where a walk leaves from, and held-out rows.  Out: the log predictive density of each row at each value, which is a
temperature or a scale of the prior: what it does to a walk is in files of their own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from ..predictions.pointwise import Pointwise
from ..refiners.anneal import EVERY, Anneal, annealed_step
from ..refiners.state import Ground
from ..refiners.step_size import HOT, cold_aim, walked_dim
from .choice import Scores

NUM_PARTICLES = 4  # at each value
NUM_GRADIENTS = 180
NUM_POINTS = 20  # of each particle, that predict: from the MAP on, as those of a whole walk
NUMBERS_AT_ONCE = 2**24  # of points that are judged together
LONGEST = 8.0  # path in units of sqrt(D); `Steer` goes up to 12, and the last third changes little
PART = 0.2  # of the squared error that `Steer` aims at, which looks at the worst of ten particles
TRAINING_STEPS, RATE = 300, 3e-2  # of Adam: energies and test NLL of MAPs are those of 1,500 at a third of the rate


@dataclass(frozen=True)
class Leaving:
    """N particles, each at a value of its own."""

    potential: BatchedPotential  # of exactly these particles
    theta: Tensor  # (N, D)
    units: Tensor  # (N, D)
    step: Tensor  # (N,), half of what the curvature allows


@dataclass(frozen=True)
class Trial(ABC):
    """A place to leave from, and rows that it has not seen."""

    scores: ClassVar[type[Scores]]
    unlike: ClassVar[str]  # why short walks say nothing where the noise is inferred

    ground: Ground  # at a value of 1
    judge: Pointwise  # the model at the held-out rows

    @classmethod
    @abstractmethod
    def of_fresh(cls, ground: Ground, judge: Pointwise) -> Self:
        """From a network that has not been trained yet."""

    @classmethod
    @abstractmethod
    def num_gradients(cls) -> int:
        """Of all particles of the grid together."""

    @abstractmethod
    def leaving(self, values: Tensor) -> Leaving:
        """Particles at these values (N,), equal ones one after another."""

    @staticmethod
    def of_particles(values: Sequence[float]) -> list[float]:
        """The value of each particle."""
        return [one for one in values for _ in range(NUM_PARTICLES)]

    def log_densities(self, values: Sequence[float]) -> Tensor:
        """Of the held-out rows (V, rows), the particles and points of each value averaged before the logarithm."""
        own = self.ground.scale.new_tensor(self.of_particles(values))
        found, points = list[Tensor](), list[Tensor]()
        for point in self._points(own):  # (N, D)
            points.append(point)
            if len(points) * point.numel() > NUMBERS_AT_ONCE:
                found, points = [*found, self._judged(points)], []
        each = torch.cat([*found, self._judged(points)] if points else found, dim=1)
        of = [each[(own == one).cpu()].flatten(0, 1) for one in own.new_tensor(values)]
        return torch.stack([rows.logsumexp(0) - math.log(len(rows)) for rows in of])

    def _judged(self, points: list[Tensor]) -> Tensor:
        """The log density of each row (N, points, rows) at points (N, D)."""
        theta = torch.stack(points, dim=1)
        by_site = self.judge.given_data(self.ground.potential.unflatten(theta.flatten(0, 1)))[0]
        return torch.cat([each.flatten(1) for each in by_site.values()], dim=1).unflatten(0, theta.shape[:2])

    def _points(self, values: Tensor) -> Iterator[Tensor]:
        """Points (N, D) of particles at values (N,), each with units and a step of its own."""
        leaving, dim = self.leaving(values), walked_dim(self.ground)
        potential, first = leaving.potential, leaving.step
        largest = (3 * first).clamp_max(LONGEST * math.sqrt(dim) / NUM_GRADIENTS)
        p = Anneal().start(replace(self.ground, potential=potential), leaving.theta)
        aim = PART * cold_aim(dim)
        worst = math.sqrt(HOT * dim * cold_aim(dim))  # `Steer` walks such again
        state: tuple[Tensor, ...] = (p.theta, p.drift, p.energy, p.grad, p.own["padding"])
        moved: Callable[..., tuple[Tensor, ...]] = partial(annealed_step, potential.value_and_grad)
        step, noise = first.minimum(largest), torch.zeros_like(p.drift)
        for i in range(1, NUM_GRADIENTS + 1):
            kicked = i % EVERY == 0
            noise = torch.randn_like(noise) if kicked else noise
            renewed = 2 * EVERY / math.sqrt(dim) if kicked else 0.0
            *rest, step, _ = moved(*state, step, noise, leaving.units, aim, renewed, worst)
            state, step = tuple(rest), step.minimum(largest)
            if i * NUM_POINTS % NUM_GRADIENTS == 0:
                yield state[0]
