"""Choose the temperature of a posterior on rows that it has not seen.

In: a Pyro model, its data, and validation data.  Out: `TemperatureChoice`: the best `MetricBNN`, and all scores.
"""

import inspect
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .inference import MetricBNN
from .model.structure import Model, find_layout
from .predictions.pointwise import Pointwise
from .runtime.arguments import check_count, check_number, check_type
from .search.starts import leaves_as_trained
from .tempering.choice import mean_nll


@dataclass(frozen=True, kw_only=True)
class TemperatureChoice:
    """What `choose_temperature` found."""

    best: MetricBNN  # the run with the lowest score; best.kernel.temperature says at which temperature
    nll: dict[float, float]  # negative log predictive density an observation of the validation data, by temperature

    def __str__(self) -> str:
        scores = ", ".join(f"{temperature:g}: {score:.3f}" for temperature, score in self.nll.items())
        return f"temperature {self.best.kernel.temperature:g}; validation NLL by temperature: {scores}"


def choose_temperature(
    model: Model,
    *args: Any,
    validation: tuple[Any, ...] | list[Any],
    temperatures: Sequence[float] = (0.01, 0.1, 1.0, 4.0, 16.0, 64.0),
    num_samples: int = 500,
    progress: bool = True,
    **settings: Any,
) -> TemperatureChoice:
    """Run `MetricBNN` at each temperature, and keep the one that predicts the validation data best.

    `MetricBNN(model, temperature="auto")` chooses by short walks, in the time of a run or two. This one takes every run
    to its end. It is for what "auto" is not for: another model than a network's, another refiner, inferred noise.

    Args:
        model: A Pyro model, whose data plates have the size of the data it is given.
        *args: Its arguments, without the validation rows.
        validation: Its arguments for the validation rows, observations included.
        temperatures: What to try; 1 is the model's own posterior.
        num_samples: Draws that the validation rows are predicted with.
        progress: Show progress bars.
        **settings: What `MetricBNN` and its `run` take, as `num_particles`, `effort`, `batch_size` or `map_params`, and
            the model's keyword arguments. A `checkpoint` is a file for each temperature, which its name ends in.

    Example:
        >>> choice = choose_temperature(model, x, y, validation=(x, y), num_particles=4, num_steps=10, progress=False)
        >>> sorted(choice.nll)
        [0.01, 0.1, 1.0, 4.0, 16.0, 64.0]
        >>> choice.best.draw(5)["weight"].shape
        torch.Size([5, 1, 2])
    """
    judge = _judge(model, validation, temperatures)
    check_count("num_samples", num_samples, "the validation rows are predicted with them.")
    known = inspect.signature(MetricBNN.__init__).parameters
    of_metric = {name: settings.pop(name) for name in [*settings] if name in known}
    best, nll = None, {}
    checkpoint = settings.pop("checkpoint", None)
    for temperature in temperatures:
        if checkpoint is not None:
            settings["checkpoint"] = f"{os.fspath(checkpoint)}.{temperature:g}"
        metric = MetricBNN(model, temperature=temperature, **of_metric).run(*args, progress=progress, **settings)
        as_trained = leaves_as_trained(model, settings.get("num_networks"), metric.trajectories.in_batches)
        if not settings.keys() & {"initial_params", "map_params", "starts"} and not as_trained:
            settings["initial_params"] = metric.map_params  # the search goes on from the first one's end
        nll[temperature] = _nll(judge, metric.draw(num_samples))
        if best is None or nll[temperature] < nll[best.kernel.temperature]:
            best = metric
    if best is None or not math.isfinite(nll[best.kernel.temperature]):
        raise ValueError("no temperature gives the validation rows a finite density: look at the model and at them.")
    return TemperatureChoice(best=best, nll=nll)


def _judge(model: Model, validation: tuple[Any, ...] | list[Any], temperatures: Sequence[float]) -> Pointwise:
    """The model at the validation rows, after a look at what was given."""
    if getattr(model, "prior_is_auto", False):
        raise ValueError(
            'prior_scale="auto" would be chosen anew at each temperature, and the model has one scale: pass the number '
            "that metric.prior_choice of a run has to bayesianize."
        )
    if not len(temperatures):
        raise ValueError("temperatures is empty: give at least one, as (1.0, 4.0, 16.0).")
    for temperature in temperatures:
        check_number("temperature", temperature, "1 is the model's own.")
    check_type("validation", validation, (tuple, list), "the model's arguments for the validation rows, as (x, y)")
    layout = find_layout(model, tuple(validation), {})
    if not layout.observed:
        raise ValueError("nothing is observed in the validation data: pass the observations too, as (x, y).")
    return Pointwise(model, tuple(validation), {}, layout)


def _nll(judge: Pointwise, draws: dict[str, Tensor]) -> float:
    """Negative log predictive density an observation of the validation rows."""
    each, _ = judge.given_data(draws)
    return mean_nll(-torch.cat([(v.logsumexp(0) - math.log(len(v))).flatten() for v in each.values()]))
