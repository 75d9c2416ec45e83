"""How near predictions are to those of a reference posterior, such as long NUTS chains.

In: two `Prediction`s at the same inputs.  Out: `ClassAgreement` (the figures of the NeurIPS 2021 competition on
approximate inference), or `RealAgreement` for numbers.
"""

from dataclasses import dataclass

import torch
from pyro.ops.stats import quantile
from torch import Tensor

from ..predictions.prediction import Prediction
from .calibration import check_prediction

NUM_LEVELS = 1000  # quantiles that are compared


@dataclass(frozen=True, kw_only=True)
class ClassAgreement:
    """Agreement of predicted classes, averaged over the inputs."""

    top_1: float  # how often the likeliest classes are the same
    total_variation: float  # half the summed difference of the mean class probabilities: 0 to 1

    def __str__(self) -> str:
        return f"top-1 agreement {self.top_1:.3f}, total variation {self.total_variation:.4g}"


@dataclass(frozen=True, kw_only=True)
class RealAgreement:
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
        >>> ours = predict(model, walk.samples(), x)
        >>> agreement(ours, ours).wasserstein
        0.0
    """
    check_prediction("prediction", prediction)
    check_prediction("reference", reference)
    kind, other = type(prediction.likelihood), type(reference.likelihood)
    if kind is not other:
        said = f"the prediction's likelihood is {kind.__name__}, the reference's {other.__name__}"
        raise ValueError(f"{said}: both have to predict the same thing.")
    if prediction.f.shape[1:] != reference.f.shape[1:]:
        said = f"the outputs have shapes {tuple(prediction.f.shape)} and {tuple(reference.f.shape)}, draws first"
        raise ValueError(f"{said}: all but the number of draws must be the same. Predict both at the same inputs.")
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
