"""Panels of one size and with the same axes, one a posterior, so that they can lie side by side on a page.

In: the `Evidence` about each posterior, and how to draw it.  Out: `Picture`s, PNG each.

Each panel is a picture of its own: a page can then put them beside each other where it is wide, and below each other on
a telephone. No figure is known to pyplot.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..plots.canvas import legend_below
from .evidence import Evidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 144  # two pixels for each of a page's
NAME_LENGTH = 28  # of a posterior, in a picture


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG, what stands under it, and what it shows in words."""

    png: bytes
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """Pictures of one kind, with a sentence on how to read them."""

    title: str
    text: str
    pictures: tuple[Picture, ...]


def panel(width: float = 5.0, height: float = 4.0) -> Axes:
    """Axes of a figure that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def as_picture(figure: Figure, caption: str, alt: str) -> Picture:
    """The figure as a PNG, whatever backend is in use."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return Picture(png=file.getvalue(), caption=caption, alt=alt)


def panels(
    evidence: Sequence[Evidence], draw: Callable[[Evidence, Axes], object], alt: str, columns: int = 2
) -> tuple[Picture, ...]:
    """One panel for each posterior, all of the same size and with the same limits."""
    axes = [panel() for _ in evidence]
    for one, ax in zip(evidence, axes, strict=True):
        draw(one, ax)
        legend_below(ax, columns)
    for side in ("xlim", "ylim"):
        ends = [getattr(ax, f"get_{side}")() for ax in axes]
        limits = (min(low for low, _ in ends), max(high for _, high in ends))
        for ax in axes:
            ax.set(**{side: limits})
    names = [one.contender.name for one in evidence]
    return tuple(as_picture(ax.figure, name, f"{alt} by {name}.") for ax, name in zip(axes, names, strict=True))


def short(name: str) -> str:
    """A name that fits into a picture."""
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
