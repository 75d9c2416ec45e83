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

from .potential import BatchedPotential

NUM_POWER_ITERATIONS = 15


@dataclass(frozen=True)
class Ground:
    """What particles walk on."""

    potential: BatchedPotential
    theta_star: Tensor  # (D,)
    scale: Tensor  # (D,), the prior's deviation in each coordinate
    num_steps: int  # T
    num_particles: int  # N

    @cached_property
    def _insides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        return {}

    def inside(self, step: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        """The potential's `inside`, made once for each step function."""
        if step not in self._insides:
            self._insides[step] = self.potential.inside(step)
        return self._insides[step]

    @cached_property
    def curvature(self) -> float:
        """The largest eigenvalue of the Hessian at the MAP, in prior deviations, by power iteration.

        Hessian products are differences of gradients; all particles iterate at once, each from its own start.
        """
        center = self.theta_star.expand(self.num_particles, -1).contiguous()
        base = self.potential.grad(center)
        width = torch.finfo(center.dtype).eps ** (1 / 3)
        v, largest = torch.randn_like(center), center.new_zeros(self.num_particles)
        for _ in range(NUM_POWER_ITERATIONS):
            v = v / v.norm(dim=-1, keepdim=True)
            product = (self.potential.grad(center + width * self.scale * v) - base) * self.scale / width
            largest = (product * v).sum(-1)
            v = product.nan_to_num() + 1e-12 * v
        return float(largest.nan_to_num().abs().max())


@dataclass(frozen=True)
class Particles:
    """What is carried from step to step."""

    theta: Tensor  # (N, D)
    drift: Tensor  # (N, D), unit vectors; with the padding behind for Steer
    energy: Tensor  # (N,)
    grad: Tensor  # (N, D), of the energy
    padding: Tensor  # (N, P), standard-normal coordinates that only Steer's dynamics see
    step_size: float = 0.0  # of a refiner that tunes it

    @property
    def is_finite(self) -> Tensor:
        """Which particles (N,) can be kept."""
        return self.energy.isfinite() & self.theta.isfinite().all(-1) & self.grad.isfinite().all(-1)

    def where(self, good: Tensor, other: Particles) -> Particles:
        """These particles where `good` (N,), the others elsewhere."""
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
