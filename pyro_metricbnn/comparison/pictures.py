"""The pictures of a report on posteriors: what they predict, how honest they are, marginals, walks.

In: a `Task` and the `Evidence` about each posterior.  Out: `Section`s of pictures. No style is changed,
and no random number of yours is used up.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..diagnostics.calibration import RealCalibration
from ..inference import MetricBNN
from ..model.likelihoods import Bernoulli, Categorical
from ..plots.canvas import CLASSES, GREY, MARKERS, array, legend_below
from ..plots.predictions import plot_band, plot_decision, plot_reliability
from ..plots.walks import plot_energy, plot_walks
from ..walk.trajectories import Trajectories
from .evidence import Evidence
from .panels import Section, as_picture, panel, panels, short
from .task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = 200  # inputs along a band
MARGIN = 0.3  # of the inputs' range that is shown beyond them
MAX_COORDINATES = 12  # whose marginals are drawn
MAX_WORK = 2e10  # numbers multiplied for the energy behind the walks: some seconds
DASHES = ("-", "--", "-.", ":")


def draw_sections(task: Task, evidence: Sequence[Evidence]) -> tuple[Section, ...]:
    """All pictures that the model and its data have."""
    sections: list[Section] = []
    for part in (_bands, _decisions, _reliability, _coverage, _marginals, _walks):
        sections += part(task, evidence)
    return tuple(sections)


# ---------------------------------------------------------------------------------------- predictions


def _has_columns(task: Task, number: int) -> bool:
    return task.is_network and torch.is_tensor(task.x) and task.x.dim() == 2 and task.x.shape[1] == number


def _bands(task: Task, evidence: Sequence[Evidence]) -> list[Section]:
    """Of a network with one input and one output that is a number."""
    y = task.layout.values.get("obs")
    if not _has_columns(task, 1) or y is None or y.numel() != len(y) or isinstance(_likelihood(task), Categorical):
        return []
    low, high = float(task.x.min()), float(task.x.max())
    reach = MARGIN * (high - low) or 1.0
    grid = torch.linspace(low - reach, high + reach, GRID, device="cpu").to(task.x)[:, None]

    def draw(one: Evidence, ax: Axes) -> None:
        plot_band(task.predict(one.contender.draws, grid), grid, (task.x, y), legend=False, ax=ax)

    text = (
        "The function and new observations along the input, within the data and beyond them. Where there are no data "
        "the dark band should open."
    )
    return [Section(title="Predictions", text=text, pictures=panels(evidence, draw, "Predictive bands along x"))]


def _decisions(task: Task, evidence: Sequence[Evidence]) -> list[Section]:
    """Of a classifier with two inputs."""
    if not _has_columns(task, 2) or not isinstance(_likelihood(task), (Categorical, Bernoulli)):
        return []
    y = task.layout.values["obs"]
    if y.numel() != len(y):
        return []

    def draw(one: Evidence, ax: Axes) -> None:
        plot_decision(
            lambda x: task.predict(one.contender.draws, x),
            task.x,
            y.reshape(-1),
            margin=MARGIN,
            grid_size=80,
            legend=False,
            ax=ax,
        )

    text = "How sure each classifier is where, and its decision boundaries in white. Far from data none should be."
    return [Section(title="Decisions", text=text, pictures=panels(evidence, draw, "Confidence in the plane", 4))]


def _likelihood(task: Task) -> object:
    return getattr(task.model, "likelihood", None)


def _data_name(task: Task) -> str:
    return "the test data" if task.has_test else "the data that the posteriors have seen"


def _reliability(task: Task, evidence: Sequence[Evidence]) -> list[Section]:
    """Of a classifier."""
    y = task.y_judged
    if y is None or not isinstance(_likelihood(task), (Categorical, Bernoulli)):
        return []

    def draw(one: Evidence, ax: Axes) -> None:
        if one.prediction is not None:  # in as many bins as the table's figure
            plot_reliability(one.prediction.class_probs, y.reshape(-1), num_bins=15, legend=False, ax=ax)

    text = f"How often predictions of {_data_name(task)} came true, against how sure they were: honest on the diagonal."
    return [Section(title="Reliability", text=text, pictures=panels(evidence, draw, "Reliability diagram"))]


def _coverage(task: Task, evidence: Sequence[Evidence]) -> list[Section]:
    """Of predicted numbers: all posteriors in one picture."""
    if not all(isinstance(one.calibration, RealCalibration) for one in evidence):
        return []
    ax = panel(5.6, 4.6)
    ax.plot([0, 1], [0, 1], color=GREY, lw=4, alpha=0.4, label="honest")
    names = ["honest"]
    for i, one in enumerate(evidence):
        found = one.calibration
        if isinstance(found, RealCalibration):
            style = {"color": CLASSES[i % 8], "marker": MARKERS[i % 8], "ls": DASHES[i // 8 % 4], "lw": 1.5, "ms": 5}
            ax.plot(found.levels, found.coverage, **style, label=str(i))
            names.append(short(one.contender.name))
    ax.set(xlabel="probability of the central interval", ylabel="observations within it", xlim=(0, 1), ylim=(0, 1.02))
    legend_below(ax, 2)
    for text, name in zip(ax.get_legend().get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    said = f"The share of {_data_name(task)} in central intervals: below the line a posterior is too sure of itself."
    picture = as_picture(
        ax.figure, "All posteriors", "Coverage of central intervals against their probability, by posterior."
    )
    return [Section(title="Coverage", text=said, pictures=(picture,))]


# ------------------------------------------------------------------------------------------ marginals


def _marginals(task: Task, evidence: Sequence[Evidence]) -> list[Section]:
    """Intervals of a few coordinates of a model that is no network: a network's weights can change places."""
    if task.is_network:
        return []
    draws = [{**one.contender.draws, **one.derived} for one in evidence]
    total = sum(value[0].numel() for value in draws[0].values())
    names = [short(one.contender.name) for one in evidence]
    pictures = []
    for site, place in _chosen({name: value.shape[1:] for name, value in draws[0].items()}):
        ax = panel(4.4, 0.9 + 0.42 * len(evidence))
        for row, each in enumerate(draws):
            _draw_intervals(ax, each[site].movedim(0, -1)[place].double(), row)
        ax.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
        ax.set_yticklabels(names, parse_math=False)
        ax.grid(axis="x", alpha=0.3)
        label = f"{site}[{', '.join(map(str, place))}]" if place else site
        pictures.append(as_picture(ax.figure, label, f"Intervals of {label} by each posterior."))
    text = "Mean, 50 % and 90 % of the draws of each posterior."
    if total > len(pictures):
        text += f" {len(pictures)} of {total} coordinates are shown, some of each site."
    return [Section(title="Marginals", text=text, pictures=tuple(pictures))]


