"""Claims about the flat vector: where each site is in it, and what does not fit."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam
from torch import Tensor

from pyro_metricbnn.model.sites import Sites, find_sites
from tests.models import (
    ONE,
    SCHOOLS,
    SIGNAL,
    ZERO,
    X,
    eight_schools_centred,
    eight_schools_non_centred,
    linear_regression,
    noise,
    normal_mean,
    real,
)


def sites_of(model: Any, *args: Any) -> Sites:
    return find_sites(model, args, {})[0]


@pytest.fixture
def regression() -> Sites:
    """weights (3,), bias (), scale () > 0."""
    return sites_of(linear_regression, X, SIGNAL)


# --------------------------------------------------------------------------------- what counts as one


def test_sites_stand_in_the_order_in_which_the_model_samples_them(regression: Sites) -> None:
    assert regression.names == ("weights", "bias", "scale")


def test_sites_follow_each_other_without_gaps(regression: Sites) -> None:
    assert [(site.start, site.stop) for site in regression.sites] == [(0, 3), (3, 4), (4, 5)]


def test_every_coordinate_knows_its_site(regression: Sites) -> None:
    assert [regression.at(index) for index in range(regression.dim)] == ["weights"] * 3 + ["bias", "scale"]


def test_observed_and_deterministic_sites_and_plates_are_not_latent() -> None:
    assert sites_of(eight_schools_non_centred, *SCHOOLS).names == ("mu", "tau", "eta")


def test_a_site_that_is_conditioned_on_is_not_latent() -> None:
    model = poutine.condition(eight_schools_centred, data={"tau": real(2.0)})
    assert sites_of(model, *SCHOOLS).names == ("mu", "theta")


def test_a_reparametrised_model_has_the_sites_of_its_new_form() -> None:
    model = poutine.reparam(eight_schools_centred, config={"theta": LocScaleReparam(0.0)})
    assert sites_of(model, *SCHOOLS).names == ("mu", "tau", "theta_decentered")


def test_a_plate_widens_the_sites_in_it() -> None:
    shapes = {site.name: tuple(site.shape) for site in sites_of(eight_schools_centred, *SCHOOLS).sites}
    assert shapes == {"mu": (), "tau": (), "theta": (8,)}


def test_a_support_with_fixed_tensor_bounds_is_taken() -> None:
    def model(low: Tensor, high: Tensor) -> None:
        x = pyro.sample("x", dist.Uniform(low, high).to_event(1))
        pyro.sample("obs", dist.Normal(x.sum(), ONE), obs=ZERO)

    values = sites_of(model, real(0.0, 5.0), real(1.0, 6.0)).unflatten(torch.zeros(2, dtype=torch.float64))
    assert values["x"].tolist() == [0.5, 5.5]


def test_a_look_at_the_sites_leaves_the_param_store_alone() -> None:
    sites_of(normal_mean, SIGNAL)
    assert list(pyro.get_param_store().keys()) == []


def test_the_dtype_is_that_of_the_latent_values(regression: Sites) -> None:
    assert regression.dtype == torch.float64


# ---------------------------------------------------------------------------------------- there and back


def test_unconstrained_values_go_back_to_the_same_theta(regression: Sites) -> None:
    theta = noise(5)
    assert torch.equal(regression.flatten_unconstrained(regression.unconstrained(theta)), theta)


def test_unflatten_puts_values_into_their_support(regression: Sites) -> None:
    theta = real(1.0, 2.0, 3.0, 4.0, -1.0)
    values = {name: value.tolist() for name, value in regression.unflatten(theta).items()}
    assert values == {"weights": [1.0, 2.0, 3.0], "bias": 4.0, "scale": pytest.approx(0.36787944117144233)}


def test_flatten_takes_plain_numbers(regression: Sites) -> None:
    theta = regression.flatten({"weights": [1.0, 2.0, 3.0], "bias": 4, "scale": 1})  # type: ignore[dict-item]
    assert theta.tolist() == [1.0, 2.0, 3.0, 4.0, 0.0]


def test_flatten_takes_values_in_any_order(regression: Sites) -> None:
    values = regression.unflatten(noise(5))
    torch.testing.assert_close(regression.flatten(dict(reversed(values.items()))), noise(5))


@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal(ZERO, ONE).expand([2]).to_event(1),
        dist.LogNormal(ZERO, ONE).expand([2, 2]).to_event(2),
        dist.Uniform(real(-1.0), real(4.0)).expand([3]).to_event(1),
        dist.Beta(ONE, ONE).expand([2]).to_event(1),
        dist.Gamma(ONE, ONE),
    ],
    ids=["real", "positive", "interval", "unit", "scalar"],
)
def test_the_jacobian_is_the_determinant_of_autograds(prior: Any) -> None:
    def model() -> None:
        pyro.sample("x", prior)

    sites = sites_of(model)
    theta = noise(sites.dim)
    matrix = torch.autograd.functional.jacobian(lambda t: sites.unflatten(t)["x"].reshape(-1), theta)
    torch.testing.assert_close(sites.constrain(theta)[1], torch.linalg.slogdet(matrix)[1])


# ---------------------------------------------------------------------------------- what does not fit


def test_values_that_leave_a_site_out_are_refused_by_name(regression: Sites) -> None:
    with pytest.raises(ValueError, match=r"missing \['bias', 'scale'\]"):
        regression.flatten({"weights": noise(3)})


def test_values_of_an_unknown_site_are_refused_by_name(regression: Sites) -> None:
    values = regression.unflatten(noise(5))
    with pytest.raises(ValueError, match=r"unknown \['slope'\]"):
        regression.flatten({**values, "slope": ONE})


@pytest.mark.parametrize("shape", [(4,), (), (3, 2)])
def test_a_value_of_another_shape_is_refused_with_both_shapes(regression: Sites, shape: tuple[int, ...]) -> None:
    values = {**regression.unflatten(noise(5)), "weights": noise(*shape)}
    with pytest.raises(ValueError, match=r"'weights' has shape .* the model's has \(3,\)"):
        regression.flatten(values)


def test_values_with_different_batches_are_refused(regression: Sites) -> None:
    values = {**regression.unflatten(noise(2, 5)), "bias": noise(3)}
    with pytest.raises(ValueError, match="bias"):
        regression.flatten(values)


@pytest.mark.parametrize("shape", [(4,), (6,), (5, 1), ()])
def test_a_theta_with_another_number_of_coordinates_is_refused(regression: Sites, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"has 5 unconstrained coordinates: pass \(\.\.\., 5\)"):
        regression.unflatten(noise(*shape))
