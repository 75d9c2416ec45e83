"""Models in plain Pyro that infer their noise: it is seen, and the walk does not leave from the joint maximum."""

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_metricbnn import BatchedPotential, MetricBNN, health
from pyro_metricbnn.search.inferred_noise import _noise, points_with_noise

NOISE, UNITS = 0.3, 100


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    pyro.set_rng_seed(0)
    x = torch.linspace(-2, 2, 60)[:, None]
    return x, torch.sin(2 * x[:, 0]) + NOISE * torch.randn(60)


def network(x: Tensor, units: int = UNITS) -> Tensor:
    """The weights of a layer of hidden units, as sites, and its outputs (n, 2)."""
    first = pyro.sample("first", dist.Normal(0.0, 1.0).expand([2, units]).to_event(2))
    second = pyro.sample("second", dist.Normal(0.0, 1.0).expand([units, 2]).to_event(2))
    return torch.relu(torch.cat([x, torch.ones_like(x)], -1) @ first) @ second / units**0.5


def with_scale(x: Tensor, y: Tensor | None = None, units: int = UNITS) -> None:
    f = network(x, units)
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.Normal(f[:, 0], sigma), obs=y)


def with_precision(x: Tensor, y: Tensor | None = None) -> None:
    f = network(x)
    precision = pyro.sample("precision", dist.Gamma(1.0, 0.1))
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.StudentT(5.0, f[:, 0], precision**-0.5), obs=y)


def with_vector(x: Tensor, y: Tensor | None = None) -> None:
    sigma = pyro.sample("log_sigma", dist.Normal(-1.0, 1.0)).exp()
    pyro.sample("obs", dist.Normal(network(x)[:, 0], sigma).to_event(1), obs=y)


def with_output(x: Tensor, y: Tensor | None = None) -> None:
    f = network(x)
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.Normal(f[:, 0], torch.nn.functional.softplus(f[:, 1])), obs=y)


def of_known_noise(x: Tensor, y: Tensor | None = None) -> None:
    f = network(x)
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.Normal(f[:, 0], NOISE), obs=y)


def of_counts(x: Tensor, y: Tensor | None = None) -> None:
    f = network(x)
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.Poisson(f[:, 0].exp()), obs=y)


@pytest.mark.parametrize(
    ("model", "site"), [(with_scale, "sigma"), (with_precision, "precision"), (with_vector, "log_sigma")]
)
def test_the_site_that_is_the_noise_is_found(model: Any, site: str, data: tuple[Tensor, Tensor]) -> None:
    potential = BatchedPotential(model, *data)
    noise = _noise(potential)
    assert noise is not None
    assert [potential.sites.at(int(i)) for i in noise.own.nonzero()] == [site]


def test_a_noise_that_depends_on_the_inputs_has_no_site_of_its_own(data: tuple[Tensor, Tensor]) -> None:
    noise = _noise(BatchedPotential(with_output, *data))
    assert noise is not None
    assert not noise.own.any()


def of_counts_with_a_wide_prior(x: Tensor, y: Tensor | None = None) -> None:
    tau = pyro.sample("tau", dist.LogNormal(0.0, 1.0))
    weights = pyro.sample("weights", dist.Normal(0.0, tau).expand([400]).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.Poisson((0.01 * weights.sum() + 0 * x[:, 0]).exp()), obs=y)


@pytest.mark.parametrize("model", [of_known_noise, of_counts, of_counts_with_a_wide_prior])
def test_a_model_without_unknown_noise_is_left_alone(model: Any, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    assert _noise(BatchedPotential(model, x, y.abs().round())) is None


def test_a_small_model_walks_as_before(data: tuple[Tensor, Tensor]) -> None:
    assert _noise(BatchedPotential(with_scale, *data, units=3)) is None


def test_looking_for_the_noise_draws_no_random_numbers(data: tuple[Tensor, Tensor]) -> None:
    potential = BatchedPotential(with_scale, *data)
    before = torch.get_rng_state()
    _noise(potential)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_walk_leaves_with_the_noise_of_its_residuals(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    potential = BatchedPotential(with_scale, x, y)
    pyro.set_rng_seed(0)
    points = points_with_noise(potential, None, 3, progress=False)
    assert points is not None
    values = potential.unflatten(points)
    ones = torch.cat([x, torch.ones_like(x)], -1)
    f = (torch.relu(ones @ values["first"]) @ values["second"])[..., 0] / UNITS**0.5
    residuals = (f - y).square().mean(-1).sqrt()
    torch.testing.assert_close(values["sigma"], residuals, rtol=0.05, atol=0.0)


def test_given_values_are_where_the_fit_begins(data: tuple[Tensor, Tensor]) -> None:
    potential = BatchedPotential(with_scale, *data)
    start = {"first": torch.zeros(2, UNITS), "second": torch.zeros(UNITS, 2)}
    points = points_with_noise(potential, start, 3, progress=False)
    assert points is not None
    assert len(points) == 1
    assert not points[0, : 4 * UNITS].any()  # where the gradient is zero, nothing moves


@pytest.mark.slow
def test_the_noise_of_a_network_in_plain_pyro_is_right(data: tuple[Tensor, Tensor]) -> None:
    pyro.set_rng_seed(1)
    metric = MetricBNN(with_scale).run(*data, progress=False)
    sigma = metric.draw(500)["sigma"]
    assert 0.8 * NOISE <= float(sigma.mean()) <= 1.25 * NOISE
    assert health(metric).arrived
