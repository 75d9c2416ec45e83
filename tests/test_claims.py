"""Claims about networks of the size that the benchmarks use; real data where METRICBNN_DATA says, made data else."""

import statistics
from pathlib import Path

import pyro
import pytest
import torch
from torch import Tensor, nn

from benchmarks import cold_start, throughput
from benchmarks.datasets import Problem, snelson
from benchmarks.latent import seconds_of
from benchmarks.networks import mlp, train
from pyro_metricbnn import (
    Adam,
    AutoencoderMap,
    BatchedPotential,
    DriftRefineKernel,
    Gaussian,
    KernelMap,
    MetricBNN,
    Steer,
    Trajectories,
    bayesianize,
    predict,
)
from pyro_metricbnn.refiners.refiner import Refiner

pytestmark = pytest.mark.slow
NOISE = 0.3


@pytest.fixture(scope="module")
def problem(data_folder: Path | None) -> Problem:
    pyro.set_rng_seed(0)
    return snelson(data_folder)


@pytest.fixture(scope="module")
def net(problem: Problem) -> nn.Module:
    """1-32-32-32-1 ReLU, trained: 2,209 weights."""
    return train(mlp(1, 32, 32, 32, 1), problem.x, problem.y, NOISE)


def walk_of(net: nn.Module, problem: Problem, refiner: Refiner, seed: int = 1, num_steps: int = 100) -> Trajectories:
    pyro.set_rng_seed(seed)
    kernel = DriftRefineKernel(bayesianize(net, Gaussian(NOISE)), refiner=refiner, num_steps=num_steps)
    return kernel.walk(problem.x, problem.y, progress=False)


@pytest.fixture(scope="module")
def metric(net: nn.Module, problem: Problem) -> MetricBNN:
    pyro.set_rng_seed(1)
    return MetricBNN(bayesianize(net, Gaussian(NOISE))).run(problem.x, problem.y, progress=False)


def test_every_particle_stays_finite(metric: MetricBNN) -> None:
    _assert_finite(metric.trajectories)


def test_every_particle_that_is_pulled_back_stays_finite(net: nn.Module, problem: Problem) -> None:
    _assert_finite(walk_of(net, problem, Adam()))


def _assert_finite(walk: Trajectories) -> None:
    assert walk.thetas.isfinite().all()
    assert walk.energies.isfinite().all()
    assert (walk.frozen_at == walk.num_steps + 1).all()


@pytest.mark.parametrize("refiner", [Steer(path=1.0), Adam(num_refinements=5)])
def test_the_same_seed_gives_the_same_bits(net: nn.Module, problem: Problem, refiner: Refiner) -> None:
    first, second = (walk_of(net, problem, refiner, num_steps=20) for _ in range(2))
    assert torch.equal(first.thetas, second.thetas)


def test_refining_leaves_a_hundredth_of_the_drifts_loss_at_the_typical_radius(net: nn.Module, problem: Problem) -> None:
    potential = BatchedPotential(bayesianize(net, Gaussian(NOISE)), problem.x, problem.y)
    losses = []
    for refiner in (Adam(), Adam(num_refinements=0)):
        ends = walk_of(net, problem, refiner).thetas[:, -1]
        losses.append(potential.energy_parts(ends)[1].mean())
    assert losses[0] <= losses[1] / 100


# ------------------------------------------------------------------------------- the latent posterior


def train_nll(metric: MetricBNN, samples: dict[str, Tensor], problem: Problem) -> float:
    return -float(predict(metric.model, samples, problem.x).log_prob(problem.y).mean())  # type: ignore[arg-type]


def test_latent_draws_are_as_good_as_the_walks_own_points(metric: MetricBNN, problem: Problem) -> None:
    walked, drawn = (train_nll(metric, samples, problem) for samples in (metric.get_samples(), metric.draw(2000)))
    assert abs(drawn - walked) <= 0.03


def test_refining_does_not_take_draws_off_the_fiber(metric: MetricBNN, problem: Problem) -> None:
    drawn, refined = (train_nll(metric, metric.draw(1000, num_refinements=count), problem) for count in (0, 20))
    assert refined <= drawn + 0.01


def test_our_autoencoders_draws_come_near_the_walk_that_they_were_fitted_to(net: nn.Module, problem: Problem) -> None:
    pyro.set_rng_seed(1)
    kernel = DriftRefineKernel(bayesianize(net, Gaussian(NOISE)), refiner=Adam())
    metric = MetricBNN(kernel, latent_map=AutoencoderMap()).run(problem.x, problem.y, progress=False)
    walked, drawn = (train_nll(metric, samples, problem) for samples in (metric.get_samples(), metric.draw(1000)))
    assert drawn - walked <= 0.15


@pytest.mark.alone
def test_fitting_the_latent_map_takes_at_most_a_tenth_of_the_walk(net: nn.Module, problem: Problem) -> None:
    kernel = DriftRefineKernel(bayesianize(net, Gaussian(NOISE)))
    walk, walking = seconds_of(lambda: kernel.walk(problem.x, problem.y, progress=False))
    assert seconds_of(lambda: KernelMap().fit(walk))[1] <= walking / 10


# ----------------------------------------------------------------------------------------- speed


@pytest.mark.alone
def test_a_cold_walk_takes_no_longer_than_training_an_ensemble(data_folder: Path | None) -> None:
    times = cold_start.compare(data_folder, rounds=3)
    assert statistics.median(times["walk"]) <= statistics.median(times["ensemble"])


@pytest.mark.alone
def test_gradients_come_fifty_times_as_fast_as_from_a_loop_over_pyro() -> None:
    """A guard; the benchmark has the figure, from an idle machine."""
    rates = throughput.measure(num_particles=20, depth=3, width=32)["rates"]
    assert rates["compiled"] >= 50 * rates["pyro"]
    assert rates["compiled"] >= 0.7 * rates["limit"]
