"""The naive alternative to a latent space: a Gaussian with the covariance of the points of the paper's walk, by SVD."""

from __future__ import annotations

import math

from pyro.distributions import LowRankMultivariateNormal
from torch.linalg import svd

from pyro_metricbnn import Trajectories, predict
from pyro_metricbnn.latent.latent_map import usable

from ..task import Task
from .method import NUM_DRAWS, Method, Predictor
from .metric_paper import unwalked


def gaussian_posterior(walked: Trajectories) -> LowRankMultivariateNormal:
    """A Gaussian of theta with the covariance of the walk's points."""
    points = usable(walked)[:, 1:].to(walked.sites.dtype).flatten(0, 1)
    center = points.mean(0)
    _, singular, axes = svd(points - center, full_matrices=False)
    factor = axes.mT * singular / math.sqrt(max(1, len(points) - 1))
    floor = (singular[0] / math.sqrt(len(points))) ** 2 * 1e-6
    return LowRankMultivariateNormal(center, factor, floor.expand(len(center)).clamp_min(1e-12))


def fit(task: Task) -> Predictor:
    """Draws of the Gaussian."""
    trained = {name: value.detach() for name, value in task.net.named_parameters()}
    metric = unwalked(task)
    x, y, count = task.problem.x, task.problem.y, metric.num_particles
    walked = metric.kernel.walk(x, y, num_particles=count, map_params=trained, progress=False)
    draws = walked.sites.unflatten(gaussian_posterior(walked).sample((NUM_DRAWS,)))
    return lambda x: predict(task.model, draws, x)


METHODS = (Method("walk, SVD", fit),)
