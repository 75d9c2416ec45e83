"""Pictures of predictions: bands along an input, decisions in the plane of two, reliability.

In: predictions or a run, and an axes or None.  Out: the axes, labelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..diagnostics.calibration import check_prediction
from ..inference import MetricBNN
from ..predictions.prediction import Prediction
from ..runtime.arguments import check_count, check_number, check_tensor, check_type
from .canvas import (
    BLACK,
    BLUE,
    CLASSES,
    GREY,
    MARKERS,
    SKY,
    array,
    axes_for,
    column,
    draw_field,
    legend_below,
    own_numbers,
    window,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DRAWS = 4_000_000  # of observations, all inputs together, for the edges of a band
REACH = 1.0  # of the data's range that is shown beyond them
CHUNK = 2500  # inputs at once
SHOWN = {
    "confidence": "probability of the likeliest class",
    "entropy": "entropy of the class",
    "mutual_information": "mutual information of class and weights",
}
Predictor = MetricBNN | Callable[[Tensor], Prediction]
WANTED_DRAWS = 20_000  # an input: the edges are then smooth to a 60th of the noise


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
        legend: Draw a legend.
        ax: Where to draw; None for a new figure.

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
    along = array(inputs[order])
    edges = ((1 - level) / 2, (1 + level) / 2)
    if not of_classes:
        low, high = _quantiles(_observations(prediction), edges)[:, order].numpy()
        ax.fill_between(along, low, high, color=SKY, alpha=0.3, lw=0, label=f"{level:.0%} of observations")
    if prediction.num_samples > 1:
        low, high = _quantiles(prediction.expected, edges)[:, order].numpy()
        ax.fill_between(along, low, high, color=BLUE, alpha=0.35, lw=0, label=f"{level:.0%} of functions")
    ax.plot(along, array(mean[order]), color=BLUE, lw=1.8, label="mean")
    ax.set(xlabel="x", ylabel="y", xlim=(float(inputs.min()), float(inputs.max())))
    if points is not None:
        _draw_data(ax, *points)
    if legend:
        legend_below(ax)
    return ax


def _observed(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """x (n,) and y (n,) of the data to draw."""
    check_type("data", data, (tuple, list), "a pair (x, y)")
    if len(data) != 2:
        raise ValueError(f"data has {len(data)} parts: pass a pair (x, y).")
    x, y = column(data[0], "the data's x"), column(data[1], "the data's y")
    if len(x) != len(y):
        raise ValueError(f"the data's x has {len(x)} rows, its y {len(y)}: pass a pair (x, y) of equal lengths.")
    return x, y


def _draw_data(ax: Axes, x: Tensor, y: Tensor) -> None:
    """Points; and where a band leaves the data far behind, the view stays near them."""
    reach = REACH * float(y.max() - y.min())
    low, high = ax.get_ylim()
    ax.plot(array(x), array(y), ".", color=BLACK, ms=4, label="data")
    ax.set_ylim(max(low, float(y.min()) - reach), min(high, float(y.max()) + reach))


def _observations(prediction: Prediction) -> Tensor:
    """New observations (R, n, ...), as many a draw as smooth edges want; the caller's random numbers stay as they are.

    One a draw, as `Prediction.quantile` takes, would leave the edges ragged.
    """
    each, inputs = prediction.num_samples, prediction.f.shape[1]
    repeats = math.ceil(min(WANTED_DRAWS, max(each, MAX_DRAWS // inputs)) / each)
    with own_numbers(prediction.f.device):
        return torch.cat([prediction.sample() for _ in range(repeats)])


def _quantiles(draws: Tensor, levels: tuple[float, float]) -> Tensor:
    """(R, n) or (R, n, 1) -> (2, n), by sorting: torch.quantile refuses more than 16 million numbers."""
    ordered = draws.detach().flatten(1).to("cpu").sort(0).values
    places = [level * (len(ordered) - 1) for level in levels]
    return torch.stack([torch.lerp(ordered[int(p)], ordered[math.ceil(p)], p % 1) for p in places])


def plot_decision(
    predictor: Predictor,
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
        legend: Draw a legend.
        colorbar: Draw a colour bar.
        ax: Where to draw; None for a new figure.

    Example:
        >>> classes = bayesianize(nn.Linear(2, 2), Categorical())
        >>> run = MetricBNN(classes, num_particles=4, num_steps=10).run(x, (y[:, 0] > 0).long(), progress=False)
        >>> plots.plot_decision(run, x, (y[:, 0] > 0).long(), grid_size=20).get_xlabel()
        'x₁'
    """
    if show not in SHOWN:
        raise ValueError(f"show must be one of {', '.join(map(repr, SHOWN))}, got {show!r}.")
    if not callable(predictor):
        check_type("predictor", predictor, MetricBNN, "a run, or a function from inputs to a Prediction")
    check_count("grid_size", grid_size, "a grid has two points a side or more.", least=2)
    check_number("margin", margin, "it is a part of the data's range.", or_zero=True)
    check_tensor("x", x)
    if x.dim() != 2 or x.shape[1] != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}, but must be (n, 2): the picture is the plane of two inputs.")
    labels = column(y, "y").long()
    if len(labels) != len(x):
        raise ValueError(f"x has {len(x)} rows, y {len(labels)}: pass one class number a row.")
    sides = window(x, margin, grid_size)
    grid = torch.stack(torch.meshgrid(*sides, indexing="xy"), dim=-1).to(x)  # (B, A, 2)
    prediction = _predicted(predictor, grid.flatten(0, 1), num_samples)
    probs = prediction.class_probs  # (B A, C)
    shape, num_classes = grid.shape[:2], probs.shape[1]
    field = probs.amax(-1) if show == "confidence" else getattr(prediction, show)
    ranges = {"confidence": (1 / num_classes, 1.0), "entropy": (0.0, math.log(num_classes))}
    low, high = ranges.get(show, (0.0, float(field.max())))
    ax = axes_for(ax, 5.6, 4.6)
    mesh = draw_field(ax, sides, field.reshape(shape), vmin=low, vmax=high)
    for c in range(num_classes if num_classes > 2 else 1):
        others = torch.cat([probs[:, :c], probs[:, c + 1 :]], dim=-1).amax(-1)
        lead = array((probs[:, c] - others).reshape(shape))
        if lead.min() < 0 < lead.max():  # else no boundary is in sight, and matplotlib warns
            ax.contour(*map(array, sides), lead, levels=[0.0], colors="white", linewidths=1.6)
    for c in labels.unique().tolist():
        points, style = array(x[labels.to(x.device) == c]), {"edgecolors": "white", "linewidths": 0.5}
        ax.scatter(*points.T, s=18, color=CLASSES[c % 8], marker=MARKERS[c % 8], label=f"class {c}", **style)
    ax.set(xlabel="x₁", ylabel="x₂")
    if colorbar:
        ax.figure.colorbar(mesh, ax=ax, label=SHOWN[show])
    if legend:
        legend_below(ax)
    return ax


