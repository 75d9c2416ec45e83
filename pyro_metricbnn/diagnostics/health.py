"""The health of a walk and of its latent map, in figures and in plain words.

In: a `MetricBNN` that has run, or Trajectories.  Out: `Health`, with warnings that say what to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..energy.curvature import MAX_HESSIAN
from ..latent.latent_map import LatentMap
from ..model.network import BayesianNetwork
from ..runtime.arguments import WrongTypeError
from ..walk.trajectories import Trajectories
from .mixing import MIN_DRAWS, r_hat

MAX_R_HAT = 1.2
MAX_TREND, MAX_T = 0.5, 3.5  # spreads that the energy may change in half a walk, and deviations of that change
MIN_PARTICLES = 5  # for a deviation of it
MAX_BEND = 0.1  # the paper's objective bends by .17, and its draws are off the fiber
MAX_RECONSTRUCTION = 0.5
MIN_PATH = 0.5  # of what was planned
WEIGHTS_MAY_DIFFER = (
    "Weights of a network can differ where functions agree: look at function_mixing, and if that is high too, take "
    "more effort: Steer(effort=4)."
)


class Run(Protocol):
    """What of a `MetricBNN` is looked at."""

    @property
    def model(self) -> Any:
        """The Pyro model."""

    @property
    def trajectories(self) -> Trajectories:
        """The record of the walk."""

    @property
    def latent_map(self) -> LatentMap:
        """The fitted latent space."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a walk went; printed, it is a short report.

    Energies are means over the particles that never froze.

    Args:
        num_particles: N.
        num_steps: T.
        dim: D.
        map_energy: At the MAP.
        energies: Over the first, the middle and the last fifth of the recorded points.
        energy_trend: What the energy rises by over the second half of the walk, in units of its own spread there.
        is_drifting: Whether that is more than chance and more than half a spread: the walk has not come to rest.
        energy_error: Median of what the integrator gets wrong in a step, or refinement does not take back.
        drift_survived: The mean part of the drift that is left of a step.
        path_walked: The part of the planned path that was walked: less than 1 where the energy is so sharp that the
            steps to its end would have been too many.
        frozen: Particles that came to an energy that is not finite.
        bend: How far the latent walks are from their chords, in chords; NaN without a latent map.
        reconstruction: How far the decoded points are from the recorded ones, in units of their spread.
        r_hat: The worst R-hat of all sites of a model of at most 200 coordinates; NaN in others.
        r_hat_site: The site that has it.
        is_network: Whether the sites are weights.
    """

    num_particles: int
    num_steps: int
    dim: int
    map_energy: float
    energies: tuple[float, float, float]
    energy_trend: float
    is_drifting: bool
    energy_error: float
    drift_survived: float
    path_walked: float
    frozen: tuple[int, ...]
    bend: float
    reconstruction: float
    r_hat: float
    r_hat_site: str
    is_network: bool

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong, and what to do."""
        said = []
        if self.frozen:
            said.append(
                f"{len(self.frozen)} of {self.num_particles} particles froze at an energy that is not finite. Take a "
                "smaller step: Steer(effort=4), or a smaller alpha or eta of a refiner that pulls back."
            )
        if self.path_walked < MIN_PATH:
            said.append(
                f"the energy became so sharp that the walk went {100 * self.path_walked:.0f} % of the path that was "
                "planned, and its points are nearer to the MAP than the posterior's. Steer(effort=4) goes further, "
                "Steer(path=6) all the way whatever it takes; a narrower prior, which deep networks want anyway, makes "
                "it softer."
            )
        elif self.is_drifting:
            said.append(
                f"the energies are still {'rising' if self.energy_trend > 0 else 'falling'} at the end: the walk has "
                "not come to where posterior samples live. Walk a longer path: Steer(effort=4) goes twice as far."
            )
        if self.r_hat > MAX_R_HAT:
            said.append(
                f"R-hat of site {self.r_hat_site!r} is {self.r_hat:.2f}: the particles do not agree on it. "
                + (WEIGHTS_MAY_DIFFER if self.is_network else "Take more effort: Steer(effort=4).")
            )
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

    def __str__(self) -> str:
        start, middle, end = self.energies
        lines = [
            f"{self.num_particles} particles, {self.num_steps} steps, {self.dim} coordinates",
            f"energy: MAP {self.map_energy:.1f}, start {start:.1f}, middle {middle:.1f}, end {end:.1f}; over the "
            f"second half {self.energy_trend:+.2f} spreads{' (drifting)' if self.is_drifting else ''}",
            f"energy error: {self.energy_error:.2g}; drift survived: {self.drift_survived:.2f}; "
            f"path walked: {self.path_walked:.0%}; "
            f"frozen: {len(self.frozen) or 'none'}",
        ]
        if not math.isnan(self.bend):
            lines.append(f"latent map: bend {self.bend:.3f}, reconstruction error {self.reconstruction:.3f} spreads")
        if not math.isnan(self.r_hat):
            lines.append(f"worst R-hat: {self.r_hat:.2f}, of site {self.r_hat_site!r}")
        return "\n".join([*lines, *(f"WARNING: {text}" for text in self.warnings)])


