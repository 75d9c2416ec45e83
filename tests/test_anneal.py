"""Claims about Anneal: hot first, then cold, each particle with its own step, units learned on the way."""

import math
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import mlp, train
from pyro_metricbnn import (
    BatchedPotential,
    DriftRefineKernel,
    Gaussian,
    HeteroscedasticGaussian,
    MetricBNN,
    Poisson,
    bayesianize,
    health,
)
from pyro_metricbnn.refiners import Anneal, Ground, Steer
from pyro_metricbnn.refiners.anneal import Deviations, annealed_step
from tests.targets import gaussian, ill_conditioned_covariance

X = torch.linspace(-2, 2, 40)[:, None]
Y = torch.sin(2 * X) + 0.3 * torch.randn(X.shape, generator=torch.Generator().manual_seed(0))


def ground_of(covariance: Tensor, num_particles: int = 8, num_steps: int = 50) -> Ground:
    theta = torch.zeros(len(covariance), dtype=covariance.dtype)
    return Ground(BatchedPotential(gaussian(covariance)), theta, torch.ones_like(theta), num_steps, num_particles)


def model(likelihood: Any = None, num_outputs: int = 1) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, num_outputs))
    return bayesianize(net, likelihood or Gaussian())


def test_the_aim_falls_along_the_walk_and_stays_there() -> None:
    ground, refiner = ground_of(torch.eye(400)), Anneal()
    aims = [refiner.aim(ground, part) for part in (0.0, 0.5, 1.0, 2.0)]
    assert aims == pytest.approx([0.5, 0.1, 0.02, 0.02])


def test_more_effort_takes_more_gradients_and_ends_colder() -> None:
    ground = ground_of(torch.eye(400))
    assert Anneal(effort=4).num_gradients(ground) == 4 * Anneal().num_gradients(ground)
    assert Anneal(effort=4).aim(ground, 1.0) == pytest.approx(Anneal().aim(ground, 1.0) / 2)


def test_less_effort_is_no_hotter() -> None:
    ground = ground_of(torch.eye(400))
    assert Anneal(effort=0.1).aim(ground, 0.0) == Anneal().aim(ground, 0.0)


@pytest.mark.parametrize(("num_particles", "num_gradients"), [(1, 10000), (8, 10000), (20, 4000), (64, 1250)])
def test_all_particles_together_take_the_same_work(num_particles: int, num_gradients: int) -> None:
    assert Anneal().num_gradients(ground_of(torch.eye(9), num_particles)) == num_gradients


def test_each_particles_step_follows_its_own_error() -> None:
    """On a Gaussian of 400 coordinates a step of .001 has next to no error, and one of 60 far too much."""
    ground = ground_of(torch.eye(400, dtype=torch.float64))
    p = Anneal().start(ground, ground.theta_star + torch.randn(8, 400, dtype=torch.float64))
    step = torch.tensor([1e-3] * 4 + [60.0] * 4, dtype=torch.float64)
    after = annealed_step(
        ground.potential.value_and_grad, p.theta, p.drift, p.energy, p.grad, p.own["padding"], step,
        torch.zeros_like(p.drift), ground.scale, torch.tensor(0.02), torch.tensor(0.0),
    )  # fmt: skip
    assert (after[5][:4] > step[:4]).all()
    assert (after[5][4:] < step[4:]).all()


