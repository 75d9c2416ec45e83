"""Claims about where walks leave from when a network's noise is inferred: trained networks as they are."""

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import (
    BatchedPotential,
    DriftRefineKernel,
    Gaussian,
    HeteroscedasticGaussian,
    MetricBNN,
    bayesianize,
)
from pyro_metricbnn.search.starts import begins_anew, trained_points

NOISE = 0.3
X = torch.linspace(-2, 2, 60)[:, None]
Y = torch.sin(2 * X) + NOISE * torch.randn(X.shape, generator=torch.Generator().manual_seed(0))


def network(num_steps: int, seed: int = 0, num_outputs: int = 1, hidden: int = 20) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, num_outputs))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(num_steps):
        optimizer.zero_grad()
        (net(X)[:, :1] - Y).pow(2).mean().backward()
        optimizer.step()
    return net


def left_from(net: nn.Module, likelihood: Any = None, **settings: Any) -> Any:
    pyro.set_rng_seed(0)
    kernel = DriftRefineKernel(bayesianize(net, likelihood or Gaussian()), effort=0.02, num_steps=4)
    return kernel.walk(X, Y, num_particles=4, progress=False, **settings)


def test_a_walk_leaves_from_the_trained_weights_as_they_are_and_the_noise_of_their_residuals() -> None:
    net = network(300)
    walk = left_from(net)
    start = walk.sites.unflatten(walk.theta_star)
    for name, value in net.named_parameters():
        assert torch.allclose(start[name], value)
    assert float(start["scale"]) == pytest.approx(float((net(X) - Y).pow(2).mean().sqrt()), rel=1e-4)


@pytest.mark.parametrize("prior", [None, dist.LogNormal(0.0, 1.0)])
def test_any_prior_of_the_noise_is_left_from_in_the_same_way(prior: Any) -> None:
    net = network(300)
    assert torch.equal(left_from(net, Gaussian(prior)).theta_star, left_from(net).theta_star)


def test_a_second_output_is_left_as_it_was_trained() -> None:
    net = network(300, num_outputs=2)
    start = left_from(net, HeteroscedasticGaussian(), num_networks=1)
    assert torch.allclose(start.sites.unflatten(start.theta_star)["2.bias"], net.get_parameter("2.bias"))


def test_a_search_is_made_where_its_start_is_given() -> None:
    net = network(300)
    model = bayesianize(net, Gaussian())
    given = {**model.trained_params, "scale": torch.tensor(0.3)}
    walk = DriftRefineKernel(model, effort=0.02, num_steps=4).walk(
        X, Y, num_particles=4, initial_params=given, max_iterations=20, progress=False
    )
    assert not torch.allclose(walk.sites.unflatten(walk.theta_star)["0.weight"], net.get_parameter("0.weight"))


def test_an_untrained_network_is_trained_before_it_is_left() -> None:
    with pytest.warns(UserWarning, match="untrained"):
        walk = left_from(network(0), num_networks=1)
    weights = {name: value for name, value in walk.sites.unflatten(walk.theta_star).items() if name != "scale"}
    f = torch.func.functional_call(network(0), weights, (X,))
    assert float((f - Y).pow(2).mean()) < 0.9 * float(Y.var())


def test_others_are_trained_beside_a_small_network_and_particles_leave_from_all() -> None:
    net = network(300)
    potential = BatchedPotential(bayesianize(net, Gaussian()), X, Y)
    points = trained_points(potential, 4, progress=False)
    assert len(points) == 4
    assert torch.allclose(potential.unflatten(points[0])["0.weight"], net.get_parameter("0.weight"))
    assert len({round(float(point[0]), 4) for point in points}) == 4
    assert left_from(net).energies[:, 0].unique().numel() == 4


def test_one_network_is_enough_where_that_is_said() -> None:
    assert left_from(network(300), num_networks=1).energies[:, 0].unique().numel() == 1


def test_the_training_of_others_is_said_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    trained_points(BatchedPotential(bayesianize(network(300), Gaussian()), X, Y), 3, progress=True)
    assert "2 networks were trained in" in capsys.readouterr().err


def residuals_of_trained(noise: float) -> Tensor:
    """The root mean square errors of networks that are trained here, on 40 rows of a line in eight inputs."""
    pyro.set_rng_seed(1)
    x = torch.randn(40, 8)
    y = x[:, :1] + noise * torch.randn(40, 1)
    net = nn.Sequential(nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 1))
    potential = BatchedPotential(bayesianize(net, Gaussian()), x, y)
    values = potential.unflatten(trained_points(potential, 4, progress=False))
    weights = {name: value for name, value in values.items() if name != "scale"}
    f = torch.func.vmap(lambda w: torch.func.functional_call(net, w, (x,)))(weights)
    return (f - y).square().mean((1, 2)).sqrt()


def test_others_are_trained_until_rows_that_they_do_not_see_are_fitted_best() -> None:
    noisy, clean = residuals_of_trained(0.5), residuals_of_trained(0.0)
    assert noisy.min() > 0.1  # .5 is the noise; 1,500 steps on all rows leave .00001
    assert clean.max() < 0.05


class Own(nn.Module):
    """A parameter that nobody knows how to begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.line = nn.Parameter(torch.zeros(1)), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) + self.shift


def test_only_whole_small_networks_that_can_begin_anew_are_trained_again() -> None:
    small = network(0)
    assert begins_anew(bayesianize(small, Gaussian()))
    assert not begins_anew(bayesianize(small, Gaussian(), where="2"))
    assert not begins_anew(bayesianize(Own(), Gaussian()))
    assert not begins_anew(bayesianize(network(0, hidden=4000), Gaussian()))


def test_networks_that_one_has_are_left_from_as_they_are() -> None:
    nets = [network(300, seed) for seed in range(2)]
    walk = left_from(nets[0], starts=nets)
    energies = walk.energies[:, 0]
    assert energies[0] == energies[1]
    assert energies[2] == energies[3]
    assert energies[0] != energies[2]


def test_starts_of_a_model_without_a_network_are_values_by_site() -> None:
    def two(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
        pyro.sample("obs", dist.Normal(mean, 1.0).expand([len(y)]).to_event(1), obs=y)

    starts = [{"mean": torch.tensor(-1.0)}, {"mean": torch.tensor(4.0)}]
    walk = DriftRefineKernel(two, num_steps=4).walk(Y[:, 0], num_particles=2, starts=starts, progress=False)
    assert walk.energies[0, 0] != walk.energies[1, 0]


@pytest.mark.parametrize(
    ("starts", "said"),
    [([], "starts is empty"), (3, "starts must be a list"), ([3], "a start must be a network, or a dict")],
)
def test_wrong_starts_are_refused(starts: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        left_from(network(1), starts=starts)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [60, 4000], ids=["stopped early", "overfitted"])
def test_unknown_noise_is_found_however_long_the_network_was_trained(num_steps: int) -> None:
    net = network(num_steps, hidden=50)
    pyro.set_rng_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric = MetricBNN(bayesianize(net, Gaussian()), num_particles=8).run(X, Y, progress=False)
    scale = metric.draw(500)["scale"]
    assert float(scale.mean()) == pytest.approx(NOISE, abs=0.06)
