"""The step size of `Steer`: from the curvature at the MAP, then after the energy error.

In: a Ground, particles and their squared energy errors (N,).  Out: a step, and how far the errors are from the aim.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..energy.prior_units import by_size
from .state import Ground, Particles

MIN_DIM = 8  # Steer's dynamics degenerate in few dimensions (D - 1 = 0 at D = 1): smaller models are padded
MAX_ERROR = 100.0  # squared, of a step's energy: a walk on 8,513 weights has a training NLL of .15, without it .21
DEEP = 5e5  # in all and times D, from 5,000 coordinates on: at 16,833 a training NLL of .112, without it .124
HOT, WORST = 4.0, 100.0  # times the squared error aimed at, of a tenth of the particles and of any one
TUNING_GAIN = 0.3  # of the way to the step that the last error asks for


@dataclass(frozen=True)
class StepSize:
    """How a step is found; the knobs are those of `Steer`."""

    effort: float
    error: float | None
    fixed: float | None

    def tunes(self, ground: Ground) -> bool:
        """Whether the step follows the error; a batch's noise is no error of the step."""
        return self.fixed is None and not ground.potential.is_noisy

    def first(self, ground: Ground) -> float:
        """Half of what the curvature at the MAP allows."""
        return 0.5 * math.sqrt(walked_dim(ground) / max(1.0, ground.curvature) / self.effort)

    def expected(self, ground: Ground) -> float:
        """About what a walk will have."""
        if not self.tunes(ground):
            return self.fixed or self.first(ground)
        return math.sqrt(self.first(ground) * self.largest(ground))

    def least(self, ground: Ground) -> float:
        """A step below which the walk would not come anywhere."""
        return self.first(ground) / by_size(len(ground.scale), lambda: 50.0, lambda: 1000.0)

    def largest(self, ground: Ground) -> float:
        """One and a half times what the curvature at the MAP allows: a network's energy mostly gets sharper from there.

        A small hierarchical model's MAP can be the sharpest place of all, the neck of a funnel.
        """
        dim = walked_dim(ground)
        return by_size(dim, lambda: 0.5 * math.sqrt(dim / self.effort), lambda: 3 * self.first(ground))

    def heat(self, ground: Ground, particles: Particles, squares: Tensor) -> float:
        """How far the errors are from the aim: above 1, too far."""
        times = self._times(ground, particles, squares)
        return float(torch.maximum(_ninth_tenth(times) / HOT, times.max() / WORST)) if len(times) else 0.0

    def tuned(self, ground: Ground, particles: Particles, squares: Tensor) -> float:
        """A step nearer to the aim: on smooth energies the squared error grows with its sixth power (Robnik et al.)."""
        times = self._times(ground, particles, squares)
        seen = float(_ninth_tenth(times)) if len(times) else 1.0
        factor = max(seen, 1e-3) ** (-1 / 6) if math.isfinite(seen) else 0.5
        return min(max(particles.step_size * factor**TUNING_GAIN, self.least(ground)), self.largest(ground))

    def _times(self, ground: Ground, particles: Particles, squares: Tensor) -> Tensor:
        """Squared errors in units of what is aimed at, of the live particles; inf where an energy is not finite."""
        dim = walked_dim(ground)
        aim = (self.error or cold_aim(dim)) / self.effort**1.25
        times = (squares / dim / aim).nan_to_num(nan=math.inf, posinf=math.inf)
        times = ground.share.gathered(torch.where(particles.alive, times, math.nan))
        return times[~times.isnan()]


def cold_aim(dim: int) -> float:
    """For the squared error of a step per dimension: small for a small model, a constant in all for a large one, and
    less for a very large one."""
    return min(max(5e-5 * dim, 5e-4), 0.05, MAX_ERROR / dim, DEEP / dim**2)


def walked_dim(ground: Ground) -> int:
    """D, with the padding of small models."""
    return max(MIN_DIM, len(ground.scale))


def _ninth_tenth(times: Tensor) -> Tensor:
    """The 0.9 quantile; of infinite numbers, too, between which torch's is not a number."""
    return times.quantile(0.9).nan_to_num(nan=math.inf, posinf=math.inf)
