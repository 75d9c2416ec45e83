"""The record of a walk.

In: what a kernel walked.  Out: thetas (N, T + 1, D), their energies, samples by site, and what was walked on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..files.storage import Content
from ..model.sites import Sites
from ..ranks.share import ALONE, Share
from ..refiners.state import Ground, of_axes
from ..runtime.arguments import WrongTypeError, check_count, check_tensor, check_type

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """N walks of T recorded steps, all from the MAP; each tensor with its axes.

    Example:
        >>> walk.thetas.shape
        torch.Size([4, 11, 3])
        >>> walk.samples()["weight"].shape
        torch.Size([40, 1, 2])
    """

    thetas: Tensor = of_axes("N", "T + 1", "D")  # unconstrained; the first point of each walk is the MAP
    energies: Tensor = of_axes("N", "T + 1")
    energy_errors: Tensor = of_axes("N", "T")  # of the integrator, root mean square; or what refining did not take back
    drift_survived: Tensor = of_axes("N", "T")  # the part of the drift that was left of each step: 1 is straight on
    step_sizes: Tensor = of_axes("T")  # of a refiner that tunes its own
    paths: Tensor = of_axes("T")  # how far the drift had gone at each point, in the refiner's units
    gradients: Tensor = of_axes("T", dtype=torch.int64)  # that each particle had taken by then
    frozen_at: Tensor = of_axes("N", dtype=torch.int64)  # the step from which on its last good point repeats, or T + 1
    positions: Tensor = of_axes("T + 1")  # among all points, from 0 at the MAP to 1; longer first where it approached
    sites: Sites
    spacing: float  # how far the drift was to go between two points
    arguments: Arguments = ((), {})  # what the model was called with; of a walk on minibatches, one batch
    modes: tuple[tuple[float, float], ...] = ()  # where the search for the MAP ended: energy, part of the posterior
    heat: tuple[tuple[str, float, float], ...] = ()  # of Langevin, by site: its temperature, the batches' part of it
    in_batches: bool = False  # so that no call of the model saw all the data
    share: Share = ALONE  # of several ranks: which one's record this is
    ground: Ground | None = None  # what was walked on, for draws that are to be refined; None from a file

    def __post_init__(self) -> None:
        check_type("sites", self.sites, Sites, "the sites of a model, as BatchedPotential(model, x, y).sites are")
        for name in AXES:
            check_tensor(name, getattr(self, name))
        if self.thetas.dim() != 3 or self.thetas.shape[2] != self.sites.dim:
            raise ValueError(
                f"thetas has shape {tuple(self.thetas.shape)}, but must be (N, T + 1, {self.sites.dim}): walks, "
                "points, coordinates of the model."
            )
        lengths = axis_lengths(self.num_particles, self.num_steps, self.sites.dim)
        for name, axes in AXES.items():
            shape = tuple(lengths[axis] for axis in axes)
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {tuple(getattr(self, name).shape)}, but thetas ask for {shape}.")

    def __repr__(self) -> str:
        lost = int((~self.is_good.all(-1)).sum())
        frozen = f", {lost} frozen" if lost else ""
        return f"Trajectories({self.num_particles} walks of {self.num_steps} points, D = {self.sites.dim}{frozen})"

    @property
    def num_particles(self) -> int:
        """N."""
        return self.thetas.shape[0]

    @property
    def num_steps(self) -> int:
        """T."""
        return self.thetas.shape[1] - 1

    @property
    def theta_star(self) -> Tensor:
        """The MAP (D,)."""
        return self.thetas[0, 0]

    @property
    def is_good(self) -> Tensor:
        """Which of the T points after the MAP (N, T) were reached with a finite energy."""
        steps = torch.arange(1, self.num_steps + 1, device=self.frozen_at.device)
        return steps < self.frozen_at[:, None]

    def samples(self, group_by_chain: bool = False) -> dict[str, Tensor]:
        """The points after the MAP by site, constrained.

        Args:
            group_by_chain: (N, T, ...) a site, without the particles that froze; else (N T, ...), without
                the points at which one stood frozen.
        """
        points = self.thetas[:, 1:]
        good = self.is_good.all(-1) if group_by_chain else self.is_good
        return self.sites.unflatten(points[good.to(points.device)].to(self.sites.dtype))

    def thinned(self, every: int) -> Trajectories:
        """Every `every`-th point, and the MAP."""
        check_count("every", every, "it counts points.")
        if every > self.num_steps:
            raise ValueError(
                f"every must be at most {self.num_steps}, the steps of the walk, got {every}: none is left."
            )
        points = torch.tensor([0, *range(every, self.num_steps + 1, every)], device="cpu")
        kept = {"T + 1": points, "T": points[1:] - 1}
        arrays: dict[str, Any] = {}
        for name, axes in AXES.items():
            value, place = getattr(self, name), _along_walk(axes)
            arrays[name] = value if place is None else value.index_select(place, kept[axes[place]].to(value.device))
        never = self.frozen_at > self.num_steps
        arrays["frozen_at"] = torch.where(never, len(points), (self.frozen_at + every - 1) // every)
        return replace(self, **arrays, spacing=self.spacing * every)

    def join(self, *others: Trajectories) -> Trajectories:
        """These walks and others of the same model, with as many points each, as one record.

        What is recorded once for all particles (step sizes, paths, gradients) is averaged over the walks.

        Example:
            >>> walk.join(walk).thetas.shape
            torch.Size([8, 11, 3])
        """
        walks = [self, *others]
        for other in others:
            check_type("a walk to join", other, Trajectories, "the Trajectories of a walk of the same model")
            if other.sites.names != self.sites.names or other.thetas.shape[1:] != self.thetas.shape[1:]:
                raise ValueError(
                    f"{other!r} cannot join {self!r}: both need the same sites and as many points. Walk the same model "
                    "with the same num_steps and thin."
                )
        arrays: dict[str, Any] = {}
        for name, axes in AXES.items():
            values = [getattr(walk, name).to(getattr(self, name)) for walk in walks]
            one = torch.cat(values) if axes[0] == "N" else torch.stack(values).double().mean(0)
            arrays[name] = one.to(values[0].dtype)
        return replace(self, **arrays, in_batches=any(walk.in_batches for walk in walks))

    def state(self) -> dict[str, Any]:
        """The record in plain values, for a file: without the sites, the arguments and the ground."""
        plain = ("spacing", "in_batches", "modes", "heat")
        return {name: getattr(self, name) for name in (*AXES, *plain)}

    @classmethod
    def restored(cls, state: Content, sites: Sites) -> Trajectories:
        """The record of such a state, for a model of these sites."""
        num_particles, num_points = state.tensor("thetas", None, None, sites.dim).shape[:2]
        if num_particles < 1 or num_points < 2:
            raise state.wrong("thetas", "of at least one particle and one step")
        arrays = read_arrays(state, axis_lengths(num_particles, num_points - 1, sites.dim))
        if not bool((arrays["positions"].diff() > 0).all()):
            raise state.wrong("positions", "rising from point to point")
        spacing, in_batches = state.value("spacing", float), state.value("in_batches", bool)
        modes, heat = read_modes(state), read_heat(state)
        return cls(**arrays, sites=sites, spacing=spacing, in_batches=in_batches, modes=modes, heat=heat)


AXES: dict[str, tuple[str, ...]] = {
    one.name: one.metadata["axes"] for one in fields(Trajectories) if "axes" in one.metadata
}
DTYPES: dict[str, torch.dtype | None] = {one.name: one.metadata.get("dtype") for one in fields(Trajectories)}


def axis_lengths(num_particles: int, num_steps: int, dim: int) -> dict[str, int]:
    """The length of each axis of a record."""
    return {"N": num_particles, "T": num_steps, "T + 1": num_steps + 1, "D": dim}


def _along_walk(axes: tuple[str, ...]) -> int | None:
    """The axis that counts points or steps; None if there is none."""
    return next((place for place, axis in enumerate(axes) if axis in ("T", "T + 1")), None)


def so_far(arrays: Mapping[str, Tensor], num_steps: int) -> dict[str, Any]:
    """The first so many steps of each array of a record."""
    lengths = {"T": num_steps, "T + 1": num_steps + 1}
    places = {name: _along_walk(AXES[name]) for name in arrays}
    return {
        name: value if (place := places[name]) is None else value.narrow(place, 0, lengths[AXES[name][place]])
        for name, value in arrays.items()
    }


def read_arrays(state: Content, lengths: Mapping[str, int], like: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """The arrays of a record in a file, of these lengths; of the types of those that they go on from."""
    return {
        name: state.tensor(name, *(lengths[axis] for axis in AXES[name]), dtype=like[name].dtype if like else kind)
        for name, kind in DTYPES.items()
        if name in (AXES if like is None else like)
    }


def read_modes(state: Content) -> tuple[tuple[float, float], ...]:
    """Where the search for the MAP ended, in a file."""
    modes = state.value("modes", tuple)
    if not all(isinstance(mode, tuple) and [type(number) for number in mode] == [float, float] for mode in modes):
        raise state.wrong("modes", "pairs of numbers")
    return modes


def read_heat(state: Content) -> tuple[tuple[str, float, float], ...]:
    """The temperatures by site, in a file; none in one that is older."""
    heat = state.value("heat", tuple) if "heat" in state else ()
    if not all(isinstance(one, tuple) and [type(part) for part in one] == [str, float, float] for one in heat):
        raise state.wrong("heat", "a name and two numbers for each site")
    return heat


def walk_of(run_or_walk: Any, name: str = "walks") -> Trajectories:
    """The record of a run, or the record itself. A run, further down the flow, is what has `trajectories`."""
    if hasattr(type(run_or_walk), "trajectories"):
        return run_or_walk.trajectories
    if not isinstance(run_or_walk, Trajectories):
        kind = type(run_or_walk).__name__
        raise WrongTypeError(f"{name} must be Trajectories or a MetricBNN that has run, got {kind}.")
    return run_or_walk
