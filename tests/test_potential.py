"""The batched potential against Pyro's own, for every model of models.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import BatchedPotential, Categorical, Gaussian, bayesianize
from pyro_metricbnn.minibatches import Minibatches, MinibatchPotential
from tests.models import (
    CASES,
    ONE,
    SIGNAL,
    ZERO,
    Case,
    X,
    keyword_arguments,
    linear_regression,
    noise,
    normal_mean,
    param_held_fixed,
    real,
    simplex,
    small_network,
)

BY_NAME = {case.name: case for case in CASES}
every_case = pytest.mark.parametrize("name", BY_NAME)
NUM_PARTICLES = 5


def potential_of(case: Case, **execution: Any) -> BatchedPotential:
    return BatchedPotential(case.model, *case.args, **case.kwargs).using(**execution)


def particles(dim: int, number: int = NUM_PARTICLES) -> Tensor:
    return 0.7 * noise(number, dim, seed=dim)


def pyros_energy(case: Case, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of Pyro's own potential_fn, one particle after another."""
    shapes, potential_fn, _, _ = initialize_model(case.model, case.args, case.kwargs)
    values, gradients = [], []
    for row in theta:
        row = row.clone().requires_grad_()
        parts = row.split([part.numel() for part in shapes.values()])  # in the order of the model's sites
        value = potential_fn({n: part.reshape(shapes[n].shape) for n, part in zip(shapes, parts, strict=True)})
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, row)[0])
    return torch.stack(values), torch.stack(gradients)


