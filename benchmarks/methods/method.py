"""The one signature of all methods: a task in, a predictor out, its time measured.

A method is a function `fit(task, **setting)` that returns a predictor: x (n, ...) -> `Prediction`, the draws of the
network's output at x. What it does to the weights is its own affair.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_metricbnn.predictions import Prediction, fit_scale

from ..task import Task

BUDGET, BEYOND = 4, 2  # settings that a method may try on the validation rows; and on from an end of them
NUM_DRAWS = 200  # of a posterior that is cheap to draw from

Predictor = Callable[[Tensor], Prediction]
Fit = Callable[..., Predictor]


@dataclass(frozen=True)
class FromDraws:
    """A predictor that says which weights it predicts from: (S, ...) by name."""

    predict: Predictor
    draws: Mapping[str, Tensor]

    def __call__(self, x: Tensor) -> Prediction:
        return self.predict(x)

    @property
    def mean_square(self) -> float:
        """Of the weights, over draws and coordinates: 1 where they are as the N(0, 1) prior's."""
        return float(torch.cat([value.flatten(1) for value in self.draws.values()], dim=1).square().mean())


def scaled(task: Task, fit: Fit) -> Predictor:
    """A method's predictions with the noise, or the logits, scaled by one factor that the validation rows ask for."""
    predict = fit(task)
    assert task.problem.x_valid is not None
    factor = fit_scale(predict(task.problem.x_valid), task.problem.y_valid)
    return lambda x: predict(x).scaled(factor)


@dataclass(frozen=True)
class Method:
    """A way from a trained network to predictions.

    Args:
        name: As in the tables.
        fit: A task and a setting -> a predictor.
        settings: What is tried on the validation rows, the best is kept; at most `BUDGET`, in order.
        below, above: What is tried, one after another as long as it is better, where the first or the last of them is
            the best; at most `BEYOND`.
        needs: The package that it cannot do without, if not one of ours.
        cite: Where it comes from.
        only: The one experiment that it is for.
    """

    name: str
    fit: Fit
    settings: tuple[Mapping[str, Any], ...] = ({},)
    below: tuple[Mapping[str, Any], ...] = ()
    above: tuple[Mapping[str, Any], ...] = ()
    needs: str | None = None
    cite: str = ""
    only: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.settings) <= BUDGET:
            raise ValueError(f"{self.name} has {len(self.settings)} settings; every method may try 1 to {BUDGET}.")
        if max(len(self.below), len(self.above)) > BEYOND:
            raise ValueError(f"{self.name} goes on too far; every method may by {BEYOND} settings on a side.")


@dataclass(frozen=True)
class Run:
    """A prediction at the asked inputs, and the seconds from the task to it."""

    prediction: Prediction
    seconds: float
    predictor: Predictor


def timed(method: Method, task: Task, setting: Mapping[str, Any], x: Tensor) -> Run:
    """Fit and predict at x."""
    begin = time.perf_counter()
    predictor = method.fit(task, **setting)
    prediction = predictor(x)
    return Run(prediction, time.perf_counter() - begin, predictor)


def tuned(method: Method, task: Task) -> Mapping[str, Any]:
    """The setting with the lowest negative log-likelihood on the validation rows; one that fails is out."""
    if len(method.settings) == 1:
        return method.settings[0]
    if task.problem.x_valid is None or task.problem.y_valid is None:
        raise ValueError(f"{task.problem.name} has no validation rows to tune {method.name} on.")
    x, y = task.problem.x_valid, task.problem.y_valid
    failures = []

    def score(setting: Mapping[str, Any]) -> float:
        try:
            value = -float(method.fit(task, **setting)(x).log_prob(y).mean())
        except (RuntimeError, ValueError) as error:
            failures.append(f"{dict(setting)}: {error}")
            return math.inf
        return value if value == value else math.inf

    scores = [score(setting) for setting in method.settings]
    best = min(scores)
    if best == math.inf:
        raise RuntimeError(f"no setting of {method.name} gave a finite likelihood. " + "; ".join(failures))
    chosen = scores.index(best)
    setting = method.settings[chosen]
    for further in {0: method.below, len(scores) - 1: method.above}.get(chosen, ()):
        value = score(further)
        if value >= best:
            break
        setting, best = further, value
    return setting
