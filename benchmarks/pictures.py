"""Pictures of results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyro_metricbnn.plots.style import BLACK, BLUE, GREEN, GREY, VERMILLION

from .tables import Figure, complete

NAMED: dict[str, dict[str, Any]] = {  # in the legend, the others have numbers
    "MAP": {"color": BLACK, "marker": "X"},
    "Ensemble": {"color": GREEN, "marker": "v"},
    "Ensemble, stopped early": {"color": GREEN, "marker": "v", "markerfacecolor": "white"},
    "Ensemble, heteroscedastic": {"color": GREEN, "marker": "X"},
    "MILE": {"color": BLUE, "marker": "D"},
    "MetricBNN": {"color": VERMILLION, "marker": "o", "markersize": 7},
    "MetricBNN, tempered": {"color": VERMILLION, "marker": "o", "markerfacecolor": "white"},
    "MetricBNN, effort 1/4": {"color": VERMILLION, "marker": "<"},
    "MetricBNN, effort 4": {"color": VERMILLION, "marker": ">"},
    "MetricBNN, 4 networks": {"color": VERMILLION, "marker": "s"},
    "MetricBNN, noisy labels": {"color": VERMILLION, "marker": "d"},
    "MetricBNN, noise inferred": {"color": VERMILLION, "marker": "P"},
    "MetricBNN, heteroscedastic": {"color": VERMILLION, "marker": "X"},
}
Column = Mapping[str, Figure | None]  # by method
Table = Mapping[str, Column]  # by method, then set


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
    if shared:  # labels at the left, and below the last panel of each column
        for i, axes in enumerate(by_name.values()):
            lowest, first = i + columns >= len(names), i % columns == 0
            axes.tick_params(labelbottom=lowest, labelleft=first)
            axes.set(**({} if lowest else {"xlabel": ""}), **({} if first else {"ylabel": ""}))
    canvas.savefig(path, dpi=130)


def quality_against_time(quality: Table, seconds: Table, sets: Sequence[str], path: Path) -> None:
    """NLL of each method against its seconds, a panel a set; what is above all named methods is on the upper edge."""
    columns = {
        name: dict(zip(quality, complete([row[name] for row in quality.values()]), strict=True)) for name in sets
    }
    drawn = [method for method in quality if any(column[method] is not None for column in columns.values())]
    numbers = {method: str(i) for i, method in enumerate((m for m in drawn if m not in NAMED), start=1)}
    with panels(sets, path, size=(3.6, 3.2)) as grid:
        named: dict[str, Any] = {}
        for name, axes in grid.items():
            times = {method: row[name] for method, row in seconds.items()}
            named |= _drawn_named(axes, columns[name], times)
            _drawn_numbers(axes, columns[name], times, numbers)
            _log_seconds(axes)
        figure = next(iter(grid.values())).figure
        figure.legend(
            named.values(), named, loc="outside upper center", ncols=min(5, len(named)) or 1, frameon=False, fontsize=9
        )
        text = ", ".join(f"{number} {method}" for method, number in numbers.items())
        figure.supxlabel("\n".join(textwrap.wrap(text, 150)), fontsize=8, color=GREY)


def _drawn_named(axes: Any, column: Column, times: Column) -> dict[str, Any]:
    """Points with their errors; what the legend needs of each."""
    made = {}
    for method, style in NAMED.items():
        value, time = column.get(method), times.get(method)
        if value is not None and time is not None:
            made[method] = axes.errorbar(
                time.mean, value.mean, value.error, **{"linestyle": "none", "markersize": 5, "elinewidth": 1, **style}
            )
    return made


def _drawn_numbers(axes: Any, column: Column, times: Column, numbers: Mapping[str, str]) -> None:
    """The other methods as numbers, within the heights that the named ones ask for where there are some."""
    named = [value.mean + value.error for method, value in column.items() if method in NAMED and value is not None]
    high = max((height for height in named if height == height), default=float("inf"))
    for method, number in numbers.items():
        value, time = column.get(method), times.get(method)
        if value is not None and time is not None:
            text = number if value.mean <= high else f"{number}\u2191"
            style = {"fontsize": 8, "color": GREY, "ha": "center", "va": "center"}
            axes.text(time.mean, min(value.mean, high), text, **style)
            axes.update_datalim([(time.mean, min(value.mean, high))])


def _log_seconds(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(xscale="log", xlabel="seconds, training included", ylabel="test NLL")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.1)
    axes.autoscale_view()
