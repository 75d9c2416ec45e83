"""Runs that the tests of the front door, the guide and the predictions share."""

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_metricbnn import DriftRefineKernel, Gaussian, MetricBNN, Steer, bayesianize

X = torch.linspace(-2, 2, 40)[:, None]
Y = torch.sin(2 * X)
GROUPS = torch.linspace(-1, 1, 6)


def hierarchical(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
    spread = pyro.sample("spread", dist.LogNormal(y.new_zeros(()), 1.0))
    share = pyro.sample("share", dist.Dirichlet(y.new_ones(3)))
    with pyro.plate("groups", len(y)):
        effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), 1.0))
        pyro.sample("obs", dist.Normal(mean + spread * effect + share[..., 0], 0.5), obs=y)


def regression() -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), Gaussian(0.3))


def network_run() -> MetricBNN:
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=6), num_steps=30)
    return MetricBNN(kernel, num_particles=5).run(X, Y, progress=False)


def hierarchical_run() -> MetricBNN:
    torch.manual_seed(0)
    return MetricBNN(hierarchical, num_particles=5, num_steps=30).run(GROUPS, progress=False)
