"""What walks, and what it walks on.

In: a potential, the MAP and the prior's deviations.  Out: N particles at the MAP, each with its drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..energy.curvature import MAX_HESSIAN, hessian, hessian_times
from ..energy.potential import BatchedPotential

NUM_POWER_ITERATIONS = 15
MEASURED = ("curvature", "posterior_scale")  # of a Ground, when first asked for


@dataclass(frozen=True)
class Ground:
    """What particles walk on."""

    potential: BatchedPotential
    theta_star: Tensor  # (D,)
    scale: Tensor  # (D,), the prior's deviation in each coordinate
    num_steps: int  # T
    num_particles: int  # N

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the functions that it makes again."""
        return {name: value for name, value in vars(self).items() if name != "_insides"}

    def on(self, potential: BatchedPotential) -> Ground:
        """The same ground with its energy run in another way; what was measured of it is kept."""
        other = replace(self, potential=potential)
        vars(other).update({name: value for name, value in vars(self).items() if name in MEASURED})
        return other

    def widened(self, points: Tensor) -> Ground:
        """With the posterior's deviations at least those of these points (n, D), where the prior allows it.

        The curvature at the MAP misleads where the MAP is not typical: the Jacobian of a scale can put it at a large
        one, and the effects that it multiplies then seem narrow.
        """
        other = replace(self)
        vars(other).update(vars(self))
        vars(other)["posterior_scale"] = torch.maximum(
            self.posterior_scale, points.std(0).nan_to_num().minimum(self.scale)
        )
        return other

    @cached_property
    def _insides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        return {}

    def inside(self, step: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        """The potential's `inside`, made once for each step function."""
        if step not in self._insides:
            self._insides[step] = self.potential.inside(step)
        return self._insides[step]

    @cached_property
    def posterior_scale(self) -> Tensor:
        """About the posterior's deviation in each coordinate (D,), never more than the prior's.

        From the curvature at the MAP for models of up to MAX_HESSIAN coordinates; a direction without
        curvature counts as wide, so a saddle does no harm. The prior's deviation for larger ones: along
        the fiber of a network the posterior is as wide as the prior.
        """
        dim = len(self.scale)
        if dim > MAX_HESSIAN:
            return self.scale
        values, vectors = torch.linalg.eigh(
            hessian(self._fixed_potential, self.theta_star, self.scale, self.num_particles)
        )
        variance = (vectors**2 / values.clamp_min(1e-3)).sum(-1).clamp_max(1.0)
        return self.scale * variance.sqrt().to(self.scale.dtype)

    @cached_property
    def curvature(self) -> float:
        """The largest eigenvalue of the Hessian at the MAP, in posterior deviations, by power iteration.

        All particles iterate at once, each from its own start.
        """
        v = torch.randn(self.num_particles, len(self.scale), device=self.scale.device, dtype=self.scale.dtype)
        largest = v[:, 0]
        for _ in range(NUM_POWER_ITERATIONS):
            v = v / v.norm(dim=-1, keepdim=True)
            product = hessian_times(self._fixed_potential, self.theta_star, self.posterior_scale, v)
            largest = (product * v).sum(-1)
            v = product.nan_to_num() + 1e-12 * v
        return float(largest.nan_to_num().abs().max())

    @cached_property
    def _fixed_potential(self) -> BatchedPotential:
        return self.potential.fixed()


@dataclass(frozen=True)
class Particles:
    """What is carried from step to step."""

    theta: Tensor  # (N, D)
    drift: Tensor  # (N, D), unit vectors; with the padding behind for Steer
    energy: Tensor  # (N,)
    grad: Tensor  # (N, D), of the energy
    padding: Tensor  # (N, P), standard-normal coordinates that only Steer's dynamics see
    step_size: float = 0.0  # of a refiner that tunes it
    path: float = 0.0  # how far the drift has gone so far
    num_gradients: int = 0  # so far, of each particle
    alive: Tensor | None = None  # (N,), those that have not frozen; None for all

    @property
    def is_finite(self) -> Tensor:
        """Which particles (N,) can be kept."""
        return self.energy.isfinite() & self.theta.isfinite().all(-1) & self.grad.isfinite().all(-1)

    def where(self, good: Tensor, other: Particles) -> Particles:
        """These particles where `good` (N,), the others elsewhere."""
        if bool(good.all()):
            return self  # not a copy: of a large model each is as large as N networks
        row = good[:, None]
        return replace(
            self,
            theta=torch.where(row, self.theta, other.theta),
            drift=torch.where(row, self.drift, other.drift),
            energy=torch.where(good, self.energy, other.energy),
            grad=torch.where(row, self.grad, other.grad),
            padding=torch.where(row, self.padding, other.padding),
        )


def start(ground: Ground, padding: int = 0) -> Particles:
    """All particles at the MAP, each with a drift uniform on the sphere."""
    theta = ground.theta_star.expand(ground.num_particles, -1).contiguous()
    drift = torch.randn(ground.num_particles, theta.shape[1] + padding, device=theta.device, dtype=theta.dtype)
    spare = torch.randn(ground.num_particles, padding, device=theta.device, dtype=theta.dtype)
    energy, grad = ground.potential.value_and_grad(theta)
    return Particles(theta, drift / drift.norm(dim=-1, keepdim=True), energy, grad, spare)
