"""Heat maps with one scale of colours and the value in each field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_metricbnn.plots.style import FIELD

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class HeatMap:
    """Values over two knobs.

    Args:
        values: A row for each value of the first knob; NaN where there is none.
        rows: The first knob's values.
        columns: The second's.
        row_label: The first knob's name.
        column_label: The second's.
        title: Over the map.
    """

    values: Sequence[Sequence[float]]
    rows: Sequence[object]
    columns: Sequence[object]
    row_label: str
    column_label: str
    title: str

    @property
    def array(self) -> np.ndarray:
        """(rows, columns)."""
        return np.array(self.values, dtype=float)


def colour_scale(maps: Sequence[HeatMap]) -> Any:
    """From the smallest value of all maps to their 90 % quantile: one that is far off must not hide the others."""
    from matplotlib.colors import Normalize

    values = np.concatenate([each.array.ravel() for each in maps])
    values = values[np.isfinite(values)]
    if not len(values):
        return Normalize(0.0, 1.0)
    low, high = float(values.min()), float(np.quantile(values, 0.9))
    return Normalize(low, high if high > low else low + 1e-3)


def draw(axes: Axes, each: HeatMap, scale: Any) -> Any:
    """One map; what a colour bar wants is returned."""
    drawn = axes.imshow(each.array, cmap=FIELD, norm=scale, aspect="auto", interpolation="nearest")
    for i, j in np.ndindex(each.array.shape):
        value = float(each.array[i, j])
        if math.isfinite(value):
            ink = "black" if scale(value) > 0.5 else "white"
            axes.text(j, i, short(value), ha="center", va="center", fontsize=6, color=ink)
    axes.set_xticks(range(len(each.columns)), [str(name) for name in each.columns], fontsize=7)
    axes.set_yticks(range(len(each.rows)), [str(name) for name in each.rows], fontsize=7)
    axes.set_xlabel(each.column_label, fontsize=7, labelpad=1)
    axes.set_ylabel(each.row_label, fontsize=7, labelpad=1)
    axes.set_title(each.title, fontsize=8, pad=3)
    axes.tick_params(length=0, pad=2)
    return drawn


def short(value: float) -> str:
    """Two decimals, fewer for large numbers."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) < 1000 else f"{value:.0e}"
