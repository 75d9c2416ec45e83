"""Claims about the MAP search: it finds minima that are known, and says when it found none."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import BatchedPotential, DriftRefineKernel, Gaussian, bayesianize, find_map
from pyro_metricbnn.energy.minibatches import MinibatchPotential
from pyro_metricbnn.search.map_search import MapEstimate
from tests.models import (
    CASES,
    ONE,
    SIGNAL,
    ZERO,
    X,
    eight_schools_centred,
    hidden_mode,
    linear_regression,
    noise,
    normal_mean,
    param_held_fixed,
    real,
    small_network,
)

BY_NAME = {case.name: case for case in CASES}
SCHOOLS = BY_NAME["eight_schools_centred"].args


def quietly(potential: BatchedPotential, init: Any = None, **settings: Any) -> MapEstimate:
    """A search whose warnings are not the claim."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_map(potential, init, progress=False, **settings)


def soundly(potential: BatchedPotential, init: Any = None, **settings: Any) -> MapEstimate:
    """A search that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return find_map(potential, init, progress=False, **settings)


def stiff_network() -> BatchedPotential:
    """21 weights for 12 points with little noise: many iterations from random weights."""
    return BatchedPotential(bayesianize(small_network(3, 1), Gaussian(0.01)), X, SIGNAL)


# ------------------------------------------------------------------------------------- known minima


def conjugate_regression(x: Tensor, y: Tensor) -> None:
    """Posterior mean (x'x / 0.25 + I / 4)^-1 x'y / 0.25."""
    weights = pyro.sample("weights", dist.Normal(ZERO, real(2.0)).expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weights, real(0.5)), obs=y)


def exact_weights() -> Tensor:
    return torch.linalg.solve(X.T @ X / 0.25 + torch.eye(3, dtype=torch.float64) / 4, X.T @ SIGNAL / 0.25)


@pytest.mark.parametrize("init", [None, {"weights": real(30.0, -30.0, 5.0)}], ids=["scratch", "far"])
def test_the_map_of_a_conjugate_model_is_its_posterior_mean(init: Any) -> None:
    estimate = soundly(BatchedPotential(conjugate_regression, X, SIGNAL), init)
    torch.testing.assert_close(estimate.theta, exact_weights(), rtol=1e-6, atol=1e-6)


def test_the_map_of_a_conjugate_mean_is_its_posterior_mean() -> None:
    estimate = soundly(BatchedPotential(normal_mean, SIGNAL))
    assert estimate.params["mean"].item() == pytest.approx(SIGNAL.sum().item() / 13, abs=1e-6)


def test_a_conjugate_model_converges() -> None:
    assert soundly(BatchedPotential(conjugate_regression, X, SIGNAL)).converged


WITH_A_MAXIMUM = ("beta_and_interval", "simplex", "eight_schools_non_centred", "with_factor")


@pytest.mark.parametrize("case", [BY_NAME[name] for name in WITH_A_MAXIMUM], ids=WITH_A_MAXIMUM)
def test_the_search_converges_on_a_model_with_a_maximum(case: Any) -> None:
    estimate = soundly(BatchedPotential(case.model, *case.args, **case.kwargs), num_starts=2)
    assert (estimate.converged, estimate.unbounded) == (True, ())


@pytest.fixture(scope="module")
def regression() -> tuple[BatchedPotential, MapEstimate]:
    pyro.set_rng_seed(0)
    potential = BatchedPotential(linear_regression, X, SIGNAL)
    return potential, soundly(potential)


def test_the_gradient_vanishes_at_the_map_of_a_constrained_model(
    regression: tuple[BatchedPotential, MapEstimate],
) -> None:
    potential, estimate = regression
    gradient = potential.grad(estimate.theta[None])
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-3)


def test_the_params_are_theta_by_site(regression: tuple[BatchedPotential, MapEstimate]) -> None:
    potential, estimate = regression
    torch.testing.assert_close(potential.flatten(estimate.params), estimate.theta)


def test_the_energy_is_the_potential_at_the_map(regression: tuple[BatchedPotential, MapEstimate]) -> None:
    potential, estimate = regression
    assert estimate.energy == pytest.approx(potential.value(estimate.theta[None]).item(), abs=1e-9)


def test_the_last_of_the_energies_is_that_of_the_map(regression: tuple[BatchedPotential, MapEstimate]) -> None:
    estimate = regression[1]
    assert estimate.energies[-1] == estimate.energy == min(estimate.energies)


def test_the_same_seed_gives_the_same_map() -> None:
    def seeded() -> Tensor:
        pyro.set_rng_seed(5)
        return quietly(BatchedPotential(normal_mean, SIGNAL), num_starts=3).theta

    assert torch.equal(seeded(), seeded())


def test_a_map_search_is_not_stopped_by_params_that_require_gradients() -> None:
    estimate = soundly(BatchedPotential(param_held_fixed, SIGNAL))
    precision = 1 + 12 / 0.16
    assert estimate.theta.item() == pytest.approx((0.7 + SIGNAL.sum().item() / 0.16) / precision, abs=1e-6)


# -------------------------------------------------------------------------------------------- starts


def two_modes() -> None:
    """A small mode at -2, which the prior's centre is nearer to, and one four times as high at 5."""
    a = pyro.sample("a", dist.Normal(ZERO, real(10.0)))
    components = dist.Normal(torch.stack([a + 2, a - 5]), real(0.7))
    pyro.sample("obs", dist.MixtureSameFamily(dist.Categorical(real(0.2, 0.8)), components), obs=ZERO)


def test_one_start_finds_the_mode_it_is_next_to() -> None:
    """Otherwise the next test says nothing."""
    assert quietly(BatchedPotential(two_modes), num_starts=1).params["a"].item() == pytest.approx(-2, abs=0.1)


def test_several_starts_find_the_lower_of_two_modes() -> None:
    assert quietly(BatchedPotential(two_modes), num_starts=8).params["a"].item() == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_wide_starts_find_a_mode_that_all_near_the_priors_median_miss(seed: int) -> None:
    pyro.set_rng_seed(seed)
    assert abs(quietly(BatchedPotential(hidden_mode)).params["a"].item()) == pytest.approx(2, abs=0.1)


def test_starts_that_end_at_different_energies_are_said_with_the_energies() -> None:
    pyro.set_rng_seed(0)
    with pytest.warns(UserWarning, match=r"several energies: -57\.\d .* 0\.9 \(0\.0% of the posterior\)"):
        find_map(BatchedPotential(hidden_mode), progress=False)


def test_a_lower_mode_that_holds_next_to_nothing_is_not_where_a_walk_leaves_from() -> None:
    def spike() -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(6), 1.0).to_event(1))
        wide, narrow = -(a**2).sum() / 0.5, 3 - ((a - 2) ** 2).sum() / 2e-4
        pyro.factor("modes", torch.logaddexp(wide, narrow))

    assert quietly(BatchedPotential(spike)).params["a"].abs().max() < 0.2


