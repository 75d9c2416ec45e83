"""Walk N particles from the MAP for T steps.

In: a Ground and a refiner.  Out: Trajectories; and a checkpoint on the way, where one is wanted.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..energy.inspection import not_finite
from ..ranks.faults import held_back
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles
from ..runtime.arguments import check_count, check_device
from ..runtime.progress import progress_bar, warn
from .checkpoint import Checkpoint, WalkState
from .options import WalkOptions
from .record import Recorder
from .trajectories import Trajectories

FEWEST = 4  # points of each particle for a posterior with all that belongs to it: R-hat splits them into halves of two


def at_the_map(ground: Ground, refiner: Refiner) -> Particles:
    """All particles at the MAP, or at the points to leave from, if they can leave them."""
    here = ground.share.own(ground.num_particles)
    theta = ground.theta_star.expand(len(here), -1).contiguous()
    if "thetas" in ground.measured:
        points = ground.measured.pop("thetas")
        shares = [share for _, share in ground.measured["modes"]] or [1 / len(points)] * len(points)
        theta = points[_shared_out(shares, ground.num_particles)[here.start : here.stop]]
    particles = refiner.start(ground, theta)
    if not bool(particles.is_finite.all()):
        given = {f"argument {i}": value for i, value in enumerate(ground.potential.args) if torch.is_tensor(value)}
        advice = "Check the data and the initial values, or train the network again."
        if wrong := not_finite(given):
            advice = f"Of its data, {wrong}: drop or impute those rows."
        raise ValueError(
            f"the energy at the MAP is {float(particles.energy[0])}, or its gradient is not finite: no particle "
            f"can leave it. {advice}"
        )
    return particles


def _shared_out(shares: Sequence[float], num_particles: int) -> list[int]:
    """The mode of each particle: as many for each as its share, the rest where most is missing."""
    counts = [int(share * num_particles) for share in shares]
    missing = sorted(range(len(shares)), key=lambda mode: counts[mode] - shares[mode] * num_particles)
    for mode in missing[: num_particles - sum(counts)]:
        counts[mode] += 1
    return [mode for mode, count in enumerate(counts) for _ in range(count)]


def leave(ground: Ground, refiner: Refiner, options: WalkOptions) -> tuple[Ground, WalkState]:
    """All particles where the record begins, and the ground with what was learned of it on the way there."""
    first = at_the_map(ground, refiner)
    ground, particles = refiner.approach(ground, first)
    return ground, WalkState(particles, Recorder(ground, refiner, first.energy, options))


def go_on(
    ground: Ground, refiner: Refiner, state: WalkState, options: WalkOptions, checkpoint: Checkpoint | None
) -> Trajectories:
    """The steps that are left; a particle whose energy is not finite stays where it last was sound.

    Ctrl-C ends the walk with the points that it has. (Waiting for the end of the step would leave the interruption
    without an answer for as long as a step takes: minutes, for a large network.)
    """
    thin, progress = options.thin, options.progress
    said = {"desc": "walk (resumed)" if state.resumed else "walk", "unit": " steps", "disable": not progress}
    with (
        progress_bar(total=ground.num_steps, initial=state.step, **said) as bar,
        held_back(ground.share.is_several) as interruption,
    ):
        try:
            while state.step < ground.num_steps:
                is_due = checkpoint is not None and checkpoint.is_due()
                is_asked, is_due = ground.share.agreed(interruption.is_asked, is_due)
                if is_asked:
                    raise KeyboardInterrupt
                if checkpoint is not None:
                    checkpoint.write(ground, state, is_due=is_due)
                _record_step(ground, refiner, state, thin)
                bar.update()
                if progress:
                    energy, alive = float(state.particles.energy.mean()), int(state.particles.alive.sum())
                    bar.set_postfix(energy=f"{energy:.1f}", alive=alive, refresh=False)
            if checkpoint is not None:
                checkpoint.write(ground, state, is_last=True)
        except KeyboardInterrupt:
            state.record.length = state.step // thin  # a point that was half recorded does not count
            if checkpoint is not None:
                checkpoint.write(ground, state, is_last=True)
            if state.record.length < FEWEST:
                raise
            _say_interrupted(state.record.length, ground.num_steps // thin, checkpoint)
    lost = int(ground.share.gathered((~state.particles.alive).long()).sum())
    if lost:
        warn(
            f"{lost} of {ground.num_particles} particles came to an energy that is not finite and stand frozen at "
            "their last good point; their later points are left out of the samples. Take a smaller step: "
            "four times the effort (from the default MetricBNN(model, effort=4)), or a smaller alpha or eta of a "
            "refiner that pulls back."
        )
    return state.record.trajectories()


def _say_interrupted(length: int, num_points: int, checkpoint: Checkpoint | None) -> None:
    to_go_on = (
        "The same call with checkpoint=path would go on where it was interrupted"
        if checkpoint is None
        else f"The same call goes on from {checkpoint.path} to the whole walk"
    )
    warn(
        f"the walk was interrupted: it has {length} of {num_points} points of each particle, and these are kept and "
        f"used. {to_go_on}. A second interruption, in what follows, goes through."
    )


def _record_step(ground: Ground, refiner: Refiner, state: WalkState, thin: int) -> None:
    """One step. The state changes at its end and all at once: an interruption before leaves it as it was."""
    before = state.particles
    moved, error = advance(ground, refiner, before)
    if (state.step + 1) % thin == 0:
        state.record.record(moved, error, _survived(ground, refiner, before, moved))
    state.particles, state.step = moved, state.step + 1


def advance(ground: Ground, refiner: Refiner, before: Particles) -> tuple[Particles, Tensor]:
    """The particles a recorded step further, and the energy error (N,); one that went wrong stays where it was."""
    moved, error = refiner.advance(ground, before)
    if moved.path <= before.path:  # a refiner that does not say
        moved = replace(moved, path=before.path + refiner.reach(ground))
    alive = before.alive & moved.is_finite
    return replace(moved.where(alive, before), alive=alive), error


def _survived(ground: Ground, refiner: Refiner, before: Particles, after: Particles) -> Tensor:
    """The part of the drift that is left of a step (N,)."""
    moved = (after.theta - before.theta) / refiner.units(ground)
    return (moved * before.drift[:, : moved.shape[1]]).sum(-1) / (after.path - before.path)


def relax(refiner: Refiner, walk: Trajectories, theta: Tensor, num_refinements: int) -> Tensor:
    """Points (S, D) near the fiber of a walk, taken onto it by so many gradients each.

    As many at once as there were particles, so that nothing is traced or compiled again.
    """
    ground = walk.ground
    if ground is None:
        raise ValueError(
            "the walk comes from a file, without the data to refine on: run again, or draw with num_refinements=0."
        )
    check_count("num_refinements", num_refinements, "it counts gradients.")
    check_device("theta", theta, ground.theta_star.device, "the walk was")
    if theta.dim() != 2 or theta.shape[1] != len(ground.theta_star) or not len(theta):
        raise ValueError(f"theta has shape {tuple(theta.shape)}, but must be (S, {len(ground.theta_star)}).")
    if not bool(theta.isfinite().all()):
        raise ValueError("theta has entries that are not finite: no gradient takes them to the fiber. Leave them out.")
    size, step_size = ground.num_particles, ground.measured.get("step_size", 0.0)
    short = -len(theta) % size
    rows = torch.cat([theta, theta[:1].expand(short, -1)]) if short else theta
    parts = [refiner.relax(ground, part, num_refinements, step_size) for part in rows.split(size)]
    return torch.cat(parts)[: len(theta)]
