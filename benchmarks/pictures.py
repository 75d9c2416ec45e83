"""Pictures of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .tables import Figure

HIGHLIGHTED = {"MetricBNN": "#D55E00", "MILE": "#0072B2", "Ensemble": "#009E73", "MAP": "#000000"}
OTHERS = "#777777"
REACH = 2.0  # how far above the lowest NLL is shown, in units of it
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
    """NLL of each method against its seconds, a panel a set."""
    with panels(sets, path, size=(3.6, 3.2)) as grid:
        for name, axes in grid.items():
            low = min((row[name].mean for row in quality.values() if row[name] is not None), default=0.0)  # type: ignore[union-attr]
            high = low + REACH * abs(low)
            for method, row in quality.items():
                value, time = row[name], seconds[method][name]
                if value is None or time is None:
                    continue
                color = HIGHLIGHTED.get(method, OTHERS)
                height = min(value.mean, high)  # far-off methods sit on the upper edge
                error = value.error if value.mean == height else 0
                axes.errorbar(time.mean, height, error, fmt="o" if error else "^", color=color, markersize=5)
                axes.annotate(
                    method, (time.mean, height), xytext=(4, 3), textcoords="offset points", fontsize=6, color=color
                )
            axes.set(xscale="log", xlabel="seconds, training included", ylabel="test NLL")
