"""The first particles and steps of a longer walk.

In: Trajectories, N and T.  Out: Trajectories, as a walk of N particles and T steps of the same length would have left
them: particles do not know of each other, and a pull-back does not know how many steps are to come.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pyro_metricbnn.walk.trajectories import Trajectories


def prefix(walk: Trajectories, num_particles: int, num_steps: int) -> Trajectories:
    """The first N particles for T steps."""
    if num_particles > walk.num_particles or num_steps > walk.num_steps:
        raise ValueError(
            f"a walk of {walk.num_particles} particles and {walk.num_steps} steps has no part of {num_particles} and "
            f"{num_steps}: walk longer."
        )
    frozen = walk.frozen_at[:num_particles]
    return replace(
        walk,
        thetas=walk.thetas[:num_particles, : num_steps + 1],
        energies=walk.energies[:num_particles, : num_steps + 1],
        energy_errors=walk.energy_errors[:num_particles, :num_steps],
        drift_survived=walk.drift_survived[:num_particles, :num_steps],
        step_sizes=walk.step_sizes[:num_steps],
        paths=walk.paths[:num_steps],
        gradients=walk.gradients[:num_steps],
        frozen_at=torch.where(frozen > num_steps, num_steps + 1, frozen),
        positions=walk.positions[: num_steps + 1] / walk.positions[num_steps],
    )
