"""Pictures of results."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .tables import Figure, complete

OURS = "#D55E00"
HIGHLIGHTED = {"MILE": "#0072B2", "Ensemble": "#009E73", "MAP": "#000000"}
OTHERS = "#777777"
REACH = 1.5  # how far above the lowest NLL is shown, in units of it
Table = Mapping[str, Mapping[str, Figure | None]]


@contextmanager
def panels(
    names: Sequence[str], path: Path, *, size: tuple[float, float] = (3.2, 2.5), shared: bool = False
) -> Iterator[dict[str, Any]]:
    """Axes by name, four in a row, written to the path at the end."""
    from matplotlib.figure import Figure as Canvas

    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    canvas = Canvas(figsize=(size[0] * columns, size[1] * lines + 0.5), layout="constrained")
    grid = canvas.subplots(lines, columns, squeeze=False, sharex=shared, sharey=shared)
    for axes in list(grid.flat)[len(names) :]:
        axes.set_visible(False)
    by_name = dict(zip(names, grid.flat, strict=False))
    for name, axes in by_name.items():
        axes.set_title(name, fontsize=10)
    yield by_name
    canvas.savefig(path, dpi=130)


def quality_against_time(quality: Table, seconds: Table, sets: Sequence[str], path: Path) -> None:
    """NLL of each method against its seconds, a panel a set; the baselines have numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    columns = {
        name: dict(zip(quality, complete([row[name] for row in quality.values()]), strict=True)) for name in sets
    }
    drawn = [method for method in quality if any(column[method] is not None for column in columns.values())]
    numbers = {method: str(i) for i, method in enumerate((m for m in drawn if _color(m) == OTHERS), start=1)}
    with panels(sets, path, size=(3.6, 3.2)) as grid:
        for name, axes in grid.items():
            low = min((value.mean for value in columns[name].values() if value is not None), default=0.0)
            high = low + REACH * abs(low)
            heights = itertools.cycle((3, -10, 12))  # of our labels, which are near each other
            taken = [row[name] for method, row in seconds.items() if columns[name][method] is not None]
            times = [time.mean for time in taken if time is not None]
            middle = math.sqrt(min(times) * max(times)) if times else 1.0
            for method, value in columns[name].items():
                time = seconds[method][name]
                if value is None or time is None:
                    continue
                color, seen = _color(method), value.mean <= high  # far-off methods sit on the upper edge
                height = value.mean if seen else high
                error = value.error if seen and color != OTHERS else 0
                axes.errorbar(time.mean, height, error, fmt="o" if seen else "^", color=color, ms=4, elinewidth=1)
                text = numbers.get(method, method.removeprefix("MetricBNN, "))
                right = time.mean > middle  # of the panel, where a label goes to the left of its point
                side = {
                    "xytext": (-4 if right else 4, next(heights) if color == OURS else 3),
                    "ha": "right" if right else "left",
                    "textcoords": "offset points",
                    "fontsize": 7,
                    "color": color,
                }
                axes.annotate(text, (time.mean, height), **side)
            axes.set(xscale="log", xlabel="seconds, training included", ylabel="test NLL")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.margins(x=0.15)
        legend = ", ".join(f"{number} {method}" for method, number in numbers.items())
        next(iter(grid.values())).figure.supxlabel("\n".join(textwrap.wrap(legend, 110)), fontsize=8, color=OTHERS)


def _color(method: str) -> str:
    ours = method == "MetricBNN" or method.startswith("MetricBNN, ")
    return OURS if ours else HIGHLIGHTED.get(method, OTHERS)
