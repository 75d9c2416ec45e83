"""Claims about the refiner for minibatches: it samples the posterior, and knows its own temperature."""

import functools
import math
import warnings
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import (
    BatchedPotential,
    Categorical,
    DriftRefineKernel,
    Langevin,
    MetricBNN,
    Steer,
    Trajectories,
    bayesianize,
    health,
)
from pyro_metricbnn.energy import whitening
from pyro_metricbnn.energy.minibatches import Minibatches, MinibatchPotential
from pyro_metricbnn.ranks.share import Share
from pyro_metricbnn.refiners.dynamics import langevin_step
from pyro_metricbnn.refiners.langevin import LEARNED, WINDOW
from pyro_metricbnn.refiners.state import Ground
from pyro_metricbnn.walk.loop import at_the_map

NUM_ROWS, NOISE = 2000, 0.5
_generator = torch.Generator().manual_seed(0)
X = torch.randn(NUM_ROWS, 3, generator=_generator) @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
Y = X @ torch.tensor([1.0, -0.5, 0.3]) + 0.2 + NOISE * torch.randn(NUM_ROWS, generator=_generator)


def regression(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weights + bias, NOISE), obs=y)


@functools.cache
def exact() -> tuple[Tensor, Tensor]:
    """Mean and deviations of the posterior."""
    inputs = torch.cat([X, torch.ones(NUM_ROWS, 1)], 1).double()
    covariance = (inputs.T @ inputs / NOISE**2 + torch.eye(4)).inverse()
    return covariance @ inputs.T @ Y.double() / NOISE**2, covariance.diagonal().sqrt()


@functools.cache
def walked(batch_size: int | None = 128, **settings: Any) -> Trajectories:
    pyro.set_rng_seed(1)
    kernel = DriftRefineKernel(regression, refiner=Langevin(**settings))
    return kernel.walk(X, Y, batch_size=batch_size, progress=False)


def points(walk: Trajectories) -> Tensor:
    return walk.thetas[:, 1:].flatten(0, 1).double()


@pytest.mark.parametrize("batch_size", [64, 256, None])
def test_the_means_of_a_gaussian_posterior_are_within_a_fifth_of_its_deviations(batch_size: int | None) -> None:
    mean, deviation = exact()
    assert float(((points(walked(batch_size)).mean(0) - mean) / deviation).abs().max()) < 0.2


@pytest.mark.parametrize("batch_size", [64, 256, None])
def test_the_deviations_of_a_gaussian_posterior_are_within_an_eighth(batch_size: int | None) -> None:
    ratios = points(walked(batch_size)).std(0) / exact()[1]
    assert float((ratios - 1).abs().max()) < 0.125


@pytest.mark.parametrize("batch_size", [64, 256])
def test_the_kinetic_temperature_of_every_site_is_within_a_fifth_of_1(batch_size: int) -> None:
    heat = health(walked(batch_size)).heat
    assert [site for site, _, _ in heat] == ["weights", "bias"]
    assert all(abs(temperature - 1) < 0.2 for _, temperature, _ in heat)


