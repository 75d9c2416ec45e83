"""The gradient bends the drift itself: the default refiner.

In: particles at one recorded point.  Out: the particles at the next, many small steps later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ..energy.curvature import MAX_HESSIAN
from ..runtime.arguments import check_number
from .refiner import NUM_POINTS, Refiner
from .state import Ground, Particles, start

MIN_DIM = 8  # Steer's dynamics degenerate in few dimensions (D - 1 = 0 at D = 1): smaller models are padded
ValueAndGrad = Callable[[Tensor], tuple[Tensor, Tensor]]
SHORTEST_PATH = 304.0  # of models in posterior units: with a quarter of it 6 of 20 ordinary Pyro models were off
MAX_ERROR = 100.0  # squared, of a step's energy: a walk on 8,513 weights has a training NLL of .15, without it .21
CHEAP = 800  # gradients of a network's walk: they take about as long as the search for its MAP and tracing it,
SMALL = 5000  # if it has at most so many weights
MOST_WORK, LEAST = 1.25e10, 1000  # gradients of a network's walk times its weights and rows; gradients of any
FEW_ROWS = 250  # below, a gradient costs no less
HOT, WORST = 4.0, 100.0  # times the squared error aimed at, of a tenth of the particles and of any one: walked again
MOST_RETRIES = 6
MIN_POINTS = 40  # for a deviation
NOISE_EVERY = 0.1  # of the path over which the noise renews the drift
TUNING_GAIN = 0.3  # of the way to the step that the last error asks for


def turn(u: Tensor, grad: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Turn unit vectors u (N, D) down the gradient for a path of `length`.

    e = -grad/|grad|, delta = length |grad|/(D - 1),
    u <- (u + e (sinh delta + (e.u)(cosh delta - 1))) / (cosh delta + (e.u) sinh delta),
    written with exp(-delta), which cannot overflow.

    Returns:
        The new u, and (D - 1) log(cosh delta + (e.u) sinh delta) (N,): the change of kinetic energy.
    """
    dims = u.shape[-1] - 1
    norm = grad.norm(dim=-1, keepdim=True)
    delta = length / dims * norm
    norm = norm.clamp_min(torch.finfo(grad.dtype).tiny)
    along = -(grad * u).sum(-1, keepdim=True) / norm  # e.u
    zeta = torch.exp(-delta)
    # e itself is never made: of all this only what is as large as u takes time.
    turned = torch.addcmul(2 * zeta * u, grad, -(1 - zeta) * (1 + zeta + along * (1 - zeta)) / norm)
    turned = turned / turned.norm(dim=-1, keepdim=True)
    growth = 0.5 * ((1 + along) + (1 - along).clamp_min(0) * zeta**2)
    kinetic = dims * (delta + torch.log(growth.clamp_min(torch.finfo(grad.dtype).tiny)))
    return turned, kinetic.squeeze(-1)


def steered_step(
    value_and_grad: ValueAndGrad,
    theta: Tensor,
    drift: Tensor,
    energy: Tensor,
    grad: Tensor,
    padding: Tensor,
    noise: Tensor | None,
    scale: Tensor,
    eps: float,
    nu: float,
) -> tuple[Tensor, ...]:
    """Half a turn, a move of length eps, half a turn; then the noise.

    Returns:
        theta, drift, energy, grad, padding after the step, and its energy error (N,).
    """
    dim = theta.shape[1]
    u, first = turn(drift, _padded(grad * scale, padding), eps / 2)
    theta = theta + eps * scale * u[:, :dim]
    moved = padding + eps * u[:, dim:]
    value, grad = value_and_grad(theta)
    u, second = turn(u, _padded(grad * scale, moved), eps / 2)
    error = first + second + value - energy + (moved**2 - padding**2).sum(-1) / 2
    if noise is not None:
        u = u + nu * noise
        u = u / u.norm(dim=-1, keepdim=True)
    return theta, u, value, grad, moved, error


def _ninth_tenth(times: Tensor) -> Tensor:
    """The 0.9 quantile; of infinite numbers, too, between which torch's is not a number."""
    return times.quantile(0.9).nan_to_num(nan=math.inf, posinf=math.inf)


