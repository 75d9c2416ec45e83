"""The pictures of a report on posteriors: what they predict, how honest they are, marginals, walks.

In: a `Task` and the `Evidence` about each posterior.  Out: `Section`s of pictures, a PNG for each panel, so that a page
can put them where it has room. No style is changed, and no figure is known to pyplot.
"""

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..diagnostics.calibration import RealCalibration
from ..plots.predictions import plot_band, plot_decision, plot_reliability
from ..plots.style import CLASSES, GREY, MARKERS, Axes, array, legend_below
from ..plots.walks import plot_energy, plot_walks
from ..walk.trajectories import walk_of
from .contenders import Task
from .evidence import Evidence

DPI = 144  # two pixels for each of a page's
NAME_LENGTH = 28  # of a posterior, in a picture
GRID = 200  # inputs along a band
MARGIN = 0.3  # of the inputs' range that is shown beyond them
MAX_COORDINATES = 12  # whose marginals are drawn
MAX_WORK = 2e10  # numbers multiplied for the energy behind the walks: some seconds
DASHES = ("-", "--", "-.", ":")
Draw = Callable[[Evidence, Axes], None]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One panel of a section."""

    png: bytes
    caption: str
    alt: str  # what it shows, in words


@dataclass(frozen=True, kw_only=True)
class Section:
    """Pictures of one kind, with a sentence on how to read them."""

    title: str
    text: str
    pictures: tuple[Picture, ...]


def draw_sections(task: Task, evidence: Sequence[Evidence]) -> tuple[Section, ...]:
    """All pictures that the model and its data have."""
    parts = (_bands, _decisions, _reliability, _coverage, _marginals, _walks)
    return tuple(section for part in parts if (section := part(task, evidence)) is not None)


def _panel(width: float = 5.0, height: float = 4.0) -> Axes:
    """Axes of a figure that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def _picture(ax: Axes, caption: str, alt: str) -> Picture:
    """The figure as a PNG, whatever backend is in use."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(ax.figure)
    file = io.BytesIO()
    ax.figure.savefig(file, format="png", dpi=DPI)
    return Picture(png=file.getvalue(), caption=caption, alt=alt)


def _panels(title: str, text: str, alt: str, evidence: Sequence[Evidence], draw: Draw, columns: int) -> Section:
    """One panel for each posterior, all of the same size and with the same limits."""
    axes = {one.contender.name: _panel() for one in evidence}
    for one, ax in zip(evidence, axes.values(), strict=True):
        draw(one, ax)
        legend_below(ax, columns)
    for side in ("xlim", "ylim"):
        lows, highs = zip(*(getattr(ax, f"get_{side}")() for ax in axes.values()), strict=True)
        for ax in axes.values():
            ax.set(**{side: (min(lows), max(highs))})
    pictures = tuple(_picture(ax, name, f"{alt} by {name}.") for name, ax in axes.items())
    return Section(title=title, text=text, pictures=pictures)


def _short(name: str) -> str:
    """A name that fits into a picture."""
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"


def _has_columns(task: Task, number: int) -> bool:
    return task.is_network and torch.is_tensor(task.x) and task.x.dim() == 2 and task.x.shape[1] == number


def _bands(task: Task, evidence: Sequence[Evidence]) -> Section | None:
    """Of a network with one input and one output that is a number."""
    first = evidence[0].prediction
    if not _has_columns(task, 1) or first is None or first.mean.shape[1:].numel() != 1:
        return None
    low, high = float(task.x.min()), float(task.x.max())
    reach = MARGIN * (high - low) or 1.0
    grid = torch.linspace(low - reach, high + reach, GRID, device="cpu").to(task.x)[:, None]
    data = (task.x, task.layout.values["obs"])

    def draw(one: Evidence, ax: Axes) -> None:
        plot_band(task.predict(one.contender.draws, grid), grid, data, legend=False, ax=ax)

    text = "The function and new observations along the input. Where there are no data the dark band should open."
    return _panels("Predictions", text, "Predictive bands along x", evidence, draw, 2)


def _decisions(task: Task, evidence: Sequence[Evidence]) -> Section | None:
    """Of a classifier with two inputs."""
    if not _has_columns(task, 2) or not task.is_classifier:
        return None
    y = task.layout.values["obs"]
    if y.numel() != len(y):
        return None

    def draw(one: Evidence, ax: Axes) -> None:
        predict = partial(task.predict, one.contender.draws)
        plot_decision(predict, task.x, y.reshape(-1), margin=MARGIN, grid_size=80, legend=False, ax=ax)

    text = "How sure each classifier is where, and its decision boundaries in white. Far from data none should be."
    return _panels("Decisions", text, "Confidence in the plane", evidence, draw, 4)


def _data_name(task: Task) -> str:
    return "the test data" if task.has_test else "the data that the posteriors have seen"


def _reliability(task: Task, evidence: Sequence[Evidence]) -> Section | None:
    """Of a classifier."""
    y = task.y_judged
    if y is None or not task.is_classifier:
        return None

    def draw(one: Evidence, ax: Axes) -> None:
        if one.prediction is not None:  # in as many bins as the table's figure
            plot_reliability(one.prediction.class_probs, y.reshape(-1), num_bins=15, legend=False, ax=ax)

    text = f"How often predictions of {_data_name(task)} came true, against how sure they were: honest on the diagonal."
    return _panels("Reliability", text, "Reliability diagram", evidence, draw, 2)


def _coverage(task: Task, evidence: Sequence[Evidence]) -> Section | None:
    """Of predicted numbers: all posteriors in one picture."""
    found = [one.calibration for one in evidence if isinstance(one.calibration, RealCalibration)]
    if not found:
        return None
    ax = _panel(5.6, 4.6)
    ax.plot([0, 1], [0, 1], color=GREY, lw=4, alpha=0.4, label="honest")
    for i, one in enumerate(found):
        style = {"color": CLASSES[i % 8], "marker": MARKERS[i % 8], "ls": DASHES[i // 8 % 4], "lw": 1.5, "ms": 5}
        ax.plot(one.levels, one.coverage, **style, label=str(i))
    ax.set(xlabel="probability of the central interval", ylabel="observations within it", xlim=(0, 1), ylim=(0, 1.02))
    legend_below(ax, 2)
    names = ["honest", *(_short(one.contender.name) for one in evidence)]
    for text, name in zip(ax.get_legend().get_texts(), names, strict=True):
        text.set(parse_math=False, text=name)
    said = f"The share of {_data_name(task)} in central intervals: below the line a posterior is too sure of itself."
    alt = "Coverage of central intervals against their probability, by posterior."
    return Section(title="Coverage", text=said, pictures=(_picture(ax, "All posteriors", alt),))


def _marginals(task: Task, evidence: Sequence[Evidence]) -> Section | None:
    """Intervals of a few coordinates of a model that is no network: a network's weights can change places."""
    if task.is_network:
        return None
    draws = [{**one.contender.draws, **one.derived} for one in evidence]
    total = sum(value[0].numel() for value in draws[0].values())
    names = [_short(one.contender.name) for one in evidence]
    pictures = []
    for site, place in _chosen({name: value.shape[1:] for name, value in draws[0].items()}):
        ax = _panel(4.4, 0.9 + 0.42 * len(evidence))
        for row, each in enumerate(draws):
            _draw_intervals(ax, each[site].movedim(0, -1)[place].double(), row)
        ax.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
        ax.set_yticklabels(names, parse_math=False)
        ax.grid(axis="x", alpha=0.3)
        label = f"{site}[{', '.join(map(str, place))}]" if place else site
        pictures.append(_picture(ax, label, f"Intervals of {label} by each posterior."))
    text = "Mean, 50 % and 90 % of the draws of each posterior."
    if total > len(pictures):
        text += f" {len(pictures)} of {total} coordinates are shown, some of each site."
    return Section(title="Marginals", text=text, pictures=tuple(pictures))


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


def _walks(task: Task, evidence: Sequence[Evidence]) -> Section | None:
    """Of each posterior that was walked: energies, and walks in a plane."""
    pictures = []
    numbers = max(1, sum(value.numel() for value in task.layout.values.values()))

    def add(plot: Callable[..., Axes], what: Any, caption: str, alt: str) -> None:
        ax = plot(what, legend=False, ax=_panel())
        legend_below(ax, 3)
        pictures.append(_picture(ax, caption, alt))

    for contender in (one.contender for one in evidence if one.contender.source.is_walked):
        name, given = contender.name, contender.source.given
        walk = walk_of(given)
        add(plot_energy, given, f"{name}: energy", f"Potential energy along the walks of {name}.")
        if walk.sites.dim > 1 and walk.num_particles * walk.num_steps > 1:
            what = given if 3600.0 * walk.sites.dim * numbers <= MAX_WORK else walk  # without the energy behind it
            add(plot_walks, what, f"{name}: walks", f"Walks of {name} in their plane of most variance.")
    text = "A healthy walk climbs from the MAP and then stays level; in the plane it does not stay where it began."
    return Section(title="Walks", text=text, pictures=tuple(pictures)) if pictures else None
