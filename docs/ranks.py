"""Draw who walks what on several ranks: particles shared out, rows shared out, and both.

In: nothing.  Out: a picture; `python -m docs pictures ranks` draws it anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00")
PARTICLES, ROWS = 8, 8


def draw(target: Path) -> None:
    """Three ways to share 8 particles and the rows of the data over 4 ranks."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained", sharey=True)
    shares = {
        "particles: Ranks()": (4, 1),
        "rows: Ranks(rows=4)": (1, 4),
        "both: Ranks(rows=2)": (2, 2),
    }
    for ax, (title, (of_particles, of_rows)) in zip(axes, shares.items(), strict=True):
        _shared(ax, of_particles, of_rows)
        ax.set_title(title, fontsize=11)
    axes[0].set_ylabel("particles")
    figure.savefig(target, dpi=120)
    plt.close(figure)


def _shared(ax: Any, of_particles: int, of_rows: int) -> None:
    height, width = PARTICLES / of_particles, ROWS / of_rows
    for i in range(of_particles):
        for j in range(of_rows):
            rank = i * of_rows + j
            corner = (j * width, PARTICLES - (i + 1) * height)
            ax.add_patch(Rectangle(corner, width, height, fc=COLOURS[rank], ec="white", lw=3, alpha=0.85))
            middle = corner[0] + width / 2, corner[1] + height / 2
            ax.text(*middle, f"rank {rank}", color="white", ha="center", va="center", weight="bold")
    ax.set(xlim=(0, ROWS), ylim=(0, PARTICLES), xticks=[], yticks=[], xlabel="rows of the data", aspect="equal")
    ax.spines[:].set_visible(False)
