"""The gradient bends the drift itself: the default refiner.

In: particles at one recorded point.  Out: the particles at the next, many small steps later.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ..energy.prior_units import by_size, smallness
from ..runtime.arguments import check_number
from ..runtime.progress import warn
from .dynamics import steered
from .refiner import NUM_POINTS, Refiner
from .state import Ground, Particles
from .step_size import MIN_DIM, StepSize, walked_dim

SHORTEST_PATH = 304.0  # of models in posterior units: with a quarter of it 6 of 20 ordinary Pyro models were off
CHEAP = 800  # gradients of a network's walk: they take about as long as the search for its MAP and tracing it,
FEW_WEIGHTS = 5000  # if it has at most so many
MOST_WORK, LEAST = 8e9, 1000  # gradients of a network's walk times its weights and rows; gradients of any
NO_END = 200_000  # gradients of a small model's walk: from the neck of a funnel its path would take millions
FEW_ROWS = 125  # below, a gradient costs no less
WARMUP = 0.2  # of a small model's path; a network's way from the MAP is part of the posterior, as in the paper
MOST_RETRIES = 6
MIN_POINTS = 40  # for a deviation


@dataclass(frozen=True, kw_only=True)
class Steer(Refiner):
    """The gradient bends the drift: microcanonical Langevin dynamics of constant speed.

    A step turns the drift by half, moves, turns by half; now and then a little noise is added to it (Robnik et al.
    2023). At small steps it samples the posterior itself. Lengths are in the prior's deviations, or the
    posterior's for small models (`Ground.posterior_scale`), so sqrt(D) is the radius where samples live. Models of up
    to 150 coordinates count as small, from 300 on as large, and between the two by degrees.

    The step starts from the sharpest curvature at the MAP and then follows the energy error.

    Args:
        effort: Time for fidelity: the path grows with its root and the step shrinks about as fast, so the number
            of gradients grows about with it.
        path: Length of the walk in units of sqrt(D), the approach included; None for as far as 800 gradients go,
            from 6 to 12, and more in small models, where averages need the length. Where the energy gets so sharp that
            this would take too many gradients, the walk ends earlier, which `health` says.
        warmup: The part of the path that is walked before the first point is recorded; None for a fifth in small
            models, none in large ones: there the way from the MAP is part of the posterior, as in the paper.
        error: Aim for a step's squared energy error per dimension, met by 9 particles of 10; None for 5e-4 in
            small models, up to 0.05 in larger ones, and above 2,000 coordinates a constant for all of them together.
        step_size: A fixed step in the units above, instead of one that follows the error.
        decoherence: Path in units of sqrt(D) over which the noise renews the drift; inf for none.

    Example:
        >>> DriftRefineKernel(model, refiner=Steer(effort=4.0)).refiner.effort
        4.0
    """

    has_step_size: ClassVar[bool] = True
    draws_by_particle: ClassVar[bool] = True
    effort: float = 1.0
    path: float | None = None
    warmup: float | None = None
    error: float | None = None
    step_size: float | None = None
    decoherence: float = 1.0

    def __post_init__(self) -> None:
        check_number("effort", self.effort, "it trades time for fidelity; 1 is the default.")
        check_number("decoherence", self.decoherence, "it is a length of path; inf is without noise.", or_inf=True)
        for name in ("path", "error", "step_size"):
            check_number(name, getattr(self, name), "None lets the walk find it.", or_none=True)
        found = "it is a part of the path; None lets the walk find it."
        check_number("warmup", self.warmup, found, or_zero=True, or_none=True)
        if self.warmup is not None and self.warmup >= 1:
            raise ValueError(f"warmup is a part of the path, from 0 to below 1, got {self.warmup}.")

    @property
    def step(self) -> StepSize:
        """How the step is found."""
        return StepSize(self.effort, self.error, self.step_size)

    def padding(self, dim: int) -> int:
        return max(0, MIN_DIM - dim)

    def own(self, theta: Tensor) -> dict[str, Tensor]:
        """Standard-normal coordinates that only the dynamics of a small model see."""
        shape = (len(theta), self.padding(theta.shape[1]))
        return {"padding": torch.randn(shape, device=theta.device, dtype=theta.dtype)}

    def units(self, ground: Ground) -> Tensor:
        return ground.posterior_scale

    @property
    def num_points(self) -> int:
        """Twice as many as of a straight drift: between points that are further apart the curves leave the fiber."""
        return math.ceil(2 * NUM_POINTS * math.sqrt(max(1.0, self.effort)))

    def length(self, ground: Ground) -> float:
        """The whole path; up to twice it on a soft posterior, where a walk takes less time than what comes before."""
        dim = len(ground.scale)
        root = math.sqrt(self.effort * walked_dim(ground))
        if self.path:
            return self.path * root

        def of_a_network() -> float:
            cheap = CHEAP * min(1.0, FEW_WEIGHTS / dim) * self.effort * self.step.expected(ground)
            return min(max(cheap, 6 * root), 12 * root)

        return by_size(dim, lambda: max(SHORTEST_PATH * math.sqrt(self.effort), 6 * root), of_a_network)

    def approach_length(self, ground: Ground) -> float:
        default = WARMUP * smallness(len(ground.scale))
        return self.length(ground) * (default if self.warmup is None else self.warmup)

    def reach(self, ground: Ground) -> float:
        return (self.length(ground) - self.approach_length(ground)) / ground.num_steps

    def stride(self, ground: Ground, step_size: float) -> float:
        """How far a recorded step goes: `reach`, or as far as the gradients for one do.

        Sharper and sharper on the way from the MAP, deep regression networks would otherwise take no end of them.
        """
        return min(self.reach(ground), max(1.0, self._most_gradients(ground) / ground.num_steps) * step_size)

    def num_gradients(self, ground: Ground) -> int:
        return int(min(self.length(ground) / self.step.expected(ground), self._most_gradients(ground)))

    def _most_gradients(self, ground: Ground) -> float:
        """Who asks for a path, or for a step, gets all of it; so does a small model, unless it would never end."""
        if self.path is not None or self.step_size is not None:
            return math.inf
        dim = len(ground.scale)
        affordable = max(LEAST, MOST_WORK / dim / max(FEW_ROWS, ground.potential.num_rows))
        return self.effort * min(NO_END, affordable / max(1 - smallness(dim), 1e-9))

    def approach(self, ground: Ground, particles: Particles) -> tuple[Ground, Particles]:
        """Leave the MAP for where posterior samples live, and find the step size and the units on the way."""
        if ground.potential.is_noisy:
            warn(
                "Steer is not for minibatches: it has no friction to take the heat of their noise out, and the walk "
                "leaves the posterior. Leave refiner out, or pass refiner=Langevin(), or all the data at once."
            )
        particles = replace(particles, step_size=self.step_size or self.step.first(ground))
        length = self.approach_length(ground)
        if length == 0:
            return ground, particles
        num_blocks = max(1, math.ceil(length / self.reach(ground)))
        seen: list[Tensor] = []
        modes = ground.share.labels(particles.theta)  # that each particle leaves from
        for block in range(1, num_blocks + 1):
            affordable = max(1.0, self._most_gradients(ground) / num_blocks) * particles.step_size
            moved, _ = self.walk(ground, particles, min(length / num_blocks, affordable))
            particles = moved.where(moved.is_finite, particles)
            seen.append(particles.theta)
            if block < num_blocks and len(seen) >= num_blocks / 6 and len(seen) * ground.num_particles >= MIN_POINTS:
                ground, seen = ground.widened(torch.cat(seen), modes.repeat(len(seen))), []
        return ground, particles

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        """A recorded step, walked again with half the step size where the energy error was far from what is aimed at.

        Near the MAP errors are small and the step grows; what comes then can be so much sharper that the particles are
        thrown off the fiber, and take a fourth of the walk to cool down.
        """
        return self._walk_cool(ground, particles, partial(self.stride, ground))

    def _walk_cool(
        self, ground: Ground, particles: Particles, length_of: Callable[[float], float]
    ) -> tuple[Particles, Tensor]:
        """Walk for length_of(step size), and again with half the step size as long as that was too hot."""
        moved, error = self.walk(ground, particles, length_of(particles.step_size))
        if not self.step.tunes(ground):
            return moved, error
        heat = self.step.heat(ground, particles, error**2)
        for _ in range(MOST_RETRIES):
            half = particles.step_size / 2
            if heat <= 1 or half < self.step.least(ground):
                break
            particles = replace(particles, step_size=half, num_gradients=moved.num_gradients)
            del moved  # as large as what comes in its place
            moved, error = self.walk(ground, particles, length_of(half))
            before, heat = heat, self.step.heat(ground, particles, error**2)
            if 1.5 * heat > before:  # rounding, not the step, makes the error
                break
        return moved, error

    def relax(self, ground: Ground, theta: Tensor, num_refinements: int, step_size: float = 0.0) -> Tensor:
        """Each point walks on for so many steps in a new direction, which at the walk's full length would heat it."""
        particles = self.start(ground, theta)
        particles = replace(particles, step_size=self.step_size or (step_size or self.step.first(ground)) / 2)
        moved, _ = self._walk_cool(ground, particles, lambda step_size: num_refinements * step_size)
        return moved.where(moved.is_finite, particles).theta

    def walk(self, ground: Ground, particles: Particles, length: float) -> tuple[Particles, Tensor]:
        """So far, in steps that add up to it, and the step size of the next; the error is their root mean square."""
        moved, squares = steered(ground, particles, length, self.decoherence)
        if self.step.tunes(ground):
            moved = replace(moved, step_size=self.step.tuned(ground, particles, squares))
        return moved, squares.sqrt()
