"""The health of a walk and of its latent map, in figures and in plain words.

In: a `MetricBNN` that has run, or Trajectories.  Out: `Health`, with warnings that say what to do.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..latent.latent_map import LatentMap
from ..model.network import BayesianNetwork
from ..search.map_search import said_of_modes
from ..walk.trajectories import Trajectories, walk_of
from .mixing import MAX_COORDINATE_R_HAT, MIN_DRAWS, late_function_r_hat, r_hat, some_rows, virial

MAX_TREND, MAX_T = 0.5, 3.5  # spreads that the energy may change in half a walk, and deviations of that change
MIN_PARTICLES = 5  # for a deviation of it
MAX_BEND = 0.1  # the paper's objective bends by .17, and its draws are off the fiber
MAX_RECONSTRUCTION = 0.5
MIN_PATH = 0.5  # of what was planned
MIN_VIRIAL, MOST_ERRORS = 0.7, 2.0  # 1 for samples; so many standard errors above what was seen count as well
MAX_LATE_R_HAT = 1.3  # of functions; set by these: 38 default walks on tables have up to 1.27, 28 cut to a tenth more
MAX_HEAT = 0.2  # that a kinetic temperature may be off by: so much is a tenth of a posterior's deviations
MORE_EFFORT = "four times the effort (from the default MetricBNN(model, effort=4))"
WEIGHTS_MAY_DIFFER = (
    "Weights of a network can differ where functions agree: look at function_mixing, and if that is high too, take "
    f"{MORE_EFFORT}."
)
Run = Any  # a MetricBNN, which is further down the flow


@dataclass(frozen=True)
class Arrival:
    """Whether a walk came to where posterior samples live; printed, it is one sentence that says what to do."""

    energy_trend: float  # what the mean energy rises by over the second half of the walk, in units of its spread there
    is_drifting: bool  # whether that is more than chance and more than half a spread
    path_walked: float  # the part of the planned path
    virial: float = math.nan  # how far points are apart for where gradients hold them: 1 for samples of the posterior
    is_narrow: bool = False  # whether that is less than MIN_VIRIAL by more than chance
    function_r_hat: float = math.nan  # the median of function values over the second half; 1 where particles agree

    @property
    def arrived(self) -> bool:
        """As far as energies, path, gradients and functions can tell."""
        disagrees = self.function_r_hat > MAX_LATE_R_HAT
        return not (self.is_drifting or self.is_narrow or disagrees or self.path_walked < MIN_PATH)

    def __str__(self) -> str:
        if self.path_walked < MIN_PATH:
            return (
                f"the walk has not arrived: the energy became so sharp that it went {100 * self.path_walked:.0f} % of "
                f"the path, and its points are nearer to the MAP than the posterior's. Further goes {MORE_EFFORT}, "
                "all the way, whatever it takes, refiner=Steer(path=6); a narrower prior makes it softer."
            )
        if self.is_drifting:
            return (
                f"the walk has not arrived: its mean energy still {'rose' if self.energy_trend > 0 else 'fell'} by "
                f"{abs(self.energy_trend):.1f} of its spread over the second half. Walk for longer: {MORE_EFFORT}."
            )
        if self.is_narrow:
            return (
                f"the walk has not arrived: its points are {self.virial:.0%} as far apart as gradients there would let "
                f"posterior samples be (their virial, {self.virial:.2f} instead of 1). Walk for longer: {MORE_EFFORT}."
            )
        if self.function_r_hat > MAX_LATE_R_HAT:
            return (
                "the walk has not arrived: its particles still predict different things (the R-hat of function values "
                f"is {self.function_r_hat:.2f} in the median, and 1 where they agree). Walk for longer: {MORE_EFFORT}."
            )
        if math.isnan(self.energy_trend):
            return "whether the walk arrived cannot be told from so few particles or points."
        change = f"over its second half the mean energy changed by {self.energy_trend:+.1f} of its spread"
        return f"the walk has arrived: {change}."


def arrival(walk: Trajectories) -> Arrival:
    """Of a walk, from its energies, its path and a few gradients."""
    energies = walk.energies[walk.is_good.all(-1).to(walk.energies.device), 1:].double()  # (N, T)
    trend, deviations = _trend(energies[:, energies.shape[1] // 2 :], walk.in_batches)
    planned = walk.spacing * (walk.num_steps - 1)  # between the first point and the last
    ratio, error = virial(walk)
    return Arrival(
        energy_trend=trend,
        is_drifting=abs(trend) > MAX_TREND and abs(deviations) > MAX_T,
        path_walked=float(walk.paths[-1] - walk.paths[0]) / planned if planned else 1.0,
        virial=ratio,
        is_narrow=ratio + MOST_ERRORS * error < MIN_VIRIAL,
        function_r_hat=late_function_r_hat(walk),
    )


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a walk went; printed, it is a short report. Energies are means over the particles that never froze."""

    num_particles: int  # N
    num_steps: int  # T
    dim: int  # D
    map_energy: float
    modes: tuple[tuple[float, float], ...]  # where starts of the search for it ended: energy, part of the posterior
    energies: tuple[float, float, float]  # over the first, the middle and the last fifth of the recorded points
    energy_trend: float  # what it rises by over the second half of the walk, in units of its own spread there
    is_drifting: bool  # whether that is more than chance and more than half a spread: the walk has not come to rest
    energy_error: float  # median of what the integrator gets wrong in a step, or refinement does not take back
    drift_survived: float  # the mean part of the drift that is left of a step
    path_walked: float  # the part of the planned path: less than 1 where the energy is too sharp for so few steps
    virial: float  # 1 for samples of the posterior, less where points are nearer to each other; NaN where not known
    is_narrow: bool  # whether that is more than chance
    function_r_hat: float  # of a network, the median over the second half; NaN where not known
    frozen: tuple[int, ...]  # particles that came to an energy that is not finite
    bend: float  # how far the latent walks are from their chords, in chords; NaN without a latent map
    reconstruction: float  # how far the decoded points are from the recorded ones, in units of their spread
    r_hat: float  # the worst of the coordinates, of 200 at most; NaN for a run of a network, which has functions
    r_hat_site: str  # the site that has it
    is_network: bool  # whether the sites are weights
    heat: tuple[tuple[str, float, float], ...] = ()  # of Langevin, by site: kinetic temperature, the batches' part

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong, and what to do."""
        said = [text] if (text := said_of_modes(self.modes)) else []
        if self.frozen:
            said.append(
                f"{len(self.frozen)} of {self.num_particles} particles froze at an energy that is not finite. Take a "
                f"smaller step: {MORE_EFFORT}, or a smaller alpha or eta of a refiner that pulls back."
            )
        if not self.arrived:
            said.append(str(self.arrival))
        if off := [one for one in self.heat if not abs(one[1] - 1) <= MAX_HEAT]:
            site, temperature, of_batches = max(off, key=lambda one: abs(one[1] - 1))
            said.append(
                f"the kinetic temperature of site {site!r} is {temperature:.2f} and not 1, {of_batches:.2f} of it by "
                "the noise of the batches: the posterior comes out too wide there. Take larger batches, or "
                f"{MORE_EFFORT}."
            )
        if self.r_hat > MAX_COORDINATE_R_HAT:
            advice = WEIGHTS_MAY_DIFFER if self.is_network else f"Take {MORE_EFFORT}."
            where = f"R-hat of site {self.r_hat_site!r} is {self.r_hat:.2f}"
            said.append(f"{where}: the particles do not agree on it. {advice}")
        if self.bend > MAX_BEND:
            said.append(
                f"the latent walks are bent by {self.bend:.0%} of their chords: draws between their ends are off the "
                "fiber. Use KernelMap(), or AutoencoderMap with its segment term and more epochs."
            )
        if self.reconstruction > MAX_RECONSTRUCTION:
            said.append(
                f"the decoder misses the walk's points by {self.reconstruction:.0%} of their spread. Use KernelMap(), "
                "or AutoencoderMap with more hidden units or epochs."
            )
        return tuple(said)

    @property
    def arrived(self) -> bool:
        """Whether the walk came to where posterior samples live, as far as these figures tell."""
        return self.arrival.arrived

    @property
    def _said_of_trend(self) -> str:
        if math.isnan(self.energy_trend):
            return "unknown from so few particles or points"
        return f"{self.energy_trend:+.2f} spreads ({'arrived' if self.arrived else 'not arrived'})"

    @property
    def arrival(self) -> "Arrival":
        """The same in words."""
        return Arrival(**{field.name: getattr(self, field.name) for field in fields(Arrival)})

    def __str__(self) -> str:
        start, middle, end = self.energies
        lines = [
            f"{self.num_particles} particles, {self.num_steps} steps, {self.dim} coordinates",
            f"energy: MAP {self.map_energy:.1f}, start {start:.1f}, middle {middle:.1f}, end {end:.1f}; trend "
            f"{self._said_of_trend}",
            f"energy error: {self.energy_error:.2g}; drift survived: {self.drift_survived:.2f}; "
            f"path walked: {self.path_walked:.0%}; frozen: {len(self.frozen) or 'none'}",
        ]
        if self.heat:
            low, high = (pick(one[1] for one in self.heat) for pick in (min, max))
            most = max(one[2] for one in self.heat)
            lines.append(f"kinetic temperature: {low:.2f} to {high:.2f} by site, up to {most:.2f} of it by the batches")
        if not math.isnan(self.bend):
            lines.append(f"latent map: bend {self.bend:.3f}, reconstruction error {self.reconstruction:.3f} spreads")
        if not math.isnan(self.r_hat):
            lines.append(f"worst R-hat: {self.r_hat:.2f}, of site {self.r_hat_site!r}")
        elif self.is_network:
            median = "" if math.isnan(self.function_r_hat) else f" {self.function_r_hat:.2f} in the median;"
            lines.append(f"R-hat of function values:{median} function_mixing has each")
        return "\n".join([*lines, *(f"WARNING: {text}" for text in self.warnings)])


def health(run: Run | Trajectories) -> Health:
    """Look at the walk of a `MetricBNN` that has run and at its latent map, or at the Trajectories of a kernel.

    Example:
        >>> state = health(walk)
        >>> state.frozen
        ()
        >>> print(state)  # doctest: +ELLIPSIS
        4 particles, 10 steps, 3 coordinates
        energy: MAP ...
    """
    walk = walk_of(run, "run")
    latent_map: LatentMap | None = getattr(run, "latent_map", None)
    model = getattr(run, "model", None) or (walk.ground and walk.ground.potential.model)
    is_network = isinstance(model, BayesianNetwork)
    bend = reconstruction = float("nan")
    if latent_map is not None:
        spread = latent_map.spreads.norm().clamp_min(1e-30)
        bend, reconstruction = latent_map.bend, float(latent_map.residuals.norm() / spread)
    whole = walk.is_good.all(-1).to(walk.energies.device)
    energies = walk.energies[whole, 1:].double()  # (N, T)
    has_functions = is_network and walk is not run  # which say more than weights: function_mixing asks them
    worst, site = (float("nan"), "") if has_functions else _worst_r_hat(walk)
    return Health(
        **vars(arrival(walk)),
        num_particles=walk.num_particles,
        num_steps=walk.num_steps,
        dim=walk.sites.dim,
        map_energy=float(walk.energies[0, 0]),
        modes=walk.modes,
        energies=_along(energies),
        energy_error=float(walk.energy_errors.median()),
        drift_survived=float(walk.drift_survived.mean()),
        frozen=tuple((~whole).nonzero().flatten().tolist()),
        bend=bend,
        reconstruction=reconstruction,
        r_hat=worst,
        r_hat_site=site,
        is_network=is_network,
        heat=walk.heat,
    )


def _along(energies: Tensor) -> tuple[float, float, float]:
    """The mean energy (N, T) in the first, the middle and the last fifth."""
    fifth = max(1, energies.shape[1] // 5)
    rest = energies.shape[1] - fifth
    start, middle, end = (float(energies[:, at : at + fifth].mean()) for at in (0, rest // 2, rest))
    return start, middle, end


def _trend(energies: Tensor, in_batches: bool) -> tuple[float, float]:
    """The rise of straight lines through the energies (N, T) of each particle, in units of the energies' deviation
    around those lines; and the mean rise in its own deviations: particles are independent, points of one are not.
    In batches points are, and particles are not: they all see the same batch.
    """
    num_particles, num_steps = energies.shape
    if num_particles < MIN_PARTICLES or num_steps < MIN_DRAWS:
        return float("nan"), float("nan")
    time = torch.linspace(-0.5, 0.5, num_steps, device=energies.device, dtype=energies.dtype)
    rises = (energies * time).sum(-1) / time.pow(2).sum()  # (N,)
    rise, error = float(rises.mean()), float(rises.std()) / math.sqrt(num_particles)
    if in_batches:
        around = (energies - rises[:, None] * time).mean(0).std()
        error = math.hypot(error, float(around / time.norm()))
    spread = float((energies - rises.mean() * time).std())
    return rise / max(spread, 1e-30), rise / max(error, 1e-30)


def _worst_r_hat(walk: Trajectories) -> tuple[float, str]:
    """Of all coordinates of the sites, or of some evenly taken where they are many; and whose it is."""
    whole = walk.is_good.all(-1).nonzero().flatten().tolist()
    if walk.num_steps < MIN_DRAWS or not whole:
        return float("nan"), ""
    rows = []
    for i in whole:  # one walk at a time: a second copy of all thetas may not fit
        by_site = walk.sites.unflatten(walk.thetas[i, 1:].to(walk.sites.dtype))
        rows.append(some_rows(torch.cat([value.reshape(len(value), -1) for value in by_site.values()], dim=1).mT))
    worst, at = r_hat(torch.stack(rows).mT).max(0)  # of (N, T, at most 200)
    ends = torch.tensor([value[0].numel() for value in by_site.values()], device="cpu").cumsum(0)
    coordinate = some_rows(torch.arange(int(ends[-1]), device="cpu"))[int(at)]
    return float(worst), list(by_site)[int(torch.searchsorted(ends, coordinate, right=True))]
