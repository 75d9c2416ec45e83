"""Claims about the batched energy: it is Pyro's own, whatever the model and the way it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

from pyro_metricbnn import BatchedPotential, Gaussian, bayesianize
from tests.energies import (
    BY_NAME,
    NUM_PARTICLES,
    assert_equal,
    branching,
    computed,
    every_case,
    expected,
    particles,
    potential_of,
    pyros_energy,
)
from tests.models import (
    ONE,
    SIGNAL,
    ZERO,
    X,
    linear_regression,
    noise,
    normal_mean,
    param_held_fixed,
    real,
)

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


@pytest.mark.parametrize(("dims_in_event", "observations"), [(0, 7), (1, 1)])
def test_rows_of_one_event_are_rows_to_work_through(dims_in_event: int, observations: int) -> None:
    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0).expand([7]).to_event(dims_in_event), obs=torch.zeros(7))

    potential = BatchedPotential(model)
    assert (potential.num_rows, potential.num_observations) == (7, observations)


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


@pytest.mark.slow
@pytest.mark.usefixtures("_own_compile_cache")
@pytest.mark.parametrize("chosen", [True, False])
def test_a_compiled_energy_leaves_the_validation_of_torchs_distributions_as_it_was(chosen: bool) -> None:
    torch._dynamo.eval_frame.TorchPatcher.patch.cache_clear()  # torch switches it off once a process
    theta, _, _ = expected("normal_mean")
    with pyro.validation_enabled(chosen):
        called_twice(potential_of(BY_NAME["normal_mean"], mode="compile"), theta)
        assert torch.distributions.Distribution._validate_args is chosen


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


def test_the_rows_of_a_network_are_counted_once() -> None:
    x = torch.zeros(10, 1)
    potential = BatchedPotential(bayesianize(torch.nn.Linear(1, 1), Gaussian(1.0)), x, x)
    assert (potential.num_observations, potential.num_rows) == (10, 10)