def padded(x: Tensor, y: Tensor) -> None:
    """The regression with weights that nothing depends on, in the same site."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(200), 1.0).to_event(1))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weights[:3] + bias, NOISE), obs=y)


def test_weights_that_no_batch_pulls_at_do_not_hide_that_the_others_are_too_hot() -> None:
    pyro.set_rng_seed(1)
    walk = DriftRefineKernel(padded, refiner=Langevin()).walk(X, Y, batch_size=64, progress=False)
    assert walk.ground is not None
    pulls = walk.ground.measured["pulls"][:200]
    assert bool((pulls[3:] == 0).all())
    assert float(pulls.mean()) == pytest.approx(1)
    ratios = points(walk)[:, :3].std(0) / exact()[1][:3]
    assert float(ratios.max()) < 1.15


def test_the_batches_part_of_the_heat_is_in_the_report() -> None:
    state = health(walked(64))
    assert all(0 < of_batches < 0.2 for _, _, of_batches in state.heat)
    assert "kinetic temperature" in str(state)


def test_steps_that_are_too_hot_are_said() -> None:
    state = health(walked(64, excess=1.5))
    assert any("larger batches" in text for text in state.warnings)


def test_larger_batches_allow_longer_steps() -> None:
    assert float(walked(256).step_sizes[-1]) > float(walked(32).step_sizes[-1])


def test_the_temperature_divides_the_energy() -> None:
    pyro.set_rng_seed(2)
    kernel = DriftRefineKernel(regression, temperature=4.0)
    ratios = points(kernel.walk(X, Y, batch_size=128, progress=False)).std(0) / exact()[1]
    assert float((ratios / 2 - 1).abs().max()) < 0.15


def test_the_step_has_the_variance_and_the_temperature_that_theory_says() -> None:
    """On a quadratic energy both are larger by 1 / (1 - eps curvature / (2 (1 + beta)))."""
    torch.manual_seed(0)
    curvature, eps, beta, number = 4.0, torch.tensor([0.2]), 0.9, 20_000
    factor = 1 / (1 - float(eps) * curvature / (2 * (1 + beta)))
    theta, velocity = torch.randn(number, 1) / 2, torch.randn(number, 1) * (2 * eps / (1 + beta)).sqrt()
    grad, units = curvature * theta, torch.ones(1)
    for _ in range(300):
        theta, velocity, _, grad = langevin_step(
            lambda z: (2 * z[:, 0] ** 2, curvature * z),
            theta,
            velocity,
            grad,
            torch.randn_like(theta),
            eps,
            beta,
            units,
        )
    assert math.isclose(float(theta.var()) * curvature, factor, rel_tol=0.04)
    assert math.isclose(float(velocity.square().mean() * (1 + beta) / (2 * eps)), factor, rel_tol=0.04)


def small(x: Tensor) -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Categorical())


def test_it_is_the_default_for_batches_and_loaders() -> None:
    labels = (Y > 0).long()
    loader = DataLoader(TensorDataset(X[:100], labels[:100]), batch_size=20)
    for args, settings in (((X[:100], labels[:100]), {"batch_size": 20}), ((loader,), {})):
        kernel = DriftRefineKernel(small(X), num_steps=4, effort=0.05)
        walk = kernel.walk(*args, num_particles=3, progress=False, **settings)
        assert [site for site, _, _ in walk.heat] == list(walk.sites.names)
    kernel = DriftRefineKernel(small(X), num_steps=2, effort=0.01)
    assert kernel.walk(X[:20], labels[:20], num_particles=2, progress=False).heat == ()


def test_steer_says_that_it_is_not_for_batches() -> None:
    kernel = DriftRefineKernel(small(X), refiner=Steer(path=0.1), num_steps=2)
    with pytest.warns(UserWarning, match="Steer is not for minibatches"):
        kernel.walk(X[:100], (Y[:100] > 0).long(), batch_size=20, num_particles=2, progress=False)


def test_a_particle_that_goes_wrong_is_frozen_and_the_others_walk_on() -> None:
    ground = DriftRefineKernel(regression, num_steps=5).ground(X, Y, batch_size=100, num_particles=4, progress=False)
    refiner = Langevin(effort=0.05)
    ground, particles = refiner.approach(ground, at_the_map(ground, refiner))
    particles.theta[1] = math.nan
    moved, _ = refiner.advance(ground, particles)
    assert moved.is_finite.tolist() == [True, False, True, True]
    assert bool(moved.own["step"].isfinite().all())


def test_the_temperatures_are_saved(tmp_path: Path) -> None:
    metric = MetricBNN(regression, num_particles=4, num_steps=5, effort=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.run(X, Y, batch_size=100, progress=False)
        metric.save(tmp_path / "run")
        loaded = MetricBNN.load(tmp_path / "run", regression)
    assert health(loaded).heat == health(metric).heat != ()


def test_draws_can_be_refined_on_batches() -> None:
    metric = MetricBNN(regression, num_particles=4, num_steps=5, effort=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.run(X, Y, batch_size=100, progress=False)
    assert bool(metric.draw(6, num_refinements=3)["weights"].isfinite().all())


@pytest.mark.parametrize("wrong", [{"momentum": 1.0}, {"momentum": -0.1}, {"effort": 0.0}, {"excess": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Langevin(**wrong)


def test_the_number_of_gradients_grows_with_effort() -> None:
    ground = DriftRefineKernel(regression).ground(X, Y, batch_size=100, progress=False)
    assert isinstance(ground.potential, BatchedPotential)
    assert Langevin(effort=2.0).num_gradients(ground) == 2 * Langevin().num_gradients(ground)


class OneOfTwo(Share):
    """This rank has the first half of the particles, and the other the same numbers."""

    num_places, is_several = 2, True

    def gathered(self, values: Tensor) -> Tensor:
        return torch.cat([values, values])


def test_a_rank_carries_numbers_of_its_own_particles_alone() -> None:
    potential = MinibatchPotential(regression, Minibatches((X, Y), 64), NUM_ROWS)
    ground = Ground(potential, torch.zeros(4), torch.ones(4), 10, 6, {"modes": ()}, share=OneOfTwo())
    refiner = Langevin()
    before = refiner._with_steps(ground, refiner.start(ground, torch.zeros(3, 4)), 1e-4)
    moved, _ = refiner._walk(ground, before, 20)
    assert {len(value) for value in moved.where(torch.tensor([True, False, True]), before).own.values()} == {3}


def test_a_blow_up_is_not_remembered_for_hundreds_of_windows() -> None:
    potential = MinibatchPotential(regression, Minibatches((X, Y), 64), NUM_ROWS)
    ground, refiner = Ground(potential, torch.zeros(4), torch.ones(4), 10, 6, {"modes": ()}), Langevin()
    first = refiner._with_steps(ground, refiner.start(ground, torch.zeros(6, 4)), 1e-3)
    learned = {name: first.own[name][0] for name in LEARNED}
    heat = torch.full((6, 2), 1e6)
    after = refiner._tuned(ground, learned, heat, WINDOW)
    for _ in range(100):
        after = refiner._tuned(ground, after, 1 + refiner.aim(ground) * (after["step"] / 1e-3).expand(6, 2), WINDOW)
    assert float(after["step"].min()) > 0.5e-3


@pytest.mark.parametrize(("effort", "arrived"), [(1.0, True), (0.02, False)])
@pytest.mark.filterwarnings("ignore")
def test_particles_that_have_hardly_moved_have_not_arrived_though_energies_are_at_rest(
    effort: float, arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyro.set_rng_seed(0)
    x = torch.randn(2000, 6) * torch.tensor([3.0, 1.0, 0.3, 0.1, 0.03, 0.01])
    labels = (x[:, 0] + x[:, 1] + 0.3 * torch.randn(2000) > 0).long()
    monkeypatch.setattr(whitening, "MOST_WEIGHTS", 0)  # coordinate by coordinate
    net = nn.Linear(6, 2)
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    metric = MetricBNN(bayesianize(net, Categorical()), effort=effort, num_particles=8)
    state = health(metric.run(x, labels, batch_size=100, progress=False))
    assert not state.is_drifting
    assert state.arrived is arrived
