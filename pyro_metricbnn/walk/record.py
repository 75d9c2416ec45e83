"""The record of a walk while it is walked.

In: the energies (N,) at the MAP, then particles, point after point.  Out: `Trajectories` of what was walked so far.
"""

from typing import Any

import torch
from torch import Tensor

from ..files.storage import Content
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles
from .options import WalkOptions
from .trajectories import AXES, DTYPES, Trajectories, axis_lengths, read_arrays, so_far


class Recorder:
    """Fills the arrays of a walk as it goes; what is there so far can be read at any time."""

    def __init__(self, ground: Ground, refiner: Refiner, energy: Tensor, options: WalkOptions) -> None:
        self.sites, theta_star, self.length = ground.potential.sites, ground.theta_star, 0
        self.spacing, self.approach = refiner.reach(ground) * options.thin, refiner.approach_length(ground)
        num_steps = ground.num_steps // options.thin
        self._lengths = axis_lengths(len(energy), num_steps, len(theta_star))
        sizes = {name: [self._lengths[axis] for axis in axes] for name, axes in AXES.items() if name != "positions"}
        dtype, device = options.storage_dtype or theta_star.dtype, options.storage_device or theta_star.device
        self.arrays = {"thetas": torch.empty(sizes.pop("thetas"), dtype=dtype, device=device)}
        self.arrays |= {name: energy.new_empty(size, dtype=DTYPES[name]) for name, size in sizes.items()}
        self.arrays["thetas"][:, 0], self.arrays["energies"][:, 0] = theta_star, energy
        self.arrays["frozen_at"].fill_(num_steps + 1)

    def record(self, particles: Particles, error: Tensor, survived: Tensor) -> None:
        """The next point of each particle."""
        self.arrays["thetas"][:, self.length + 1] = particles.theta.to(self.arrays["thetas"])
        self.arrays["energies"][:, self.length + 1] = particles.energy
        steps: dict[str, Any] = {
            "energy_errors": error,
            "drift_survived": survived,
            "gradients": particles.num_gradients,
        }
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

    def state(self) -> dict[str, Any]:
        """What is there so far, for a checkpoint."""
        return so_far(self.arrays, self.length)

    def restore(self, state: Content, length: int) -> None:
        """Go on behind `length` steps of such a state."""
        self.length = length
        lengths = {**self._lengths, "T": length, "T + 1": length + 1}
        for name, value in read_arrays(state, lengths, self.arrays).items():
            so_far({name: self.arrays[name]}, length)[name].copy_(value)
