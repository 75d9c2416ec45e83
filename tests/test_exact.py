"""Claims about what must be exact, against conjugate posteriors in closed form."""

import math

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_metricbnn import BatchedPotential, find_map, k_hat
from pyro_metricbnn.comparison.evidence import leave_one_out
from pyro_metricbnn.model.structure import find_layout
from pyro_metricbnn.predictions.pointwise import Pointwise

NUM_ROWS, NUM_COLUMNS, NOISE, PRIOR = 25, 3, 0.7, 2.0
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(NUM_ROWS, NUM_COLUMNS, generator=GENERATOR, dtype=torch.float64)
Y = X @ torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64) + NOISE * torch.randn(
    NUM_ROWS, generator=GENERATOR, dtype=torch.float64
)
COUNTS = torch.tensor([3.0, 7.0, 2.0, 4.0, 6.0], dtype=torch.float64)
SHAPE, RATE = 2.0, 0.5


def linear(x: Tensor, y: Tensor) -> None:
    """Linear regression with known noise."""
    weight = pyro.sample("weight", dist.Normal(x.new_zeros(NUM_COLUMNS), PRIOR).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("obs", dist.Normal(x @ weight, NOISE), obs=y)


def poisson(counts: Tensor) -> None:
    """Counts with a conjugate prior of their rate."""
    rate = pyro.sample("rate", dist.Gamma(counts.new_tensor(SHAPE), RATE))
    with pyro.plate("rows", len(counts)):
        pyro.sample("obs", dist.Poisson(rate), obs=counts)


def solved(x: Tensor, y: Tensor) -> dist.MultivariateNormal:
    """The posterior of the linear model."""
    precision = x.mT @ x / NOISE**2 + torch.eye(NUM_COLUMNS, dtype=x.dtype) / PRIOR**2
    return dist.MultivariateNormal(torch.linalg.solve(precision, x.mT @ y / NOISE**2), precision_matrix=precision)


def evidence(x: Tensor, y: Tensor) -> Tensor:
    """Log marginal likelihood of the linear model."""
    covariance = NOISE**2 * torch.eye(len(x), dtype=x.dtype) + PRIOR**2 * x @ x.mT
    return dist.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def test_the_energy_of_a_linear_gaussian_model_is_its_posterior_with_the_evidence() -> None:
    potential = BatchedPotential(linear, X, Y)
    theta = torch.randn(6, NUM_COLUMNS, dtype=torch.float64)
    torch.testing.assert_close(-potential.value(theta), solved(X, Y).log_prob(theta) + evidence(X, Y))


def test_the_gradient_of_a_linear_gaussian_model_is_the_posteriors_score() -> None:
    posterior = solved(X, Y)
    theta = torch.randn(6, NUM_COLUMNS, dtype=torch.float64)
    score = (theta - posterior.mean) @ posterior.precision_matrix
    torch.testing.assert_close(BatchedPotential(linear, X, Y).grad(theta), score)


def test_the_map_of_a_linear_gaussian_model_is_its_mean() -> None:
    found = find_map(BatchedPotential(linear, X, Y), progress=False).theta
    torch.testing.assert_close(found, solved(X, Y).mean, rtol=1e-4, atol=1e-4)


def test_the_energy_of_a_conjugate_rate_has_the_jacobian_of_its_logarithm() -> None:
    log_rate = torch.linspace(-1, 3, 7, dtype=torch.float64)[:, None]
    posterior = dist.Gamma(SHAPE + COUNTS.sum(), RATE + len(COUNTS))
    expected = posterior.log_prob(log_rate[:, 0].exp()) + log_rate[:, 0]
    found = -BatchedPotential(poisson, COUNTS).value(log_rate)
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_the_log_likelihood_is_the_normal_density_written_out() -> None:
    weight = solved(X, Y).sample((8,))
    pointwise = Pointwise(linear, (X, Y), {}, find_layout(linear, (X, Y), {}))
    written = -0.5 * ((Y - weight @ X.mT) / NOISE) ** 2 - math.log(NOISE * math.sqrt(2 * math.pi))
    torch.testing.assert_close(pointwise.given_data({"weight": weight})[0]["obs"], written)


def test_leave_one_out_of_exact_draws_is_leave_one_out_in_closed_form() -> None:
    pyro.set_rng_seed(0)
    weight = solved(X, Y).sample((20_000,))
    pointwise = Pointwise(linear, (X, Y), {}, find_layout(linear, (X, Y), {}))
    log_likelihood = pointwise.given_data({"weight": weight})[0]
    each, _ = leave_one_out(log_likelihood)
    rows = torch.arange(NUM_ROWS)
    exact = torch.stack([evidence(X, Y) - evidence(X[rows != row], Y[rows != row]) for row in rows])
    inverse = (-log_likelihood["obs"]).exp()
    error = inverse.std(0) / inverse.mean(0) / math.sqrt(len(weight))  # of the mean whose logarithm it is
    assert float(((each - exact) / error).abs().max()) < 4.5
    assert float(error.max()) < 0.02


def test_a_guide_that_is_the_posterior_has_weights_without_a_tail() -> None:
    posterior = solved(X, Y)

    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample("weight", posterior)

    assert k_hat(linear, guide, X, Y, num_samples=200) == 0.0
