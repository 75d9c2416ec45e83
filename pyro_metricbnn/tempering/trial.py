"""Short walks at many temperatures at once, and what they predict of rows that they have not seen.

In: where a walk leaves from, and held-out rows.  Out: the log predictive density of each row at each temperature.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..energy.curvature import by_size
from ..energy.potential import BatchedPotential
from ..predictions.pointwise import Pointwise
from ..refiners.anneal import EVERY, UNDONE, Anneal, annealed_step
from ..refiners.state import Ground
from ..refiners.step_size import HOT, cold_aim, walked_dim
from ..walk.kernel import COLD, cold_units

NUM_PARTICLES, OF_COLD_ONES = 4, 2  # at each temperature; below 0.1 particles stay close together
NUM_GRADIENTS = 180
NUM_POINTS = 20  # of each particle, that predict: from the MAP on, as those of a whole walk
NUMBERS_AT_ONCE = 2**24  # of points that are judged together
LONGEST = 8.0  # path in units of sqrt(D); `Steer` goes up to 12, and the last third changes little
PART = 0.2  # of the squared error that `Steer` aims at, which looks at the worst of ten particles


@dataclass(frozen=True)
class Trial:
    """A place to leave from, and rows that it has not seen."""

    ground: Ground  # at temperature 1
    judge: Pointwise  # the model at the held-out rows

    def log_densities(self, temperatures: Sequence[float]) -> Tensor:
        """Of the held-out rows (T, rows), each temperature's particles and points averaged before the logarithm."""
        scale = self.ground.scale
        heat = scale.new_tensor(of_particles(temperatures))
        found, points = list[Tensor](), list[Tensor]()
        for point in self._points(heat):  # (N, D)
            points.append(point)
            if len(points) * point.numel() > NUMBERS_AT_ONCE:
                found, points = [*found, self._judged(points)], []
        each = torch.cat([*found, self._judged(points)] if points else found, dim=1)
        of = [each[(heat == one).cpu()].flatten(0, 1) for one in scale.new_tensor(temperatures)]
        return torch.stack([rows.logsumexp(0) - math.log(len(rows)) for rows in of])

    def _judged(self, points: list[Tensor]) -> Tensor:
        """The log density of each row (N, points, rows) at points (N, D)."""
        theta = torch.stack(points, dim=1)
        by_site = self.judge.given_data(self.ground.potential.unflatten(theta.flatten(0, 1)))[0]
        return torch.cat([each.flatten(1) for each in by_site.values()], dim=1).unflatten(0, theta.shape[:2])

    def _points(self, heat: Tensor) -> Iterator[Tensor]:
        """Points (N, D) of particles at temperatures (N,), each with units and a step of its own."""
        ground, dim = self.ground, walked_dim(self.ground)
        potential = ground.potential.estimated_by(partial(_tempered, heat))
        width = heat.new_tensor([_width(len(ground.scale), float(one)) for one in heat])
        units = ground.posterior_scale * width[:, None]
        first = 0.5 * (dim / (ground.curvature * width**2 / heat).clamp_min(1.0)).sqrt()
        largest = first if potential.is_noisy else (3 * first).clamp_max(LONGEST * math.sqrt(dim) / NUM_GRADIENTS)
        theta = ground.theta_star.expand(len(heat), -1).contiguous()
        p = Anneal().start(replace(ground, potential=potential), theta)
        aim = PART * cold_aim(dim)
        worst = UNDONE if potential.is_noisy else math.sqrt(HOT * dim * cold_aim(dim))  # `Steer` walks such again
        state: tuple[Tensor, ...] = (p.theta, p.drift, p.energy, p.grad, p.own["padding"])
        moved: Callable[..., tuple[Tensor, ...]] = partial(annealed_step, potential.value_and_grad)
        step, noise = first.minimum(largest), torch.zeros_like(p.drift)
        for i in range(1, NUM_GRADIENTS + 1):
            kicked = i % EVERY == 0
            noise = torch.randn_like(noise) if kicked else noise
            renewed = 2 * EVERY / math.sqrt(dim) if kicked else 0.0
            *rest, step, _ = moved(*state, step, noise, units, aim, renewed, worst)
            state, step = tuple(rest), largest if potential.is_noisy else step.minimum(largest)
            if i * NUM_POINTS % NUM_GRADIENTS == 0:
                yield state[0]


def of_particles(temperatures: Sequence[float]) -> list[float]:
    """The temperature of each particle."""
    return [one for one in temperatures for _ in range(OF_COLD_ONES if one < COLD else NUM_PARTICLES)]


def _width(dim: int, temperature: float) -> float:
    """What the posterior's units at temperature 1 are times."""
    return by_size(dim, lambda: math.sqrt(temperature), lambda: cold_units(temperature))


def _tempered(heat: Tensor, batch: BatchedPotential, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The energy of each particle at its own temperature (N,)."""
    value, grad = batch.value_and_grad(theta)
    return value / heat, grad / heat[:, None]
