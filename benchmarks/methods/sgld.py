"""Stochastic gradient Langevin dynamics (Welling and Teh, 2011), by the `posteriors` library.

Eight chains leave the MAP at once, on minibatches of 32, at temperature 1 and a constant rate: a smaller one is nearer
to the posterior and moves less. The rates are those of the log posterior of all data, not of its mean, for regression
in units of the noise variance. A step is half the gradient and half the library; eight chains cost little more than
one.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pyro_metricbnn import BatchedPotential
from pyro_metricbnn.energy.minibatches import Minibatches, MinibatchPotential

from ..differentiable import differentiable
from ..task import Task
from .hmc import predictor
from .method import NUM_DRAWS, Method, Predictor

BATCH_SIZE = 32
NUM_CHAINS = 8
NUM_STEPS = 5000


def minibatches(task: Task, num_calls: int, batch_size: int = BATCH_SIZE) -> BatchedPotential:
    """The energy estimated from random rows of the training data, others at each call."""
    x, y = task.problem.x, task.problem.y
    batches = Minibatches((x, y), min(batch_size, len(x)))
    return MinibatchPotential(task.model, batches, len(x)).using(expected_calls=num_calls)


def chains(
    task: Task, lr: float, num_chains: int, num_steps: int, num_draws: int, batch_size: int = BATCH_SIZE
) -> Tensor:
    """Points of all chains from the second half of the steps: (num_draws, D), or a few more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # tensordict's about the library's own classes
        from posteriors.sgmcmc import sgld

    theta = task.theta_star.expand(num_chains, -1).clone()
    energy = differentiable(minibatches(task, num_steps, batch_size), theta)
    nothing = theta.new_empty(0)
    sampler = sgld.build(lambda points, batch: (-energy(points).sum(), nothing), lr=lr)
    state, kept = sampler.init(theta), []
    every = max(1, num_steps // 2 * num_chains // num_draws)
    for i in range(num_steps):
        state, _ = sampler.update(state, None)
        if i >= num_steps // 2 and (num_steps - 1 - i) % every == 0:
            kept.append(state.params)
    return torch.cat(kept)


def fit(task: Task, lr: float) -> Predictor:
    """Thinned points of the chains."""
    num_chains = task.count(NUM_CHAINS)
    draws = chains(task, lr * task.noise_variance, num_chains, task.count(NUM_STEPS, 50), NUM_DRAWS)
    return predictor(task, draws)


METHODS = (
    Method(
        "SGLD",
        fit,
        settings=tuple({"lr": lr} for lr in (1e-5, 1e-4, 3e-4, 1e-3)),
        below=({"lr": 1e-6},),
        above=({"lr": 3e-3}, {"lr": 1e-2}),
        needs="posteriors",
        cite="Welling and Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011",
    ),
)
