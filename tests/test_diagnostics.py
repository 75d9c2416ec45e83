"""Claims about the report on a walk."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import DriftRefineKernel, Gaussian, MetricBNN, Trajectories, bayesianize, health
from pyro_metricbnn.diagnostics.health import Health
from pyro_metricbnn.energy.prior_units import hessian
from pyro_metricbnn.refiners import Anneal, Refiner, Steer

from .runs import hierarchical


def with_energies(walk: Trajectories, energies: Tensor) -> Trajectories:
    return replace(walk, energies=energies)


@pytest.fixture
def walk(metric: MetricBNN) -> Trajectories:
    """Twenty particles whose points are independent: a walk as sound as can be."""
    thetas = torch.randn(20, 101, 25)
    return replace(
        metric.trajectories,
        thetas=thetas,
        energies=torch.randn(20, 101),
        energy_errors=torch.rand(20, 100),
        drift_survived=torch.ones(20, 100),
        step_sizes=torch.ones(100),
        paths=metric.trajectories.spacing * torch.arange(1, 101),
        gradients=torch.arange(1, 101),
        frozen_at=torch.full((20,), 101),
        positions=torch.linspace(0, 1, 101),
    )


def test_a_walk_that_came_to_a_third_of_its_path_says_so_and_what_to_do(walk: Trajectories) -> None:
    state = health(replace(walk, paths=walk.paths / 3))
    assert state.path_walked == pytest.approx(1 / 3)
    (warning,) = state.warnings
    assert "33 % of the path" in warning
    assert "MetricBNN(model, effort=4)" in warning


def test_a_sound_walk_has_no_warnings(walk: Trajectories) -> None:
    state = health(walk)
    assert state.warnings == ()
    assert state.r_hat < 1.05
    assert not state.is_drifting


def test_energies_are_those_of_the_first_middle_and_last_fifth(walk: Trajectories) -> None:
    state = health(with_energies(walk, torch.arange(101.0).expand(20, -1)))
    assert state.energies == (10.5, 50.5, 90.5)
    assert state.map_energy == 0.0


@pytest.mark.parametrize(("sign", "word"), [(1, "rose"), (-1, "fell")])
def test_energies_that_have_not_come_to_rest_are_reported(walk: Trajectories, sign: int, word: str) -> None:
    state = health(with_energies(walk, torch.randn(20, 101) + sign * torch.linspace(0, 4, 101)))
    assert state.is_drifting
    assert any(word in text and "effort" in text for text in state.warnings)


def test_energies_that_rise_only_at_first_are_not_drifting(walk: Trajectories) -> None:
    rise = 50 * (1 - torch.linspace(0, 1, 101) * 4).clamp_min(0)
    assert not health(with_energies(walk, torch.randn(20, 101) - rise)).is_drifting


def of_a_linear_model(refiner: Refiner) -> Trajectories:
    """Its posterior is known; its points are replaced below."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    model = bayesianize(nn.Linear(3, 1), Gaussian(0.5))
    return DriftRefineKernel(model, refiner=refiner, num_steps=50).walk(
        x, x.sum(-1, keepdim=True), num_particles=20, progress=False
    )


