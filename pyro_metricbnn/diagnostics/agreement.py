"""How near predictions are to those of a reference posterior, such as long NUTS chains.

In: two `Prediction`s at the same inputs.  Out: `ClassAgreement` (the figures of the NeurIPS 2021 competition on
approximate inference), or `RealAgreement` for numbers. Two runs of the reference itself do not agree exactly either:
`relative_to` takes their agreement as the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from pyro.ops.stats import quantile
from torch import Tensor

from ..predictions.prediction import Prediction
from .calibration import check_prediction

NUM_LEVELS = 1000  # quantiles that are compared


class _Figures:
    """Figures that can be put in units of those between two runs of the reference."""

    def relative_to(self, reference: Prediction, other_reference: Prediction) -> Self:
        """Each figure over the same one between two runs of the reference: 1 is as near as those are to each other."""
        unit = vars(agreement(reference, other_reference))
        if unit.keys() != vars(self).keys():
            raise ValueError("the reference predicts something else: classes and numbers have no common unit.")
        if 0.0 in unit.values():
            raise ValueError(
                "the two reference runs agree or disagree completely, which is no unit to measure in. Pass two runs "
                "from seeds of their own, both of the right posterior."
            )
        return type(self)(**{name: value / unit[name] for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class ClassAgreement(_Figures):
    """Agreement of predicted classes, averaged over the inputs."""

    top_1: float  # how often the likeliest classes are the same
    total_variation: float  # half the summed difference of the mean class probabilities: 0 to 1

    def __str__(self) -> str:
        return f"top-1 agreement {self.top_1:.3f}, total variation {self.total_variation:.4g}"


@dataclass(frozen=True, kw_only=True)
class RealAgreement(_Figures):
    """Wasserstein-1 distances of the marginals at each input, averaged over the inputs."""

    wasserstein: float  # of new observations, in units of y
    wasserstein_f: float  # of the network's outputs

    def __str__(self) -> str:
        return f"Wasserstein distance {self.wasserstein:.4g}, of the outputs {self.wasserstein_f:.4g}"


def agreement(prediction: Prediction, reference: Prediction) -> ClassAgreement | RealAgreement:
    """How near a prediction is to that of a reference posterior at the same inputs.

    Args:
        prediction: What `predict` gave for draws from a posterior.
        reference: What it gave for those of the reference; their number may be another.

    Example:
        >>> walks = (walk, walk.thinned(2), walk.thinned(3))  # in place of a posterior and two runs of NUTS
        >>> ours, nuts, again = (predict(model, one.samples(), x) for one in walks)
        >>> agreement(ours, ours).wasserstein
        0.0
        >>> agreement(ours, nuts).relative_to(nuts, again).wasserstein > 0
        True
    """
    check_prediction("prediction", prediction)
    check_prediction("reference", reference)
    kinds = [type(one.likelihood) for one in (prediction, reference)]
    if kinds[0] is not kinds[1]:
        raise ValueError(
            f"the prediction's likelihood is {kinds[0].__name__}, the reference's {kinds[1].__name__}: both have to "
            "predict the same thing."
        )
    if prediction.f.shape[1:] != reference.f.shape[1:]:
        raise ValueError(
            f"the outputs have shapes {tuple(prediction.f.shape)} and {tuple(reference.f.shape)}, draws first: all but "
            "the number of draws must be the same. Predict both at the same inputs."
        )
    if prediction.likelihood.observes == "classes":
        p, q = prediction.class_probs, reference.class_probs
        top_1 = float((p.argmax(-1) == q.argmax(-1)).double().mean())
        return ClassAgreement(top_1=top_1, total_variation=total_variation(p, q))
    return RealAgreement(
        wasserstein=float(wasserstein(prediction.points(), reference.points()).mean()),
        wasserstein_f=float(wasserstein(prediction.f, reference.f).mean()),
    )


def total_variation(p: Tensor, q: Tensor) -> float:
    """Half the summed difference of class probabilities (n, C), averaged over the inputs."""
    return float((p - q).abs().sum(-1).mean() / 2)


def wasserstein(a: Tensor, b: Tensor) -> Tensor:
    """Wasserstein-1 distance of each marginal of points (P, ...) and (Q, ...), from their quantiles: (...)."""
    levels = (torch.arange(NUM_LEVELS, device=a.device, dtype=a.dtype) + 0.5) / NUM_LEVELS
    return (quantile(a, levels) - quantile(b.to(a), levels)).abs().mean(0)
