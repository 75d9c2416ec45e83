"""Laplace with the linearised network (Immer et al. 2021, "Improving predictions of Bayesian neural nets").

The Gauss-Newton matrix is the exact curvature of the network's first-order expansion at the trained weights, so its
Gaussian belongs to that: f(x) = f*(x) + J(x) (theta - theta*). The draws of theta are those of laplace-torch's full
Laplace; each gives f at all inputs together, by one forward derivative. At a single input they have the law of
laplace-torch's own functional samples, which draw every input apart and need J(x) and the whole covariance for it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap

from ..task import Task
from .laplace import COLDER, TEMPERATURES, WARMER, gaussian
from .method import NUM_DRAWS, Method, Predictor

CITE = "Immer et al. 2021, Improving predictions of Bayesian neural nets via local linearization"


def fit(task: Task, temperature: float = 1.0) -> Predictor:
    """Linearised networks drawn from the Gaussian."""
    return linearised_networks(task, gaussian(task, "full", temperature).sample(task.count(NUM_DRAWS, 20)))


def linearised_networks(task: Task, thetas: Tensor) -> Predictor:
    """The predictions of the linearised network with the weights thetas (S, D)."""
    center = {name: value.detach() for name, value in task.net.named_parameters()}
    steps = task.potential(1).unflatten((thetas.detach() - task.theta_star).float())

    def predict(x: Tensor) -> Tensor:
        def one(step: dict[str, Tensor]) -> Tensor:
            both = jvp(lambda weights: functional_call(task.net, weights, (x,)), (center,), (step,))
            return both[0] + both[1]  # f* and the change

        with torch.no_grad():
            return vmap(one, chunk_size=200)(steps)

    return lambda x: task.prediction(predict(x))


METHODS = (
    Method(
        "Lin LA",
        fit,
        settings=tuple({"temperature": value} for value in TEMPERATURES),
        below=tuple({"temperature": value} for value in WARMER),
        above=tuple({"temperature": value} for value in COLDER),
        needs="laplace-torch",
        cite=CITE,
    ),
)
