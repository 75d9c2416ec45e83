"""Pictures of predictions: bands along an input, decisions in the plane of two, reliability.

In: predictions or a run; `legend` asks for one, `ax` is where to draw, None for a new figure.  Out: the axes, labelled.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pyro.ops.stats import quantile
from torch import Tensor

from ..diagnostics.calibration import binned, check_prediction, class_labels
from ..predictions.prediction import Prediction
from ..runtime.arguments import check_count, check_number, check_tensor, check_type
from ..runtime.randomness import own_numbers
from . import style
from .style import Axes, array, axes_for, column, draw_field, grid_of, legend_below, window

MAX_DRAWS = 4_000_000  # of observations, all inputs together, for the edges of a band
WANTED_DRAWS = 20_000  # an input: the edges are then smooth to a 60th of the noise
REACH = 1.0  # of the data's range that is shown beyond them
CHUNK = 2500  # inputs at once
SHOWN = {
    "confidence": "probability of the likeliest class",
    "entropy": "entropy of the class",
    "mutual_information": "mutual information of class and weights",
}


def plot_band(
    prediction: Prediction,
    x: Tensor,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    level: float = 0.9,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """A prediction along one input: its mean, where the function is, and where new observations will be.

    Args:
        prediction: At the inputs x, of one output each.
        x: (n,) or (n, 1), in any order.
        data: x and y of observations to draw.
        level: The probability within each band.

    Example:
        >>> net = bayesianize(nn.Linear(1, 1), Gaussian(0.5))
        >>> line = MetricBNN(net, num_particles=4, num_steps=10).run(x[:, :1], y, progress=False)
        >>> plots.plot_band(line.predict(x[:, :1]), x[:, :1], (x[:, :1], y)).get_ylabel()
        'y'
    """
    check_prediction("prediction", prediction)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}: it is the probability within a band. Try 0.9.")
    of_classes = prediction.likelihood.observes == "classes"
    if of_classes and prediction.mean.shape[1:].numel() != 1:
        raise ValueError("a band is for numbers; for classes use plot_decision or plot_reliability.")
    inputs, mean = column(x, "x"), column(prediction.mean, "the prediction's mean")
    if len(inputs) != len(mean):
        raise ValueError(f"x has {len(inputs)} rows, the prediction {len(mean)}: pass the x that it was made at.")
    if not bool(inputs.isfinite().all()):
        raise ValueError("x has entries that are not finite: they have no place in a picture. Leave those rows out.")
    points = None if data is None else _observed(data)
    ax, order = axes_for(ax), inputs.argsort()
    if not of_classes:
        with own_numbers(prediction.f.device):
            drawn = prediction.points(min(WANTED_DRAWS, max(prediction.num_samples, MAX_DRAWS // len(inputs))))
        _draw_band(ax, inputs[order], drawn[:, order], level, "observations", color=style.SKY, alpha=0.3)
    if prediction.num_samples > 1:
        _draw_band(ax, inputs[order], prediction.expected[:, order], level, "functions", color=style.BLUE, alpha=0.35)
    ax.plot(array(inputs[order]), array(mean[order]), color=style.BLUE, lw=1.8, label="mean")
    ax.set(xlabel="x", ylabel="y", xlim=(float(inputs.min()), float(inputs.max())))
    if points is not None:
        _draw_data(ax, *points)
    return legend_below(ax, wanted=legend)


def _observed(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """x (n,) and y (n,) of the data to draw."""
    check_type("data", data, (tuple, list), "a pair (x, y)")
    if len(data) != 2:
        raise ValueError(f"data has {len(data)} parts: pass a pair (x, y).")
    x, y = column(data[0], "the data's x"), column(data[1], "the data's y")
    if len(x) != len(y):
        raise ValueError(f"the data's x has {len(x)} rows, its y {len(y)}: pass a pair (x, y) of equal lengths.")
    return x, y


def _draw_band(ax: Axes, x: Tensor, draws: Tensor, level: float, what: str, **looks: Any) -> None:
    """Between the quantiles that leave so much of the draws (S, n, ...) between them, over x (n,)."""
    low, high = array(quantile(draws.flatten(1), [(1 - level) / 2, (1 + level) / 2]))
    ax.fill_between(array(x), low, high, lw=0, label=f"{level:.0%} of {what}", **looks)


def _draw_data(ax: Axes, x: Tensor, y: Tensor) -> None:
    """Points; and where a band leaves the data far behind, the view stays near them."""
    reach = REACH * float(y.max() - y.min())
    low, high = ax.get_ylim()
    ax.plot(array(x), array(y), ".", color=style.BLACK, ms=4, label="data")
    ax.set_ylim(max(low, float(y.min()) - reach), min(high, float(y.max()) + reach))


def plot_decision(
    predictor: Any,
    x: Tensor,
    y: Tensor,
    *,
    show: str = "confidence",
    num_samples: int = 200,
    grid_size: int = 100,
    margin: float = 0.25,
    legend: bool = True,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """A classifier of two inputs: how sure it is where, its decision boundaries and the data.

    Args:
        predictor: A run, or a function from inputs (n, 2) to a `Prediction`.
        x: (n, 2).
        y: Class numbers (n,).
        show: "confidence" (the probability of the likeliest class), "entropy" or "mutual_information".
        num_samples: Draws of a run.
        grid_size: Points a side.
        margin: How far beyond the data to look, as a part of their range.

    Example:
        >>> classes = bayesianize(nn.Linear(2, 2), Categorical())
        >>> run = MetricBNN(classes, num_particles=4, num_steps=10).run(x, (y[:, 0] > 0).long(), progress=False)
        >>> plots.plot_decision(run, x, (y[:, 0] > 0).long(), grid_size=20).get_xlabel()
        'x₁'
    """
    if show not in SHOWN:
        raise ValueError(f"show must be one of {', '.join(map(repr, SHOWN))}, got {show!r}.")
    check_count("grid_size", grid_size, "a grid has two points a side or more.", least=2)
    check_number("margin", margin, "it is a part of the data's range.", or_zero=True)
    labels = _labels(x, y)
    sides = window(x, margin, grid_size)
    grid = grid_of(sides).to(x)  # (B, A, 2)
    prediction = _predicted(predictor, grid.flatten(0, 1), num_samples)
    probs = prediction.class_probs.unflatten(0, grid.shape[:2])  # (B, A, C)
    field = probs.amax(-1) if show == "confidence" else getattr(prediction, show).reshape(grid.shape[:2])
    ranges = {"confidence": (1 / probs.shape[-1], 1.0), "entropy": (0.0, math.log(probs.shape[-1]))}
    low, high = ranges.get(show, (0.0, float(field.max())))
    ax = axes_for(ax, 5.6, 4.6)
    mesh = draw_field(ax, sides, field, vmin=low, vmax=high)
    _draw_classes(ax, sides, probs, x, labels)
    if colorbar:
        ax.figure.colorbar(mesh, ax=ax, label=SHOWN[show])
    return legend_below(ax, wanted=legend)


def _labels(x: Tensor, y: Tensor) -> Tensor:
    """Class numbers (n,) of the points (n, 2) to draw."""
    check_tensor("x", x)
    if x.dim() != 2 or x.shape[1] != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}, but must be (n, 2): the picture is the plane of two inputs.")
    labels = column(y, "y").long()
    if len(labels) != len(x):
        raise ValueError(f"x has {len(x)} rows, y {len(labels)}: pass one class number a row.")
    return labels


def _draw_classes(ax: Axes, sides: tuple[Tensor, Tensor], probs: Tensor, x: Tensor, labels: Tensor) -> None:
    """Where two classes are the likeliest together, from probabilities (B, A, C); and the points (n, 2) of each."""
    num_classes = probs.shape[-1]
    for c in range(num_classes if num_classes > 2 else 1):
        others = torch.cat([probs[..., :c], probs[..., c + 1 :]], dim=-1).amax(-1)
        lead = array(probs[..., c] - others)
        if lead.min() < 0 < lead.max():  # else no boundary is in sight, and matplotlib warns
            ax.contour(*map(array, sides), lead, levels=[0.0], colors="white", linewidths=1.6)
    for c in labels.unique().tolist():
        looks = {"color": style.CLASSES[c % 8], "marker": style.MARKERS[c % 8], "edgecolors": "white", "lw": 0.5}
        ax.scatter(*array(x[labels.to(x.device) == c]).T, s=18, label=f"class {c}", **looks)
    ax.set(xlabel="x₁", ylabel="x₂")


def _predicted(predictor: Any, x: Tensor, num_samples: int) -> Prediction:
    ask = predictor
    if hasattr(predictor, "predict"):
        ask = partial(predictor.predict, num_samples=num_samples, chunk_size=CHUNK)
    check_type("predictor", ask, Callable, "a run, or a function from inputs to a Prediction")
    with own_numbers(x.device):
        prediction = ask(x)
    advice = "pass a run, or for example lambda x: predict(model, samples, x)"
    check_type("what the predictor gives", prediction, Prediction, "a Prediction", advice)
    return prediction


def plot_reliability(
    probs: Tensor, y: Tensor, *, num_bins: int = 10, legend: bool = True, ax: Axes | None = None
) -> Axes:
    """How often predictions come true, against how sure they were: on the diagonal, when calibrated.

    Bars on the points hold 90 % of what chance alone would do; the expected calibration error is in the legend.

    Args:
        probs: Class probabilities (n, C), of which the likeliest class counts; or (n,), the probability of a one.
        y: Class numbers (n,).
        num_bins: Bins of equal width.

    Example:
        >>> plots.plot_reliability(torch.tensor([0.2, 0.9, 0.8]), torch.tensor([0, 1, 1])).get_ylabel()
        'how often it was so'
    """
    check_tensor("probs", probs)
    chance, hit, name = _outcomes(probs.detach().cpu(), column(y, "y"))
    check_count("num_bins", num_bins, "the usual number is 10.")
    curve = binned(chance, hit, num_bins)
    filled = curve.count > 0
    sure, often = curve.confidence[filled], curve.accuracy[filled]
    low, high = _wilson(often, curve.count[filled])
    ax = axes_for(ax, 4.6, 4.4)
    bins = [(i + 0.5) / num_bins for i in range(num_bins)]
    share = array(curve.count / len(chance))
    ax.bar(bins, share, width=0.9 / num_bins, color=style.GREY, alpha=0.3, label="share of the points")
    ax.plot([0, 1], [0, 1], color=style.GREY, ls="--", lw=1.2, label="calibrated")
    bars = torch.stack([often - low, high - often]).clamp_min(0)
    looks = {"color": style.BLUE, "marker": "o", "ms": 5, "lw": 1.6, "elinewidth": 1.0, "capsize": 2.5}
    ax.errorbar(array(sure), array(often), yerr=array(bars), **looks, label=f"observed (ECE {curve.error:.3f})")
    ax.set(xlabel=name, ylabel="how often it was so", xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    return legend_below(ax, columns=2, wanted=legend)


def _outcomes(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, str]:
    """What was predicted with which probability, and whether it came true: (n,), (n,), in float64."""
    probs = probs.double()
    if len(probs) != len(y) or not len(y):
        raise ValueError(f"probs has {len(probs)} rows, y {len(y)}: pass one class number for each row, and some rows.")
    if not bool(((probs >= 0) & (probs <= 1 + 1e-6)).all()):
        raise ValueError("probs must be from 0 to 1: pass probabilities (`prediction.probs`), not logits.")
    labels = class_labels(y, max(2, probs.shape[-1]) if probs.dim() > 1 else 2)
    if probs.shape[1:].numel() == 1:
        return probs.flatten().clamp_max(1), labels.double(), "predicted probability of a one"
    if probs.dim() != 2:
        raise ValueError(f"probs has shape {tuple(probs.shape)}, but must be (n, C), or (n,) of a one.")
    sure, said = probs.max(-1)
    return sure.clamp_max(1), (said == labels).double(), "predicted probability of the likeliest class"


def _wilson(share: Tensor, count: Tensor, z: float = 1.645) -> tuple[Tensor, Tensor]:
    """Wilson's interval of a share out of a count."""
    center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)).sqrt()
    return center - reach, center + reach
