"""Figures of many runs -> Markdown tables: mean ± standard error, the best in bold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """A mean over splits and its standard error."""

    mean: float
    error: float
    num_splits: int


def figure(values: Sequence[float]) -> Figure | None:
    """The mean of the values; None of none."""
    if not values:
        return None
    known = len(values) > 1 and all(map(math.isfinite, values))
    error = statistics.stdev(values) / math.sqrt(len(values)) if known else float("nan")
    return Figure(statistics.fmean(values), error, len(values))


def complete(column: Sequence[Figure | None]) -> list[Figure | None]:
    """The figures of as many splits as any has: means over other splits are not for comparing."""
    most = max((value.num_splits for value in column if value is not None), default=0)
    return [value if value is not None and value.num_splits == most else None for value in column]


def written(value: Figure | None, *, bold: bool = False, digits: int = 3) -> str:
    """A cell's text."""
    if value is None:
        return "–"
    error = "" if math.isnan(value.error) else f" ± {value.error:.{digits}f}"
    text = f"{value.mean:.{digits}f}{error}"
    return f"**{text}**" if bold else text


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column's name may be empty."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def best(column: Sequence[Figure | None], *, largest: bool = False) -> int | None:
    """Which row of all splits is the best; None where no row has a figure."""
    known = enumerate(complete(column))
    scores = {i: value.mean for i, value in known if value is not None and math.isfinite(value.mean)}
    if not scores:
        return None
    return (max if largest else min)(scores, key=scores.__getitem__)