@cache
def expected(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Particles of a case, and Pyro's values and gradients at them."""
    theta = particles(potential_of(BY_NAME[name]).dim)
    return theta, *pyros_energy(BY_NAME[name], theta)


@cache
def computed(name: str, mode: str) -> tuple[Tensor, Tensor]:
    """Ours; once for the two claims about it."""
    theta = expected(name)[0]
    return potential_of(BY_NAME[name], mode=mode).value_and_grad(theta)


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------ the same as Pyro's


@pytest.mark.parametrize("mode", ["vmap", "trace", "loop"])
@every_case
def test_the_batched_value_is_pyros_own(name: str, mode: str) -> None:
    assert_equal(computed(name, mode)[0], expected(name)[1])


@pytest.mark.parametrize("mode", ["vmap", "trace", "loop"])
@every_case
def test_the_batched_gradient_is_pyros_own(name: str, mode: str) -> None:
    assert_equal(computed(name, mode)[1], expected(name)[2])


@every_case
def test_value_without_a_gradient_is_pyros_own(name: str) -> None:
    theta, value, _ = expected(name)
    assert_equal(potential_of(BY_NAME[name]).value(theta), value)


@every_case
def test_the_parts_of_the_energy_add_up_to_pyros(name: str) -> None:
    theta, value, _ = expected(name)
    prior, likelihood = potential_of(BY_NAME[name]).energy_parts(theta)
    assert_equal(prior + likelihood, value)


@every_case
def test_chunks_of_particles_give_pyros_gradient(name: str) -> None:
    theta, _, gradient = expected(name)
    assert_equal(potential_of(BY_NAME[name], mode="vmap", chunk_size=2).grad(theta), gradient)


@pytest.mark.parametrize("mode", ["vmap", "trace", "loop"])
@pytest.mark.parametrize("chunk_size", [1, 2, NUM_PARTICLES, 100])
def test_chunks_of_any_size_give_pyros_value_in_every_mode(chunk_size: int, mode: str) -> None:
    theta, value, _ = expected("normal_mean")
    potential = potential_of(BY_NAME["normal_mean"], mode=mode, chunk_size=chunk_size)
    assert_equal(potential.value_and_grad(theta)[0], value)


@every_case
def test_flatten_undoes_unflatten(name: str) -> None:
    potential = potential_of(BY_NAME[name])
    theta = particles(potential.dim)
    torch.testing.assert_close(potential.flatten(potential.unflatten(theta)), theta, rtol=1e-9, atol=1e-9)


@every_case
def test_unflatten_gives_the_constrained_values_of_pyros_transforms(name: str) -> None:
    case = BY_NAME[name]
    potential = potential_of(case)
    shapes, _, transforms, _ = initialize_model(case.model, case.args, case.kwargs)
    theta = particles(potential.dim, 1)[0]
    values = potential.unflatten(theta)
    theirs = [transforms[site](values[site]).reshape(-1) for site in shapes]  # Pyro's go to unconstrained space
    torch.testing.assert_close(torch.cat(theirs), theta, rtol=1e-9, atol=1e-9)


def test_the_prior_part_of_the_energy_holds_the_jacobian() -> None:
    theta = real(0.3)[None, None]
    scale = theta.exp().squeeze()

    def model() -> None:
        x = pyro.sample("x", dist.Exponential(ONE))
        pyro.sample("obs", dist.Normal(x, ONE), obs=ZERO)

    prior, _ = BatchedPotential(model).energy_parts(theta)
    assert_equal(prior, (scale - theta.squeeze())[None])  # minus log(exp(-x)), minus log|dx/dtheta|


def test_the_likelihood_part_of_the_energy_is_what_is_observed() -> None:
    theta = particles(1)
    _, likelihood = BatchedPotential(normal_mean, SIGNAL).energy_parts(theta)
    assert_equal(likelihood, -dist.Normal(theta, ONE).log_prob(SIGNAL).sum(-1))


def test_a_param_that_was_trained_before_is_held_at_its_value() -> None:
    pyro.param("offset", real(0.7))
    pyro.get_param_store()["offset"] = real(-2.0)
    theta = particles(1)
    prior, _ = BatchedPotential(param_held_fixed, SIGNAL).energy_parts(theta)
    assert_equal(prior, -dist.Normal(real(-2.0), ONE).log_prob(theta.squeeze(-1)))


@pytest.mark.parametrize("mode", ["vmap", "trace", "loop"])
def test_results_carry_no_autograd_graph_of_the_params(mode: str) -> None:
    potential = BatchedPotential(param_held_fixed, SIGNAL).using(mode=mode)
    results = (*potential.value_and_grad(particles(1)), potential.value(particles(1)))
    assert [result.requires_grad for result in results] == [False, False, False]


def test_a_theta_that_requires_grad_gives_a_detached_gradient() -> None:
    theta = particles(1).requires_grad_()
    assert not BatchedPotential(normal_mean, SIGNAL).grad(theta).requires_grad


def test_new_numbers_in_the_same_shape_need_no_new_trace() -> None:
    """The data are inputs of the traced graph, and so are the particles: nothing is baked in."""
    potential = BatchedPotential(linear_regression, X, SIGNAL).using(mode="trace")
    potential.value_and_grad(particles(5))
    theta = 2 * particles(5)
    assert_equal(potential.value_and_grad(theta)[0], pyros_energy(BY_NAME["linear_regression"], theta)[0])


@pytest.mark.parametrize("mode", ["trace", "loop"])
@pytest.mark.parametrize("name", ["made_outside_with_validation", "masked_and_scaled", "classifier"])
def test_a_recorded_energy_runs_without_the_model(name: str, mode: str) -> None:
    """Otherwise "trace" is "vmap" by another name."""
    case, runs = BY_NAME[name], []

    def counted(*args: Any) -> None:
        runs.append(1)
        case.model(*args)

    potential = BatchedPotential(counted, *case.args).using(mode=mode)
    potential.value_and_grad(particles(potential.dim))
    before = len(runs)
    potential.value_and_grad(particles(potential.dim))
    assert len(runs) == before


def test_a_potential_made_with_using_leaves_the_first_as_it_was() -> None:
    potential = BatchedPotential(normal_mean, SIGNAL)
    potential.using(mode="loop", chunk_size=3)
    assert (potential.execution.mode, potential.execution.chunk_size) == ("auto", None)


def test_using_keeps_the_settings_that_it_is_not_told_to_change() -> None:
    potential = BatchedPotential(normal_mean, SIGNAL).using(chunk_size=3).using(mode="trace")
    assert (potential.execution.mode, potential.execution.chunk_size) == ("trace", 3)


# ------------------------------------------------------------------------------- properties of shapes


def priors(kind: str, shape: tuple[int, ...]) -> Any:
    """A prior whose one draw has the shape."""
    scales = torch.ones(shape, dtype=torch.float64)
    made: dict[str, Callable[[], Any]] = {
        "real": lambda: dist.Normal(0 * scales, scales),
        "positive": lambda: dist.Gamma(2 * scales, scales),
        "interval": lambda: dist.Uniform(-scales, scales),
        "simplex": lambda: dist.Dirichlet(scales),
    }
    return made[kind]()


def free_size(kind: str, shape: tuple[int, ...]) -> int:
    """How many unconstrained coordinates a site has; a simplex has one less than its entries."""
    whole = torch.Size(shape).numel()
    return whole - whole // shape[-1] if kind == "simplex" else whole


def a_model_of(sites: list[tuple[str, tuple[int, ...]]]) -> Callable[[], None]:
    def model() -> None:
        total = ZERO
        for number, (kind, shape) in enumerate(sites):
            prior = priors(kind, shape)
            total = total + pyro.sample(f"site_{number}", prior.to_event(len(prior.batch_shape))).sum()
        pyro.sample("obs", dist.Normal(total, ONE), obs=ONE)

    return model


shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
some_sites = st.lists(
    st.tuples(st.sampled_from(["real", "positive", "interval"]), shapes)
    | st.tuples(st.just("simplex"), st.tuples(st.integers(1, 2), st.integers(2, 4))),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(some_sites)
def test_the_dimension_is_the_number_of_unconstrained_coordinates(sites: list[tuple[str, tuple[int, ...]]]) -> None:
    assert BatchedPotential(a_model_of(sites)).dim == sum(free_size(kind, shape) for kind, shape in sites)


@settings(max_examples=25, deadline=None)
@given(some_sites, st.lists(st.integers(1, 3), max_size=3).map(tuple))
def test_unflatten_puts_batch_dimensions_before_the_sites_shape(
    sites: list[tuple[str, tuple[int, ...]]], batch: tuple[int, ...]
) -> None:
    potential = BatchedPotential(a_model_of(sites))
    values = potential.unflatten(noise(*batch, potential.dim))
    assert [tuple(value.shape) for value in values.values()] == [(*batch, *shape) for _, shape in sites]


@settings(max_examples=25, deadline=None)
@given(some_sites, st.lists(st.integers(1, 3), max_size=3).map(tuple))
def test_flatten_undoes_unflatten_for_any_batch(
    sites: list[tuple[str, tuple[int, ...]]], batch: tuple[int, ...]
) -> None:
    potential = BatchedPotential(a_model_of(sites))
    theta = noise(*batch, potential.dim)
    torch.testing.assert_close(potential.flatten(potential.unflatten(theta)), theta, rtol=1e-8, atol=1e-8)


@settings(max_examples=15, deadline=None)
@given(some_sites, st.integers(1, 7), st.none() | st.integers(1, 8))
def test_value_and_gradient_have_a_row_for_each_particle(
    sites: list[tuple[str, tuple[int, ...]]], number: int, chunk_size: int | None
) -> None:
    potential = BatchedPotential(a_model_of(sites)).using(mode="vmap", chunk_size=chunk_size)
    value, gradient = potential.value_and_grad(noise(number, potential.dim))
    assert (value.shape, gradient.shape) == ((number,), (number, potential.dim))


@settings(max_examples=15, deadline=None)
@given(some_sites, st.integers(2, 5))
def test_a_particles_energy_does_not_depend_on_the_others(
    sites: list[tuple[str, tuple[int, ...]]], number: int
) -> None:
    potential = BatchedPotential(a_model_of(sites)).using(mode="vmap")
    theta = noise(number, potential.dim)
    alone = torch.cat([potential.value(row[None]) for row in theta])
    torch.testing.assert_close(potential.value(theta), alone, rtol=1e-12, atol=1e-12)


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


# -------------------------------------------------------------------------------------- global state


class GlobalState:
    """What a library must not change behind the user's back."""

    def __init__(self) -> None:
        self.state = (
            torch.distributions.Distribution._validate_args,
            pyro.poutine.util.is_validation_enabled(),
            pyro.infer.util.is_validation_enabled(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            {name: value.tolist() for name, value in pyro.get_param_store().items()},
            [value.requires_grad for value in pyro.get_param_store().values()],
            len(pyro.poutine.runtime._PYRO_STACK),
        )


@pytest.fixture(params=[True, False], ids=["validation_on", "validation_off"])
def _validation(request: pytest.FixtureRequest) -> Iterator[None]:
    with pyro.validation_enabled(request.param):
        yield


def branching(y: Tensor) -> None:
    """Takes another path where `switch` is positive; its gradient has no `switch` in it but the prior's."""
    switch = pyro.sample("switch", dist.Normal(ZERO, ONE))
    level = pyro.sample("level", dist.Normal(ZERO, ONE))
    location = level if switch > 0 else 3 * level
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(location, ONE), obs=y)


@pytest.mark.usefixtures("_validation")
@pytest.mark.parametrize("mode", ["vmap", "trace", "loop"])
def test_no_global_state_is_changed(mode: str) -> None:
    pyro.param("offset", real(0.7))
    pyro.param("noise", real(0.4), constraint=dist.constraints.positive)
    before = GlobalState().state
    potential = BatchedPotential(param_held_fixed, SIGNAL).using(mode=mode)
    potential.value_and_grad(particles(1))
    potential.value(particles(1))
    assert GlobalState().state == before


@pytest.mark.usefixtures("_validation")
@pytest.mark.parametrize("mode", ["vmap", "trace"])
def test_no_global_state_is_changed_by_an_error(mode: str) -> None:
    potential = BatchedPotential(branching, SIGNAL).using(mode=mode)
    before = GlobalState().state
    with pytest.raises(ValueError, match="branches"):
        potential.value_and_grad(particles(2))
    assert GlobalState().state == before


def test_a_distribution_made_outside_still_validates_afterwards() -> None:
    prior = dist.Normal(ZERO, ONE, validate_args=True)

    def model() -> None:
        pyro.sample("obs", dist.Normal(pyro.sample("x", prior), ONE), obs=ZERO)

    BatchedPotential(model).grad(particles(1))
    with pytest.raises(ValueError, match="support"):
        prior.log_prob(real(float("nan")))


def test_the_data_are_not_changed() -> None:
    x, y = X.clone(), SIGNAL.clone()
    BatchedPotential(linear_regression, x, y).using(mode="trace").grad(particles(5))
    assert torch.equal(x, X) and torch.equal(y, SIGNAL)  # noqa: PT018


def test_the_particles_are_not_changed() -> None:
    theta = particles(5)
    kept = theta.clone()
    BatchedPotential(linear_regression, X, SIGNAL).using(mode="trace", chunk_size=2).grad(theta)
    assert torch.equal(theta, kept)


# --------------------------------------------------------------------- models that cannot be batched


@pytest.mark.parametrize("mode", ["auto", "vmap", "trace"])
def test_a_branch_on_a_value_is_an_error_that_names_the_site(mode: str) -> None:
    potential = BatchedPotential(branching, SIGNAL).using(mode=mode)
    with pytest.raises(ValueError, match="branches on the value of a tensor at or after site 'level'"):
        potential.grad(particles(2))


def test_a_branch_on_a_value_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r'torch\.where.*mode="loop"'):
        BatchedPotential(branching, SIGNAL).value(particles(2))


def test_a_number_read_out_of_a_site_is_an_error_that_names_it() -> None:
    def model() -> None:
        rate = pyro.sample("rate", dist.Normal(ZERO, ONE))
        pyro.sample("obs", dist.Normal(rate * rate.item(), ONE), obs=ZERO)

    with pytest.raises(ValueError, match="site 'rate'"):
        BatchedPotential(model).grad(particles(1))


def test_a_python_loop_over_a_value_is_an_error_that_names_the_site() -> None:
    def model() -> None:
        steps = pyro.sample("steps", dist.Gamma(ONE, ONE))
        pyro.sample("obs", dist.Normal(sum((steps for _ in range(int(steps))), ZERO), ONE), obs=ZERO)

    with pytest.raises(ValueError, match="site 'steps'"):
        BatchedPotential(model).grad(particles(1))


def selecting() -> None:
    """Which effects are averaged depends on their values."""
    effects = pyro.sample("effects", dist.Normal(ZERO, ONE).expand([3]).to_event(1))
    pyro.sample("obs", dist.Normal(effects[effects > -10].mean(), ONE), obs=ONE)


def test_a_selection_by_values_is_an_error_that_names_the_site() -> None:
    with pytest.raises(ValueError, match="site 'effects'"):
        BatchedPotential(selecting).grad(particles(3))


TWO_PATHS = Case("branching", branching, (SIGNAL,))


def test_a_branch_on_a_value_works_in_a_loop_and_gives_pyros_gradient() -> None:
    theta = torch.stack([real(1.0, 0.5), real(-1.0, 0.5)])  # both paths
    gradient = potential_of(TWO_PATHS, mode="loop").grad(theta)
    assert_equal(gradient, pyros_energy(TWO_PATHS, theta)[1])


def test_a_branch_on_a_value_works_in_a_loop_without_a_gradient_too() -> None:
    theta = torch.stack([real(1.0, 0.5), real(-1.0, 0.5)])
    assert_equal(potential_of(TWO_PATHS, mode="loop").value(theta), pyros_energy(TWO_PATHS, theta)[0])


def test_a_selection_by_values_gives_pyros_gradient_in_a_loop() -> None:
    """What one particle selects must not be baked into the record that the others run through."""
    theta = torch.stack([real(1.0, -20.0, -20.0), real(2.0, 1.0, 3.0)])
    case = Case("selecting", selecting)
    assert_equal(potential_of(case, mode="loop").grad(theta), pyros_energy(case, theta)[1])


def test_a_model_that_draws_numbers_by_itself_is_an_error_that_names_the_site() -> None:
    def model() -> None:
        level = pyro.sample("level", dist.Normal(ZERO, ONE))
        pyro.sample("obs", dist.Normal(level + torch.randn(()), ONE), obs=ZERO)

    with pytest.raises(ValueError, match="random numbers by itself at or after site 'level'"):
        BatchedPotential(model).grad(particles(1))


def test_many_calls_do_not_break_a_model_that_reads_a_number_out_of_its_data() -> None:
    """Such a model has no record; auto comes to want one after some calls."""
    potential = BatchedPotential(simplex, real(3, 1, 4, 2)).using(expected_calls=10_000)
    assert_equal(potential.grad(expected("simplex")[0]), expected("simplex")[2])


def test_an_error_of_the_model_itself_is_not_explained_away() -> None:
    def model() -> None:
        pyro.sample("x", dist.Normal(ZERO, ONE))
        if torch.distributions.Distribution._validate_args is False:  # in the energy, not in the first look
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        BatchedPotential(model).grad(particles(1))


# ----------------------------------------------------------------------------------------- bad input


def test_a_model_that_is_not_callable_is_refused() -> None:
    with pytest.raises(ValueError, match="model must be a Pyro model"):
        BatchedPotential(3)  # type: ignore[arg-type]


def test_a_model_without_a_latent_site_is_refused() -> None:
    def model() -> None:
        pyro.sample("obs", dist.Normal(ZERO, ONE), obs=ONE)

    with pytest.raises(ValueError, match=r"no latent site.*'obs'.*pyro\.sample"):
        BatchedPotential(model)


@pytest.mark.parametrize("prior", [dist.Bernoulli(real(0.5)), dist.Poisson(ONE), dist.Categorical(real(0.2, 0.8))])
def test_a_discrete_latent_site_is_named_with_what_to_do(prior: Any) -> None:
    def model() -> None:
        kind = pyro.sample("kind", prior)
        pyro.sample("obs", dist.Normal(kind.double(), ONE), obs=ZERO)

    with pytest.raises(ValueError, match=r"latent site 'kind' is discrete.*Sum it out"):
        BatchedPotential(model)


def test_a_subsampled_plate_is_named_with_what_to_do() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        with pyro.plate("rows", len(y), subsample_size=4) as rows:
            pyro.sample("obs", dist.Normal(mean, ONE), obs=y[rows])

    with pytest.raises(ValueError, match=r"plate 'rows' draws 4 of 12 rows.*batch_size="):
        BatchedPotential(model, SIGNAL)


@pytest.mark.parametrize("first_has_it", [True, False])
def test_a_site_that_comes_and_goes_is_named(first_has_it: bool) -> None:
    present = [first_has_it]

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        if present[0]:
            mean = mean + pyro.sample("sometimes", dist.Normal(ZERO, ONE))
        present[0] = not present[0]
        pyro.sample("obs", dist.Normal(mean, ONE), obs=ZERO)

    with pytest.raises(ValueError, match=r"structure changes from call to call \(see site 'sometimes'"):
        BatchedPotential(model)


def test_a_site_whose_shape_changes_is_named() -> None:
    size = [1]

    def model() -> None:
        size[0] += 1
        many = pyro.sample("many", dist.Normal(ZERO, ONE).expand([size[0]]).to_event(1))
        pyro.sample("obs", dist.Normal(many.sum(), ONE), obs=ZERO)

    with pytest.raises(ValueError, match=r"structure changes from call to call \(see site 'many'"):
        BatchedPotential(model)


@pytest.mark.parametrize("support_of", [lambda a: dist.Uniform(ZERO, a), lambda a: dist.Pareto(a, ONE)])
def test_a_support_that_depends_on_another_site_is_named(support_of: Callable[[Tensor], Any]) -> None:
    def model() -> None:
        bound = pyro.sample("bound", dist.LogNormal(ZERO, ONE))
        inside = pyro.sample("inside", support_of(bound))
        pyro.sample("obs", dist.Normal(inside, ONE), obs=ZERO)

    with pytest.raises(ValueError, match="support of site 'inside' depends on another site"):
        BatchedPotential(model)


def unplated(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
    pyro.sample("obs", dist.Normal(mean, ONE).expand([len(y)]).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (unplated, (SIGNAL[:0],)),
        (normal_mean, (SIGNAL[:0],)),
        (bayesianize(small_network(3, 1), Gaussian(1.0)), (X[:0], SIGNAL[:0])),
    ],
    ids=["unplated", "plated", "network"],
)
def test_empty_data_are_refused(model: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"no data|at least one"):
        BatchedPotential(model, *args)


def spoiled(values: Tensor, bad: float) -> Tensor:
    values = values.clone()
    values.view(-1)[3] = bad
    return values


@pytest.mark.usefixtures("_validation")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("position", [0, 1])
def test_an_argument_with_a_number_that_is_not_finite_is_named(position: int, bad: float) -> None:
    args = [X, SIGNAL]
    args[position] = spoiled(args[position], bad)
    with pytest.raises(ValueError, match=f"argument {position} has 1 entr"):
        BatchedPotential(linear_regression, *args)


@pytest.mark.usefixtures("_validation")
def test_a_keyword_argument_with_nan_is_named() -> None:
    with pytest.raises(ValueError, match="argument 'y' has 1 entr"):
        BatchedPotential(
            keyword_arguments, X[:, 0], y=spoiled(SIGNAL, float("nan")), settings={"prior_scale": 2, "offset": 1}
        )


@pytest.mark.usefixtures("_validation")
@pytest.mark.parametrize("likelihood", [Gaussian(1.0), Categorical()])
def test_nan_in_the_inputs_of_a_network_is_named(likelihood: Any) -> None:
    model = bayesianize(small_network(3, 3), likelihood)
    y = torch.arange(12) % 3 if isinstance(likelihood, Categorical) else X
    with pytest.raises(ValueError, match="argument 0 has 1 entr"):
        BatchedPotential(model, spoiled(X, float("nan")), y)


def test_nan_in_data_that_no_site_uses_is_no_error() -> None:
    """A mask for missing values is the user's own business."""

    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        with pyro.plate("data", len(y)), poutine.mask(mask=~y.isnan()):
            pyro.sample("obs", dist.Normal(mean, ONE), obs=y.nan_to_num())

    theta = particles(1)
    expected_value = BatchedPotential(normal_mean, torch.cat([SIGNAL[:3], SIGNAL[4:]])).value(theta)
    assert_equal(BatchedPotential(model, spoiled(SIGNAL, float("nan"))).value(theta), expected_value)


def test_inputs_that_do_not_fit_the_network_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        BatchedPotential(bayesianize(small_network(2, 1), Gaussian(1.0)), X, SIGNAL)


@pytest.mark.parametrize("shape", [(5,), (2, 4), (2, 6), (1, 2, 5), (0, 5)])
def test_a_theta_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    potential = BatchedPotential(linear_regression, X, SIGNAL)
    with pytest.raises(ValueError, match=r"theta has shape .* must be \(N, 5\)"):
        potential.value_and_grad(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("mode", ["fast", "", None])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="mode must be 'auto', 'vmap', 'trace', 'compile' or 'loop'"):
        BatchedPotential(normal_mean, SIGNAL).using(mode=mode)


@pytest.mark.parametrize("chunk_size", [0, -3])
def test_a_chunk_without_particles_is_refused(chunk_size: int) -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        BatchedPotential(normal_mean, SIGNAL).using(chunk_size=chunk_size)


# ----------------------------------------------------------------------------------------- compiling


@pytest.fixture
def _own_compile_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that an earlier run compiled is found, and nothing is left behind."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def called_twice(potential: BatchedPotential, theta: Tensor) -> tuple[Tensor, Tensor]:
    """A record is compiled at its second call."""
    potential.value_and_grad(theta)
    return potential.value_and_grad(theta)


@pytest.mark.slow
@pytest.mark.usefixtures("_own_compile_cache")
def test_the_compiled_energy_is_pyros_own() -> None:
    theta, value, gradient = expected("linear_regression")
    potential = potential_of(BY_NAME["linear_regression"], mode="compile")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the energy could not be compiled")
        ours = called_twice(potential, theta)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    torch.testing.assert_close(ours, (value, gradient), rtol=1e-9, atol=1e-9)


@pytest.fixture
def _no_compiler(_own_compile_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch._inductor.config as inductor

    nowhere = str(tmp_path / "no-such-compiler")
    monkeypatch.setenv("CXX", nowhere)
    with inductor.patch({"cpp.cxx": (nowhere,)}):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_the_traced_graph_runs_and_that_is_said_once() -> None:
    theta, value, _ = expected("normal_mean")
    potential = potential_of(BY_NAME["normal_mean"], mode="compile")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in (2, 2, 2, 3, 3):  # two shapes, as a MAP search and a walk have
            ours = potential.value_and_grad(theta[:number])[0]
    assert_equal(ours, value[:3])
    assert len([w for w in said if "could not be compiled" in str(w.message)]) == 1
