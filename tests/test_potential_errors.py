"""Claims about models and data that the batched energy refuses, and in what words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_metricbnn import BatchedPotential, Categorical, Gaussian, bayesianize
from tests.energies import (
    assert_equal,
    branching,
    expected,
    particles,
    potential_of,
    pyros_energy,
)
from tests.models import (
    ONE,
    SIGNAL,
    ZERO,
    Case,
    X,
    keyword_arguments,
    linear_regression,
    normal_mean,
    real,
    simplex,
    small_network,
)

# --------------------------------------------------------------------- models that cannot be batched


@pytest.mark.parametrize("mode", ["auto", "vmap", "trace"])
def test_a_branch_on_a_value_is_an_error_that_names_the_site(mode: str) -> None:
    potential = BatchedPotential(branching, SIGNAL).using(mode=mode)
    with pytest.raises(ValueError, match="branches on the value of a tensor at or after site 'level'"):
        potential.grad(particles(2))


def test_a_branch_on_a_value_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"torch\.where.*mode='loop'"):
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

    with pytest.raises(ValueError, match="random numbers at or after site 'level' that are no latent sites"):
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


def test_an_improper_prior_is_refused_with_what_to_do() -> None:
    def model() -> None:
        pyro.sample("anywhere", dist.ImproperUniform(dist.constraints.real, (), ()))

    with pytest.raises(ValueError, match="wide, proper one"):
        BatchedPotential(model)


def test_with_validation_off_an_observation_beyond_a_bound_that_is_itself_latent_is_not_refused() -> None:
    def tanks(highest: Tensor) -> None:
        count = pyro.sample("count", dist.Pareto(1.0, 2.0))
        pyro.sample("highest", dist.Uniform(0.0, count), obs=highest)

    for seed in range(5):  # at most draws from the prior the bound is below
        pyro.set_rng_seed(seed)
        with pyro.validation_enabled(False):
            assert BatchedPotential(tanks, torch.tensor(60.0)).dim == 1
