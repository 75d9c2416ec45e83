"""Claims about energies estimated from minibatches."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from pyro_metricbnn import BatchedPotential, Gaussian, bayesianize
from pyro_metricbnn.energy.minibatches import Minibatches, MinibatchPotential
from tests.energies import (
    assert_equal,
    particles,
)
from tests.models import (
    ONE,
    SIGNAL,
    ZERO,
    X,
    normal_mean,
    real,
    small_network,
)

# --------------------------------------------------------------------------------------- minibatches


def regression(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(ZERO, ONE).expand([3]).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(ZERO, ONE))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weights, scale), obs=y)


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A dataset of dicts, as many loaders give."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": X[index], "y": SIGNAL[index]}


def mean_over_a_pass(potential: MinibatchPotential, theta: Tensor, num_batches: int) -> tuple[Tensor, Tensor]:
    energies = [potential.value_and_grad(theta) for _ in range(num_batches)]
    return torch.stack([u for u, _ in energies]).mean(0), torch.stack([g for _, g in energies]).mean(0)


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, SIGNAL), **settings)


def test_a_call_sees_a_batch_of_all_observations() -> None:
    potential = MinibatchPotential(regression, Minibatches((X, SIGNAL), 4), len(X))
    assert (potential.num_rows, potential.num_observations) == (4, len(X))


@pytest.mark.parametrize("mode", ["vmap", "trace", "loop"])
@pytest.mark.parametrize("dataset", [TensorDataset(X, SIGNAL), Rows()], ids=["tuples", "dicts"])
def test_minibatch_energies_of_a_loader_average_to_the_full_energy(dataset: Any, mode: str) -> None:
    theta = particles(4)
    potential = MinibatchPotential(regression, DataLoader(dataset, batch_size=4)).using(mode=mode)
    assert isinstance(potential, MinibatchPotential)
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(regression, X, SIGNAL).value(theta))


def test_minibatch_gradients_of_a_loader_average_to_the_full_gradient() -> None:
    theta = particles(4)
    potential = MinibatchPotential(regression, loader(batch_size=3))
    assert_equal(mean_over_a_pass(potential, theta, 4)[1], BatchedPotential(regression, X, SIGNAL).grad(theta))


def test_minibatch_energies_of_random_rows_average_to_the_full_energy() -> None:
    theta = particles(4)
    potential = MinibatchPotential(regression, Minibatches((X, SIGNAL), 4), len(X))
    mean_over_a_pass(potential, theta, 2)  # the rest of the pass whose first batch showed the model's sites
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(regression, X, SIGNAL).value(theta))


def test_one_minibatch_is_not_the_full_energy() -> None:
    """Otherwise the averages above say nothing."""
    theta = particles(4)
    potential = MinibatchPotential(regression, loader(batch_size=4))
    assert not torch.allclose(potential.value(theta), BatchedPotential(regression, X, SIGNAL).value(theta), rtol=1e-3)


@pytest.mark.parametrize("mode", ["vmap", "trace"])
def test_a_ragged_last_batch_is_scaled_by_its_own_size(mode: str) -> None:
    theta = particles(4)
    potential = MinibatchPotential(regression, loader(batch_size=5)).using(mode=mode)
    energies = [potential.value_and_grad(theta)[0] for _ in range(3)]  # batches 2, 3 and 1: 5, 2 and 5 rows
    weighted = (5 * energies[0] + 2 * energies[1] + 5 * energies[2]) / 12
    assert_equal(weighted, BatchedPotential(regression, X, SIGNAL).value(theta))


def test_the_prior_is_counted_once_in_a_minibatch() -> None:
    theta = particles(4)
    prior, _ = MinibatchPotential(regression, loader(batch_size=2)).energy_parts(theta)
    assert_equal(prior, BatchedPotential(regression, X, SIGNAL).energy_parts(theta)[0])


def test_minibatch_energies_of_a_network_average_to_the_full_energy() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(0.5))
    theta = particles(21)
    potential = MinibatchPotential(model, loader(batch_size=4))
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(model, X, SIGNAL).value(theta))


def test_observations_without_a_plate_are_scaled_by_their_rows() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        pyro.sample("obs", dist.Normal(mean, ONE).expand([len(y)]).to_event(1), obs=y)

    theta = particles(1)
    potential = MinibatchPotential(model, DataLoader(TensorDataset(SIGNAL), batch_size=4))
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(model, SIGNAL).value(theta))


def test_an_observation_that_is_not_a_row_of_the_data_is_counted_once() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        pyro.sample("pilot_study", dist.Normal(mean, ONE), obs=real(2.0))
        with pyro.plate("data", len(y)):
            pyro.sample("obs", dist.Normal(mean, ONE), obs=y)

    theta = particles(1)
    potential = MinibatchPotential(model, DataLoader(TensorDataset(SIGNAL), batch_size=4))
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(model, SIGNAL).value(theta))


def test_a_plate_that_scales_its_subsample_is_not_scaled_again() -> None:
    def model(rows: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        with pyro.plate("data", len(SIGNAL), subsample=rows):
            pyro.sample("obs", dist.Normal(mean, ONE), obs=SIGNAL[rows])

    theta = particles(1)
    potential = MinibatchPotential(model, DataLoader(TensorDataset(torch.arange(12)), batch_size=4))
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(normal_mean, SIGNAL).value(theta))


def test_a_likelihood_that_the_model_scales_is_scaled_to_the_full_data_too() -> None:
    def tempered(x: Tensor, y: Tensor) -> None:
        weights = pyro.sample("weights", dist.Normal(ZERO, ONE).expand([3]).to_event(1))
        with pyro.plate("data", len(x)), poutine.scale(scale=2.0):
            pyro.sample("obs", dist.Normal(x @ weights, ONE), obs=y)

    theta = particles(3)
    potential = MinibatchPotential(tempered, loader(batch_size=4))
    assert_equal(mean_over_a_pass(potential, theta, 3)[0], BatchedPotential(tempered, X, SIGNAL).value(theta))


def test_a_pass_of_random_rows_takes_each_row_once() -> None:
    batches = list(Minibatches((torch.arange(12),), 4))
    assert sorted(torch.cat([rows for (rows,) in batches]).tolist()) == list(range(12))


def test_rows_of_x_and_y_stay_together_in_random_batches() -> None:
    assert all(torch.equal(a, -b) for a, b in Minibatches((torch.arange(12), -torch.arange(12)), 5))


def test_two_passes_of_random_rows_differ() -> None:
    batches = Minibatches((torch.arange(12),), 4)
    assert [rows.tolist() for (rows,) in batches] != [rows.tolist() for (rows,) in batches]


def test_the_same_seed_gives_the_same_random_batches() -> None:
    batches = Minibatches((torch.arange(12),), 4)
    pyro.set_rng_seed(3)
    first = [rows.tolist() for (rows,) in batches]
    pyro.set_rng_seed(3)
    assert [rows.tolist() for (rows,) in batches] == first


def test_what_is_not_a_tensor_goes_to_each_random_batch_as_it_is() -> None:
    assert {setting for _, setting in Minibatches((SIGNAL, "setting"), 4)} == {"setting"}


@pytest.mark.parametrize("batch_size", [0, -1, 13])
def test_a_batch_size_that_the_data_cannot_fill_is_refused(batch_size: int) -> None:
    with pytest.raises(ValueError, match="batch_size must be from 1 to the number of rows, 12"):
        Minibatches((X, SIGNAL), batch_size)


@pytest.mark.parametrize("args", [(X, SIGNAL[:5]), (X, SIGNAL, ONE), ("no tensor",)], ids=["ragged", "scalar", "none"])
def test_data_without_one_number_of_rows_cannot_be_batched(args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="same number of rows"):
        Minibatches(args, 4)


def test_a_loader_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="no data"):
        MinibatchPotential(regression, [], 12)


def test_batches_that_do_not_know_their_data_need_its_size() -> None:
    with pytest.raises(ValueError, match="num_data"):
        MinibatchPotential(regression, [(X, SIGNAL)])


def test_a_sampler_of_some_rows_says_how_many_there_are() -> None:
    potential = MinibatchPotential(regression, loader(batch_size=6, sampler=SubsetRandomSampler(range(6))))
    alone = BatchedPotential(regression, X[:6], SIGNAL[:6])
    theta = particles(alone.dim)
    assert_equal(potential.value(theta), alone.value(theta))


def test_several_inputs_of_a_loader_are_several_inputs_of_the_network() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            return self.layer(x) + shift

    rows = [((X[i], SIGNAL[i : i + 1]), SIGNAL[i : i + 1]) for i in range(len(X))]
    model = bayesianize(Sum().to(X), Gaussian(1.0))
    of_loader = MinibatchPotential(model, DataLoader(rows, batch_size=len(X)))  # type: ignore[arg-type]
    whole = BatchedPotential(model, (X, SIGNAL[:, None]), SIGNAL[:, None])
    theta = particles(whole.dim)
    assert_equal(of_loader.value(theta), whole.value(theta))
