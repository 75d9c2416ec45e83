"""The naive alternative to a latent space: a Gaussian with the covariance of the points of the paper's walk, by SVD."""

from __future__ import annotations

from pyro_metricbnn import gaussian_posterior, predict

from ..task import Task
from .method import NUM_DRAWS, Method, Predictor
from .metric_paper import unwalked


def fit(task: Task) -> Predictor:
    """Draws of the Gaussian."""
    trained = {name: value.detach() for name, value in task.net.named_parameters()}
    metric = unwalked(task)
    x, y, count = task.problem.x, task.problem.y, metric.num_particles
    walked = metric.kernel.walk(x, y, num_particles=count, map_params=trained, progress=False)
    draws = walked.sites.unflatten(gaussian_posterior(walked).sample((NUM_DRAWS,)))
    return lambda x: predict(task.model, draws, x)


METHODS = (Method("walk, SVD", fit),)
