"""What walks, and what it walks on.

In: a potential, the MAP and the prior's deviations.  Out: N particles at the MAP, each with its drift.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from ..energy.prior_units import hessian, hessian_times, smallness
from ..ranks.share import ALONE, Share

NUM_POWER_ITERATIONS = 15
Step = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Ground:
    """What particles walk on. What is measured of it is measured when it is first asked for."""

    potential: BatchedPotential
    theta_star: Tensor  # (D,)
    scale: Tensor  # (D,), the prior's deviation in each coordinate
    num_steps: int  # T
    num_particles: int  # N, of all ranks
    measured: dict[str, Any] = field(default_factory=dict)  # curvature and posterior_scale, once they are known
    _insides: dict[Step, Step] = field(default_factory=dict)
    share: Share = ALONE  # which of the particles are walked here, and how those of other ranks are heard of

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the functions that it makes again."""
        return {**vars(self), "_insides": {}}

    def on(self, potential: BatchedPotential) -> Self:
        """The same ground with its energy run in another way; what was measured of it is kept."""
        return replace(self, potential=potential, _insides={})

    def widened(self, points: Tensor, modes: Tensor) -> Self:
        """With the posterior's deviations at least those of these points (n, D), where the prior allows it.

        The curvature at the MAP misleads where the MAP is not typical: the Jacobian of a scale can put it at a large
        one, and the effects that it multiplies then seem narrow. The way from one of the modes (n,) that particles left
        from to another is no deviation: in steps of that length they would change places.
        """
        labels = self.share.all_labels(modes)
        each = [self.share.deviation(points[modes == label]) for label in labels]
        spread = torch.stack(each).nan_to_num().amin(0)
        wider = torch.maximum(self.posterior_scale, spread.minimum(self.scale))
        return replace(self, measured={**self.measured, "posterior_scale": wider})

    def inside(self, step: Step) -> Step:
        """The potential's `inside`, made once for each step function."""
        if step not in self._insides:
            self._insides[step] = self.potential.inside(step)
        return self._insides[step]

    @property
    def posterior_scale(self) -> Tensor:
        """About the posterior's deviation in each coordinate (D,), never more than the prior's."""
        return self._once("posterior_scale", self._measure_scale)

    @property
    def curvature(self) -> float:
        """The largest eigenvalue of the Hessian at the MAP, in posterior deviations."""
        return self._once("curvature", self._measure_curvature)

    def _once(self, name: str, measure: Callable[[], Any]) -> Any:
        if name not in self.measured:
            self.measured[name] = measure()
        return self.measured[name]

    def _measure_scale(self) -> Tensor:
        """From the curvature at the MAP; a direction without curvature counts as wide, so a saddle does no harm."""
        part = smallness(len(self.scale))
        if part == 0:
            return self.scale
        curvature = hessian(self._fixed_potential, self.theta_star, self.scale, self.num_particles)
        values, vectors = torch.linalg.eigh(curvature)
        variance = (vectors**2 / values.clamp_min(1e-3)).sum(-1).clamp_max(1.0)
        return self.scale * variance.sqrt().pow(part).to(self.scale.dtype)

    def _measure_curvature(self) -> float:
        """By power iteration, all particles at once, each from its own start."""
        v = self.share.normal_like(self.scale.new_empty(len(self.share.own(self.num_particles)), len(self.scale)))
        largest = v[:, 0]
        for _ in range(NUM_POWER_ITERATIONS):
            v = v / v.norm(dim=-1, keepdim=True)
            product = hessian_times(self._fixed_potential, self.theta_star, self.posterior_scale, v)
            largest = (product * v).sum(-1)
            v = product.nan_to_num() + 1e-12 * v
        return float(self.share.gathered(largest).nan_to_num().abs().max())

    @cached_property
    def _fixed_potential(self) -> BatchedPotential:
        return self.potential.fixed()


def of_axes(*axes: str, dtype: torch.dtype | None = None) -> Any:
    """A tensor of a dataclass: its axes by name, and its type where that is not the one of all."""
    return field(metadata={"axes": axes, "dtype": dtype})


@dataclass(frozen=True, kw_only=True)
class Particles:
    """What is carried from step to step: tensors have a row for each of the N particles."""

    theta: Tensor = of_axes("N", "D")
    drift: Tensor = of_axes("N", "D + P")  # unit vectors; of Steer with P coordinates more in small models
    energy: Tensor = of_axes("N")
    grad: Tensor = of_axes("N", "D")  # of the energy
    alive: Tensor = of_axes("N", dtype=torch.bool)  # those that have not frozen
    own: Mapping[str, Tensor] = field(default_factory=dict)  # (N, ...) by name: the refiner's own state
    step_size: float = 0.0  # of a refiner that tunes it
    path: float = 0.0  # how far the drift has gone so far
    num_gradients: int = 0  # so far, of each particle

    @classmethod
    def shapes(cls, num_particles: int, dim: int, padding: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        """The shape and the type (None: theta's) of each tensor but the refiner's own, by name."""
        lengths = {"N": num_particles, "D": dim, "D + P": dim + padding}
        carry = [(one.name, one.metadata) for one in fields(cls) if "axes" in one.metadata]
        return {name: (tuple(lengths[axis] for axis in of["axes"]), of["dtype"]) for name, of in carry}

    @property
    def is_finite(self) -> Tensor:
        """Which particles (N,) can be kept."""
        # One pass over (N, D), where isfinite().all() takes five.
        ends = (end for of in (self.theta, self.grad) for end in of.aminmax(dim=-1))
        return torch.stack([self.energy, *(end.to(self.energy.dtype) for end in ends)]).isfinite().all(0)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All but the refiner's own, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if "axes" in one.metadata}

    def where(self, good: Tensor, other: Self) -> Self:
        """These particles where `good` (N,), the others elsewhere."""
        if bool(good.all()):
            return self  # not a copy: of a large model each is as large as N networks

        def chosen(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Any]:
            rows = {name: good.reshape(-1, *[1] * (value.dim() - 1)) for name, value in mine.items()}
            return {name: torch.where(rows[name], value, theirs[name]) for name, value in mine.items()}

        return replace(self, **chosen(self.tensors, other.tensors), own=chosen(self.own, other.own))