def health(run: Run | Trajectories) -> Health:
    """Look at a walk, and at the latent map that was fitted to it.

    Args:
        run: A `MetricBNN` that has run, or the Trajectories of a kernel.

    Example:
        >>> state = health(walk)
        >>> state.frozen
        ()
        >>> print(state)  # doctest: +ELLIPSIS
        4 particles, 10 steps, 3 coordinates
        energy: MAP ...
    """
    if not isinstance(run, Trajectories) and not hasattr(type(run), "trajectories"):
        raise WrongTypeError(
            f"run must be a MetricBNN that has run, or the Trajectories of a walk, got {type(run).__name__}."
        )
    if isinstance(run, Trajectories):
        walk, latent_map, is_network = run, None, False
    else:
        walk, latent_map, is_network = run.trajectories, run.latent_map, isinstance(run.model, BayesianNetwork)
    whole = walk.is_good.all(-1).to(walk.energies.device)
    energies = walk.energies[whole, 1:].double()  # (N, T)
    trend, deviations = _trend(energies[:, energies.shape[1] // 2 :])
    worst, site = _worst_r_hat(walk)
    return Health(
        num_particles=walk.num_particles,
        num_steps=walk.num_steps,
        dim=walk.sites.dim,
        map_energy=float(walk.energies[0, 0]),
        energies=_along(energies),
        energy_trend=trend,
        is_drifting=abs(trend) > MAX_TREND and abs(deviations) > MAX_T,
        energy_error=float(walk.energy_errors.median()),
        drift_survived=float(walk.drift_survived.mean()),
        path_walked=_path_walked(walk),
        frozen=tuple((~whole).nonzero().flatten().tolist()),
        bend=latent_map.bend if latent_map is not None else float("nan"),
        reconstruction=_relative_residual(latent_map) if latent_map is not None else float("nan"),
        r_hat=worst,
        r_hat_site=site,
        is_network=is_network,
    )


def _path_walked(walk: Trajectories) -> float:
    """Between the first point and the last, as a part of what was planned."""
    planned = walk.spacing * (walk.num_steps - 1)
    return float(walk.paths[-1] - walk.paths[0]) / planned if planned else 1.0


def _along(energies: Tensor) -> tuple[float, float, float]:
    """The mean energy (N, T) in the first, the middle and the last fifth."""
    num_steps = energies.shape[1]
    fifth = max(1, num_steps // 5)
    starts = (0, (num_steps - fifth) // 2, num_steps - fifth)
    start, middle, end = (float(energies[:, at : at + fifth].mean()) for at in starts)
    return start, middle, end


def _trend(energies: Tensor) -> tuple[float, float]:
    """The rise of straight lines through the energies (N, T) of each particle, in units of the energies' deviation
    around those lines; and the mean rise in its own deviations: particles are independent, points of one are not.
    """
    num_particles, num_steps = energies.shape
    if num_particles < MIN_PARTICLES or num_steps < MIN_DRAWS:
        return float("nan"), float("nan")
    time = torch.linspace(-0.5, 0.5, num_steps, device=energies.device, dtype=energies.dtype)
    rises = (energies * time).sum(-1) / time.pow(2).sum()  # (N,)
    around = energies - rises.mean() * time
    spread = float(around.std())
    error = float(rises.std()) / math.sqrt(num_particles)
    rise = float(rises.mean())
    return rise / max(spread, 1e-30), rise / max(error, 1e-30)


def _relative_residual(latent_map: LatentMap) -> float:
    return float(latent_map.residuals.norm() / latent_map.spreads.norm().clamp_min(1e-30))


def _worst_r_hat(walk: Trajectories) -> tuple[float, str]:
    """Of all sites of a small model, and whose it is."""
    whole = int(walk.is_good.all(-1).sum())
    if walk.sites.dim > MAX_HESSIAN or walk.num_steps < MIN_DRAWS or not whole:
        return float("nan"), ""
    by_site = {name: float(r_hat(value).max()) for name, value in walk.samples(group_by_chain=True).items()}
    site = max(by_site, key=by_site.__getitem__)
    return by_site[site], site