def _padded(grad: Tensor, padding: Tensor) -> Tensor:
    """The gradient with that of the standard-normal padding behind it."""
    return torch.cat([grad, padding], dim=-1) if padding.shape[-1] else grad


@dataclass(frozen=True, kw_only=True)
class Steer(Refiner):
    """The gradient bends the drift: microcanonical Langevin dynamics of constant speed.

    A step turns the drift by half, moves, turns by half; now and then a little noise is added to it (Robnik et al.
    2023). At small steps it samples the posterior itself. Lengths are in the prior's deviations, or the
    posterior's for small models (`Ground.posterior_scale`), so sqrt(D) is the radius where samples live.

    The step starts from the sharpest curvature at the MAP and then follows the energy error.

    Args:
        effort: Time for fidelity: the path grows with its root and the step shrinks about as fast, so the number
            of gradients grows about with it.
        path: Length of the walk in units of sqrt(D), the approach included; None for as far as 800 gradients go
            (fewer beyond 5,000 weights, where they cost more), from 6 to 12, and more in models of up to 200
            coordinates (96 at 10), where gradients are cheap and averages need the length. Where the energy gets so
            sharp that this would take too many gradients (125,000 at 400 weights and up to 250 rows, fewer with more
            of either, but not below 1,000; times `effort`), the points are closer together and the walk ends earlier,
            which `health` says.
        warmup: The part of the path that is walked before the first point is recorded; None for a fifth in models
            of up to 200 coordinates, none in larger ones. There the way from the MAP is part of the posterior, as in
            the paper: without it one confident mistake costs much (Ionosphere, two splits: negative log-likelihood
            .40 with a fifth dropped, .29 with none).
        error: Aim for a step's squared energy error per dimension, met by 9 particles of 10; None for 5e-4 in
            small models, where a gradient is cheap, up to 0.05 in large ones, and of 2,000 weights on so much that
            the whole error stays what it is there: the data, not the weights, make it, and it is heat.
        step_size: A fixed step in the units above, instead of one that follows the error.
        decoherence: Path in units of sqrt(D) over which the noise renews the drift; inf for none.

    Example:
        >>> DriftRefineKernel(model, refiner=Steer(effort=4.0)).refiner.effort
        4.0
    """

    has_step_size: ClassVar[bool] = True
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
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), "None lets the walk find it.")
        if self.warmup is not None:
            check_number("warmup", self.warmup, "it is a part of the path; None lets the walk find it.", or_zero=True)
            if self.warmup >= 1:
                raise ValueError(f"warmup is a part of the path, from 0 to below 1, got {self.warmup}.")

    def padding(self, dim: int) -> int:
        return max(0, MIN_DIM - dim)

    def units(self, ground: Ground) -> Tensor:
        return ground.posterior_scale

    @property
    def num_points(self) -> int:
        """Twice as many as of a straight drift, and more on a longer path: between points that are further apart the
        curves leave the fiber. Training NLL of draws with 100 and 200 points, regressions of 2,209 and 8,513 weights:
        .179 and .152, .274 and .229; of the walk's own points .16 and .22 with either.
        """
        return math.ceil(2 * NUM_POINTS * math.sqrt(max(1.0, self.effort)))

    def length(self, ground: Ground) -> float:
        """The whole path.

        A walk on a soft posterior takes less time than what comes before it, the search for the MAP and tracing, and so
        goes further: twice as far is up to half more time in all, and mean predictions of UCI networks are 4 to 26 %
        nearer to long HMC chains.
        """
        dim = len(ground.scale)
        root = math.sqrt(self.effort * (dim + self.padding(dim)))
        if self.path:
            return self.path * root
        if dim <= MAX_HESSIAN:
            return max(SHORTEST_PATH * math.sqrt(self.effort), 6 * root)
        cheap = CHEAP * min(1.0, SMALL / dim) * self.effort * self._expected_step(ground)
        return min(max(cheap, 6 * root), 12 * root)

    def reach(self, ground: Ground) -> float:
        return (self.length(ground) - self.approach_length(ground)) / ground.num_steps

    def approach_length(self, ground: Ground) -> float:
        default = 0.2 if len(ground.scale) <= MAX_HESSIAN else 0.0
        return self.length(ground) * (default if self.warmup is None else self.warmup)

    def stride(self, ground: Ground, step_size: float) -> float:
        """How far a recorded step goes: `reach`, or as far as the gradients for one do.

        Sharper and sharper on the way from the MAP, deep regression networks would otherwise take no end of them: five
        layers of 64 units on Snelson's data walked for 506 s to a test NLL of .48, and now 26 s to .36 (HMC .28 in
        124). On 6,636 rows of kin8nm about a third of the path has a test NLL of -1.199, all of it, in four times as
        many seconds, -1.213 (an ensemble of 20: -1.184).
        """
        return min(self.reach(ground), max(1.0, self._most_gradients(ground) / ground.num_steps) * step_size)

    def num_gradients(self, ground: Ground) -> int:
        return int(min(self.length(ground) / self._expected_step(ground), self._most_gradients(ground)))

    def _most_gradients(self, ground: Ground) -> float:
        """Who asks for a path, or for a step, gets all of it."""
        dim = len(ground.scale)
        if self.path is not None or self.step_size is not None or dim <= MAX_HESSIAN:
            return math.inf
        return self.effort * max(LEAST, MOST_WORK / dim / max(FEW_ROWS, ground.potential.num_rows))

    def approach(self, ground: Ground, particles: Particles) -> tuple[Ground, Particles]:
        """Leave the MAP for where posterior samples live, and find the step size and the units on the way."""
        particles = replace(particles, step_size=self.step_size or self._first_step(ground))
        length = self.approach_length(ground)
        if length == 0:
            return ground, particles
        num_blocks = max(1, math.ceil(length / self.reach(ground)))
        seen: list[Tensor] = []
        for block in range(1, num_blocks + 1):
            moved, _ = self.walk(ground, particles, length / num_blocks)
            particles = moved.where(moved.is_finite, particles)
            seen.append(particles.theta)
            if block < num_blocks and len(seen) >= num_blocks / 6 and len(seen) * len(particles.theta) >= MIN_POINTS:
                ground, seen = ground.widened(torch.cat(seen)), []
        return ground, particles

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        """A recorded step, walked again with half the step size where the energy error was far from what is aimed at.

        Near the MAP errors are small and the step grows; what comes then can be so much sharper that the particles are
        thrown off the fiber (100 to 250 nats on networks of four and five layers), and they take a fourth of the walk
        to cool down: training NLL .20 and .19, with this .13 and .12. UCI networks take up to 40 % more gradients.
        """
        return self._walk_cool(ground, particles, partial(self.stride, ground))

    def _walk_cool(
        self, ground: Ground, particles: Particles, length_of: Callable[[float], float]
    ) -> tuple[Particles, Tensor]:
        """Walk for length_of(step size), and again with half the step size as long as that was too hot."""
        moved, error = self.walk(ground, particles, length_of(particles.step_size))
        if not self._tunes(ground):
            return moved, error
        heat = self._heat(ground, particles, error)
        for _ in range(MOST_RETRIES):
            half = particles.step_size / 2
            if heat <= 1 or half < self._least_step(ground):
                break
            particles = replace(particles, step_size=half, num_gradients=moved.num_gradients)
            del moved  # as large as what comes in its place
            moved, error = self.walk(ground, particles, length_of(half))
            before, heat = heat, self._heat(ground, particles, error)
            if 1.5 * heat > before:  # rounding, not the step, makes the error
                break
        return moved, error

    def relax(self, ground: Ground, theta: Tensor, num_refinements: int, step_size: float = 0.0) -> Tensor:
        """Each point walks on for so many steps, in a new direction.

        Half as long as the walk's: at full length a direction that is not the walk's heats the point (training
        NLL of draws on a network of 2,209 weights: .282, after 20 steps .270, of full length .39).
        """
        particles = start(replace(ground, theta_star=theta, num_particles=len(theta)), self.padding(theta.shape[1]))
        particles = replace(particles, step_size=self.step_size or (step_size or self._first_step(ground)) / 2)
        moved, _ = self._walk_cool(ground, particles, lambda step_size: num_refinements * step_size)
        return moved.where(moved.is_finite, particles).theta

    def walk(self, ground: Ground, particles: Particles, length: float) -> tuple[Particles, Tensor]:
        """Steps of equal size that add up to `length`; the error is their root mean square."""
        p, dim = particles, particles.drift.shape[1]
        num_steps = max(1, math.ceil(length / p.step_size - 1e-9))
        eps = length / num_steps
        coherent = self.decoherence * math.sqrt(dim)
        # Normal numbers cost as much as a dozen operations: they come when they have something to turn.
        num_kicks = min(num_steps, math.ceil(length / (NOISE_EVERY * coherent)) or 1)
        nu = math.sqrt(math.expm1(2 * length / num_kicks / coherent) / dim)
        noise = torch.zeros_like(p.drift) if nu > 0 else None
        squares = torch.zeros_like(p.energy)
        state: tuple[Tensor, ...] = (p.theta, p.drift, p.energy, p.grad, p.padding)
        step = ground.inside(steered_step)
        for i in range(1, num_steps + 1):
            due = nu > 0 and i * num_kicks // num_steps > (i - 1) * num_kicks // num_steps
            noise = torch.randn_like(p.drift) if due else noise
            *rest, error = step(*state, noise, ground.posterior_scale, eps, nu if due else 0.0)
            state, squares = tuple(rest), squares + error**2
        squares = squares / num_steps
        step_size = self._tuned(ground, p, squares) if self._tunes(ground) else p.step_size
        theta, drift, energy, grad, padding = state
        moved = Particles(theta, drift, energy, grad, padding, step_size, p.path + length, p.num_gradients + num_steps)
        return moved, squares.sqrt()

    def _expected_step(self, ground: Ground) -> float:
        if not self._tunes(ground):
            return self.step_size or self._first_step(ground)
        return math.sqrt(self._first_step(ground) * self._largest_step(ground))

    def _first_step(self, ground: Ground) -> float:
        """Half of what the curvature at the MAP allows."""
        return 0.5 * math.sqrt(self._dim(ground) / max(1.0, ground.curvature) / self.effort)

    def _least_step(self, ground: Ground) -> float:
        return self._first_step(ground) / (50 if len(ground.scale) <= MAX_HESSIAN else 1000)

    def _largest_step(self, ground: Ground) -> float:
        """A network's energy mostly gets sharper away from the MAP: one and a half times what the curvature there
        allows. On four UCI networks once takes 5 to 29 % more gradients, twice 1 to 13 % fewer, but then Breast is a
        seventh further away from long HMC chains. A small hierarchical model's MAP can be the sharpest place of all,
        the neck of a funnel.
        """
        dim = self._dim(ground)
        return 0.5 * math.sqrt(dim / self.effort) if dim <= MAX_HESSIAN else 3 * self._first_step(ground)

    def _dim(self, ground: Ground) -> int:
        dim = len(ground.scale)
        return dim + self.padding(dim)

    def _tunes(self, ground: Ground) -> bool:
        return self.step_size is None and not ground.potential.is_noisy  # a batch's noise is no error of the step

    def _times(self, ground: Ground, particles: Particles, squares: Tensor) -> Tensor:
        """Squared errors (N,) in units of what is aimed at, of the particles that have not frozen; inf where an energy
        is not finite.
        """
        dim = self._dim(ground)
        aim = (self.error or min(max(5e-5 * dim, 5e-4), 0.05, MAX_ERROR / dim)) / self.effort**1.25
        times = (squares / dim / aim).nan_to_num(nan=math.inf, posinf=math.inf)
        return times if particles.alive is None else times[particles.alive]

    def _heat(self, ground: Ground, particles: Particles, error: Tensor) -> float:
        """How far the errors are from the aim: above 1, too far."""
        times = self._times(ground, particles, error**2)
        return float(torch.maximum(_ninth_tenth(times) / HOT, times.max() / WORST)) if len(times) else 0.0

    def _tuned(self, ground: Ground, particles: Particles, squares: Tensor) -> float:
        """A step nearer to the aim.

        The squared error grows with the sixth power of the step on smooth energies (Robnik et al. 2023); with about
        the power 2.5 on a ReLU network, so that there the aim makes the step shrink with the root of `effort`.
        """
        times = self._times(ground, particles, squares)
        seen = float(_ninth_tenth(times)) if len(times) else 1.0
        factor = max(seen, 1e-3) ** (-1 / 6) if math.isfinite(seen) else 0.5
        step_size = max(particles.step_size * factor**TUNING_GAIN, self._least_step(ground))
        return min(step_size, self._largest_step(ground))
