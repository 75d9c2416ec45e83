"""Claims about the prior's centre and deviations: exact where the prior says them, from draws elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_metricbnn import BatchedPotential, Gaussian, bayesianize
from pyro_metricbnn.energy.prior_units import PriorUnits, prior_units
from tests.models import (
    CASES,
    ONE,
    SIGNAL,
    ZERO,
    X,
    correlated_site,
    eight_schools_centred,
    linear_regression,
    noise,
    param_held_fixed,
    random_walk,
    real,
    small_network,
)

SCHOOLS = next(case.args for case in CASES if case.name == "eight_schools_centred")


def units_of(model: Any, *args: Any, **kwargs: Any) -> PriorUnits:
    return prior_units(BatchedPotential(model, *args, **kwargs))


def units_of_prior(prior: Any) -> PriorUnits:
    """Of a model with one site `x`."""

    def model() -> None:
        x = pyro.sample("x", prior)
        pyro.sample("obs", dist.Normal(x.sum(), ONE), obs=ZERO)

    return units_of(model)


# --------------------------------------------------------------------------------------------- exact


def test_the_units_of_a_network_are_its_prior_scales_exactly() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale={"0": 3.0, "2": 0.5})
    units = units_of(model, X, SIGNAL)
    assert units.scale.tolist() == [3.0] * (12 + 4) + [0.5] * (4 + 1)


def test_the_centre_of_a_network_is_its_prior_mean_exactly() -> None:
    units = units_of(bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=3.0), X, SIGNAL)
    assert units.center.tolist() == [0.0] * 21


def test_a_prior_with_another_mean_is_centred_there() -> None:
    units = units_of_prior(dist.Normal(real(2.0, -5.0), real(0.1, 7.0)).to_event(1))
    assert (units.center.tolist(), units.scale.tolist()) == ([2.0, -5.0], [0.1, 7.0])


def test_the_deviation_of_another_real_prior_is_the_root_of_its_variance() -> None:
    assert units_of_prior(dist.Laplace(ONE, real(2.0))).scale.item() == pytest.approx(2 * math.sqrt(2))


def test_a_correlated_prior_has_the_deviations_of_its_diagonal() -> None:
    torch.testing.assert_close(units_of(correlated_site, X).scale, real(1.5, 1.5, 1.5).sqrt())


def test_a_plate_of_sites_has_the_units_of_each() -> None:
    def model() -> None:
        with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
            x = pyro.sample("x", dist.Normal(real(0.0, 1.0, 2.0), real(3.0)))
        pyro.sample("obs", dist.Normal(x.sum(), ONE), obs=ZERO)

    units = units_of(model)
    assert (units.center.tolist(), units.scale.tolist()) == ([0.0, 1.0, 2.0] * 2, [3.0] * 6)


def test_sites_stand_in_the_order_of_theta() -> None:
    units = units_of(linear_regression, X, SIGNAL)
    assert units.scale[:4].tolist() == [1.0, 1.0, 1.0, 2.0]


# ---------------------------------------------------------------------------------------- from draws

TOLERANCE = 0.25  # of a quantile of 300 draws, and then some


@pytest.mark.parametrize(
    ("prior", "center", "scale"),
    [
        (dist.LogNormal(real(2.0), real(0.5)), 2.0, 0.5),
        (dist.HalfCauchy(real(5.0)), math.log(5.0), 1.41),  # half the middle 68 % of log|Cauchy|
        (dist.Uniform(real(-2.0), real(6.0)), 0.0, 1.66),  # of the logistic distribution
        (dist.Cauchy(ZERO, ONE), 0.0, 1.82),  # real, but without moments
    ],
    ids=["LogNormal", "HalfCauchy", "Uniform", "Cauchy"],
)
def test_the_units_of_a_constrained_prior_are_those_of_its_unconstrained_draws(
    prior: Any, center: float, scale: float
) -> None:
    units = units_of_prior(prior)
    assert units.center.item() == pytest.approx(center, abs=TOLERANCE * scale)
    assert units.scale.item() == pytest.approx(scale, rel=TOLERANCE)


def test_a_site_that_depends_on_others_has_its_marginal_deviation() -> None:
    """The steps of a random walk add up: Var(state_t) = 1 + (t + 1) / 4."""
    units = units_of(random_walk, SIGNAL[:4])
    expected = torch.tensor([1.0, *((1 + (t + 1) / 4) ** 0.5 for t in range(4))], dtype=torch.float64)
    torch.testing.assert_close(units.scale, expected, rtol=TOLERANCE, atol=0)


def test_the_effects_of_a_hierarchy_are_as_wide_as_their_spread_makes_them() -> None:
    """theta = mu + tau eta with tau about 5: wider than mu's 5, and the same for all schools."""
    scales = units_of(eight_schools_centred, *SCHOOLS).scale[2:]
    assert bool(((scales > 6) & (scales < 15)).all())


def test_a_site_that_depends_on_others_is_drawn_in_a_model_that_cannot_be_batched() -> None:
    def model() -> None:
        location = pyro.sample("location", dist.Normal(ZERO, ONE))
        effect = pyro.sample("effect", dist.Normal(3 * location if location > 0 else location, real(0.1)))
        pyro.sample("obs", dist.Normal(effect, ONE), obs=ZERO)

    scale = units_of(model).scale[1].item()
    assert 0.9 < scale < 3.0  # 68 % of draws from -1 to 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_units_are_finite_and_positive_in_every_coordinate_of_every_model(case: Any) -> None:
    potential = BatchedPotential(case.model, *case.args, **case.kwargs)
    units = prior_units(potential)
    sound = units.center.isfinite() & units.scale.isfinite() & (units.scale > 0)
    assert sound.tolist() == [True] * potential.dim


def test_units_have_the_dtype_of_the_model() -> None:
    units = units_of(eight_schools_centred, *SCHOOLS)
    assert {units.center.dtype, units.scale.dtype} == {torch.float64}


def test_units_carry_no_autograd_graph_of_the_params() -> None:
    units = units_of(param_held_fixed, SIGNAL)
    assert [units.center.requires_grad, units.scale.requires_grad] == [False, False]


def test_the_same_seed_gives_the_same_units() -> None:
    def seeded() -> Tensor:
        pyro.set_rng_seed(3)
        return units_of(eight_schools_centred, *SCHOOLS).scale

    assert torch.equal(seeded(), seeded())


def test_validation_is_on_again_afterwards() -> None:
    with pyro.validation_enabled(True):
        units_of(eight_schools_centred, *SCHOOLS)
        assert dist.is_validation_enabled()


# ---------------------------------------------------------------------------------------- conversion


def test_the_centre_is_the_origin_in_prior_deviations() -> None:
    units = PriorUnits(real(1.0, 2.0), real(3.0, 4.0))
    assert units.z(units.center).tolist() == [0.0, 0.0]


def test_one_prior_deviation_is_one_unit() -> None:
    units = PriorUnits(real(1.0, 2.0), real(3.0, 4.0))
    assert units.theta(torch.ones(2, dtype=torch.float64)).tolist() == [4.0, 6.0]


def test_theta_undoes_z() -> None:
    units, theta = PriorUnits(real(1.0, 2.0), real(3.0, 4.0)), noise(5, 2)
    torch.testing.assert_close(units.theta(units.z(theta)), theta)
