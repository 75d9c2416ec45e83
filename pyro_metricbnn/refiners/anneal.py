"""Hot first, then cold: the refiner for networks of unknown noise, whose posterior is far from where training ends.

In: particles at one recorded point.  Out: the particles at the next, a fixed number of gradients later.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from ..ranks.share import ALONE, Share
from ..runtime.arguments import check_count, check_number, check_part
from .dynamics import ValueAndGrad, steered_step
from .langevin import Langevin
from .refiner import NUM_POINTS, Refiner
from .state import Ground, Particles
from .step_size import MIN_DIM, cold_aim, walked_dim

WORK, LONGEST = 80_000, 10_000  # gradients of all particles together, and of each, at effort 1
MOST_WORK, LEAST = 6.25e9, 1000  # gradients times weights and rows; gradients of any walk
NUM_STAGES = 8  # of the approach: after each the units are learned anew
HOTTER = 25.0  # times the last aim, at the start: validation rows of UCI's concrete and energy, three splits, have an
# NLL of -.06 and -2.16, with 100 of .02 and -2.19; Boston and yacht .08 and -3.28, with 8 of .08 and -3.20. A hotter
# end (.1, at first 5 times that) of which the last fourth is recorded: energy .18 and .12 (three splits), concrete 3.01
# and 2.74, wine .95 and .78 (one each), but Boston 2.31 and 2.36 (four), yacht -.57 and -.50 (three)
FIRST_STEP = 2e-4  # of sqrt(D): it grows by a twentieth a gradient
GAIN = 1 / 24  # of the logarithm of a step, for the logarithm of its squared error
BOUNDS = (0.3, 1e4)  # of the squared error in terms of its aim: a step grows by a twentieth at most
UNDONE = 1e4  # an energy error that is never right
EVERY = 4  # gradients between two kicks of the noise
ALL_NEW = 20.0  # twice the path between them, in decoherences, from which on nothing is left of the drift
SEEN_FROM = 1 / 3  # of a stage: what comes before is the way from the units before
NARROWEST = 0.03  # of the units' root mean square


@dataclass(frozen=True, kw_only=True)
class Anneal(Refiner):
    """Microcanonical dynamics, as `Steer`, with an energy error that is large at first and falls along the walk.

    Each particle's step follows its own error, and a step that went wrong is undone. The units of the coordinates are
    learned on the way, in stages. The approach is not recorded: from a network that fits too well or too badly it
    comes to where the posterior's samples are, or nearer to it. It is the default for networks of up to 2,000 weights
    with normal noise (docs/accuracy.md has the figures).

    Args:
        effort: Time for fidelity: so many times as many gradients, 80,000 of all particles together at 1 and at most
            10,000 of each, and above 1 a smaller error at the end.
        error: Aim for a step's squared energy error per dimension at the end; None for `Steer`'s, but at most 0.02.
        decoherence: Path in units of sqrt(D) over which the noise renews the drift.
        longest: Gradients of each particle, at most and at effort 1.
        approach_part: The part of the gradients that is not recorded.

    Example:
        >>> DriftRefineKernel(model, refiner=Anneal(effort=4.0)).refiner.effort
        4.0
    """

    has_step_size = True
    draws_by_particle = True
    effort: float = 1.0
    error: float | None = None
    decoherence: float = 0.5
    longest: int = LONGEST
    approach_part: float = 0.5

    def __post_init__(self) -> None:
        check_number("effort", self.effort, "it trades time for fidelity; 1 is the default.")
        check_number("decoherence", self.decoherence, "it is a length of path.")
        check_number("error", self.error, "None lets the walk find it.", or_none=True)
        check_count("longest", self.longest, "it counts gradients.")
        check_part("approach_part", self.approach_part, "it is the part of the walk before the record.")
        if self.approach_part == 1:
            raise ValueError("approach_part must be below 1: nothing would be recorded.")

    def on(self, potential: BatchedPotential) -> Refiner:
        """`Langevin` for minibatches: their noise is no error of a step."""
        return Langevin(effort=self.effort) if potential.is_noisy else self

    def padding(self, dim: int) -> int:
        return max(0, MIN_DIM - dim)

    def own(self, theta: Tensor) -> dict[str, Tensor]:
        """A step for each particle, and standard-normal coordinates that only the dynamics of a small model see."""
        num_particles, dim = theta.shape
        first = FIRST_STEP * math.sqrt(max(MIN_DIM, dim))
        padding = torch.randn((num_particles, self.padding(dim)), device=theta.device, dtype=theta.dtype)
        return {"step": torch.full_like(theta[:, 0], first), "padding": padding}

    def units(self, ground: Ground) -> Tensor:
        return ground.measured.get("posterior_scale", ground.scale)

    @property
    def num_points(self) -> int:
        return math.ceil(2 * NUM_POINTS * math.sqrt(max(1.0, self.effort)))

    def reach(self, ground: Ground) -> float:
        """As far as the steps at the end of the approach go; points are so many gradients apart, not so far."""
        return ground.measured.get("reach", 1.0)

    def approach_length(self, ground: Ground) -> float:
        """In gradients, not in path: hot steps are long, and the first may be far longer than any that is recorded."""
        return self.reach(ground) * ground.num_steps * self.approach_part / (1 - self.approach_part)

    def num_gradients(self, ground: Ground) -> int:
        affordable = max(LEAST, MOST_WORK / len(ground.scale) / max(1, ground.potential.num_rows))
        planned = self.effort * min(self.longest, WORK / ground.num_particles, affordable)
        return max(2 * NUM_STAGES * EVERY, round(planned))

    def aim(self, ground: Ground, part: float) -> float:
        """For the squared error per dimension, that part of the way along the walk."""
        # Less effort is no hotter: at 0.02 that had an NLL of validation rows of diabetes of 5.66, and so of 5.53.
        cold = (self.error or min(0.02, cold_aim(walked_dim(ground)))) / math.sqrt(max(1.0, self.effort))
        return cold * HOTTER ** (1 - min(1.0, part))

    def approach(self, ground: Ground, particles: Particles) -> tuple[Ground, Particles]:
        """The hot part, in stages after each of which the units are those that the walks showed."""
        ground = replace(ground, measured={**ground.measured, "posterior_scale": ground.scale}, _insides={})
        each = round(self.approach_part * self.num_gradients(ground)) // NUM_STAGES
        for _ in range(NUM_STAGES):
            seen = Deviations(particles.theta)
            particles, _ = self._walk(ground, particles, each, seen)
            ground = replace(
                ground, measured={**ground.measured, "posterior_scale": seen.units(self.units(ground), ground.share)}
            )
            step = particles.own["step"]
            particles = replace(particles, own={**particles.own, "step": torch.full_like(step, particles.step_size)})
        reach = self._between(ground) * particles.step_size
        return replace(ground, measured={**ground.measured, "reach": reach}), particles

    def _between(self, ground: Ground) -> int:
        """Gradients from one recorded point to the next."""
        return max(1, round((1 - self.approach_part) * self.num_gradients(ground) / ground.num_steps))

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        return self._walk(ground, particles, self._between(ground))

    def relax(self, ground: Ground, theta: Tensor, num_refinements: int, step_size: float = 0.0) -> Tensor:
        """Each point walks on for so many steps in a new direction, as cold as the walk was at its end."""
        particles = replace(self.start(ground, theta), num_gradients=self.num_gradients(ground))
        if step_size > 0:
            step = torch.full_like(particles.own["step"], step_size / 2)
            particles = replace(particles, own={**particles.own, "step": step})
        return self._walk(ground, particles, num_refinements)[0].theta

    def _walk(
        self, ground: Ground, particles: Particles, num_gradients: int, seen: "Deviations | None" = None
    ) -> tuple[Particles, Tensor]:
        """So many gradients, and the root mean square of their energy errors (N,)."""
        p, step = particles, ground.inside(annealed_step)
        state: tuple[Any, ...] = (p.theta, p.drift, p.energy, p.grad, p.own["padding"], p.own["step"])
        noise, squares, went = torch.zeros_like(p.drift), torch.zeros_like(p.energy), torch.zeros_like(p.energy)
        coherent = self.decoherence * math.sqrt(p.drift.shape[1])
        whole, units = self.num_gradients(ground), self.units(ground)
        for i in range(num_gradients):
            done = p.num_gradients + i
            kicked = done % EVERY == EVERY - 1
            noise = ground.share.normal_like(noise) if kicked else noise
            aim = self.aim(ground, done / whole)
            *rest, square = step(*state, noise, units, aim, 2 * EVERY / coherent if kicked else 0.0)
            state, squares, went = tuple(rest), squares + square, went + state[-1]
            if seen is not None and i >= SEEN_FROM * num_gradients:
                seen.add(state[0])
        theta, drift, energy, grad, padding, steps = state
        moved = replace(p, theta=theta, drift=drift, energy=energy, grad=grad, own={"step": steps, "padding": padding})
        moved = replace(
            moved,
            path=p.path + float(ground.share.gathered(went).mean()),
            num_gradients=p.num_gradients + num_gradients,
        )
        return replace(moved, step_size=float(ground.share.gathered(steps).mean())), (squares / num_gradients).sqrt()


def annealed_step(
    value_and_grad: ValueAndGrad,
    theta: Tensor,
    drift: Tensor,
    energy: Tensor,
    grad: Tensor,
    padding: Tensor,
    step: Tensor,
    noise: Tensor,
    scale: Tensor,
    aim: float | Tensor,
    renewed: float | Tensor,
    worst: float = UNDONE,
) -> tuple[Tensor, ...]:
    """A step of each particle's own size (N,), undone and turned back where it went wrong, and the size of the next.

    What is wrong is an energy error above `worst`.

    Returns:
        theta, drift, energy, grad, padding, step, and the squared energy error (N,).
    """
    dim, eps = drift.shape[1], step[:, None]
    kick: Tensor | None = None
    nu: float | Tensor = 0.0
    if not isinstance(renewed, float) or renewed > 0:  # compiled, it is a tensor, and 0 a kick of nothing
        kick, nu = noise, torch.sqrt(torch.expm1((renewed * eps).clamp_max(ALL_NEW)) / dim)
    *moved, error = steered_step(value_and_grad, theta, drift, energy, grad, padding, kick, scale, eps, nu)
    good = error.abs() < worst  # does not hold for what is not a number, which a gradient that is none makes of it
    square = torch.where(good, error**2, UNDONE**2)
    # On smooth energies the squared error grows with the sixth power of the step: a quarter of the way to the aim.
    after = step * (square / (dim * aim)).clamp(*BOUNDS) ** -GAIN
    if theta.device.type == "cpu" and not torch.compiler.is_compiling() and bool(good.all()):
        return (*moved, after, square)  # the usual case; a GPU would have to wait for the answer
    before = (theta, -drift, energy, grad, padding)
    ways = (good if old.dim() == 1 else good[:, None] for old in before)
    return (*map(torch.where, ways, moved, before), after, square)


class Deviations:
    """How far each coordinate goes within its walk, from sums over its points: they are not kept."""

    def __init__(self, near: Tensor) -> None:
        """Counted from points (N, D) near by, so that little is lost to rounding."""
        self.count, self.near, self.sums, self.squares = 0, near, torch.zeros_like(near), torch.zeros_like(near)

    def add(self, theta: Tensor) -> None:
        """Points (N, D) of all walks."""
        moved = theta - self.near
        self.count += 1
        self.sums += moved
        self.squares.addcmul_(moved, moved)

    def units(self, before: Tensor, share: Share = ALONE) -> Tensor:
        """The deviations (D,) within walks, averaged over them, of the root mean square that the units before had."""
        variance = share.average((self.squares / self.count - (self.sums / self.count) ** 2).clamp_min(0))
        size = variance.mean().sqrt()
        if not (bool(size.isfinite()) and float(size) > 0):
            return before
        return (variance.sqrt() / size).clamp_min(NARROWEST) * before.square().mean().sqrt()
