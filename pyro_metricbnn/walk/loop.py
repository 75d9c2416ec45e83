"""Walk N particles from the MAP for T steps.

In: a Ground and a refiner.  Out: Trajectories; and a checkpoint on the way, where one is wanted.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles, start
from .checkpoint import Checkpoint, NewRecord, WalkState
from .trajectories import Recorder, Trajectories

FEWEST = 4  # points of each particle for a posterior with all that belongs to it: R-hat splits them into halves of two


def checked(particles: Particles) -> Particles:
    """The particles, if they can leave the MAP."""
    if not bool(particles.is_finite.all()):
        raise ValueError(
            f"the energy at the MAP is {float(particles.energy[0])}, or its gradient is not finite: no particle "
            "can leave it. Check the data and the initial values, or train the network again."
        )
    return particles


def new_record(
    refiner: Refiner,
    thin: int,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    ground: Ground,
    energy: Tensor,
) -> Recorder:
    """The record of a walk on this ground, with the energy (N,) at the MAP."""
    num_points, spacing = ground.num_steps // thin, refiner.reach(ground) * thin
    approach = refiner.approach_length(ground)
    return Recorder(ground.potential.sites, ground.theta_star, energy, num_points, spacing, approach, dtype, device)


def leave(ground: Ground, refiner: Refiner, make_record: NewRecord) -> tuple[Ground, WalkState]:
    """All particles where the record begins, and the ground with what was learned of it on the way there."""
    particles = checked(start(ground, refiner.padding(len(ground.scale))))
    record = make_record(ground, particles.energy)
    alive = torch.ones_like(particles.energy, dtype=torch.bool)
    ground, particles = refiner.approach(ground, particles)
    return ground, WalkState(particles, alive, record)


def go_on(
    ground: Ground, refiner: Refiner, state: WalkState, thin: int, checkpoint: Checkpoint | None, progress: bool
) -> Trajectories:
    """The steps that are left; a particle whose energy is not finite stays where it last was sound.

    Ctrl-C ends the walk with the points that it has. (Waiting for the end of the step would leave the interruption
    without an answer for as long as a step takes: minutes, for a large network.)
    """
    said = {"desc": "walk (resumed)" if state.resumed else "walk", "unit": " steps", "disable": not progress}
    with tqdm(total=ground.num_steps, initial=state.step, **said) as bar:
        try:
            while state.step < ground.num_steps:
                if checkpoint is not None:
                    checkpoint.write(ground, state)
                _advance(ground, refiner, state, thin)
                bar.update()
                if progress:
                    energy, alive = float(state.particles.energy.mean()), int(state.alive.sum())
                    bar.set_postfix(energy=f"{energy:.1f}", alive=alive, refresh=False)
            if checkpoint is not None:
                checkpoint.write(ground, state, now=True)
        except KeyboardInterrupt:
            state.record.length = state.step // thin  # a point that was half recorded does not count
            if checkpoint is not None:
                checkpoint.write(ground, state, now=True)
            if state.record.length < FEWEST:
                raise
            _say_interrupted(state.record.length, ground.num_steps // thin, checkpoint)
    if not bool(state.alive.all()):
        lost = int((~state.alive).sum())
        warnings.warn(
            f"{lost} of {len(state.alive)} particles came to an energy that is not finite and stand frozen at their "
            "last good point; their later points are left out of the samples. Take a smaller step: eta for Descent, "
            "error for Steer.",
            stacklevel=3,
        )
    return state.record.trajectories()


def _say_interrupted(length: int, num_points: int, checkpoint: Checkpoint | None) -> None:
    to_go_on = (
        "The same call with checkpoint=path would go on where it was interrupted"
        if checkpoint is None
        else f"The same call goes on from {checkpoint.path} to the whole walk"
    )
    warnings.warn(
        f"the walk was interrupted: it has {length} of {num_points} points of each particle, and these are kept and "
        f"used. {to_go_on}. A second interruption, in what follows, goes through.",
        stacklevel=4,
    )


def _advance(ground: Ground, refiner: Refiner, state: WalkState, thin: int) -> None:
    """One step. The state changes at its end and all at once: an interruption before leaves it as it was."""
    before = replace(state.particles, alive=state.alive)
    moved, error = refiner.advance(ground, before)
    if moved.path <= before.path:  # a refiner that does not say
        moved = replace(moved, path=before.path + refiner.reach(ground))
    alive = state.alive & moved.is_finite
    moved = replace(moved.where(alive, before), alive=None)
    if (state.step + 1) % thin == 0:
        state.record.record(moved, error, _survived(ground, refiner, before, moved), alive)
    state.particles, state.alive, state.step = moved, alive, state.step + 1


def _survived(ground: Ground, refiner: Refiner, before: Particles, after: Particles) -> Tensor:
    """The part of the drift that is left of a step (N,)."""
    moved = (after.theta - before.theta) / refiner.units(ground)
    return (moved * before.drift[:, : moved.shape[1]]).sum(-1) / (after.path - before.path)
