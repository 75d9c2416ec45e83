"""Posteriors that are known in closed form: those that the method is for, and those that it is not for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor


@dataclass(frozen=True)
class Target:
    """A model without data whose posterior is known, unconstrained values in one site or several.

    Args:
        name: What the table calls it.
        model: The Pyro model; its arguments are in it.
        draw: So many exact draws, one row each.
        suits: Whether the method is for such a posterior.
    """

    name: str
    model: Callable[[], None]
    draw: Callable[[int], Tensor]
    suits: bool = True


def gaussian(name: str, dim: int, condition: float) -> Target:
    """Correlated, with deviations that differ by the root of `condition`."""
    generator = torch.Generator().manual_seed(7)
    rotation, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    variances = condition ** torch.linspace(-0.5, 0.5, dim, dtype=torch.float64)
    root = (rotation * variances.sqrt()).float()
    posterior = dist.MultivariateNormal(torch.zeros(dim), scale_tril=torch.linalg.cholesky(root @ root.mT))

    def model() -> None:
        pyro.sample("x", posterior)

    return Target(name, model, lambda count: posterior.sample(torch.Size((count,))))


def regression(name: str, num_rows: int, dim: int) -> Target:
    """Linear regression, N(0, 1) prior, known noise: with more columns than rows most weights are as the prior."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, dim, generator=generator)
    y = x[:, 0] + 0.3 * torch.randn(num_rows, generator=generator)
    precision = (x.mT @ x / 0.09).double() + torch.eye(dim, dtype=torch.float64)
    mean = torch.linalg.solve(precision, (x.mT @ y / 0.09).double())
    exact = dist.MultivariateNormal(mean, precision_matrix=precision)

    def model() -> None:
        weights = pyro.sample("x", dist.Normal(torch.zeros(dim), 1.0).to_event(1))
        with pyro.plate("rows", num_rows):
            pyro.sample("y", dist.Normal(x @ weights, 0.3), obs=y)

    return Target(name, model, lambda count: exact.sample(torch.Size((count,))).float())


def conjugate(name: str, posterior: dist.TorchDistribution) -> Target:
    """A posterior of Pyro's own, as Gamma, Beta or Dirichlet."""

    def model() -> None:
        pyro.sample("x", posterior)

    return Target(name, model, lambda count: posterior.sample(torch.Size((count,))).reshape(count, -1))


def shell(name: str, dim: int, radius: float, width: float) -> Target:
    """A thin fiber with the same energy everywhere: a sphere, blurred."""

    def model() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(dim), 10 * radius).to_event(1))
        pyro.sample("r", dist.Normal(x.norm(), width), obs=torch.tensor(radius))

    def draw(count: int) -> Tensor:
        lengths = torch.linspace(radius - 6 * width, radius + 6 * width, 20_001)
        log_density = (
            -0.5 * ((lengths - radius) / width) ** 2 + (dim - 1) * lengths.log() - 0.005 * (lengths / radius) ** 2
        )
        chosen = lengths[torch.multinomial(log_density.softmax(0), count, replacement=True)]
        direction = torch.randn(count, dim)
        return chosen[:, None] * direction / direction.norm(dim=-1, keepdim=True)

    return Target(name, model, draw)


def two_modes(name: str, dim: int, distance: float, suits: bool = False) -> Target:
    """Two equal Gaussians, `distance` deviations apart in one coordinate."""
    middle = torch.zeros(2, dim)
    middle[:, 0] = torch.tensor([-distance / 2, distance / 2])
    parts = dist.Independent(dist.Normal(middle, 1.0), 1)
    posterior = dist.MixtureSameFamily(dist.Categorical(torch.ones(2) / 2), parts)

    def model() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(dim), 100.0).to_event(1))
        pyro.factor("mixture", posterior.log_prob(x))

    return Target(name, model, lambda count: posterior.sample(torch.Size((count,))), suits)


def funnel(name: str, dim: int) -> Target:
    """Neal's: the first coordinate is the log scale of all others."""

    def model() -> None:
        level = pyro.sample("level", dist.Normal(0.0, 3.0))
        with pyro.plate("others", dim - 1):
            pyro.sample("x", dist.Normal(0.0, (level / 2).exp()))

    def draw(count: int) -> Tensor:
        level = 3 * torch.randn(count, 1)
        return torch.cat([level, (level / 2).exp() * torch.randn(count, dim - 1)], dim=1)

    return Target(name, model, draw, suits=False)


def heavy_tails(name: str, dim: int, df: float) -> Target:
    """Student's t in each coordinate."""
    posterior = dist.StudentT(df, torch.zeros(dim), 1.0).to_event(1)

    def model() -> None:
        pyro.sample("x", posterior)

    return Target(name, model, lambda count: posterior.sample(torch.Size((count,))), suits=False)


def targets() -> list[Target]:
    """All of them, in the order of the table."""
    return [
        gaussian("Gaussian, 10 coordinates, condition 100", 10, 1e2),
        gaussian("Gaussian, 100 coordinates, condition 10,000", 100, 1e4),
        regression("linear regression, 200 rows, 50 weights", 200, 50),
        regression("linear regression, 100 rows, 1,000 weights", 100, 1000),
        conjugate("rate of a Poisson (Gamma)", dist.Gamma(24.0, 5.5)),
        conjugate("chance near an edge (Beta)", dist.Beta(20.0, 2.0)),
        conjugate("shares (Dirichlet)", dist.Dirichlet(torch.tensor([1.0, 4.0, 7.0, 12.0]))),
        shell("thin shell, 20 coordinates", 20, 10.0, 0.3),
        two_modes("two Gaussians, 2 deviations apart", 10, 2.0, suits=True),
        two_modes("two Gaussians, 8 deviations apart", 10, 8.0),
        funnel("Neal's funnel, 10 coordinates", 10),
        heavy_tails("Student's t, 4 degrees of freedom", 10, 4.0),
        heavy_tails("Student's t, 2 degrees of freedom", 10, 2.0),
    ]
