"""MetricBNN with the library's defaults: the walk's own points, and draws of the latent posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_metricbnn import Gaussian, MetricBNN, NoisyCategorical, predict

from ..task import Task, train_together
from .method import FromDraws, Method, Predictor, scaled

NUM_DRAWS = 1000
TRAINED = 0.2  # of the steps of training: 300
NUM_MEMBERS = 8  # particles where MILE stands beside


def ran(
    task: Task,
    effort: float = 1.0,
    temperature: float | Literal["auto"] = 1.0,
    start: Mapping[str, Tensor] | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
) -> MetricBNN:
    """A walk from the trained network, or from such values as they are, and its latent map."""
    num_steps = None if task.share == 1 else task.count(100, 10)
    count = task.count(20, 4)
    how: dict[str, Any] = {"effort": effort * task.share, "num_steps": num_steps, "temperature": temperature}
    metric = MetricBNN(task.model, num_particles=count, **how)
    return metric.run(task.problem.x, task.problem.y, map_params=start, validation=validation, progress=False)


def walk(task: Task) -> Predictor:
    """The points of the walk."""
    samples = ran(task).get_samples()
    return lambda x: predict(task.model, samples, x)


def posterior(task: Task, effort: float = 1.0) -> Predictor:
    """Draws of the latent posterior."""
    draws = ran(task, effort).draw(task.count(NUM_DRAWS, 50))
    return FromDraws(lambda x: predict(task.model, draws, x), draws)


def tempered(task: Task, temperature: float | Literal["auto"]) -> Predictor:
    """Draws of the posterior to the power 1 / temperature; "auto" chooses it by cross-validation of training rows."""
    draws = ran(task, temperature=temperature).draw(task.count(NUM_DRAWS, 50))
    return lambda x: predict(task.model, draws, x)


def validated(task: Task, effort: float = 0.25) -> Predictor:
    """Draws at the temperature that predicts the validation rows best, in a fourth of the default's effort."""
    assert task.problem.x_valid is not None
    assert task.problem.y_valid is not None
    rows = task.problem.x_valid, task.problem.y_valid
    draws = ran(task, effort, "auto", validation=rows).draw(task.count(NUM_DRAWS, 50))
    return lambda x: predict(task.model, draws, x)


def from_several(task: Task, count: int = 4) -> Predictor:
    """As many draws from the posteriors of several networks; all but the task's are trained here."""
    others = task.new_networks(count - 1)
    for net, weights in zip(others, train_together(task, others), strict=True):
        net.load_state_dict(weights)
    tasks = [task, *(replace(task, net=net) for net in others)]
    parts = [ran(one).draw(task.count(NUM_DRAWS // count, 50)) for one in tasks]
    draws = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return lambda x: predict(task.model, draws, x)


def noise_inferred(task: Task) -> Predictor:
    """Draws for a model in which the noise is a site: the task's network and `Gaussian()`, which is told no noise.

    From the maximum of weights and noise together, where the noise has shrunk to what an overfitted network leaves,
    the walk of an earlier version had a test NLL of 2.89 on a split of Boston; from the trained weights 2.30.
    """
    return unknown_noise(replace(task, likelihood=Gaussian()))


def heteroscedastic(task: Task) -> Predictor:
    """Draws for a network of its own with a second output, the noise at that input, trained for some hundred steps."""
    task = task.with_noise_output(TRAINED)
    (weights,) = train_together(task, [task.net])
    task.net.load_state_dict(weights)
    return unknown_noise(task)


def noisy_labels(task: Task) -> Predictor:
    """Draws for a model in which a part of the labels is random, how large a part is inferred."""
    return posterior(replace(task, likelihood=NoisyCategorical()))


def unknown_noise(task: Task) -> Predictor:
    """The defaults with as many particles as MILE has members."""
    effort = None if task.share == 1 else task.share
    num_steps = None if task.share == 1 else task.count(100, 10)
    metric = MetricBNN(task.model, num_particles=NUM_MEMBERS, effort=effort, num_steps=num_steps)
    draws = metric.run(task.problem.x, task.problem.y, progress=False).draw(task.count(NUM_DRAWS, 50))
    return lambda x: predict(task.model, draws, x)


METHODS = (
    Method("MetricBNN sampling", walk),
    Method("MetricBNN", posterior),
    Method(
        "MetricBNN, tempered",
        tempered,
        settings=tuple({"temperature": value} for value in (1.0, 4.0, 16.0, 64.0)),
        below=({"temperature": 0.25}, {"temperature": 0.0625}),
        above=({"temperature": 256.0}, {"temperature": 1024.0}),
    ),
    Method("MetricBNN, auto", partial(tempered, temperature="auto")),
    Method("MetricBNN, effort 1/4", partial(posterior, effort=0.25)),
    Method("MetricBNN, effort 4", partial(posterior, effort=4.0)),
    Method("MetricBNN, 4 networks", from_several),
    Method("MetricBNN, noisy labels", noisy_labels, only="uci"),
    Method("MetricBNN, validated", validated, only="regression"),
    Method("MetricBNN, scaled", partial(scaled, fit=posterior), only="regression"),
    Method("MetricBNN, noise inferred", noise_inferred, only="regression"),
    Method("MetricBNN, heteroscedastic", heteroscedastic, only="regression"),
)