def test_a_step_that_goes_wrong_is_undone_and_turned_back() -> None:
    ground = ground_of(torch.eye(20, dtype=torch.float64))
    p = Anneal().start(ground, ground.theta_star.expand(8, -1))

    def broken(theta: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = ground.potential.value_and_grad(theta)
        return torch.where(torch.arange(8) < 2, math.nan, value), grad

    theta, drift, energy, _, _, step, _ = annealed_step(
        broken, p.theta, p.drift, p.energy, p.grad, p.own["padding"], p.own["step"],
        torch.zeros_like(p.drift), ground.scale, torch.tensor(0.02), torch.tensor(0.0),
    )  # fmt: skip
    assert torch.equal(theta[:2], p.theta[:2])
    assert torch.equal(drift[:2], -p.drift[:2])
    assert energy.isfinite().all()
    assert (step[:2] < p.own["step"][:2]).all()
    assert not torch.equal(theta[2:], p.theta[2:])


def test_a_step_far_longer_than_the_decoherence_renews_the_drift_and_no_more() -> None:
    ground = ground_of(torch.eye(20, dtype=torch.float64))
    p = Anneal().start(ground, ground.theta_star.expand(8, -1))
    step = torch.full_like(p.own["step"], 1e4)
    drift = annealed_step(
        lambda theta: (p.energy, p.grad), p.theta, p.drift, p.energy, p.grad, p.own["padding"], step,
        torch.randn_like(p.drift), ground.scale, torch.tensor(0.02), torch.tensor(4.0),
    )[1]  # fmt: skip
    assert torch.allclose(drift.norm(dim=-1), torch.ones(8, dtype=torch.float64))
    assert float((drift * p.drift).sum(-1).abs().mean()) < 0.5


def test_deviations_are_those_within_walks_in_the_units_before() -> None:
    points = torch.randn(300, 4, 3) * torch.tensor([1.0, 2.0, 4.0]) + 100 * torch.randn(4, 3)  # walks are far apart
    seen = Deviations(points[0])
    for point in points:
        seen.add(point)
    units = seen.units(torch.full((3,), 5.0))
    assert (units / units[0]).tolist() == pytest.approx([1.0, 2.0, 4.0], rel=0.1)
    assert float(units.square().mean().sqrt()) == pytest.approx(5.0)


def test_a_walk_that_does_not_move_keeps_its_units() -> None:
    seen, units = Deviations(torch.ones(2, 2)), torch.tensor([1.0, 3.0])
    for _ in range(5):
        seen.add(torch.ones(2, 2))
    assert torch.equal(seen.units(units), units)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 3, 50])
def test_it_samples_a_gaussian(dim: int) -> None:
    pyro.set_rng_seed(0)
    covariance = ill_conditioned_covariance(dim, 100.0) if dim > 1 else torch.full((1, 1), 4.0, dtype=torch.float64)
    walk = DriftRefineKernel(gaussian(covariance), refiner=Anneal(), num_steps=200).walk(
        num_particles=8, map_params={"x": torch.zeros(dim, dtype=torch.float64)}, progress=False
    )
    points = walk.thetas[:, 1:].flatten(0, 1)
    ratios = torch.cov(points.T).reshape(dim, dim).diagonal() / covariance.diagonal()
    assert float(ratios.mean()) == pytest.approx(1.0, abs=0.15)
    assert float(ratios.min()) > 0.6
    assert float(ratios.max()) < 1.6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("effort", "arrived"), [(1.0, True), (0.1, False)])
def test_a_walk_of_a_given_noise_has_arrived_and_one_cut_to_a_tenth_has_not(effort: float, arrived: bool) -> None:
    pyro.set_rng_seed(0)
    x = torch.randn(300, 8)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * torch.randn(300, 1)
    net = train(mlp(8, 50, 1), x, y, 0.3, num_steps=500)
    metric = MetricBNN(bayesianize(net, Gaussian(0.3)), effort=effort).run(x, y, progress=False)
    assert health(metric).arrived is arrived


def test_it_is_the_default_where_a_networks_noise_is_inferred() -> None:
    assert isinstance(DriftRefineKernel(model()).refiner, Anneal)
    assert isinstance(DriftRefineKernel(model(HeteroscedasticGaussian(), 2)).refiner, Anneal)
    assert isinstance(DriftRefineKernel(model(Gaussian(0.3))).refiner, Steer)  # 19 weights
    assert MetricBNN(model(), effort=0.5).kernel.refiner == Anneal(effort=0.5)


