"""What the prior's scale does to a short walk.  In: a ground with N(0, 1) priors.  Out: particles at many scales."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from ..predictions.pointwise import Pointwise
from ..refiners.state import Ground
from ..refiners.step_size import walked_dim
from ..search.starts import trained
from .choice import PriorScores
from .trial import NUM_GRADIENTS, NUM_PARTICLES, RATE, TRAINING_STEPS, Leaving, Trial

GENTLE = 3e-3  # a rate that takes a trained network of any size to another scale


@dataclass(frozen=True)
class PriorTrial(Trial):
    """Each scale leaves from a network that was trained with it, all from the same weights."""

    scores = PriorScores
    unlike = "the noise is inferred, and short walks do not come to where its posterior is. Pass a number"

    rate: float = GENTLE

    @classmethod
    def of_fresh(cls, ground: Ground, judge: Pointwise) -> Self:
        """To be trained at each scale."""
        return cls(ground, judge, RATE)

    @classmethod
    def num_gradients(cls) -> int:
        return len(cls.scores.grid) * (NUM_PARTICLES * NUM_GRADIENTS + TRAINING_STEPS)

    def leaving(self, values: Tensor) -> Leaving:
        scales, counts = values.unique_consecutive(return_counts=True)
        begun = self.ground.theta_star.expand(len(scales), -1)
        ends = trained(self._energy(scales), begun, False, TRAINING_STEPS, self.rate)
        grounds = [self._at(scale, theta) for scale, theta in zip(scales, ends, strict=True)]
        curvature = values.new_tensor([ground.curvature for ground in grounds])
        step = 0.5 * (walked_dim(self.ground) / curvature.clamp_min(1.0)).sqrt()
        each = (torch.stack(ends), torch.stack([ground.posterior_scale for ground in grounds]), step)
        theta, units, step = (one.repeat_interleave(counts, dim=0) for one in each)
        return Leaving(self._energy(values), theta, units, step)

    def _at(self, scale: Tensor, theta: Tensor) -> Ground:
        """The ground of one scale, whose own curvature is measured where training ended."""
        units = torch.where(self._weights, scale * self.ground.scale, self.ground.scale)
        at_once = len(self.scores.grid)  # as many points as are trained: one traced graph serves both
        return Ground(self._energy(scale[None]), theta, units, self.ground.num_steps, at_once)

    def _energy(self, scales: Tensor) -> BatchedPotential:
        return self.ground.potential.estimated_by(partial(rescaled, scales, self._weights))

    @property
    def _weights(self) -> Tensor:
        """Which coordinates (D,) are weights, and no parameters of the likelihood."""
        return weights_in(self.ground.potential)


def weights_in(potential: BatchedPotential) -> Tensor:
    """Which coordinates (D,) of a network's energy are its weights."""
    model: Any = potential.model
    found = torch.zeros(potential.dim, dtype=torch.bool, device=potential.sites.device)
    for site in potential.sites.sites:
        found[site.start : site.stop] = site.name in model.names
    return found


def rescaled(scales: Tensor, weights: Tensor, batch: BatchedPotential, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The energy with N(0, scale^2) priors of the weights, for N(0, 1), up to a constant.

    One scale for each particle (N,), or one for all (1,).
    """
    value, grad = batch.value_and_grad(theta)
    pull = theta * weights * ((scales**-2 - 1) / batch.temperature)[:, None]
    return value + (theta * pull).sum(-1) / 2, grad + pull