def test_particles_leave_from_each_mode_by_what_it_holds() -> None:
    pyro.set_rng_seed(0)
    with pytest.warns(UserWarning, match="Particles leave from each by what it holds"):
        walk = DriftRefineKernel(lambda: hidden_mode(4.0)).walk(num_particles=20, progress=False)
    a = walk.thetas[:, 1:, 0].mean(-1)
    # The prior takes 2 nats of the 4, and the modes outside are half as wide.
    share = math.exp(2.0) / 2 / (1 + 2 * math.exp(2.0) / 2)
    counted = [int(((a - mode).abs() < 0.5).sum()) for mode in (-2, 0, 2)]
    assert counted == pytest.approx([20 * share, 20 * (1 - 2 * share), 20 * share], abs=1.5)


def test_the_search_begins_at_the_trained_weights() -> None:
    potential = stiff_network()
    trained = potential.flatten(dict(bayesianize(small_network(3, 1), Gaussian(1.0)).trained_params))
    first = quietly(potential, max_iterations=10).energies[0]
    assert first == pytest.approx(potential.value(trained[None]).item())


def test_the_search_from_trained_weights_is_the_same_for_every_seed() -> None:
    def seeded(seed: int) -> Tensor:
        pyro.set_rng_seed(seed)
        return quietly(stiff_network(), max_iterations=20).theta

    assert torch.equal(seeded(1), seeded(2))


def test_the_search_begins_at_the_given_values() -> None:
    potential = BatchedPotential(conjugate_regression, X, SIGNAL)
    first = quietly(potential, {"weights": real(3.0, -3.0, 1.0)}).energies[0]
    assert first == pytest.approx(potential.value(real(3.0, -3.0, 1.0)[None]).item())


def test_given_values_win_over_trained_weights() -> None:
    potential = stiff_network()
    init = {name: torch.zeros_like(value) for name, value in small_network(3, 1).named_parameters()}
    first = quietly(potential, init, max_iterations=10).energies[0]
    assert first == pytest.approx(potential.value(torch.zeros(1, 21, dtype=torch.float64)).item())


def test_sites_that_are_not_given_start_at_the_prior_s_median() -> None:
    potential = BatchedPotential(linear_regression, X, SIGNAL)
    estimate = quietly(potential, {"weights": real(1.0, 1.0, 1.0)})
    start = estimate.units.center.clone()
    start[:3] = 1.0
    assert estimate.energies[0] == pytest.approx(potential.value(start[None]).item())


