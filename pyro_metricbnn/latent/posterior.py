"""The posterior: uniform on the latent segments, pushed through the decoder (paper, section 4.2).

In: a fitted LatentMap, or Trajectories.  Out: distributions of theta with event shape (D,).

Curves have no volume and so no density. A tube of normal noise around the polyline through G points of each has one: a
sum over the pieces of closed forms, a normal across a piece and a difference of normal CDFs along it.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, Self

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ..runtime.arguments import as_tensor, check_device, check_type
from ..runtime.threads import settle_after_fork
from ..walk.trajectories import Trajectories
from .latent_map import LatentMap, usable
from .tube import TUBE

Refinement = Callable[[Tensor], Tensor]
NUM_PIECES = 200  # of a segment, for the density


class TubePosterior(TorchDistribution):
    """Uniform on N curves, with normal noise of deviation `tube_scale`, () or (D,), around them."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = True
    knots: Tensor  # points of the polylines, evenly spread in probability: (N, G + 1, D)

    def __init__(self, like: Tensor, tube_scale: float | Tensor) -> None:
        self.tube_scale = as_tensor("tube_scale", tube_scale, like)
        if self.tube_scale.shape not in ((), like.shape):
            shape, dim = tuple(self.tube_scale.shape), len(like)
            raise ValueError(f"tube_scale has shape {shape}: pass a number, or one for each of the {dim} coordinates.")
        if not bool(((self.tube_scale >= 0) & self.tube_scale.isfinite()).all()):
            raise ValueError(f"tube_scale must be finite and not negative, got {tube_scale}.")
        self._has_noise = bool(self.tube_scale.any())  # here, so that a traced draw need not look at values
        super().__init__(torch.Size(), like.shape, validate_args=False)

    def points(self, num_points: int) -> Tensor:
        """Random points of the curves, without the noise: (S, D)."""
        raise NotImplementedError

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> Self:
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._batch_shape = torch.Size(batch_shape)
        return new

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        settle_after_fork()
        shape = self._extended_shape(torch.Size(sample_shape))
        theta = self.points(math.prod(shape[:-1]))
        if self._has_noise:
            theta = torch.randn_like(theta).mul_(self.tube_scale).add_(theta)  # of large draws no third copy
        return theta.reshape(shape)

    @property
    def mean(self) -> Tensor:
        middle = (self.knots[:, 1:] + self.knots[:, :-1]) / 2
        return middle.mean((0, 1)).expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        center = self.mean[(0,) * len(self.batch_shape)]
        a, b = self.knots[:, :-1] - center, self.knots[:, 1:] - center
        spread = ((a**2 + a * b + b**2) / 3).mean((0, 1)) + self.tube_scale**2
        return spread.expand(self.batch_shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        if not bool(self.tube_scale.all()):
            why = "segments have no density: curves have no volume"
            raise ValueError(f"{why}. Take tube_scale=None for a narrow tube around them, or a positive number.")
        check_device("the value", value, self.tube_scale.device, "the posterior is")
        if value.shape[-1:] != self.event_shape:
            raise ValueError(f"the value has shape {tuple(value.shape)}, but must end in {tuple(self.event_shape)}.")
        flat = value.reshape(-1, value.shape[-1]).double()
        log_density = torch.cat([self._log_density(rows) for rows in flat.split(64)])
        return log_density.reshape(value.shape[:-1]).to(value.dtype)

    def _log_density(self, theta: Tensor) -> Tensor:
        """(S, D) -> (S,): the average over the pieces of the tube's density around each, in units of the tube."""
        start, step, length, compute_mode = self._pieces
        scale = self.tube_scale.double().expand(theta.shape[-1])
        theta = theta / scale
        along = theta @ step.mT - (start * step).sum(-1)  # (S, pieces), signed distance from the piece's start
        across = (torch.cdist(theta, start, compute_mode=compute_mode) ** 2 - along**2).clamp_min(0)
        log_along = _log_cdf_difference(along - length, along) - length.log()
        log_across = -across / 2 - (theta.shape[-1] - 1) * 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(log_along + log_across, -1) - math.log(len(start)) - scale.log().sum()

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor, Tensor, str]:
        """Starts and directions (P, D), lengths (P,) of all pieces in units of the tube; how to take distances."""
        knots = self.knots.double() / self.tube_scale.double()
        start, step = knots[:, :-1].flatten(0, 1), knots.diff(dim=1).flatten(0, 1)
        length = step.norm(dim=-1).clamp_min(1e-12)
        # Matrix products are ten times as fast, but in a narrow tube they lose the digits that count.
        rounding = float(start.pow(2).sum(-1).max()) * torch.finfo(torch.float64).eps
        mode = "use_mm_for_euclid_dist" if rounding < 1e-3 else "donot_use_mm_for_euclid_dist"
        return start, step / length[:, None], length, mode


