"""Pictures of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .tables import Figure

HIGHLIGHTED = {"MetricBNN": "#D55E00", "MILE": "#0072B2", "Ensemble": "#009E73", "MAP": "#000000"}
OTHERS = "#999999"
Table = Mapping[str, Mapping[str, Figure | None]]


def quality_against_time(quality: Table, seconds: Table, sets: Sequence[str], path: Path) -> None:
    """NLL of each method against its seconds, a panel a set."""
    from matplotlib.figure import Figure as Canvas

    columns = min(4, len(sets))
    lines = -(-len(sets) // columns)
    canvas = Canvas(figsize=(3.4 * columns, 3.0 * lines + 0.6), layout="constrained")
    grid = canvas.subplots(lines, columns, squeeze=False)
    for axes, name in zip(grid.flat, sets, strict=False):
        low = min(row[name].mean for row in quality.values() if row[name])  # type: ignore[union-attr]
        for method, row in quality.items():
            value, time = row[name], seconds[method][name]
            if value is None or time is None:
                continue
            color = HIGHLIGHTED.get(method, OTHERS)
            top = min(value.mean, 3 * low)  # far-off methods sit on the upper edge
            axes.errorbar(time.mean, top, value.error if value.mean == top else 0, fmt="o", color=color, markersize=6)
            axes.annotate(method, (time.mean, top), xytext=(4, 3), textcoords="offset points", fontsize=6, color=color)
        axes.set(title=name, xscale="log", xlabel="seconds, training included", ylabel="test NLL")
    for axes in list(grid.flat)[len(sets) :]:
        axes.set_visible(False)
    canvas.savefig(path, dpi=130)
