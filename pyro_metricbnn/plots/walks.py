"""Pictures of the walk and of the latent space: projected walks, energies, segments, losses.

In: a run or part of it; `legend` asks for one, `ax` is where to draw, None for a new figure.  Out: the axes, labelled.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..diagnostics.health import Run
from ..energy.potential import BatchedPotential
from ..latent.autoencoder_map import BEND_EVERY, AutoencoderMap
from ..latent.latent_map import LatentMap
from ..runtime.arguments import check_count, check_type
from ..runtime.randomness import own_numbers
from ..walk.trajectories import Trajectories, walk_of
from . import style
from .style import Axes, array, axes_for, draw_field, grid_of, legend_below, window

DARKEST = 0.01  # of the energies in a plane: the few below would take the colours that show the fiber
MAX_COMPONENT_POINTS = 500  # of all walks that the plane is found from: two directions need no more
MAX_ENCODED_POINTS = 20  # of a walk
MAX_NUMBERS = 2_000_000  # of thetas at once


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Two directions through a point.

    Example:
        >>> Plane.of_walks(walk).project(walk.theta_star)
        tensor([0., 0.])
    """

    origin: Tensor  # (D,)
    axes: Tensor  # (2, D), orthonormal
    shares: Tensor  # (2,), the part of the points' variance along each

    @classmethod
    def of_walks(cls, trajectories: Trajectories) -> Self:
        """Through the MAP, along the two directions in which the recorded points vary most."""
        num_walks, num_points, dim = trajectories.thetas.shape
        if dim < 2:
            raise ValueError("a model of one coordinate has no plane to draw its walks in: use plot_energy instead.")
        if num_walks * (num_points - 1) < 2:
            raise ValueError("one recorded point has no principal components: walk at least two.")
        every = math.ceil(num_walks * num_points / MAX_COMPONENT_POINTS)
        star = trajectories.theta_star.double()
        points = trajectories.thetas[:, 1::every].flatten(0, 1).double() - star
        _, singular, axes = torch.linalg.svd(points - points.mean(0), full_matrices=False)
        return cls(origin=star, axes=axes[:2], shares=singular[:2] ** 2 / singular.pow(2).sum())

    @classmethod
    def of_segments(cls, latent_map: LatentMap) -> Self:
        """Of a latent space, through z_MAP; where all segments are orthogonal they are all seen, as a fan."""
        ends = latent_map.ends.detach().double()  # (N, k)
        if ends.shape[1] < 2:
            raise ValueError("a latent space of one dimension has no plane to draw its segments in.")
        _, singular, axes = torch.linalg.svd(ends, full_matrices=False)
        if len(ends) > 2 and float(singular[-1]) > 0.999 * float(singular[0]):
            angle = 2 * math.pi * torch.arange(len(ends), device=ends.device, dtype=ends.dtype) / len(ends)
            axes = torch.stack([angle.cos(), angle.sin()]) @ ends
            axes = axes / axes.norm(dim=-1, keepdim=True)
        if len(axes) < 2:  # one segment: along it, and any direction across
            across = torch.eye(2, ends.shape[1], device=ends.device, dtype=ends.dtype)
            axes = torch.linalg.qr(torch.cat([ends, across]).T)[0].T
        return cls(origin=torch.zeros_like(ends[0]), axes=axes[:2], shares=singular.new_full((2,), float("nan")))

    def project(self, theta: Tensor) -> Tensor:
        """(..., D) -> coordinates (..., 2)."""
        return ((theta.to(self.origin) - self.origin) @ self.axes.mT).to(theta.dtype)

    def lift(self, coordinates: Tensor) -> Tensor:
        """(..., 2) -> the points (..., D) of the plane."""
        return (self.origin + coordinates.to(self.origin) @ self.axes).to(coordinates.dtype)

    def energies(self, potential: BatchedPotential, first: Tensor, second: Tensor) -> Tensor:
        """U on the grid of coordinates first (A,) and second (B,): (B, A), a few points at once."""
        grid = grid_of((first, second))
        at_once = max(1, min(256, MAX_NUMBERS // len(self.origin)))
        parts = [potential.value(self.lift(part)) for part in grid.flatten(0, 1).split(at_once)]
        return torch.cat(parts).detach().reshape(grid.shape[:2])


def plot_walks(
    walks: Trajectories | Run,
    potential: BatchedPotential | None = None,
    *,
    grid_size: int = 60,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Walks, projected onto the plane through the MAP along their two principal components; behind them U on it.

    A walk leaves the plane: what it seems to cross, it goes around. So the colours say how thin the fiber is there,
    not which energies the walks had; for those see `plot_energy`.

    Args:
        walks: A run, or its trajectories.
        potential: The energy to draw; None for the run's own (of a loader's last batch), without a run for none.
        grid_size: Points a side at which the energy is computed.

    Example:
        >>> plots.plot_walks(walk, BatchedPotential(model, x, y), grid_size=10).get_title()
        ''
    """
    trajectories = walk_of(walks)
    check_count("grid_size", grid_size, "a grid has two points a side or more.", least=2)
    check_type("potential", potential, BatchedPotential, "a BatchedPotential, or None", or_none=True)
    dim = trajectories.sites.dim
    if potential is not None and potential.dim != dim:
        raise ValueError(f"the potential has {potential.dim} coordinates, the walks {dim}: it is another model's.")
    plane, ax = Plane.of_walks(trajectories), axes_for(ax, 5.8, 4.6)
    from matplotlib.patheffects import withStroke

    if potential is None and not isinstance(walks, Trajectories):
        args, kwargs = trajectories.arguments
        with own_numbers(trajectories.energies.device):  # a look at the model draws from it
            potential = BatchedPotential(walks.model, *args, **kwargs)
    points = plane.project(trajectories.thetas.to(trajectories.sites.dtype)).detach().cpu()  # (N, T + 1, 2)
    if potential is not None:
        _draw_energy(ax, plane, potential, points, grid_size)
    outline = [withStroke(linewidth=1.8, foreground=style.BLACK, alpha=0.6)]  # to be seen on light and dark energies
    for i, walk in enumerate(array(points)):
        ax.plot(*walk.T, color="white", lw=0.9, path_effects=outline, label=None if i else "walks")
    ax.plot(*array(points[:, -1]).T, "o", color=style.ORANGE, mec="black", mew=0.5, ms=5, label="their ends")
    ax.plot(*points[0, 0].tolist(), "*", color=style.VERMILLION, mec="white", mew=0.8, ms=15, label="MAP")
    ax.set(**{f"{side}label": f"component {i + 1} ({plane.shares[i]:.0%})" for i, side in enumerate("xy")})
    return legend_below(ax, wanted=legend)


def _draw_energy(ax: Axes, plane: Plane, potential: BatchedPotential, points: Tensor, grid_size: int) -> None:
    """U on the plane, from its lowest up, in logarithms: it rises over orders of magnitude."""
    from matplotlib.colors import LogNorm

    sides = window(points.flatten(0, 1), 0.1, grid_size)
    energies = plane.energies(potential, *(side.to(plane.origin.device, points.dtype) for side in sides))
    good = energies[energies.isfinite()]
    above = (energies.nan_to_num(float("inf")) - good.min()).clamp(1.0, float((good - good.min()).max().clamp_min(2.0)))
    mesh = draw_field(ax, sides, above, norm=LogNorm(vmin=float(above.quantile(DARKEST))))
    ax.figure.colorbar(mesh, ax=ax, label="U above its lowest in this plane")


def plot_energy(walks: Trajectories | Run, *, legend: bool = True, ax: Axes | None = None) -> Axes:
    """The potential energy along each walk of a run or record. A healthy one climbs from the MAP, then stays level.

    Example:
        >>> plots.plot_energy(walk).get_ylabel()
        'potential energy U'
    """
    trajectories = walk_of(walks)
    ax = axes_for(ax)
    positions, energies = array(trajectories.positions), array(trajectories.energies)
    good = array(torch.nn.functional.pad(trajectories.is_good, (1, 0), value=True))  # with the MAP: (N, T + 1)
    looks = {"color": style.BLUE, "lw": 0.9, "alpha": 0.5}
    for i, is_good in enumerate(good):
        ax.plot(positions[is_good], energies[i, is_good], **looks, label=None if i else "walks")
    star, higher = float(energies[0, 0]), trajectories.sites.dim / 2
    ax.axhline(star, color=style.VERMILLION, ls="--", lw=1.4, label="MAP")
    ax.axhline(star + higher, color=style.GREEN, ls=":", lw=1.8, label="MAP + D/2, a Gaussian's mean")
    if stopped := (~good).any(1).nonzero()[0].tolist():
        last = [int(good[i].sum()) - 1 for i in stopped]
        ax.plot(positions[last], energies[stopped, last], "X", color=style.BLACK, ms=8, label="froze here")
    ax.set(xlabel="position among the recorded points", ylabel="potential energy U")
    return legend_below(ax, wanted=legend)


def plot_segments(
    latent_map: LatentMap | Run,
    trajectories: Trajectories | None = None,
    *,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """The latent segments that the posterior is uniform on, seen in a plane; with a walk, its encoded points too.

    Args:
        latent_map: A fitted map, or a run.
        trajectories: The walk to encode; of a run its own.

    Example:
        >>> plots.plot_segments(KernelMap().fit(walk), walk).get_xlabel()
        'latent direction 1'
    """
    fitted = getattr(latent_map, "latent_map", latent_map)
    check_type("latent_map", fitted, LatentMap, "a fitted LatentMap, or a MetricBNN that has run")
    check_type("trajectories", trajectories, Trajectories, "the Trajectories of a walk, or None", or_none=True)
    if not fitted.is_fitted:
        raise ValueError("the latent map has not been fitted: call fit(trajectories) first.")
    if trajectories is None and fitted is not latent_map:
        trajectories = walk_of(latent_map)
    plane, ax, start = Plane.of_segments(fitted), axes_for(ax, 5.0, 4.6), fitted.start
    ends = plane.project(fitted.ends.detach()).cpu()  # (N, 2)
    for i, (a, b) in enumerate(ends.tolist()):
        if start > 0:
            ax.plot([0, start * a], [0, start * b], color=style.GREY, lw=1.0, ls=":", label=None if i else "approach")
        ax.plot([start * a, a], [start * b, b], color=style.SKY, lw=3.5, label=None if i else "segments")
    if trajectories is not None:
        points = array(plane.project(_encoded(fitted, trajectories)))
        ax.plot(*points.T, ".", color=style.BLACK, ms=4, label="encoded walk")
    ax.plot(0, 0, "*", color=style.VERMILLION, mec="white", mew=0.8, ms=15, label="MAP")
    ax.set(xlabel="latent direction 1", ylabel="latent direction 2", aspect="equal", adjustable="datalim")
    return legend_below(ax, wanted=legend)


def _encoded(latent_map: LatentMap, trajectories: Trajectories) -> Tensor:
    """The latent points (S, k) of some of each walk's good points, a few at once."""
    every = math.ceil(trajectories.num_steps / MAX_ENCODED_POINTS)
    good = trajectories.is_good[:, ::every].to(trajectories.thetas.device)
    points = trajectories.thetas[:, 1::every][good].to(latent_map.theta_star)
    parts = points.split(max(1, MAX_NUMBERS // points.shape[1]))
    return torch.cat([latent_map.encode(part)[0] for part in parts])


def plot_losses(latent_map: AutoencoderMap | Run, *, legend: bool = True, ax: Axes | None = None) -> Axes:
    """The parts of the loss of a fitted `AutoencoderMap`, or of a run's, by epoch, and how bent the walks still are.

    The part that drives other points apart changes its sign: it is on the right, in its own units.

    Example:
        >>> plots.plot_losses(AutoencoderMap(2, num_epochs=20).fit(walk, progress=False)).get_xlabel()
        'epoch'
    """
    fitted = getattr(latent_map, "latent_map", latent_map)
    if not isinstance(fitted, AutoencoderMap) or not fitted.losses:
        raise ValueError(f"{type(fitted).__name__} has no losses to draw: pass an AutoencoderMap after its fit.")
    ax, losses, bends = axes_for(ax), fitted.losses, fitted.bends
    epochs = range(1, len(losses) + 1)
    names = {"plus": "neighbours", "reconstruction": "reconstruction", "segment": "segments"}
    for (key, name), colour in zip(names.items(), (style.BLUE, style.ORANGE, style.GREEN), strict=True):
        if key in losses[0]:
            ax.plot(epochs, [row[key] for row in losses], color=colour, lw=1.5, label=name)
    if bends:
        at = [BEND_EVERY * (i + 1) for i in range(len(bends))]
        ax.plot(at, bends, color=style.BLACK, ls="--", lw=1.2, label="bend")
    right = ax.twinx()
    right.plot(epochs, [row["minus"] for row in losses], color=style.PURPLE, lw=1.5)
    right.set_ylabel("others apart", color=style.PURPLE)
    ax.plot([], [], color=style.PURPLE, label="others apart (right)")
    ax.set(xlabel="epoch", ylabel="loss; bend as a part of the chord", yscale="log")
    return legend_below(ax, columns=3, wanted=legend)