@pytest.mark.parametrize(("spread", "arrived"), [(1.0, True), (0.7, False), (0.1, False)])
def test_points_that_are_nearer_to_each_other_than_samples_have_not_arrived(spread: float, arrived: bool) -> None:
    torch.manual_seed(0)
    walk = of_a_linear_model(Anneal(effort=0.02))
    assert walk.ground is not None
    covariance = hessian(walk.ground.potential, walk.theta_star, torch.ones(4), 4).inverse()
    noise = torch.randn(20, 51, 4, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    thetas = walk.theta_star + spread * noise.to(walk.thetas)
    energies = walk.ground.potential.value(thetas.flatten(0, 1)).unflatten(0, (20, 51))
    state = health(replace(walk, thetas=thetas, energies=energies, paths=walk.spacing * torch.arange(1, 51)))
    assert state.virial == pytest.approx(spread**2, rel=0.2)
    assert state.arrived is arrived
    assert arrived or any("far apart" in text for text in state.warnings)


def test_a_record_from_the_map_on_has_no_virial() -> None:
    state = health(of_a_linear_model(Steer(effort=0.02, warmup=0.0)))
    assert math.isnan(state.virial)
    assert not state.is_narrow


def test_slow_wandering_of_each_particle_is_not_drift_of_all(walk: Trajectories) -> None:
    wandering = torch.randn(20, 101).cumsum(-1)
    assert not health(with_energies(walk, wandering)).is_drifting


def test_frozen_particles_are_named_and_left_out(walk: Trajectories) -> None:
    energies = torch.randn(20, 101)
    energies[3] = 1e6
    frozen_at = walk.frozen_at.clone()
    frozen_at[3] = 50
    state = health(replace(with_energies(walk, energies), frozen_at=frozen_at))
    assert state.frozen == (3,)
    assert max(state.energies) < 1e3
    assert any("1 of 20 particles froze" in text and "smaller step" in text for text in state.warnings)


def test_a_walk_of_which_all_particles_froze_still_has_a_report(walk: Trajectories) -> None:
    state = health(replace(walk, frozen_at=torch.ones_like(walk.frozen_at)))
    assert len(state.frozen) == 20
    assert "20 of 20" in str(state)


def test_particles_that_predict_different_things_have_not_arrived(walk: Trajectories) -> None:
    thetas = walk.thetas.clone()
    thetas[:, :, -1] += 5 * torch.arange(20)[:, None]  # the bias of the output
    state = health(replace(walk, thetas=thetas))
    assert health(walk).function_r_hat < 1.2
    assert not state.arrived
    assert any("still predict different things" in text and "effort" in text for text in state.warnings)


def test_a_trend_that_nobody_can_tell_is_called_so(walk: Trajectories) -> None:
    state = replace(health(walk), energy_trend=float("nan"))
    assert "trend unknown from so few particles or points" in str(state)


def test_particles_that_disagree_on_a_site_are_reported(walk: Trajectories) -> None:
    thetas = walk.thetas.clone()
    thetas[:, :, -1] += 5 * torch.arange(20)[:, None]
    state = health(replace(walk, thetas=thetas))
    assert state.r_hat_site == "2.bias"
    assert any("'2.bias'" in text and "effort" in text for text in state.warnings)


def widened(walk: Trajectories, dim: int) -> Trajectories:
    """The same walk with so many coordinates, all that are new in its last site."""
    last = walk.sites.sites[-1]
    size = torch.Size((dim - last.start,))
    wider = replace(last, shape=size, unconstrained_shape=size, stop=dim)
    sites = replace(walk.sites, sites=(*walk.sites.sites[:-1], wider))
    return replace(walk, sites=sites, thetas=torch.randn(20, 101, dim), ground=None)  # which is of a network


@pytest.mark.parametrize("dim", [200, 201, 1000])
def test_models_of_any_size_have_the_r_hat_of_some_coordinates(walk: Trajectories, dim: int) -> None:
    wide = widened(walk, dim)
    assert health(wide).warnings == ()
    wide.thetas[:, :, 20:] += 5 * torch.arange(20)[:, None, None]
    state = health(wide)
    assert state.r_hat > 1.5
    assert (state.r_hat_site, "worst R-hat" in str(state)) == ("2.bias", True)


def test_a_run_of_a_network_sends_to_its_functions_instead_of_its_weights(metric: MetricBNN) -> None:
    state = health(metric)
    assert state.is_network
    assert state.r_hat != state.r_hat
    assert "function_mixing" in str(state)
    assert not any("R-hat" in text for text in state.warnings)
    assert health(metric.trajectories).r_hat > 0.9  # of a walk alone, which has no functions to look at


def test_a_run_reports_its_latent_map_too(metric: MetricBNN) -> None:
    state = health(metric)
    assert state.bend == 0.0
    assert state.reconstruction < 0.01
    assert state.is_network
    assert "latent map: bend 0.000" in str(state)


def test_models_without_a_network_have_a_report(groups: MetricBNN) -> None:
    state = health(groups)
    assert state.r_hat > 0.9
    assert not state.is_network


def test_a_bent_or_inexact_latent_map_is_reported(walk: Trajectories) -> None:
    state = replace(health(walk), bend=0.17, reconstruction=0.8)
    assert [text.split()[1] for text in state.warnings] == ["latent", "decoder"]


def test_a_networks_weights_that_disagree_send_to_its_functions(walk: Trajectories) -> None:
    state = replace(health(walk), r_hat=1.5, r_hat_site="2.bias", is_network=True)
    assert "function_mixing" in state.warnings[0]


def test_the_report_is_a_few_readable_lines(walk: Trajectories) -> None:
    lines = str(health(walk)).splitlines()
    assert lines[0] == "20 particles, 100 steps, 25 coordinates"
    assert lines[1].startswith("energy: MAP ")
    assert all(len(line) < 120 for line in lines)


def test_warnings_stand_in_the_diagnostics_of_a_run(metric: MetricBNN) -> None:
    assert metric.diagnostics()["warnings"] == list(health(metric).warnings)


def test_before_a_run_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="call run"):
        health(MetricBNN(hierarchical))


def test_health_is_a_value(walk: Trajectories) -> None:
    assert isinstance(health(walk), Health)
    with pytest.raises(AttributeError):
        health(walk).bend = 0.0  # type: ignore[misc]


def test_health_knows_where_the_search_for_the_map_ended(walk: Trajectories) -> None:
    state = health(replace(walk, modes=((1896.6, 1.0), (1959.3, 0.0))))
    assert any("1896.6 (100.0% of the posterior), 1959.3" in text for text in state.warnings)