def test_the_parameters_of_a_module_can_be_given_as_they_are() -> None:
    """They require gradients."""
    net = small_network(3, 1)
    potential = BatchedPotential(bayesianize(small_network(3, 1, seed=5), Gaussian(0.3)), X, SIGNAL)
    first = quietly(potential, dict(net.named_parameters()), max_iterations=10).energies[0]
    flat = torch.cat([value.detach().reshape(-1) for value in net.parameters()])
    assert first == pytest.approx(potential.value(flat[None]).item())


def test_the_modules_own_weights_are_not_changed_by_the_search() -> None:
    net = small_network(3, 1)
    model = bayesianize(net, Gaussian(0.3))
    quietly(BatchedPotential(model, X, SIGNAL), max_iterations=20)
    before = dict(small_network(3, 1).named_parameters())
    assert all(
        torch.equal(value, before[name]) for name, value in (*net.named_parameters(), *model.trained_params.items())
    )


# --------------------------------------------------------------------------- what cannot be converged


def test_a_search_that_was_too_short_says_so() -> None:
    with pytest.warns(UserWarning, match=r"did not converge: the energy still fell by .* nats.*max_iterations"):
        find_map(stiff_network(), max_iterations=10, progress=False)


def test_a_search_that_was_too_short_has_not_converged() -> None:
    short = quietly(stiff_network(), max_iterations=10)
    assert (short.converged, short.unbounded) == (False, ())


def test_a_search_that_was_too_short_gives_the_best_point_that_it_came_to() -> None:
    short, long = (quietly(stiff_network(), max_iterations=n) for n in (10, 200))
    assert long.energy < short.energy < short.energies[0]


def test_a_search_that_was_long_enough_is_silent() -> None:
    net = nn.Sequential(nn.Linear(3, 1)).double()
    assert soundly(BatchedPotential(bayesianize(net, Gaussian(0.5)), X, SIGNAL)).converged


@pytest.fixture(scope="module")
def funnel() -> tuple[MapEstimate, list[str]]:
    """The search on centred eight schools, and its warnings."""
    pyro.set_rng_seed(0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        estimate = find_map(BatchedPotential(eight_schools_centred, *SCHOOLS), progress=False)
    return estimate, [str(warning.message) for warning in said]


def test_an_unbounded_density_is_said_with_the_site_and_what_to_do(funnel: tuple[MapEstimate, list[str]]) -> None:
    said = [text for text in funnel[1] if "no maximum" in text]
    assert len(said) == 1 and "'tau'" in said[0] and "non-centred" in said[0]  # noqa: PT018


def test_an_unbounded_density_has_not_converged(funnel: tuple[MapEstimate, list[str]]) -> None:
    assert (funnel[0].converged, funnel[0].unbounded) == (False, ("tau",))


def test_an_unbounded_density_gives_a_finite_start(funnel: tuple[MapEstimate, list[str]]) -> None:
    assert bool(funnel[0].theta.isfinite().all())


def test_an_unbounded_site_stands_at_the_prior_s_median(funnel: tuple[MapEstimate, list[str]]) -> None:
    assert funnel[0].params["tau"].item() == pytest.approx(funnel[0].units.center[1].exp().item())


def test_the_start_on_an_unbounded_density_is_the_best_for_the_site_s_value(
    funnel: tuple[MapEstimate, list[str]],
) -> None:
    """The effects have not followed the site down the funnel: given tau, everything else is Gaussian."""
    y, sigma = SCHOOLS
    tau = funnel[0].params["tau"]
    weights = 1 / (tau**2 + sigma**2)
    mu = (weights * y).sum() / (weights.sum() + 1 / 25)
    shrunk = (y / sigma**2 + mu / tau**2) / (1 / sigma**2 + 1 / tau**2)
    torch.testing.assert_close(funnel[0].theta[2:], shrunk, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_unbounded_regression_is_noticed_too(seed: int) -> None:
    """Its effects close in until the search can move no further; that is no maximum."""
    case = BY_NAME["hierarchical_regression"]
    pyro.set_rng_seed(seed)
    estimate = quietly(BatchedPotential(case.model, *case.args))
    assert (estimate.converged, estimate.unbounded) == (False, ("spread",))


def test_a_density_that_is_only_far_from_its_prior_is_not_called_unbounded() -> None:
    """Data may say what the prior did not expect."""

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
        pyro.sample("obs", dist.Normal(mean, real(1e-3)), obs=real(40.0))

    estimate = soundly(BatchedPotential(model))
    assert (estimate.converged, round(estimate.theta.item(), 2)) == (True, 40.0)


# --------------------------------------------------------------------------------------- minibatches


def narrowing(y: Tensor) -> None:
    """Highest where the scale is exp(-18), eighteen deviations out, because all effects are narrow there."""
    scale = pyro.sample("scale", dist.LogNormal(y.new_zeros(()), 1.0))
    with pyro.plate("rows", len(y)):
        effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), scale))
        pyro.sample("obs", dist.Normal(effect, 1.0), obs=y)


