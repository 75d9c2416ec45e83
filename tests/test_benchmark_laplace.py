"""The Laplace baselines of the benchmarks, where the answer is known."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.datasets import Problem
from benchmarks.methods import riemannian
from benchmarks.methods.laplace import METHODS as LAPLACE
from benchmarks.methods.laplace import gaussian, networks
from benchmarks.methods.laplace_linearised import METHODS as LINEARISED
from benchmarks.methods.laplace_linearised import linearised_networks
from benchmarks.methods.laplace_low_rank import METHODS as LOW_RANK
from benchmarks.methods.laplace_low_rank import leading_eigenpairs, scaled
from benchmarks.methods.method import Method
from benchmarks.methods.riemannian import Geodesics, exponential_map
from benchmarks.methods.riemannian_linearised import METHODS as RIEMANNIAN_LINEARISED
from benchmarks.methods.riemannian_linearised import linearised_loss
from benchmarks.networks import mlp
from benchmarks.task import Task, trained
from pyro_metricbnn import Categorical, Gaussian, Poisson

NOISE, PRIOR = 0.5, 2.0
METHODS = (*LAPLACE, *LOW_RANK, *LINEARISED, *riemannian.METHODS, *RIEMANNIAN_LINEARISED)


@pytest.fixture(autouse=True)
def _packages(request: pytest.FixtureRequest) -> None:
    if "geodesic" not in request.node.name:
        pytest.importorskip("laplace")
        pytest.importorskip("curvlinops")


def rows(num_rows: int = 30, num_features: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(num_rows, num_features)
    return x, x.sum(-1, keepdim=True) + NOISE * torch.randn(num_rows, 1)


def linear_task() -> tuple[Task, Tensor, Tensor]:
    """Linear regression at its exact MAP, with the mean (D,) and the covariance (D, D) of its posterior."""
    x, y = rows()
    inputs = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    covariance = (inputs.T @ inputs / NOISE**2 + torch.eye(4) / PRIOR**2).inverse()
    mean = covariance @ inputs.T @ y.double().squeeze(-1) / NOISE**2
    net = nn.Sequential(nn.Linear(3, 1))
    net.load_state_dict({"0.weight": mean[None, :3], "0.bias": mean[3:]})
    problem = Problem("linear", x, y, x, y)
    return Task(problem=problem, net=net, likelihood=Gaussian(NOISE), hidden=(), prior_scale=PRIOR), mean, covariance


def class_task() -> Task:
    """Three classes, a small network with a smooth activation."""
    x, _ = rows(60)
    y = x.argmax(-1)
    return trained(Problem("classes", x, y, x, y), Categorical(), (5,), activation=nn.Tanh, num_training_steps=300)


def number_task() -> Task:
    x, y = rows(60)
    return trained(Problem("numbers", x, y, x, y), Gaussian(NOISE), (5,), num_training_steps=300)


def test_full_laplace_of_a_linear_model_has_the_covariance_of_its_conjugate_posterior() -> None:
    task, _, covariance = linear_task()
    torch.testing.assert_close(gaussian(task).posterior_covariance, covariance, rtol=1e-5, atol=1e-8)


def test_draws_of_full_laplace_of_a_linear_model_have_the_mean_of_its_conjugate_posterior() -> None:
    task, mean, covariance = linear_task()
    draws = gaussian(task).sample(20_000)
    assert bool(((draws.mean(0) - mean) / covariance.diagonal().sqrt()).abs().max() < 4 / math.sqrt(20_000))


def test_the_temperature_scales_the_whole_covariance() -> None:
    task = class_task()
    warm, cold = (gaussian(task, "full", temperature).posterior_covariance for temperature in (1.0, 0.01))
    torch.testing.assert_close(cold, 0.01 * warm)


def test_the_kronecker_draws_follow_the_temperature() -> None:
    task = class_task()
    warm, cold = (gaussian(task, "kron", t).sample(2_000).var(0).log().mean() for t in (1.0, 0.01))
    assert float(warm - cold) == pytest.approx(math.log(100), abs=0.05)


def test_low_rank_with_all_eigenvectors_is_the_full_gaussian() -> None:
    task = class_task()
    values, vectors = leading_eigenpairs(task, threshold=-1.0, max_rank=1000)
    root = scaled(task, torch.eye(len(vectors), dtype=torch.float64), values, vectors)
    torch.testing.assert_close(root @ root.T, gaussian(task).posterior_covariance, rtol=1e-5, atol=1e-7)


def test_low_rank_of_regression_has_the_noise_in_its_eigenvalues() -> None:
    task, _, covariance = linear_task()
    values, vectors = leading_eigenpairs(task, threshold=-1.0, max_rank=1000)
    root = scaled(task, torch.eye(4, dtype=torch.float64), values, vectors)
    torch.testing.assert_close(root @ root.T, covariance, rtol=1e-5, atol=1e-8)


def test_low_rank_finds_all_eigenvalues_above_the_threshold() -> None:
    task = trained(class_task().problem, Categorical(), (40,), num_training_steps=300)
    exact = torch.linalg.eigvalsh(gaussian(task).H)
    found, _ = leading_eigenpairs(task, threshold=0.01, max_rank=512)
    above = exact[exact > 0.01]
    torch.testing.assert_close(found[-len(above) :], above, rtol=0.05, atol=0)


def test_the_linearised_network_is_the_network_where_that_is_linear() -> None:
    task, _, _ = linear_task()
    draws, x = gaussian(task).sample(50), torch.randn(7, 3)
    torch.testing.assert_close(linearised_networks(task, draws)(x).f, networks(task, draws)(x).f)


def test_linearised_draws_have_the_variance_that_laplace_torch_gives() -> None:
    task = class_task()
    posterior, x = gaussian(task), torch.randn(7, 3)
    root = posterior.posterior_scale.T  # a row for each direction of the covariance
    at = linearised_networks(task, torch.cat([task.theta_star[None], task.theta_star + root]))(x).f
    _, covariance = posterior._glm_predictive_distribution(x.double())
    variance = covariance.diagonal(dim1=-2, dim2=-1).float()
    torch.testing.assert_close((at[1:] - at[0]).square().sum(0), variance, rtol=1e-3, atol=1e-4)


def test_the_linearised_energy_is_the_energy_where_the_network_is_linear() -> None:
    task, _, _ = linear_task()
    theta = task.theta_star + torch.randn(6, 4)
    value, grad = task.potential(1).value_and_grad(theta)
    linear_value, linear_grad = linearised_loss(task, gaussian(task))(theta)
    torch.testing.assert_close(linear_grad, grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(linear_value - linear_value[0], value - value[0], rtol=1e-4, atol=1e-3)


def test_the_linearised_energy_of_classes_has_the_slope_of_the_energy_at_the_map() -> None:
    task = class_task()
    start = task.theta_star[None]
    _, grad = linearised_loss(task, gaussian(task))(start)
    torch.testing.assert_close(grad, task.potential(1).grad(start), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("task", [class_task, number_task], ids=["classes", "numbers"])
def test_every_method_gives_a_finite_density_to_what_was_observed(task: Callable[[], Task], method: Method) -> None:
    given = task()
    prediction = method.fit(given, **method.settings[-1])(given.problem.x_test)
    assert bool(prediction.log_prob(given.problem.y_test).isfinite().all())


def test_a_matrix_too_large_to_factor_is_refused() -> None:
    x, y = rows()
    net = mlp(3, 100, 100, 1)
    with pytest.raises(ValueError, match="Use LA GN Kron or LA LowRank"):
        gaussian(Task(problem=Problem("wide", x, y, x, y), net=net, likelihood=Gaussian(NOISE), hidden=(100, 100)))


def test_an_unknown_likelihood_is_refused() -> None:
    task, _, _ = linear_task()
    counts = Task(problem=task.problem, net=task.net, likelihood=Poisson(), hidden=())
    with pytest.raises(ValueError, match="know Categorical"):
        gaussian(counts)


def geodesics(
    loss: str, velocity: Tensor, start: Tensor | None = None, *, loss_scale: float = 1.0, max_calls: int = 1000
) -> Geodesics:
    """On the graph of a function of the plane."""

    def value_and_grad(theta: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = theta.detach().requires_grad_()
            value = LOSSES[loss](at)
            (grad,) = torch.autograd.grad(value.sum(), at)
        return value.detach(), grad

    start = torch.zeros_like(velocity) if start is None else start
    return exponential_map(value_and_grad, start, velocity, loss_scale=loss_scale, max_calls=max_calls)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "chain": lambda theta: theta[:, 0].cosh() + 0 * theta[:, 1],
    "bowl": lambda theta: 2 * theta.square().sum(-1),
    "ramp": lambda theta: 3 * theta[:, 0].relu() + 0 * theta[:, 1],
}


def test_geodesics_on_a_chain_line_have_its_known_length() -> None:
    velocity = torch.tensor([[0.5, 0.0], [2.0, 1.0], [-5.0, 3.0]], dtype=torch.float64)
    expected = torch.stack([velocity[:, 0].asinh(), velocity[:, 1]], -1)  # cosh has the arc length sinh
    torch.testing.assert_close(geodesics("chain", velocity).theta, expected, rtol=5e-3, atol=2e-3)


def test_geodesics_on_a_bowl_keep_their_angular_momentum() -> None:
    start = torch.tensor([[0.5, 0.0], [1.0, 0.2]], dtype=torch.float64)
    velocity = torch.tensor([[0.0, 2.0], [-3.0, 3.0]], dtype=torch.float64)
    end = geodesics("bowl", velocity, start)
    momenta = [a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0] for a, b in ((start, velocity), (end.theta, end.velocity))]
    torch.testing.assert_close(momenta[1], momenta[0], rtol=1e-2, atol=0)


def test_the_integrator_of_geodesics_hardly_changes_their_speed() -> None:
    end = geodesics("bowl", torch.tensor([[3.0, 1.0], [0.5, -4.0]]), torch.tensor([[0.3, 0.0], [0.0, 1.0]]))
    assert float(end.growth.abs().max()) < 0.02


def test_geodesics_bend_at_a_kink() -> None:
    velocity = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    end = geodesics("ramp", velocity, -torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert float(end.theta[0, 0]) == pytest.approx(2 / math.sqrt(10), rel=2e-2)  # what is left, up a slope of 3


def test_geodesics_of_no_loss_are_straight_lines() -> None:
    velocity = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(geodesics("bowl", velocity, loss_scale=0.0).theta, velocity)


def test_geodesics_without_time_to_arrive_are_not_counted_as_arrived() -> None:
    assert not bool(geodesics("bowl", torch.tensor([[1.0, 2.0]]), max_calls=5).arrived.any())
