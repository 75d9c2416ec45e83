"""How much less sure, or surer, predictions should be, by rows that were held out: temperature scaling of a posterior.

In: a `Prediction` at rows that neither training nor walk has seen, and what was observed.  Out: one factor.
"""

import math
from typing import Any

from ..runtime.arguments import check_type
from .prediction import GOLDEN, Prediction

LARGEST, NEAR = 20.0, 1e-3  # factors between 1 / LARGEST and LARGEST; how near to the best one


def fit_scale(prediction: Prediction, y: Any) -> float:
    """The factor for `Prediction.scaled` with which held-out rows are predicted best (Guo et al. 2017 for one network).

    A few hundred rows are enough for one number. Rows that were trained on ask for predictions that are too sure.

    Args:
        prediction: What `predict` gave at the held-out rows, of classes or of numbers with one noise.
        y: What was observed there.

    Example:
        >>> factor = fit_scale(predict(model, walk.samples(), x), y)
        >>> later = predict(model, walk.samples(), x).scaled(factor)
        >>> bool(later.log_prob(y).mean() >= predict(model, walk.samples(), x).log_prob(y).mean() - 1e-6)
        True
    """
    check_type("prediction", prediction, Prediction, "a Prediction, as predict or metric.predict give it")

    def nll(log_factor: float) -> float:
        value = -float(prediction.scaled(math.exp(log_factor)).log_prob(y).mean())
        return value if math.isfinite(value) else math.inf

    low, high = -math.log(LARGEST), math.log(LARGEST)  # golden section: of a mixture the score is nearly always convex
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    of_left, of_right = nll(left), nll(right)
    while high - low > NEAR:
        if of_left <= of_right:
            high, right, of_right = right, left, of_left
            left = high - GOLDEN * (high - low)
            of_left = nll(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + GOLDEN * (high - low)
            of_right = nll(right)
    found = min((low + high) / 2, 0.0, key=nll)
    return math.exp(found)