def test_a_maximum_in_the_neck_of_a_funnel_is_left_for_the_prior_s_median() -> None:
    estimate = quietly(BatchedPotential(narrowing, torch.linspace(-0.5, 0.5, 18, dtype=torch.float64)))
    assert estimate.unbounded == ("scale",)
    assert float(estimate.params["scale"]) == pytest.approx(1.0, abs=0.5)


def test_a_site_that_the_data_pull_far_out_stays_there() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("rows", len(y)):
            effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), 0.3))
            pyro.sample("obs", dist.Normal(mean + effect, 0.1), obs=y)

    estimate = soundly(BatchedPotential(model, 8 + torch.linspace(-0.5, 0.5, 40, dtype=torch.float64)))
    assert estimate.unbounded == ()
    assert float(estimate.params["mean"]) == pytest.approx(8.0, abs=0.1)


def test_a_search_on_minibatches_comes_near_the_full_map() -> None:
    batches = DataLoader(TensorDataset(X, SIGNAL), batch_size=4)
    estimate = quietly(MinibatchPotential(conjugate_regression, batches))
    torch.testing.assert_close(estimate.theta, exact_weights(), rtol=0, atol=0.05)


# ------------------------------------------------------------------------------------------ progress


@pytest.mark.parametrize("progress", [True, False])
def test_a_progress_bar_is_shown_where_it_is_asked_for(progress: bool, capsys: pytest.CaptureFixture[str]) -> None:
    find_map(BatchedPotential(normal_mean, SIGNAL), {"mean": ZERO}, progress=progress)
    assert ("MAP" in capsys.readouterr().err) is progress


# ----------------------------------------------------------------------------------------- bad input


def refused(said: str, potential: BatchedPotential, init: Any = None, **settings: Any) -> None:
    with pytest.raises(ValueError, match=said):
        find_map(potential, init, progress=False, **settings)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_initial_values_that_are_not_finite_are_refused_by_site(bad: float) -> None:
    refused("initial values of mean are not finite", BatchedPotential(normal_mean, SIGNAL), {"mean": real(bad)})


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_initial_values_off_the_support_are_refused_by_site(bad: float) -> None:
    refused(
        "values of scale .*inside the support", BatchedPotential(linear_regression, X, SIGNAL), {"scale": real(bad)}
    )


def test_initial_values_of_an_unknown_site_are_refused_by_name() -> None:
    refused("unknown .'slope'", BatchedPotential(normal_mean, SIGNAL), {"slope": ONE})


def test_initial_values_of_another_shape_are_refused() -> None:
    refused("'weights' has shape", BatchedPotential(linear_regression, X, SIGNAL), {"weights": noise(4)})


def test_a_batch_of_initial_values_is_refused() -> None:
    refused("shape", BatchedPotential(linear_regression, X, SIGNAL), {"weights": noise(2, 3)})


@pytest.mark.parametrize("num_starts", [0, -1])
def test_a_search_without_starts_is_refused(num_starts: int) -> None:
    refused("num_starts must be at least 1", BatchedPotential(normal_mean, SIGNAL), num_starts=num_starts)


@pytest.mark.parametrize("max_iterations", [0, -10])
def test_a_search_without_iterations_is_refused(max_iterations: int) -> None:
    refused("max_iterations", BatchedPotential(normal_mean, SIGNAL), max_iterations=max_iterations)


def impossible() -> None:
    """Its observation is outside the support, wherever the site is."""
    mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
    pyro.sample("obs", dist.Uniform(0 * mean, 0 * mean + 1, validate_args=False), obs=real(3.0))


def steep() -> None:
    """Its energy overflows at every start."""
    mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
    pyro.sample("obs", dist.Normal(1e200 * (mean - 2), ONE), obs=ZERO)


@pytest.mark.parametrize("model", [impossible, steep])
def test_a_model_that_gives_its_data_no_density_is_refused(model: Callable[..., Any]) -> None:
    refused("no start had a finite energy", BatchedPotential(model))


def test_a_networks_weights_are_not_taken_for_a_funnel() -> None:
    """With a noise far too small the search ends far out and unsettled; from the prior's median it would be lost."""
    torch.manual_seed(0)
    x = torch.randn(100, 3)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(100, 1)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(300):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="did not converge"):
        estimate = find_map(BatchedPotential(bayesianize(net, Gaussian(0.003)), x, y), progress=False)
    assert estimate.unbounded == ()
