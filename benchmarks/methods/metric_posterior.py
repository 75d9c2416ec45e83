"""MetricBNN with the library's defaults: the walk's own points, and draws of the latent posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyro_metricbnn import DriftRefineKernel, MetricBNN, Steer, predict

from ..task import Task, train_together
from .method import Method, Predictor

NUM_DRAWS = 1000
PARTS = (1.0, 0.3, 0.1, 0.03)  # of the steps of training


def ran(
    task: Task, effort: float = 1.0, temperature: float = 1.0, start: Mapping[str, Tensor] | None = None
) -> MetricBNN:
    """A walk from the trained network, or from such values as they are, and its latent map."""
    refiner = Steer(effort=effort * task.share)
    num_steps = None if task.share == 1 else task.count(100, 10)
    kernel = DriftRefineKernel(task.model, refiner=refiner, num_steps=num_steps, temperature=temperature)
    metric = MetricBNN(kernel, num_particles=task.count(20, 4))
    return metric.run(task.problem.x, task.problem.y, map_params=start, progress=False)


def walk(task: Task) -> Predictor:
    """The points of the walk."""
    samples = ran(task).get_samples()
    return lambda x: predict(task.model, samples, x)


def posterior(task: Task, effort: float = 1.0) -> Predictor:
    """Draws of the latent posterior."""
    draws = ran(task, effort).draw(task.count(NUM_DRAWS, 50))
    return lambda x: predict(task.model, draws, x)


def tempered(task: Task, temperature: float) -> Predictor:
    """Draws of the posterior to the power 1 / temperature."""
    draws = ran(task, temperature=temperature).draw(task.count(NUM_DRAWS, 50))
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
    """Draws for a model in which the noise is a site; from the trained network and the task's noise as they are.

    At the maximum of weights and noise together the noise has shrunk to what an overfitted network leaves, and a walk
    from there takes long to come away: Boston, one split, test NLL 2.89 instead of 2.30.
    """
    trained = {name: value.detach() for name, value in task.net.named_parameters()}
    open_noise = task.with_noise_inferred()
    return _drawn(open_noise, {**trained, "scale": torch.tensor(task.noise_variance).sqrt()})


def heteroscedastic(task: Task) -> Predictor:
    """Draws for a network of its own with a second output, the noise at that input; left as it was stopped early."""
    return _drawn(*stopped_early(task))


def stopped_early(task: Task) -> tuple[Task, dict[str, Tensor]]:
    """A heteroscedastic network after as many steps as are best for the validation rows, of a few; and its weights."""
    x, y = task.problem.x_valid, task.problem.y_valid
    if x is None or y is None:
        raise ValueError(f"{task.problem.name} has no validation rows to stop on.")
    found = []
    for part in PARTS:
        shorter = task.with_noise_output(part)
        (weights,) = train_together(shorter, shorter.new_networks(1))
        prediction = predict(shorter.model, {name: value[None] for name, value in weights.items()}, x)
        found.append((-float(prediction.log_prob(y).mean()), shorter, weights))
    _, best, weights = min(found, key=lambda one: one[0] if one[0] == one[0] else math.inf)
    return best, weights


def _drawn(task: Task, start: Mapping[str, Tensor]) -> Predictor:
    draws = ran(task, start=start).draw(task.count(NUM_DRAWS, 50))
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
    Method("MetricBNN, effort 1/4", partial(posterior, effort=0.25)),
    Method("MetricBNN, effort 4", partial(posterior, effort=4.0)),
    Method("MetricBNN, 4 networks", from_several),
    Method("MetricBNN, noise inferred", noise_inferred, only="regression"),
    Method("MetricBNN, heteroscedastic", heteroscedastic, only="regression"),
)