@pytest.mark.parametrize(
    ("num_units", "likelihood", "kind"),
    [
        (100, Gaussian(0.3), Anneal),
        (1000, Gaussian(0.3), Steer),
        (1000, Gaussian(), Steer),
        (100, Poisson(), Steer),
    ],
)
def test_it_is_the_default_for_networks_of_middle_size_and_normal_noise(
    num_units: int, likelihood: Any, kind: type[Any]
) -> None:
    net = nn.Sequential(nn.Linear(1, num_units), nn.Tanh(), nn.Linear(num_units, 1))
    assert isinstance(DriftRefineKernel(bayesianize(net, likelihood)).refiner, kind)


def test_a_noise_that_is_given_takes_fewer_gradients() -> None:
    net = nn.Sequential(nn.Linear(1, 100), nn.Tanh(), nn.Linear(100, 1))
    refiner = DriftRefineKernel(bayesianize(net, Gaussian(0.3)), effort=2.0).refiner
    assert isinstance(refiner, Anneal)
    assert refiner.num_gradients(ground_of(torch.eye(301), 20)) == 2 * 2000


def test_with_a_noise_at_each_input_three_fourths_of_the_walk_are_its_approach() -> None:
    assert DriftRefineKernel(model(HeteroscedasticGaussian(), 2)).refiner == Anneal(approach_part=0.75)
    assert DriftRefineKernel(model()).refiner == Anneal(approach_part=0.5)


@pytest.mark.parametrize("part", [0.5, 0.75])
def test_the_record_begins_after_the_approach(part: float) -> None:
    kernel = DriftRefineKernel(model(), refiner=Anneal(effort=0.05, approach_part=part), num_steps=20)
    walk = kernel.walk(X, Y, num_particles=2, num_networks=1, progress=False)
    assert float(walk.gradients[0] / walk.gradients[-1]) == pytest.approx(part, abs=0.05)


def test_a_walk_that_is_all_approach_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would be recorded"):
        Anneal(approach_part=1.0)


def test_minibatches_are_walked_by_langevin() -> None:
    kernel = DriftRefineKernel(model(), refiner=Anneal(effort=0.05), num_steps=4)
    metric = MetricBNN(kernel, num_particles=3).run(X, Y, batch_size=20, progress=False)
    assert metric.trajectories.in_batches
    assert metric.trajectories.heat


def test_its_walk_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(path: Path | None) -> Any:
        pyro.set_rng_seed(1)
        kernel = DriftRefineKernel(model(), effort=0.05, num_steps=8)
        return kernel.walk(X, Y, num_particles=4, checkpoint=path, checkpoint_every=0, progress=False)

    whole, advance, calls = walk(None), Anneal.advance, iter(range(100))

    def interrupted(self: Anneal, *args: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return advance(self, *args)

    monkeypatch.setattr(Anneal, "advance", interrupted)
    with pytest.warns(UserWarning, match="it has 5 of 8"):
        walk(tmp_path / "walk")
    monkeypatch.undo()
    resumed = walk(tmp_path / "walk")
    assert torch.equal(resumed.thetas, whole.thetas)
    assert torch.equal(resumed.positions, whole.positions)


def test_draws_of_its_walk_can_be_refined() -> None:
    metric = MetricBNN(model(), num_particles=4, num_steps=8, effort=0.05).run(X, Y, progress=False)
    draws = metric.draw(6, num_refinements=3)
    assert all(value.isfinite().all() for value in draws.values())


def test_it_walks_a_chain_of_pyros_mcmc() -> None:
    kernel = DriftRefineKernel(model(), effort=0.02)
    mcmc = pyro.infer.MCMC(kernel, num_samples=4, warmup_steps=1, disable_progbar=True)
    mcmc.run(X, Y)
    assert mcmc.get_samples()["scale"].shape == (4,)


def test_the_record_says_how_far_it_went() -> None:
    walk = DriftRefineKernel(model(), effort=0.05, num_steps=8).walk(X, Y, num_particles=4, progress=False)
    assert (walk.paths.diff() > 0).all()
    assert walk.ground is not None
    assert walk.gradients[-1] == pytest.approx(Anneal(effort=0.05).num_gradients(walk.ground), abs=8)
    assert float(walk.positions[1]) > 0.2  # what came before is not part of the posterior
