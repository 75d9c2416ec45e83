"""Whether predictions are as sure as they are right.

In: a `Prediction` and what was observed.  Out: `ClassCalibration`, or `RealCalibration` for numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.ops.stats import crps_empirical, quantile
from torch import Tensor

from ..model.numbers import as_tensors
from ..predictions.prediction import Prediction
from ..runtime.arguments import check_count, check_type

LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """The reliability curve: confidence against accuracy in each bin of confidence, (bins,) each; NaN in empty ones."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def error(self) -> float:
        """The gap between the two, averaged over the inputs: the expected calibration error."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return float((gaps * self.count).sum() / self.count.sum())


@dataclass(frozen=True, kw_only=True)
class ClassCalibration:
    """Figures of predicted classes, averaged over the inputs."""

    nll: float  # negative log predictive probability of what was observed
    accuracy: float  # how often the likeliest class was right
    brier: float  # squared error of the probabilities, summed over the classes: 0 to 2
    ece: float  # expected calibration error
    reliability: Reliability  # the curve that it comes from

    def __str__(self) -> str:
        return f"NLL {self.nll:.3f}, accuracy {self.accuracy:.3f}, Brier {self.brier:.3f}, ECE {self.ece:.3f}"


@dataclass(frozen=True, kw_only=True)
class RealCalibration:
    """Figures of predicted numbers, averaged over the observations."""

    nll: float  # negative log predictive density of what was observed at an input
    rmse: float  # root mean square error of the mean
    crps: float  # continuous ranked probability score, in units of y: the absolute error of a sure prediction
    levels: tuple[float, ...]  # of the central intervals
    coverage: tuple[float, ...]  # the part of the observations that lies in the interval of each level
    width: tuple[float, ...]  # the mean width of the interval of each level

    def __str__(self) -> str:
        covered = ", ".join(f"{level:.0%}: {part:.1%}" for level, part in zip(self.levels, self.coverage, strict=True))
        return f"NLL {self.nll:.3f}, RMSE {self.rmse:.3f}, CRPS {self.crps:.3f}, coverage {covered}"


def calibration(
    prediction: Prediction, y: Any, *, num_bins: int = 15, levels: Sequence[float] = LEVELS
) -> ClassCalibration | RealCalibration:
    """How good and how honest a prediction is; the likelihood says whether it is of classes or of numbers.

    Args:
        prediction: What `predict` gave at some inputs.
        y: What was observed there.
        num_bins: Bins of confidence, all of one width, for classes.
        levels: Of central intervals, for numbers.

    Example:
        >>> figures = calibration(predict(model, walk.samples(), x), y)
        >>> len(figures.coverage)
        4
    """
    check_prediction("prediction", prediction)
    check_count("num_bins", num_bins, "15 is usual.")
    check_type("levels", levels, (list, tuple), "a list of probabilities", "pass for example [0.5, 0.9]")
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must be between 0 and 1, got {tuple(levels)}: they are parts of the probability.")
    y = prediction.likelihood.targets(prediction.f[0], as_tensors("y", y, prediction.f))
    if not y.numel():
        raise ValueError("y has no observation: pass at least one.")
    if wrong := int((~y.isfinite()).sum()):
        raise ValueError(f"y has {wrong} entries that are not finite: leave those rows out.")
    if prediction.likelihood.observes == "classes":
        return _of_classes(prediction, y, num_bins)
    return _of_numbers(prediction, y, tuple(levels))


def check_prediction(name: str, value: Any) -> None:
    """Refuse what is not a prediction."""
    check_type(name, value, Prediction, "a Prediction, as predict or metric.predict give it")


def reliability(probs: Tensor, labels: Tensor, num_bins: int = 15) -> Reliability:
    """The curve of class probabilities (inputs, C) and labels (inputs,), in bins of one width."""
    confidence, chosen = probs.max(-1)
    return binned(confidence, (chosen == labels).to(probs.dtype), num_bins)


def binned(confidence: Tensor, came_true: Tensor, num_bins: int) -> Reliability:
    """The curve of probabilities (inputs,) and whether what had them came true, 0 or 1.

    As torchmetrics bins, except that a confidence of exactly 1 is in the last bin and not in one of its own.
    """
    edges = torch.linspace(0, 1, num_bins + 1, device=confidence.device, dtype=confidence.dtype)
    bins = (torch.bucketize(confidence, edges, right=True) - 1).clamp_max(num_bins - 1)
    empty = confidence.new_zeros(num_bins)
    summed = (torch.ones_like(confidence), confidence, came_true)
    count, sure, often = (empty.index_add(0, bins, values) for values in summed)
    return Reliability(confidence=sure / count, accuracy=often / count, count=count)


def class_labels(y: Tensor, num_classes: int) -> Tensor:
    """y as class numbers, of which there are so many."""
    labels = y.long()
    if not bool(((labels >= 0) & (labels < num_classes) & (labels == y)).all()):
        raise ValueError(f"y has values that are no class: labels are whole numbers from 0 to {num_classes - 1}.")
    return labels


def _of_classes(prediction: Prediction, y: Tensor, num_bins: int) -> ClassCalibration:
    probs = prediction.class_probs
    labels = class_labels(y.flatten(), probs.shape[-1])
    truth = torch.nn.functional.one_hot(labels, probs.shape[-1])
    curve = reliability(probs, labels, num_bins)
    return ClassCalibration(
        nll=-float(prediction.log_prob(y).mean()),
        accuracy=float((probs.argmax(-1) == labels).double().mean()),
        brier=float((probs - truth).pow(2).sum(-1).mean()),
        ece=curve.error,
        reliability=curve,
    )


def _of_numbers(prediction: Prediction, y: Tensor, levels: tuple[float, ...]) -> RealCalibration:
    points = prediction.points()  # (P, n, ...)
    ends = [(1 + side * level) / 2 for side in (-1, 1) for level in levels]
    low, high = quantile(points, ends).chunk(2)  # (levels, n, ...) each
    inside = ((low <= y) & (y <= high)).double()
    return RealCalibration(
        nll=-float(prediction.log_prob(y).mean()),
        rmse=float((prediction.mean - y).pow(2).mean().sqrt()),
        crps=float(crps_empirical(points, y).mean()),
        levels=levels,
        coverage=tuple(inside.flatten(1).mean(1).tolist()),
        width=tuple((high - low).flatten(1).mean(1).tolist()),
    )