def _predicted(predictor: Predictor, x: Tensor, num_samples: int) -> Prediction:
    with own_numbers(x.device):
        if isinstance(predictor, MetricBNN):
            return predictor.predict(x, num_samples, chunk_size=CHUNK)
        prediction = predictor(x)
    if not isinstance(prediction, Prediction):
        raise ValueError(
            f"the predictor gave {type(prediction).__name__}, not a Prediction: pass a run, or for example "
            "lambda x: predict(model, samples, x)."
        )
    return prediction


def plot_reliability(
    probs: Tensor, y: Tensor, *, num_bins: int = 10, legend: bool = True, ax: Axes | None = None
) -> Axes:
    """How often predictions come true, against how sure they were: on the diagonal, when calibrated.

    Bars on the points hold 90 % of what chance alone would do; the expected calibration error is in the legend.

    Args:
        probs: Class probabilities (n, C), of which the likeliest class counts; or (n,) of a one.
        y: Class numbers (n,).
        num_bins: Bins of equal width.
        legend: Draw a legend.
        ax: Where to draw; None for a new figure.

    Example:
        >>> plots.plot_reliability(torch.tensor([0.2, 0.9, 0.8]), torch.tensor([0, 1, 1])).get_ylabel()
        'how often it was so'
    """
    check_tensor("probs", probs)
    chance, hit, name = _outcomes(probs.detach().cpu(), column(y, "y"))
    check_count("num_bins", num_bins, "the usual number is 10.")
    where = (chance * num_bins).long().clamp_max(num_bins - 1)
    count = chance.new_zeros(num_bins).index_add(0, where, torch.ones_like(chance))
    filled = count > 0
    sure, often = (
        torch.zeros_like(count).index_add(0, where, values)[filled] / count[filled] for values in (chance, hit)
    )
    share = count / len(chance)
    error = float((share[filled] * (sure - often).abs()).sum())
    low, high = _wilson(often, count[filled])
    ax = axes_for(ax, 4.6, 4.4)
    bins = [(i + 0.5) / num_bins for i in range(num_bins)]
    ax.bar(bins, array(share), width=0.9 / num_bins, color=GREY, alpha=0.3, label="share of the points")
    ax.plot([0, 1], [0, 1], color=GREY, ls="--", lw=1.2, label="calibrated")
    bars = torch.stack([often - low, high - often]).clamp_min(0)
    style = {"color": BLUE, "marker": "o", "ms": 5, "lw": 1.6, "elinewidth": 1.0, "capsize": 2.5}
    ax.errorbar(array(sure), array(often), yerr=array(bars), **style, label=f"observed (ECE {error:.3f})")
    ax.set(xlabel=name, ylabel="how often it was so", xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    if legend:
        legend_below(ax, columns=2)
    return ax


def _outcomes(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, str]:
    """What was predicted with which probability, and whether it came true: (n,), (n,), in float64."""
    probs = probs.double()
    if len(probs) != len(y) or not len(y):
        raise ValueError(f"probs has {len(probs)} rows, y {len(y)}: pass one class number for each row, and some rows.")
    if not bool(((probs >= 0) & (probs <= 1 + 1e-6)).all()):
        raise ValueError("probs must be from 0 to 1: pass probabilities (`prediction.probs`), not logits.")
    num_classes = max(2, probs.shape[-1]) if probs.dim() > 1 else 2
    if not bool(((y >= 0) & (y < num_classes) & (y == y.floor())).all()):
        raise ValueError(f"y has values that are no class: labels are whole numbers from 0 to {num_classes - 1}.")
    if probs.shape[1:].numel() == 1:
        return probs.flatten().clamp_max(1), (y == 1).double(), "predicted probability of a one"
    if probs.dim() != 2:
        raise ValueError(f"probs has shape {tuple(probs.shape)}, but must be (n, C), or (n,) of a one.")
    sure, said = probs.max(-1)
    return sure.clamp_max(1), (said == y).double(), "predicted probability of the likeliest class"


def _wilson(share: Tensor, count: Tensor, z: float = 1.645) -> tuple[Tensor, Tensor]:
    """Wilson's interval of a share out of a count."""
    center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)).sqrt()
    return center - reach, center + reach
