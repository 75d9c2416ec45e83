"""MetricBNN with the library's defaults: the walk's own points, and draws of the latent posterior."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from pyro_metricbnn import DriftRefineKernel, MetricBNN, Steer, predict

from ..task import Task, train_together
from .method import Method, Predictor

NUM_DRAWS = 1000


def ran(task: Task, effort: float = 1.0, temperature: float = 1.0) -> MetricBNN:
    """A walk from the trained network and its latent map."""
    refiner = Steer(effort=effort * task.share)
    num_steps = None if task.share == 1 else task.count(100, 10)
    kernel = DriftRefineKernel(task.model, refiner=refiner, num_steps=num_steps, temperature=temperature)
    metric = MetricBNN(kernel, num_particles=task.count(20, 4))
    return metric.run(task.problem.x, task.problem.y, progress=False)


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
    """Draws of the default for a model in which the noise is a site, within a factor of e of the task's."""
    return posterior(task.with_noise_inferred())


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
)
