"""The paper's naive alternative to a latent space: a Gaussian with the covariance of the walk's points, by SVD."""

from __future__ import annotations

from pyro_metricbnn import gaussian_posterior, predict

from ..task import Task
from .method import NUM_DRAWS, Method, Predictor
from .metric_posterior import ran


def fit(task: Task) -> Predictor:
    """Draws of the Gaussian."""
    walked = ran(task).trajectories
    draws = walked.sites.unflatten(gaussian_posterior(walked).sample((NUM_DRAWS,)))
    return lambda x: predict(task.model, draws, x)


METHODS = (Method("walk, SVD", fit),)
