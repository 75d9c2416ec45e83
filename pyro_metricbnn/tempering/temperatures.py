"""What a temperature does to a short walk.  In: a ground at 1.  Out: particles at many temperatures."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from torch import Tensor

from ..energy.potential import BatchedPotential
from ..energy.prior_units import by_size
from ..predictions.pointwise import Pointwise
from ..refiners.state import Ground
from ..refiners.step_size import walked_dim
from ..search.starts import trained
from ..walk.kernel import COLD, cold_units
from .choice import TemperatureScores
from .trial import NUM_GRADIENTS, NUM_PARTICLES, RATE, TRAINING_STEPS, Leaving, Trial

OF_COLD_ONES = 2  # particles: below 0.1 they stay close together


class TemperatureTrial(Trial):
    """All temperatures leave from one point, the MAP at 1."""

    scores = TemperatureScores
    unlike = "the noise is inferred, and takes the place of a temperature. Pass a number, where another is wanted"

    @classmethod
    def of_fresh(cls, ground: Ground, judge: Pointwise) -> Self:
        """Trained here."""
        (theta,) = trained(ground.potential, ground.theta_star[None], False, TRAINING_STEPS, RATE)
        return cls(replace(ground, theta_star=theta), judge)

    @classmethod
    def num_gradients(cls) -> int:
        return len(cls.of_particles(cls.scores.grid)) * NUM_GRADIENTS

    @staticmethod
    def of_particles(values: Sequence[float]) -> list[float]:
        return [one for one in values for _ in range(OF_COLD_ONES if one < COLD else NUM_PARTICLES)]

    def leaving(self, values: Tensor) -> Leaving:
        ground, dim = self.ground, walked_dim(self.ground)
        width = values.new_tensor([_width(len(ground.scale), float(one)) for one in values])
        units = ground.posterior_scale * width[:, None]
        step = 0.5 * (dim / (ground.curvature * width**2 / values).clamp_min(1.0)).sqrt()
        theta = ground.theta_star.expand(len(values), -1).contiguous()
        return Leaving(ground.potential.estimated_by(partial(tempered, values)), theta, units, step)


def _width(dim: int, temperature: float) -> float:
    """What the posterior's units at temperature 1 are times."""
    return by_size(dim, lambda: math.sqrt(temperature), lambda: cold_units(temperature))


def tempered(heat: Tensor, batch: BatchedPotential, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The energy of each particle at its own temperature (N,)."""
    value, grad = batch.value_and_grad(theta)
    return value / heat, grad / heat[:, None]
