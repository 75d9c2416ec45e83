"""MetricBNN in the setting of its paper: on the network that all methods share, and on one trained as the paper does.

The paper (Reichlin, Vasco, Kragic, TMLR 2025) trains with minibatches of 32 and a weight decay of 0.01 on the mean
loss, which is a narrower prior than N(0, 1) on all of these sets; the second method takes that prior, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pyro_metricbnn import Categorical, MetricBNN, predict
from pyro_metricbnn.latent.autoencoder_map import AutoencoderMap

from ..task import Task, paper_prior_scale, train_together
from .method import NUM_DRAWS, Method, Predictor

OWN_PRIOR = "MetricBNN (paper, its prior too)"


def ran(task: Task) -> MetricBNN:
    """The paper's walk and its autoencoder."""
    return unwalked(task).run(task.problem.x, task.problem.y, progress=False)


def unwalked(task: Task) -> MetricBNN:
    """The paper's setting for the task."""
    kind = task.kind or ("uci" if isinstance(task.likelihood, Categorical) else "regression")
    metric = MetricBNN.paper(task.model, kind)
    if task.share < 1:
        metric.kernel.num_steps = task.count(metric.kernel.num_steps, 10)
        metric._unfitted_map = AutoencoderMap.paper(num_epochs=task.count(1000))
    return metric


def fit(task: Task, own_prior: bool = False) -> Predictor:
    """Draws of the paper's posterior."""
    if own_prior:
        narrower = replace(task, prior_scale=paper_prior_scale(task.problem))
        (net,) = task.new_networks(1)
        (weights,) = train_together(narrower, [net])
        net.load_state_dict(weights)
        task = replace(narrower, net=net)
    draws = ran(task).draw(NUM_DRAWS)
    return lambda x: predict(task.model, draws, x)


METHODS = (
    Method("MetricBNN (paper)", fit),
    Method(OWN_PRIOR, partial(fit, own_prior=True)),
)