def _draw_intervals(ax: Axes, draws: Tensor, row: int) -> None:
    """(S,) as a point and two lines."""
    colour = CLASSES[row % 8]
    for low, high, width in ((0.05, 0.95, 1.8), (0.25, 0.75, 5.5)):
        ends = draws.quantile(torch.tensor([low, high], device=draws.device, dtype=draws.dtype))
        ax.plot(array(ends), [row, row], color=colour, lw=width, solid_capstyle="butt")
    ax.plot(float(draws.mean()), row, "o", color="white", mec=colour, mew=1.6, ms=7)


def _chosen(shapes: Mapping[str, Sequence[int]]) -> list[tuple[str, tuple[int, ...]]]:
    """At most so many entries of the sites, the first of each before the second of any; in the model's order."""
    places = []
    for number, (site, shape) in enumerate(shapes.items()):
        entries = itertools.islice(itertools.product(*map(range, shape)), MAX_COORDINATES)
        places += [(turn, number, site, place) for turn, place in enumerate(entries)]
    kept = sorted(places)[:MAX_COORDINATES]
    return [(site, place) for _, _, site, place in sorted(kept, key=lambda entry: (entry[1], entry[0]))]


# ---------------------------------------------------------------------------------------------- walks


def _walks(task: Task, evidence: Sequence[Evidence]) -> list[Section]:
    """Of each posterior that was walked: energies, and walks in a plane."""
    pictures = []
    for one in evidence:
        source, name = one.contender.source, one.contender.name
        if not isinstance(source, (MetricBNN, Trajectories)):
            continue
        ax = plot_energy(source, legend=False, ax=panel())
        legend_below(ax, 3)
        pictures.append(as_picture(ax.figure, f"{name}: energy", f"Potential energy along the walks of {name}."))
        walk = source.trajectories if isinstance(source, MetricBNN) else source
        if walk.sites.dim < 2 or walk.num_particles * walk.num_steps < 2:
            continue
        numbers = sum(value.numel() for value in task.layout.values.values())
        heavy = 3600.0 * walk.sites.dim * max(1, numbers) > MAX_WORK
        ax = plot_walks(walk if heavy else source, legend=False, ax=panel())
        legend_below(ax, 3)
        pictures.append(as_picture(ax.figure, f"{name}: walks", f"Walks of {name} in their plane of most variance."))
    text = "A healthy walk climbs from the MAP and then stays level; in the plane it does not stay where it began."
    return [Section(title="Walks", text=text, pictures=tuple(pictures))] if pictures else []
