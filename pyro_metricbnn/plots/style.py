"""What all pictures share: axes, colours that colour-blind readers can tell apart, legends beside the data.

In: an axes or None.  Out: an axes, of a figure of its own where None was given. matplotlib loads at the first picture.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..runtime.arguments import as_tensor, check_type

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any  # until the first picture loads matplotlib

# Okabe and Ito's palette
BLACK, ORANGE, SKY, GREEN, YELLOW = "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"
CLASSES = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY, YELLOW, BLACK)
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")  # so that classes differ without colours, too
FIELD = "cividis"
MATPLOTLIB = "matplotlib, which is not installed: run pip install 'pyro_metricbnn[plots]'"  # what to say without it
BELOW = 34  # points from the axes down to the legend: room for ticks and a label


def axes_for(ax: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
    """The axes given, or those of a new figure."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"plots need {MATPLOTLIB}.") from error
    if ax is None:
        return plt.subplots(figsize=(width, height), layout="constrained")[1]
    check_type("ax", ax, plt.Axes, "a matplotlib axes, one of plt.subplots()[1], or None")
    return ax


def legend_below(ax: Axes, columns: int = 4, wanted: bool = True) -> Axes:
    """The axes with a legend under them; where the figure makes no room for it there, where it covers the least."""
    from matplotlib.transforms import ScaledTranslation

    if wanted and ax.figure.get_layout_engine() is None:
        ax.legend(loc="best", framealpha=0.85)
    elif wanted:
        below = ax.transAxes + ScaledTranslation(0, -BELOW / 72, ax.figure.dpi_scale_trans)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
        ax.legend(**place, ncols=columns, frameon=False, borderaxespad=0.0, handlelength=1.6, columnspacing=1.4)
    return ax


def window(points: Tensor, margin: float, grid_size: int) -> tuple[Tensor, Tensor]:
    """Coordinates (grid_size,) of a grid around points (n, 2), beyond them by a part of their range."""
    low, high = points.amin(0), points.amax(0)
    reach = (margin * (high - low)).clamp_min(1e-6)
    ends = zip((low - reach).tolist(), (high + reach).tolist(), strict=True)
    first, second = (torch.linspace(start, end, grid_size, device="cpu") for start, end in ends)
    return first, second


def grid_of(sides: tuple[Tensor, Tensor]) -> Tensor:
    """The points (B, A, 2) of the grid of two sides (A,) and (B,)."""
    return torch.stack(torch.meshgrid(*sides, indexing="xy"), dim=-1)


def array(values: Tensor) -> Any:
    """What matplotlib wants: a NumPy array."""
    return values.detach().cpu().numpy()


def draw_field(ax: Axes, sides: tuple[Tensor, Tensor], field: Tensor, **colours: Any) -> Any:
    """A field (B, A) over a grid as colours; what a colour bar wants is returned."""
    return ax.pcolormesh(*map(array, sides), array(field), cmap=FIELD, shading="gouraud", rasterized=True, **colours)


def column(values: Any, name: str) -> Tensor:
    """(n,) from (n,) or (n, 1)."""
    flat = as_tensor(name, values)
    if flat.dim() not in (1, 2) or flat.shape[1:].numel() != 1:
        raise ValueError(f"{name} has shape {tuple(flat.shape)}, but must be (n,) or (n, 1): pass one column.")
    return flat.detach().to("cpu").flatten()
