"""The record of a walk while it is walked.

In: particles, point after point.  Out: `Trajectories` of what has been walked so far; or its state, for a checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..files.storage import Content
from ..model.sites import Sites
from ..refiners.state import Particles
from .trajectories import AXES, DTYPES, Trajectories, axis_lengths, read_arrays, so_far


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
        self.sites, self.spacing, self.approach, self.length = sites, spacing, approach, 0
        self._lengths = axis_lengths(len(energy), num_steps, len(theta_star))
        sizes = {name: [self._lengths[axis] for axis in axes] for name, axes in AXES.items() if name != "positions"}
        self.arrays = {
            name: energy.new_empty(size, dtype=DTYPES[name]) for name, size in sizes.items() if size[2:] == []
        }
        where = {"dtype": dtype or theta_star.dtype, "device": device or theta_star.device}
        self.arrays["thetas"] = torch.empty(sizes["thetas"], **where)
        self.arrays["thetas"][:, 0], self.arrays["energies"][:, 0] = theta_star, energy
        self.arrays["frozen_at"].fill_(num_steps + 1)

    def record(self, particles: Particles, error: Tensor, survived: Tensor) -> None:
        """The next point of each particle."""
        self.arrays["thetas"][:, self.length + 1] = particles.theta.to(self.arrays["thetas"])
        self.arrays["energies"][:, self.length + 1] = particles.energy
        steps = {"energy_errors": error, "drift_survived": survived, "gradients": particles.num_gradients}
        steps |= {"step_sizes": particles.step_size, "paths": particles.path}
        for name, value in steps.items():
            self.arrays[name][..., self.length] = value
        self.length += 1
        frozen_at = self.arrays["frozen_at"]
        self.arrays["frozen_at"] = torch.where(particles.alive, frozen_at, frozen_at.clamp_max(self.length))

    def trajectories(self) -> Trajectories:
        """What has been walked so far."""
        arrays, energies = so_far(self.arrays, self.length), self.arrays["energies"]
        arrays["frozen_at"] = torch.where(arrays["frozen_at"] > self.length, self.length + 1, arrays["frozen_at"])
        path = self.approach + self.spacing * torch.arange(self.length + 1, device=energies.device)
        path[0] = 0.0
        positions = (path / path[-1].clamp_min(1e-30)).to(energies.dtype)
        return Trajectories(**arrays, positions=positions, sites=self.sites, spacing=self.spacing)

    def state(self) -> dict[str, Tensor]:
        """What is there so far, for a checkpoint."""
        return so_far(self.arrays, self.length)

    def restore(self, state: Content, length: int) -> None:
        """Go on behind `length` steps of such a state."""
        self.length = length
        lengths = {**self._lengths, "T": length, "T + 1": length + 1}
        for name, value in read_arrays(state, lengths, self.arrays).items():
            so_far({name: self.arrays[name]}, length)[name].copy_(value)
