"""Pictures of what uncertainty is good for: inputs from elsewhere, and answers that are left out.

In: scores, predictions or risks; `legend` asks for one, `ax` is where to draw, None for a new figure.  Out: the axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..diagnostics.detection import Detection, Score, Selective, detection, scores_of
from ..predictions.prediction import Prediction
from ..runtime.arguments import check_count, check_type
from . import style
from .style import array, axes_for, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("scores", "roc")


def plot_detection(
    inside: Tensor | Prediction,
    outside: Tensor | Prediction,
    *,
    score: Score | None = None,
    show: str = "scores",
    num_bins: int = 30,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Scores of inputs like the data and of others; the less they overlap, the better they are told apart.

    Args:
        inside: Scores (n,), or predictions, of inputs like the data.
        outside: Scores (m,), or predictions, of inputs from elsewhere.
        score: Which score of predictions, as in `diagnostics.detection`.
        show: "scores" for their histograms, "roc" for the curve of true against false positives.
        num_bins: Bins of the histograms.

    Example:
        >>> plots.plot_detection(torch.randn(50), torch.randn(50) + 2).get_ylabel()
        'density'
    """
    if show not in SHOWN:
        raise ValueError(f"show must be one of {', '.join(map(repr, SHOWN))}, got {show!r}.")
    check_count("num_bins", num_bins, "30 is usual.")
    figures = detection(inside, outside, score=score)
    if show == "roc":
        return legend_below(_draw_roc(axes_for(ax, 4.6, 4.4), figures), columns=2, wanted=legend)
    both = [scores_of(name, of, score) for name, of in (("inside", inside), ("outside", outside))]
    if not bool(torch.cat(both).isfinite().all()):
        raise ValueError("some scores are infinite and have no place in a histogram: leave them out, or show='roc'.")
    low, high = float(torch.cat(both).min()), float(torch.cat(both).max())
    edges = array(torch.linspace(low, high if high > low else low + 1, num_bins + 1, device="cpu"))
    ax = axes_for(ax)
    said = ("like the data", f"from elsewhere (AUROC {figures.auroc:.3f})")
    for values, label, colour in zip(both, said, (style.BLUE, style.VERMILLION), strict=True):
        looks = {"color": colour, "alpha": 0.45, "label": label}
        ax.hist(array(values), bins=edges, density=True, histtype="stepfilled", ec=colour, **looks)
    ax.set(xlabel=score if isinstance(score, str) else "score", ylabel="density")
    return legend_below(ax, columns=2, wanted=legend)


def _draw_roc(ax: Axes, figures: Detection) -> Axes:
    rates = [array(torch.cat([of.new_zeros(1), of])) for of in (figures.false_positives, figures.true_positives)]
    ax.plot([0, 1], [0, 1], color=style.GREY, ls="--", lw=1.2, label="chance")
    ax.plot(*rates, color=style.BLUE, lw=1.8, label=f"AUROC {figures.auroc:.3f}")
    ax.set(xlabel="part of the data taken for others", ylabel="part of the others found", aspect="equal")
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    return ax


def plot_risk_coverage(
    curves: Selective | Mapping[str, Selective], *, legend: bool = True, ax: Axes | None = None
) -> Axes:
    """The risk of what is answered against how much of it is; dotted, the best order that there is.

    Args:
        curves: What `diagnostics.selective` gave, or several by name.

    Example:
        >>> from pyro_metricbnn.diagnostics import selective
        >>> plots.plot_risk_coverage(selective(predict(model, walk.samples(), x), y)).get_xlabel()
        'coverage'
    """
    named = curves if isinstance(curves, Mapping) else {"risk": curves}
    if not named:
        raise ValueError("curves is empty: pass what selective gave, or several of them by name.")
    for name, curve in named.items():
        check_type(f"the curve {name!r}", curve, Selective, "what diagnostics.selective gives")
    ax = axes_for(ax)
    for number, (name, curve) in enumerate(named.items()):
        looks = {"color": style.CLASSES[(number + 1) % 8]}  # blue first
        ax.plot(array(curve.coverage), array(curve.risk), lw=1.8, label=f"{name} (AURC {curve.aurc:.3g})", **looks)
        best = None if number else "best order"
        ax.plot(array(curve.coverage), array(curve.oracle), lw=1.2, ls=":", label=best, **looks)
    ax.set(xlabel="coverage", ylabel="risk", xlim=(0, 1))
    return legend_below(ax, columns=2, wanted=legend)
