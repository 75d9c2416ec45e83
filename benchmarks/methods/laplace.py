"""Weights drawn from the Laplace approximation (Daxberger et al. 2021, "Laplace Redux"), by laplace-torch.

A Gaussian at the trained weights whose precision is the generalised Gauss-Newton matrix of the data plus the prior's
precision; each draw is a network of its own, nothing is linearised. "LA GN" takes the whole matrix, "LA GN Kron" a
Kronecker-factored block for each layer.

The temperature scales the whole covariance, prior included. laplace-torch's own `temperature` scales the data's part
alone, which leaves the many directions that the data say nothing about as wide as the prior: there no temperature
saves the draws.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pyro_metricbnn import Categorical, Gaussian

from ..task import Task
from .method import NUM_DRAWS, Method, Predictor

MAX_DIM = 9_000  # of a dense matrix: 0.6 GB in float64
MAX_ROWS = 4_096  # at once
TEMPERATURES, WARMER, COLDER = (1.0, 0.1, 0.01, 0.001), (10.0, 100.0), (1e-4, 1e-5)
CITE = "Daxberger et al. 2021, Laplace Redux"


def fit(task: Task, structure: str = "full", temperature: float = 1.0) -> Predictor:
    """Networks drawn from the Gaussian."""
    draws = gaussian(task, structure, temperature).sample(task.count(NUM_DRAWS, 20))
    return networks(task, draws)


def gaussian(task: Task, structure: str = "full", temperature: float = 1.0) -> Any:
    """laplace-torch's posterior, fitted at the trained weights, in float64.

    float32 is two to four times as fast (Glass: 0.2 s instead of 0.7) and was off by 0.4 percent in the covariance of
    Snelson's network, whose largest eigenvalue is 8e5; float64 leaves room for less noise. AsdlGGN has the whole
    matrix of 592 rows x 4 classes, 1,796 weights, in 0.3 s where CurvlinopsGGN takes 1.3 s; both give the same matrix
    and the same Kronecker factors.
    """
    from laplace import Laplace
    from laplace.curvature import AsdlGGN
    from torch.utils.data import DataLoader, TensorDataset

    dim = sum(value.numel() for value in task.net.parameters())
    if structure == "full" and dim > MAX_DIM:
        raise ValueError(
            f"the full Gauss-Newton matrix of {dim:,} weights has {dim * dim * 8 / 1e9:.0f} GB and takes their cube to "
            f"factor: this baseline stops at {MAX_DIM:,} weights. Use LA GN Kron or LA LowRank."
        )
    net = copy.deepcopy(task.net).double()  # a copy, because the backend leaves hooks behind
    likelihood, noise = kind_and_noise(task)
    posterior = Laplace(
        net,
        likelihood,
        subset_of_weights="all",
        hessian_structure=structure,
        backend=AsdlGGN,
        prior_precision=1 / (temperature * task.prior_scale**2),
        sigma_noise=noise,
        temperature=temperature,
    )
    rows = TensorDataset(*data(task))
    with quiet():
        posterior.fit(DataLoader(rows, batch_size=min(len(rows), MAX_ROWS)))
    return posterior


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's word about the old kind of hooks that the backend sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def kind_and_noise(task: Task) -> tuple[str, float]:
    """The likelihood in laplace-torch's words, and the deviation of the noise (1 for classes)."""
    if isinstance(task.likelihood, Categorical):
        return "classification", 1.0
    if isinstance(task.likelihood, Gaussian) and not isinstance(
        task.likelihood.scale, torch.distributions.Distribution
    ):
        return "regression", float(task.likelihood.scale)
    raise ValueError(
        f"the Laplace baselines know Categorical() and Gaussian(scale) with a fixed scale, got {task.likelihood}."
    )


def data(task: Task) -> tuple[Tensor, Tensor]:
    """The training rows in float64, targets (n, 1) for numbers."""
    x, y = task.problem.x.double(), task.problem.y
    return x, y if isinstance(task.likelihood, Categorical) else y.double().reshape(len(y), -1)


def networks(task: Task, thetas: Tensor) -> Predictor:
    """The predictions of networks with the weights thetas (S, D)."""
    weights = task.potential(1).unflatten(thetas.detach().float())
    return lambda x: task.prediction(task.outputs(weights, x))


METHODS = tuple(
    Method(
        name,
        fit,
        settings=tuple({"structure": structure, "temperature": value} for value in TEMPERATURES),
        below=tuple({"structure": structure, "temperature": value} for value in WARMER),
        above=tuple({"structure": structure, "temperature": value} for value in COLDER),
        needs="laplace-torch",
        cite=CITE,
    )
    for name, structure in (("LA GN", "full"), ("LA GN Kron", "kron"))
)
