"""Claims about predictions made less sure by one factor that held-out rows ask for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_metricbnn import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.predictions import Prediction, fit_scale

NUM_ROWS = 4000


def sure_classes(times: float, num_draws: int = 1) -> tuple[Prediction, Tensor]:
    """Labels by logits of a model, and a prediction whose logits are so many times as large."""
    torch.manual_seed(0)
    f = torch.randn(NUM_ROWS, 5)
    y = torch.distributions.Categorical(logits=f).sample()
    return Prediction(f=times * f.expand(num_draws, NUM_ROWS, 5), likelihood=Categorical(), parameters={}), y


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_logits_that_are_too_large_are_divided_by_how_much(times: float) -> None:
    assert fit_scale(*sure_classes(times)) == pytest.approx(times, rel=0.1)


@pytest.mark.parametrize("told", [0.3, 2.0])
def test_a_noise_that_was_given_wrong_becomes_that_of_the_rows(told: float) -> None:
    torch.manual_seed(0)
    f = torch.zeros(1, NUM_ROWS, 1)
    scaled = Prediction(f=f, likelihood=Gaussian(told), parameters={}).scaled(
        fit_scale(Prediction(f=f, likelihood=Gaussian(told), parameters={}), torch.randn(NUM_ROWS, 1))
    )
    torch.testing.assert_close(scaled.noise_std, torch.ones(NUM_ROWS, 1), atol=0.05, rtol=0)


def test_an_inferred_noise_is_scaled_in_every_draw() -> None:
    prediction = Prediction(
        f=torch.zeros(2, 3, 1), likelihood=Gaussian(), parameters={"scale": torch.tensor([1.0, 2.0])}
    )
    torch.testing.assert_close(prediction.scaled(3.0).parameters["scale"], torch.tensor([3.0, 6.0]))


def test_a_bernoulli_keeps_its_choice_and_is_less_sure() -> None:
    prediction = Prediction(f=torch.tensor([[[2.0], [-4.0]]]), likelihood=Bernoulli(), parameters={})
    torch.testing.assert_close(prediction.scaled(2.0).mean, torch.tensor([[1.0], [-2.0]]).sigmoid())


def test_what_is_right_is_left_as_it_is() -> None:
    prediction, y = sure_classes(1.0)
    assert float(prediction.scaled(fit_scale(prediction, y)).log_prob(y).mean()) >= float(prediction.log_prob(y).mean())


def test_the_prediction_that_was_given_does_not_change() -> None:
    prediction, y = sure_classes(3.0, 2)
    before = prediction.f.clone()
    prediction.scaled(fit_scale(prediction, y))
    assert bool((prediction.f == before).all())


@pytest.mark.parametrize("likelihood", [Poisson(), HeteroscedasticGaussian()])
def test_a_likelihood_without_one_width_says_so(likelihood: Likelihood) -> None:
    with pytest.raises(ValueError, match="has no width to scale"):
        Prediction(f=torch.zeros(1, 3, 2), likelihood=likelihood, parameters={}).scaled(2.0)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_a_factor_that_is_not_positive_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="factor"):
        sure_classes(1.0)[0].scaled(factor)
