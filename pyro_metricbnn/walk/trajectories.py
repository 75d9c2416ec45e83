"""The record of a walk.

In: what a kernel walked.  Out: thetas (N, T + 1, D), their energies, and samples by site.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..files.storage import Content
from ..model.sites import Sites
from ..refiners.state import Particles
from ..runtime.arguments import check_count, check_tensor, check_type, real_device


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """N walks of T recorded steps, all from the MAP.

    Args:
        thetas: (N, T + 1, D), unconstrained; the first point of each is the MAP.
        energies: (N, T + 1), the potential energy at each point.
        energy_errors: (N, T), what the integrator got wrong on the way to each point (root mean square of
            its steps), or the energy that refinement did not take back.
        drift_survived: (N, T), the part of the drift that was left of each step: 1 is straight on.
        step_sizes: (T,), of a refiner that tunes its own.
        frozen_at: (N,), the step at which a particle's energy was no longer finite; T + 1 for never. From
            there on its row repeats the last good point.
        paths: (T,), how far the drift had gone at each point, in the refiner's units.
        gradients: (T,), how many each particle had taken by then.
        positions: (T + 1,), where each point is among all, from 0 at the MAP to 1 at the end: evenly, whatever the
            lengths. The first step is longer where the walk left the MAP before the record began.
        sites: Where each latent site is in theta.
        spacing: How far the drift was to go between two points.

    Example:
        >>> walk.thetas.shape
        torch.Size([4, 11, 3])
        >>> walk.samples()["weight"].shape
        torch.Size([40, 1, 2])
    """

    thetas: Tensor
    energies: Tensor
    energy_errors: Tensor
    drift_survived: Tensor
    step_sizes: Tensor
    paths: Tensor
    gradients: Tensor
    frozen_at: Tensor
    positions: Tensor
    sites: Sites
    spacing: float

    def __post_init__(self) -> None:
        check_type("sites", self.sites, Sites, "the sites of a model, as BatchedPotential(model, x, y).sites are")
        for name, value in vars(self).items():
            if name not in ("sites", "spacing"):
                check_tensor(name, value)
        if self.thetas.dim() != 3 or self.thetas.shape[2] != self.sites.dim:
            raise ValueError(
                f"thetas has shape {tuple(self.thetas.shape)}, but must be (N, T + 1, {self.sites.dim}): walks, "
                "points, coordinates of the model."
            )
        walks, steps = self.num_particles, self.num_steps
        shapes: dict[str, tuple[int, ...]] = {"energies": (walks, steps + 1), "energy_errors": (walks, steps)}
        shapes |= {"drift_survived": (walks, steps), "step_sizes": (steps,), "paths": (steps,), "gradients": (steps,)}
        shapes |= {"frozen_at": (walks,), "positions": (steps + 1,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {tuple(getattr(self, name).shape)}, but thetas ask for {shape}.")

    @property
    def num_particles(self) -> int:
        """N."""
        return self.thetas.shape[0]

    @property
    def num_steps(self) -> int:
        """T."""
        return self.thetas.shape[1] - 1

    @property
    def theta_star(self) -> Tensor:
        """The MAP (D,)."""
        return self.thetas[0, 0]

    @property
    def is_good(self) -> Tensor:
        """Which of the T points after the MAP (N, T) were reached with a finite energy."""
        steps = torch.arange(1, self.num_steps + 1, device=self.frozen_at.device)
        return steps < self.frozen_at[:, None]

    def samples(self, group_by_chain: bool = False) -> dict[str, Tensor]:
        """The points after the MAP by site, constrained.

        Args:
            group_by_chain: (N, T, ...) a site, without the particles that froze; else (N T, ...), without
                the points at which one stood frozen.
        """
        points = self.thetas[:, 1:]
        if group_by_chain:
            points = points[self.is_good.all(-1).to(points.device)]
        else:
            points = points[self.is_good.to(points.device)]
        return self.sites.unflatten(points.to(self.sites.dtype))

    def thinned(self, every: int) -> Trajectories:
        """Every `every`-th point, and the MAP."""
        check_count("every", every, "it counts points.")
        if every > self.num_steps:
            raise ValueError(
                f"every must be at most {self.num_steps}, the steps of the walk, got {every}: none is left."
            )
        last = range(every, self.num_steps + 1, every)
        points = torch.tensor([0, *last], device="cpu")
        steps = points[1:] - 1
        frozen = (self.frozen_at + every - 1) // every
        frozen = torch.where(self.frozen_at > self.num_steps, len(steps) + 1, frozen)
        return replace(
            self,
            thetas=self.thetas[:, points.to(self.thetas.device)],
            energies=self.energies[:, points.to(self.energies.device)],
            energy_errors=self.energy_errors[:, steps.to(self.energy_errors.device)],
            drift_survived=self.drift_survived[:, steps.to(self.drift_survived.device)],
            step_sizes=self.step_sizes[steps.to(self.step_sizes.device)],
            paths=self.paths[steps.to(self.paths.device)],
            gradients=self.gradients[steps.to(self.gradients.device)],
            frozen_at=frozen,
            positions=self.positions[points.to(self.positions.device)],
            spacing=self.spacing * every,
        )

    def state(self) -> dict[str, Any]:
        """All but the sites, in plain values, for `storage`."""
        return {name: value for name, value in vars(self).items() if name != "sites"}

    @classmethod
    def restored(cls, state: Content, sites: Sites) -> Trajectories:
        """The record of such a state, for a model of these sites."""
        thetas = state.tensor("thetas", None, None, sites.dim)
        num_particles, num_points = thetas.shape[:2]
        if num_particles < 1 or num_points < 2:
            raise state.wrong("thetas", "of at least one particle and one step")
        walks = (num_particles, num_points - 1)
        positions = state.tensor("positions", num_points)
        if not bool((positions.diff() > 0).all()):
            raise state.wrong("positions", "rising from point to point")
        return cls(
            thetas=thetas,
            energies=state.tensor("energies", num_particles, num_points),
            energy_errors=state.tensor("energy_errors", *walks),
            drift_survived=state.tensor("drift_survived", *walks),
            step_sizes=state.tensor("step_sizes", num_points - 1),
            paths=state.tensor("paths", num_points - 1),
            gradients=state.tensor("gradients", num_points - 1, dtype=torch.int64),
            frozen_at=state.tensor("frozen_at", num_particles, dtype=torch.int64),
            positions=positions,
            sites=sites,
            spacing=state.value("spacing", float),
        )

    def stored(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Trajectories:
        """The same record with its thetas in another precision or on another device, for large D."""
        check_storage(dtype, device)
        return replace(self, thetas=self.thetas.to(dtype=dtype, device=device))


def check_storage(
    dtype: torch.dtype | None, device: torch.device | str | None, names: tuple[str, str] = ("dtype", "device")
) -> None:
    """Refuse a precision or a place that cannot hold a record."""
    if dtype is not None:
        check_type(names[0], dtype, torch.dtype, "a torch.dtype, such as torch.float16")
        if not dtype.is_floating_point:
            raise ValueError(f"{names[0]} is {dtype}, which cuts off fractions: pass a real one, as torch.float16.")
    if device is not None:
        real_device(names[1], device)


class Recorder:
    """Fills the arrays of a walk as it goes; what is there so far can be read at any time."""

    def __init__(
        self,
        sites: Sites,
        theta_star: Tensor,
        energy: Tensor,
        num_steps: int,
        spacing: float,
        approach: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        num_particles = len(energy)
        self.sites, self.spacing, self.approach, self.length = sites, spacing, approach, 0
        self.thetas = torch.empty(
            num_particles,
            num_steps + 1,
            len(theta_star),
            dtype=dtype or theta_star.dtype,
            device=device or theta_star.device,
        )
        self.thetas[:, 0] = theta_star
        self.energies = energy.new_empty(num_particles, num_steps + 1)
        self.energies[:, 0] = energy
        self.energy_errors = energy.new_empty(num_particles, num_steps)
        self.drift_survived = energy.new_empty(num_particles, num_steps)
        self.step_sizes, self.paths = energy.new_empty(num_steps), energy.new_empty(num_steps)
        self.gradients = torch.zeros(num_steps, dtype=torch.int64, device=energy.device)
        self.frozen_at = torch.full((num_particles,), num_steps + 1, device=energy.device)

    def record(self, particles: Particles, error: Tensor, survived: Tensor, good: Tensor) -> None:
        """The next point of each particle; those not `good` (N,) stand frozen."""
        step = self.length
        self.thetas[:, step + 1] = particles.theta.to(self.thetas)
        self.energies[:, step + 1] = particles.energy
        self.energy_errors[:, step] = error
        self.drift_survived[:, step] = survived
        self.step_sizes[step], self.paths[step] = particles.step_size, particles.path
        self.gradients[step] = particles.num_gradients
        self.length += 1
        self.frozen_at = torch.where(good, self.frozen_at, self.frozen_at.clamp_max(self.length))

    def trajectories(self) -> Trajectories:
        """What has been walked so far."""
        length = self.length
        never = self.frozen_at > length
        path = self.approach + self.spacing * torch.arange(length + 1, device=self.energies.device)
        path[0] = 0.0
        return Trajectories(
            thetas=self.thetas[:, : length + 1],
            energies=self.energies[:, : length + 1],
            energy_errors=self.energy_errors[:, :length],
            drift_survived=self.drift_survived[:, :length],
            step_sizes=self.step_sizes[:length],
            paths=self.paths[:length],
            gradients=self.gradients[:length],
            frozen_at=torch.where(never, length + 1, self.frozen_at),
            positions=(path / path[-1].clamp_min(1e-30)).to(self.energies.dtype),
            sites=self.sites,
            spacing=self.spacing,
        )

    def state(self) -> dict[str, Any]:
        """What is there so far, in plain values, for `storage`."""
        points, steps = self.length + 1, self.length
        return {
            "thetas": self.thetas[:, :points],
            "energies": self.energies[:, :points],
            "energy_errors": self.energy_errors[:, :steps],
            "drift_survived": self.drift_survived[:, :steps],
            "step_sizes": self.step_sizes[:steps],
            "paths": self.paths[:steps],
            "gradients": self.gradients[:steps],
            "frozen_at": self.frozen_at,
        }

    def restore(self, state: Content, length: int) -> None:
        """Go on behind `length` steps of such a state."""
        self.length = length
        for name in ("thetas", "energies", "energy_errors", "drift_survived"):
            array = getattr(self, name)
            filled = length + 1 if name in ("thetas", "energies") else length
            array[:, :filled] = state.tensor(name, len(array), filled, *array.shape[2:], dtype=array.dtype)
        for name in ("step_sizes", "paths", "gradients"):
            array = getattr(self, name)
            array[:length] = state.tensor(name, length, dtype=array.dtype)
        self.frozen_at = state.tensor("frozen_at", len(self.thetas), dtype=torch.int64).to(self.frozen_at.device)
