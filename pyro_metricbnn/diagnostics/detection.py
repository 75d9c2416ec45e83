"""Whether uncertainty knows where it is wrong: inputs from elsewhere, and predictions that are better left out.

In: scores, higher where less is known, or `Prediction`s that have them.  Out: `Detection` and `Selective`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..predictions.prediction import Prediction
from ..runtime.arguments import WrongTypeError, check_number, check_part, check_tensor, check_type
from .calibration import check_prediction, class_labels

Score = str | Callable[[Prediction], Tensor]
TRUE_POSITIVES = 0.95


def _doubt(prediction: Prediction) -> Tensor:
    """1 - the probability of the likeliest class, averaged over the labels of an input."""
    return (1 - prediction.class_probs.amax(-1)).reshape(prediction.f.shape[1], -1).mean(1)


SCORES: dict[str, Callable[[Prediction], Tensor]] = {  # (n,) each; deviations are those of all outputs together
    "confidence": _doubt,
    "entropy": lambda prediction: prediction.entropy,
    "mutual_information": lambda prediction: prediction.mutual_information,
    "std": lambda prediction: prediction.std.flatten(1).norm(dim=1),
    "model_std": lambda prediction: prediction.model_std.flatten(1).norm(dim=1),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Detection:
    """How well scores tell inputs from elsewhere, the positives, from those of the data."""

    auroc: float  # how often an outside input scores above an inside one; ties count half
    aupr: float  # average precision; the part of outside inputs is what a useless score has
    fpr_95: float  # the part of inside inputs that is taken for outside where 95 % of the outside ones are found
    thresholds: Tensor = field(repr=False)  # (K,), all scores from the highest down: as high is positive
    false_positives: Tensor = field(repr=False)  # (K,), the part of the inside inputs at each threshold
    true_positives: Tensor = field(repr=False)  # (K,), of the outside inputs
    precision: Tensor = field(repr=False)  # (K,), of what is positive the part that is outside

    def __str__(self) -> str:
        return f"AUROC {self.auroc:.3f}, AUPR {self.aupr:.3f}, FPR at 95 % TPR {self.fpr_95:.3f}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Selective:
    """The risk of answering only where the score is low, by how much is answered; ties count as their mean."""

    coverage: Tensor  # (n,), 1/n to 1: the part of the inputs that is answered
    risk: Tensor  # (n,), the mean loss on these
    oracle: Tensor  # (n,), that of the best order there is, which knows the losses

    @property
    def aurc(self) -> float:
        """The area under the curve: the mean risk over all coverages."""
        return float(self.risk.mean())

    @property
    def excess(self) -> float:
        """What the area is above that of the best order."""
        return float((self.risk - self.oracle).mean())

    def risk_at(self, coverage: float) -> float:
        """The risk where at least this part of the inputs is answered."""
        why = "it is the part of the inputs that is answered. Take 1 for all."
        check_number("coverage", coverage, why)
        check_part("coverage", coverage, why)
        return float(self.risk[math.ceil(coverage * len(self.risk) - 1e-9) - 1])  # 0.07 * 100 is above 7

    def __str__(self) -> str:
        return f"AURC {self.aurc:.4g}, {self.excess:.4g} above the best order; risk {float(self.risk[-1]):.4g} of all"


def detection(inside: Tensor | Prediction, outside: Tensor | Prediction, *, score: Score | None = None) -> Detection:
    """How well a score tells inputs from elsewhere from those of the data.

    Args:
        inside: Scores (n,) of inputs like the data, higher where less is known; or the predictions there.
        outside: Scores (m,) of inputs from elsewhere; or the predictions there.
        score: Of predictions: "confidence" (1 - the probability of the likeliest class), "entropy",
            "mutual_information", "std", "model_std" or a function of the prediction; None for confidence or std.

    Example:
        >>> print(detection(torch.tensor([0.1, 0.2, 0.4]), torch.tensor([0.3, 0.9])))
        AUROC 0.833, AUPR 0.833, FPR at 95 % TPR 0.333
        >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
        >>> detection(metric.predict(x), metric.predict(x + 100), score="std").auroc
        1.0
    """
    low, high = scores_of("inside", inside, score), scores_of("outside", outside, score)
    kinds = [type(of.likelihood if isinstance(of, Prediction) else of).__name__ for of in (inside, outside)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"inside is of {kinds[0]}, outside of {kinds[1]}: pass scores of one kind, or one model's.")
    thresholds = torch.cat([low, high]).unique().flip(0)  # (K,): equal scores are one step of the curves
    hits, alarms = (len(of) - torch.searchsorted(of.sort().values, thresholds).double() for of in (high, low))
    true, false, precision = hits / len(high), alarms / len(low), hits / (hits + alarms)
    zero = true.new_zeros(1)
    return Detection(
        auroc=float(torch.trapezoid(torch.cat([zero, true]), torch.cat([zero, false]))),
        aupr=float((true.diff(prepend=zero) * precision).sum()),
        fpr_95=float(false[true >= TRUE_POSITIVES].min()),
        thresholds=thresholds,
        false_positives=false,
        true_positives=true,
        precision=precision,
    )


def selective(prediction: Prediction, y: Tensor, *, score: Score | None = None) -> Selective:
    """Risk against coverage where the inputs that a prediction is least sure of are left out first.

    The risk of classes is the part of wrong labels, that of numbers the mean squared error. `risk_coverage` takes
    any other.

    Args:
        prediction: What `predict` gave at some inputs.
        y: What was observed there.
        score: What to leave out by, as in `detection`.

    Example:
        >>> curve = selective(predict(model, walk.samples(), x), y)
        >>> curve.risk_at(0.5) >= float(curve.oracle[9])
        True
    """
    check_prediction("prediction", prediction)
    y = prediction.likelihood.targets(prediction.f[0], y)
    if wrong := int((~y.isfinite()).sum()):
        raise ValueError(f"y has {wrong} entries that are not finite: leave those rows out.")
    if prediction.likelihood.observes == "classes":
        probs = prediction.class_probs
        losses = (probs.argmax(-1) != class_labels(y.flatten(), probs.shape[-1])).double()
    else:
        losses = (prediction.mean - y).double().square()
    return risk_coverage(scores_of("prediction", prediction, score), losses.reshape(len(y), -1).mean(1))


def risk_coverage(scores: Tensor, losses: Tensor) -> Selective:
    """Risk against coverage of any scores (n,), higher where less is known, and losses (n,).

    Example:
        >>> risk_coverage(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.0, 0.0, 3.0])).risk
        tensor([0., 0., 1.], dtype=torch.float64)
    """
    scores, losses = scores_of("scores", scores, None), scores_of("losses", losses, None)
    if len(scores) != len(losses):
        raise ValueError(f"there are {len(scores)} scores and {len(losses)} losses: pass one of each an input.")
    if wrong := int((~losses.isfinite()).sum()):
        raise ValueError(f"losses has {wrong} entries that are not finite: they have no mean. Leave those inputs out.")
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)  # in rising order
    tied = losses.new_zeros(len(counts)).index_add(0, place, losses) / counts  # the mean among equal scores
    number = torch.arange(1, len(losses) + 1, dtype=losses.dtype, device=losses.device)
    risk = tied.repeat_interleave(counts).cumsum(0) / number
    return Selective(coverage=number / len(number), risk=risk, oracle=losses.sort().values.cumsum(0) / number)


def scores_of(name: str, given: Any, score: Score | None) -> Tensor:
    """Scores (n,) on the CPU in float64: those given, or of a prediction; what cannot be ranked is refused."""
    check_type(name, given, (Tensor, Prediction), "a tensor of scores (n,), or a Prediction")
    if isinstance(given, Prediction):
        name, given = f"the score of {name}", _asked(given, score)
    elif score is not None:
        raise ValueError(f"score is for predictions, and {name} has scores already: leave it out.")
    check_tensor(name, given)
    if given.dim() not in (1, 2) or given.shape[1:].numel() != 1:
        raise ValueError(f"{name} has shape {tuple(given.shape)}, but must be (n,): pass one number an input.")
    if not len(given):
        raise ValueError(f"{name} has no input: pass at least one.")
    if wrong := int(given.isnan().sum()):
        raise ValueError(f"{name} has {wrong} entries that are NaN and cannot be ranked: leave those inputs out.")
    return given.detach().flatten().to("cpu", torch.float64)


def _asked(prediction: Prediction, score: Score | None) -> Tensor:
    """What a prediction has as this score."""
    if score is None:
        score = "confidence" if prediction.likelihood.observes == "classes" else "std"
    if isinstance(score, str) and score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(map(repr, SCORES))} or a function, got {score!r}.")
    if not isinstance(score, str) and not callable(score):
        wanted = "a name, or a function from a Prediction to scores (n,)"
        raise WrongTypeError(f"score must be {wanted}, got {type(score).__name__}.")
    return SCORES[score](prediction) if isinstance(score, str) else score(prediction)