def _log_cdf_difference(low: Tensor, high: Tensor) -> Tensor:
    """log(Phi(high) - Phi(low)), in the tail where both are small."""
    flip = low > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    top, bottom = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    return top + torch.log(-torch.expm1((bottom - top).clamp_max(-1e-300)))


class MetricPosterior(TubePosterior):
    """A segment drawn uniformly, a position on it drawn uniformly, decoded.

    Args:
        latent_map: A fitted map.
        tube_scale: s, the deviation of the noise around the curves, one number or one for each coordinate; None for a
            2000th of the spread of each; 0 for none, which has no density. `MetricBNN` takes less where the energy
            would feel that.
        refine: Gives draws (S, D) back nearer to the fiber, as `DriftRefineKernel.relax` does; they have no density.

    Example:
        >>> posterior = MetricPosterior(KernelMap().fit(walk))
        >>> posterior.sample((5,)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self, latent_map: LatentMap, tube_scale: float | Tensor | None = None, refine: Refinement | None = None
    ) -> None:
        check_type("latent_map", latent_map, LatentMap, "a fitted LatentMap, as KernelMap().fit(trajectories) is")
        if not latent_map.is_fitted:
            raise ValueError("the latent map has not been fitted: call fit(trajectories) first.")
        self.latent_map, self.refine = latent_map, refine
        if tube_scale is None:
            tube_scale = (TUBE * latent_map.spreads).clamp_min(1e-12)
        super().__init__(latent_map.theta_star, tube_scale)

    def __repr__(self) -> str:
        return f"MetricPosterior({self.latent_map.num_segments} segments, {self.event_shape[0]} coordinates)"

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        theta = super().rsample(sample_shape)
        return theta if self.refine is None else self.refine(theta.reshape(-1, theta.shape[-1])).reshape(theta.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        if self.refine is not None:
            raise ValueError("draws that were refined have no known density: ask a posterior without `refine` for it.")
        return super().log_prob(value)

    def points(self, num_points: int) -> Tensor:
        latent, star = self.latent_map, self.latent_map.theta_star
        segment = torch.randint(latent.num_segments, (num_points,), device=star.device)
        uniform = torch.rand(num_points, device=star.device, dtype=star.dtype)
        return latent.decode_on(segment, latent.start + (1 - latent.start) * uniform)

    @cached_property
    def knots(self) -> Tensor:  # type: ignore[override]
        latent, star = self.latent_map, self.latent_map.theta_star
        positions = torch.linspace(latent.start, 1, NUM_PIECES + 1, device=star.device, dtype=star.dtype)
        segments = torch.arange(latent.num_segments, device=star.device)
        return torch.stack([latent.decode_on(i.expand(len(positions)), positions) for i in segments])


class TrajectoryPosterior(TubePosterior):
    """The walk's own points, and the straight lines between them.

    Args:
        trajectories: A walk.
        tube_scale: s, the deviation of the noise around the lines; 0 has no density.

    Example:
        >>> TrajectoryPosterior(walk).sample((5,)).shape
        torch.Size([5, 3])
    """

    def __init__(self, trajectories: Trajectories, tube_scale: float | Tensor = 0.0) -> None:
        self.knots = usable(trajectories)[:, 1:].to(trajectories.sites.dtype)  # (N, T, D)
        if self.knots.shape[1] < 2:
            raise ValueError("a walk of one recorded point has no line to draw from; walk at least two.")
        super().__init__(self.knots[0, 0], tube_scale)

    def __repr__(self) -> str:
        return f"TrajectoryPosterior({len(self.knots)} walks, {self.event_shape[0]} coordinates)"

    def points(self, num_points: int) -> Tensor:
        steps = self.knots.shape[1] - 1
        walk = torch.randint(len(self.knots), (num_points,), device=self.knots.device)
        place = torch.rand(num_points, device=self.knots.device, dtype=self.knots.dtype) * steps
        left = place.floor().long().clamp_max(steps - 1)
        part = (place - left)[:, None]
        return (1 - part) * self.knots[walk, left] + part * self.knots[walk, left + 1]
