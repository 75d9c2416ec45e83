"""Friction and noise: the refiner for minibatches, whose own noise would heat a walk without friction.

In: particles at one recorded point.  Out: the particles at the next, a fixed number of batches later.

    v <- beta v - eps grad U + sqrt(2 (1 - beta) eps) xi,  theta <- theta + v

in units of each coordinate, with eps = h / n of each site: h is the step on the mean loss of n rows. Where this is
exact, mean(v^2) (1 + beta) / (2 eps), the kinetic temperature, is 1. Steps that are too long, and the noise of the
batches, make it larger by the factor that they make a Gaussian posterior's variance larger by. So it tells the step.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..energy.prior_units import by_size
from ..energy.whitening import whitening, whitening_at
from ..runtime.arguments import check_number
from .dynamics import langevin_step
from .refiner import NUM_POINTS, Refiner
from .state import Ground, Particles

WORK, LONGEST = 40_000, 4000  # gradients of all particles together, and of each, at effort 1
MOST_WORK, LEAST = 4e11, 1000  # gradients of all particles times weights and rows of a batch; gradients of any walk
APPROACH = 0.25  # of the gradients, before the record begins
SMALL_EXCESS, LARGE_EXCESS = 0.1, 0.02  # 0.1, 0.05, 0.02 and 0.01 on FashionMNIST, the dense layers of LeNet, 2,000
# gradients of four particles: an NLL of validation images of .309, .287, .280 and .280, of the network .283
WINDOW = 20  # gradients of the approach between two looks at the temperature
FIRST = 0.2  # of what the sharpest direction at the MAP allows: an excess of a twentieth
LARGEST = 0.35  # eps, in units in which the prior has a curvature of 1: there an excess of a tenth
FEWEST_WINDOWS, MOST_WINDOWS = 8.0, 50.0  # that the sums remember; that the first step counts for
FASTEST = 0.6  # change of the logarithm of a step in a window
HOT = 1.0  # an excess at which a step is cut at once
HOTTEST = 10.0  # that is remembered: a blow-up would otherwise be for hundreds of windows
LEARNED = ("step", "excess", "tried")  # of each site: eps, and sums of what it was and what came of it
SUMS = ("heat", "looks", "batch_heat", "comparisons")  # by particle and site, over the recorded part
EVERY = 4  # gradients between two looks at the velocities, which are as large as the noise
PULLING = 4  # batches that are asked which coordinates they pull at


@dataclass(frozen=True, kw_only=True)
class Langevin(Refiner):
    """Underdamped Langevin dynamics (SGHMC): friction takes out the heat that minibatches bring in.

    A network that is linear in up to 2,000 weights, as a last layer is, walks in units in which its posterior is about
    as wide in all directions, from Hessians on the way. The step of each site follows its kinetic temperature.
    `health` has the temperatures of all sites, and what part of their excess is the batches' own noise. It is the
    default for minibatches and loaders.

    Args:
        effort: Time for fidelity: so many times as many gradients, 40,000 of all particles together at 1 and at most
            4,000 of each, and an excess that falls with its root.
        excess: What the kinetic temperature may be above 1, by long steps and by the batches' noise together; None for
            0.1 in small models and 0.02 in large ones, where most of it is in the few directions that the data inform.
        momentum: beta, the part of the velocity that friction leaves from step to step.

    Example:
        >>> DriftRefineKernel(model, refiner=Langevin(effort=4.0)).refiner.effort
        4.0
    """

    has_step_size = True
    draws_by_particle = True
    effort: float = 1.0
    excess: float | None = None
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_number("effort", self.effort, "it trades time for fidelity; 1 is the default.")
        check_number("excess", self.excess, "it is what the temperature may be above 1.", or_none=True)
        check_number("momentum", self.momentum, "it is the part of a velocity that is left.", or_zero=True)
        if self.momentum >= 1:
            raise ValueError(
                f"momentum must be below 1, got {self.momentum}: without friction the batches heat the walk."
            )

    def own_on(self, ground: Ground, theta: Tensor) -> dict[str, Tensor]:
        """Velocities, the step of each site, and sums over steps that were looked at."""
        of_sites = theta.new_zeros(len(theta), len(ground.potential.sites.sites))
        return {"velocity": torch.zeros_like(theta), **{name: of_sites.clone() for name in (*LEARNED, *SUMS)}}

    def units(self, ground: Ground) -> Tensor:
        return ground.scale if "root" in ground.measured else ground.posterior_scale

    @property
    def num_points(self) -> int:
        return math.ceil(2 * NUM_POINTS * math.sqrt(max(1.0, self.effort)))

    def reach(self, ground: Ground) -> float:
        """As far as the steps at the end of the approach go; points are so many gradients apart, not so far."""
        return ground.measured.get("reach", 1.0)

    def approach_length(self, ground: Ground) -> float:
        return self.reach(ground) * ground.num_steps * APPROACH / (1 - APPROACH)

    def num_gradients(self, ground: Ground) -> int:
        work = len(ground.scale) * max(1, ground.potential.num_rows)
        planned = min(WORK, MOST_WORK / work) / ground.num_particles
        return round(max(self.effort * min(max(planned, LEAST), LONGEST), 4 * WINDOW))

    def _between(self, ground: Ground) -> int:
        """Gradients from one recorded point to the next."""
        return max(1, round((1 - APPROACH) * self.num_gradients(ground) / ground.num_steps))

    def approach(self, ground: Ground, particles: Particles) -> tuple[Ground, Particles]:
        """From the MAP, with steps that its curvature allows, to steps as long as the temperature does."""
        ground = self._whitened(self._pulled(ground))
        particles = self._with_first_steps(ground, particles)
        count = max(1, round(APPROACH * self.num_gradients(ground) / WINDOW))
        for i in range(count):
            if i == count // 2 > 0 and "root" in ground.measured:
                ground = self._whitened(ground, ground.share.gathered(particles.theta))
                particles = self._with_first_steps(ground, particles)
            moved, _ = self._walk(ground, particles, WINDOW)
            sound = moved.where(moved.is_finite, particles)
            learned = {name: moved.own[name] for name in LEARNED}
            particles = replace(sound, own={**sound.own, **learned})
        sums = {name: torch.zeros_like(particles.own[name]) for name in SUMS}
        particles = replace(particles, own={**particles.own, **sums})
        reach = self._between(ground) * particles.step_size
        return replace(ground, measured={**ground.measured, "reach": reach}), particles

    def _pulled(self, ground: Ground) -> Ground:
        """With what each coordinate counts for in its site's temperature (D,): nothing where no batch pulls at it.

        Where nothing pulls the temperature is always right. Of 200 weights of which a regression has three, deviations
        of these came out up to 2.4 times too wide; at 32 x 32 eight of nine entries of ResNet18's last kernels see
        padding alone, and what their temperature hid heated the last layer to 7.
        """
        if not ground.potential.is_noisy:
            return ground
        grads = torch.cat([ground.potential.next_batch().grad(ground.theta_star[None]) for _ in range(PULLING)])
        pulls = [(part != part[:1]).any(0) for part in grads.split(_sizes(ground), dim=-1)]
        if all(bool(part.all()) for part in pulls):
            return ground
        weights = [part / part.float().mean() if bool(part.any()) else torch.ones_like(part) for part in pulls]
        return replace(ground, measured={**ground.measured, "pulls": torch.cat(weights).to(ground.scale.dtype)})

    def _whitened(self, ground: Ground, thetas: Tensor | None = None) -> Ground:
        """With the root of a last layer on batches, by Hessians at points (n, D) or the MAP."""
        if not ground.potential.is_noisy or ground.share.num_rows > 1:
            return ground  # ranks that share the rows see parts of it
        if thetas is None:
            found = whitening(ground.potential, ground.theta_star, ground.scale)
        else:
            found = whitening_at(ground.potential, thetas, ground.scale)
        if found is None:
            return ground
        return replace(ground, measured={**ground.measured, "root": found[0], "curvature": found[1]})

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        return self._walk(ground, particles, self._between(ground))

    def relax(self, ground: Ground, theta: Tensor, num_refinements: int, step_size: float = 0.0) -> Tensor:
        """Each point walks on for so many steps, of the length that the sharpest site had."""
        particles = self.start(ground, theta)
        first = step_size**2 * (1 + self.momentum) / (2 * theta.shape[1]) or FIRST / max(ground.curvature, FIRST)
        particles = self._with_steps(ground, particles, first)
        moved, _ = self._walk(ground, particles, num_refinements, tunes=False)
        return moved.where(moved.is_finite, particles).theta

    def heat(self, ground: Ground, particles: Particles) -> tuple[tuple[str, float, float], ...]:
        """Of each site over the recorded part of the walk: its kinetic temperature, and the batches' part of it."""
        alive = particles.alive if bool(particles.alive.any()) else torch.ones_like(particles.alive)
        own, names = particles.own, [site.name for site in ground.potential.sites.sites]
        sums = (ground.share.gathered(torch.where(alive[:, None], own[name], 0.0)).sum(0) for name in SUMS)
        heat, looks, batch_heat, comparisons = sums
        if not bool(looks.any()):
            return ()
        heat = heat / looks
        # Batches of one pass are not independent: where these are few, less of their noise is left than each one has.
        of_batches = (batch_heat / comparisons.clamp_min(1)).minimum((heat - 1).clamp_min(0))
        return tuple(zip(names, heat.tolist(), of_batches.tolist(), strict=True))

    def aim(self, ground: Ground) -> float:
        """For the excess of the kinetic temperature."""
        large = SMALL_EXCESS if "root" in ground.measured else LARGE_EXCESS  # in such units all directions are alike
        excess = self.excess or by_size(len(ground.scale), lambda: SMALL_EXCESS, lambda: large)
        return excess / math.sqrt(self.effort)

    def _with_first_steps(self, ground: Ground, particles: Particles) -> Particles:
        return self._with_steps(ground, particles, min(FIRST / max(ground.curvature, FIRST), LARGEST))

    def _with_steps(self, ground: Ground, particles: Particles, first: float) -> Particles:
        """The same step for all sites, and velocities of temperature 1 for it."""
        velocity = math.sqrt(2 * first / (1 + self.momentum)) * ground.share.normal_like(particles.theta)
        own = {**particles.own, "velocity": velocity, "step": torch.full_like(particles.own["step"], first)}
        own |= {name: value.expand_as(own["step"]).clone() for name, value in self._first_sums(ground, first).items()}
        return replace(particles, own=own)

    def _walk(
        self, ground: Ground, particles: Particles, num_gradients: int, *, tunes: bool = True
    ) -> tuple[Particles, Tensor]:
        """So many gradients, then steps nearer to the aim; and what the temperature was above 1, in all (N,)."""
        p, own, noisy = particles, dict(particles.own), ground.potential.is_noisy
        row = int(p.alive.to(torch.uint8).argmax())  # of one that is not frozen: what was learned is the same in all
        learned = {name: own[name][row] for name in LEARNED}  # (S,) each
        steps = learned["step"]
        eps, step = _of_coordinates(ground, steps), ground.inside(langevin_step)
        units = (self.units(ground), *([ground.measured["root"]] if "root" in ground.measured else []))
        theta, velocity, grad, energies = p.theta, own["velocity"], p.grad, torch.zeros_like(p.energy)
        heat, rate, looks = torch.zeros_like(own["heat"]), (1 + self.momentum) / (2 * steps), 0
        earlier: list[Tensor] = []
        for i in range(num_gradients):
            earlier, noise = [*earlier[-1:], grad], ground.share.normal_like(velocity)
            theta, velocity, energy, grad = step(theta, velocity, grad, noise, eps, self.momentum, *units)
            energies = energies + energy if noisy else energy
            if (num_gradients - 1 - i) % EVERY == 0:
                heat, looks = heat + rate * _mean_squares(ground, velocity), looks + 1
                if noisy and len(earlier) == 2:
                    own["batch_heat"] = own["batch_heat"] + self._batch_heat(
                        ground, steps, earlier[0], earlier[1], grad
                    )
                    own["comparisons"] = own["comparisons"] + 1
        moved = replace(p, theta=theta, grad=grad, energy=energies / num_gradients if noisy else energies)
        moved = replace(moved, num_gradients=p.num_gradients + num_gradients, drift=_directions(velocity, p.drift))
        if tunes:
            seen = torch.where((p.alive & moved.is_finite)[:, None], heat / looks, math.nan)
            seen = ground.share.gathered(seen)  # of all ranks, which keep to the same steps
            learned = self._tuned(ground, learned, seen[~seen.isnan().any(-1)], num_gradients)
        new = learned["step"]
        own |= {name: value.expand_as(heat).clone() for name, value in learned.items()}
        own |= {"velocity": velocity * _of_coordinates(ground, new / steps).sqrt()}
        own |= {"heat": own["heat"] + heat, "looks": own["looks"] + looks}
        length = math.sqrt(2 * float(new.min()) * theta.shape[1] / (1 + self.momentum))
        return replace(moved, own=own, step_size=length), (heat / looks).mean(-1) - 1

    def _batch_heat(self, ground: Ground, steps: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
        """What the noise of batches adds to the temperature of each site (N, S), by gradients on three of them.

        Their second difference has six times the variance of one. The way between the points, which is smooth, mostly
        falls out of it: of the first difference it can be more than the noise where batches are large.
        """
        difference = (third - 2 * second + first) * self.units(ground)
        if "root" in ground.measured:
            difference = difference @ ground.measured["root"]
        variance = _mean_squares(ground, difference) / 6
        return steps / (2 * (1 - self.momentum)) * variance

    def _error(self, ground: Ground, num_particles: int, num_gradients: float) -> Tensor:
        """Deviation (S,) of a site's temperature over so many gradients: large where it has few coordinates."""
        sizes = ground.scale.new_tensor(_sizes(ground))
        return (2 / (num_particles * sizes * max(1.0, num_gradients * (1 - self.momentum)))).sqrt()

    def _windows(self, ground: Ground) -> Tensor:
        """How many (S,) it takes to see an excess such as the aim."""
        return (self._error(ground, ground.num_particles, WINDOW) / self.aim(ground)).square().clamp_max(MOST_WINDOWS)

    def _first_sums(self, ground: Ground, first: float) -> dict[str, Tensor]:
        """As if the aim had been met with the first step, over as many windows as it takes to see an excess."""
        windows = self._windows(ground)
        return {"excess": self.aim(ground) * windows, "tried": first * windows}

    def _tuned(self, ground: Ground, learned: dict[str, Tensor], heat: Tensor, num_gradients: int) -> dict[str, Tensor]:
        """The next steps, and the sums that they come from, by temperatures (n, S) of the particles that are sound.

        The excess grows in proportion to the step. So the aim over what has been seen for what has been tried is the
        step; the sums forget, the sooner the less there is to average.
        """
        steps, part = learned["step"], num_gradients / WINDOW
        error = self._error(ground, max(1, len(heat)), num_gradients)
        above = (heat.mean(0) - 1).clamp_max(HOTTEST) if len(heat) else torch.full_like(steps, HOT)
        windows = self._windows(ground)
        remembered = (1 - 1 / (FEWEST_WINDOWS + 2 * windows)) ** part
        excess = remembered * learned["excess"] + part * above
        tried = remembered * learned["tried"] + part * steps
        change = (self.aim(ground) * tried / excess.clamp_min(1e-6) / steps).log().clamp(-FASTEST, FASTEST / 2)
        change = torch.where(above > HOT + 6 * error, -1.0, change * min(1.0, part))
        return {"step": (steps * change.exp()).clamp_max(LARGEST), "excess": excess, "tried": tried}


def _sizes(ground: Ground) -> list[int]:
    """How many coordinates each site has."""
    return [site.stop - site.start for site in ground.potential.sites.sites]


def _of_coordinates(ground: Ground, of_sites: Tensor) -> Tensor:
    """(S,) -> (D,)."""
    sizes = torch.tensor(_sizes(ground), device=of_sites.device)
    return of_sites.repeat_interleave(sizes)


def _mean_squares(ground: Ground, values: Tensor) -> Tensor:
    """Of each site: (N, D) -> (N, S)."""
    squares = values.square()
    if "pulls" in ground.measured and "root" not in ground.measured:  # directions of a root are of all coordinates
        squares.mul_(ground.measured["pulls"])
    return torch.stack([part.mean(-1) for part in squares.split(_sizes(ground), dim=-1)], dim=-1)


def _directions(velocity: Tensor, before: Tensor) -> Tensor:
    length = velocity.norm(dim=-1, keepdim=True)
    return torch.where(length > 0, velocity / length, before)
