"""Closed-form targets that tests share, as Pyro models without data."""

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor


def gaussian(covariance: Tensor) -> Callable[[], None]:
    """N(0, covariance) as one site `x`."""

    def model() -> None:
        pyro.sample("x", dist.MultivariateNormal(covariance.new_zeros(len(covariance)), covariance))

    return model


def ill_conditioned_covariance(dim: int = 50, condition: float = 1e4) -> Tensor:
    """A rotated covariance with eigenvalues from 0.01 to 0.01 * condition, evenly spread in logarithm."""
    generator = torch.Generator().manual_seed(7)
    rotation, _ = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))
    variances = 0.01 * condition ** torch.linspace(0, 1, dim, dtype=torch.float64)
    covariance = rotation @ torch.diag(variances) @ rotation.T
    return (covariance + covariance.T) / 2


def linear_gaussian(covariance: Tensor, mean: Tensor) -> Callable[[], None]:
    """A linear model with a wide prior whose posterior of `x` is exactly N(mean, covariance)."""
    prior_scale = 2 * float(torch.linalg.eigvalsh(covariance).max().sqrt())
    precision = torch.linalg.inv(covariance)
    design = torch.linalg.cholesky(precision - torch.eye(len(mean), dtype=mean.dtype) / prior_scale**2).mT
    y = torch.linalg.solve(design.mT, precision @ mean)

    def model() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros_like(mean), prior_scale).to_event(1))
        pyro.sample("obs", dist.Normal(design @ x, 1.0).to_event(1), obs=y)

    return model


def eight_schools(y: Tensor, sigma: Tensor) -> None:
    """Eight schools, non-centred."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_full((), 5.0)))
    with pyro.plate("schools", len(y)):
        eta = pyro.sample("eta", dist.Normal(torch.zeros_like(mu), 1.0))
        pyro.sample("obs", dist.Normal(mu + tau * eta, sigma), obs=y)


SCHOOLS_Y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
SCHOOLS_SIGMA = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
