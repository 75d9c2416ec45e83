"""Claims about agreement with a reference, on predictions whose distances are known."""

import pytest
import torch
from torch import Tensor

from pyro_metricbnn import Bernoulli, Categorical, Gaussian, Poisson, agreement
from pyro_metricbnn.diagnostics.agreement import ClassAgreement, RealAgreement, total_variation, wasserstein
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.predictions.prediction import Prediction


def prediction_of(f: Tensor, likelihood: Likelihood) -> Prediction:
    return Prediction(f=f, likelihood=likelihood, parameters={})


def of_classes(p: list[list[float]], q: list[list[float]]) -> ClassAgreement:
    figures = agreement(*(prediction_of(torch.tensor(probs).log()[None], Categorical()) for probs in (p, q)))
    assert isinstance(figures, ClassAgreement)
    return figures


def of_numbers(f: Tensor, g: Tensor, likelihood: Likelihood | None = None) -> RealAgreement:
    figures = agreement(*(prediction_of(one, likelihood or Gaussian(0.5)) for one in (f, g)))
    assert isinstance(figures, RealAgreement)
    return figures


def test_total_variation_of_known_probabilities_is_half_their_difference() -> None:
    figures = of_classes([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    assert figures.total_variation == pytest.approx(0.15)


def test_opposite_sure_predictions_are_one_apart() -> None:
    assert total_variation(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])) == 1.0


def test_top_1_counts_the_inputs_with_the_same_likeliest_class() -> None:
    figures = of_classes(
        [[0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.1, 0.9]], [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]]
    )
    assert figures.top_1 == 0.75


def test_probabilities_are_averaged_over_draws_before_they_are_compared() -> None:
    draws = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]).log()
    mean = torch.tensor([[[0.5, 0.5]]]).log()
    figures = agreement(prediction_of(draws, Categorical()), prediction_of(mean, Categorical()))
    assert isinstance(figures, ClassAgreement)
    assert figures.total_variation == pytest.approx(0.0, abs=1e-6)


def test_a_bernoullis_total_variation_is_the_difference_of_its_probability() -> None:
    p, q = (torch.tensor([[[value]]]).logit() for value in (0.3, 0.8))
    figures = agreement(prediction_of(p, Bernoulli()), prediction_of(q, Bernoulli()))
    assert isinstance(figures, ClassAgreement)
    assert figures.total_variation == pytest.approx(0.5)


def test_normals_with_shifted_means_are_the_shift_apart() -> None:
    f = torch.randn(100, 4, 1)
    figures = of_numbers(f, f + 0.7)
    assert figures.wasserstein == pytest.approx(0.7, rel=1e-4)
    assert figures.wasserstein_f == pytest.approx(0.7, rel=1e-4)


def test_normals_of_different_scales_are_apart_by_the_closed_form() -> None:
    a, b = (torch.distributions.Normal(0.0, scale).sample((50_000, 1)) for scale in (1.0, 2.0))
    assert float(wasserstein(a, b)) == pytest.approx((2 / torch.pi) ** 0.5, rel=0.03)


def test_noise_hides_differences_of_the_function() -> None:
    f = torch.linspace(-1, 1, 101)[:, None, None]
    figures = of_numbers(f, -0.5 * f, Gaussian(5.0))
    assert figures.wasserstein < 0.2 * figures.wasserstein_f


def test_the_number_of_draws_may_differ() -> None:
    f = torch.randn(4000, 3, 1)
    assert of_numbers(f, f[::2]).wasserstein < 0.05


def test_counts_are_compared_too() -> None:
    figures = of_numbers(torch.zeros(4000, 2, 1), torch.full((4000, 2, 1), 2.0).log(), Poisson())
    assert figures.wasserstein == pytest.approx(1.0, abs=0.1)


def test_predictions_of_different_things_are_refused() -> None:
    with pytest.raises(ValueError, match="likelihood is Gaussian, the reference's Poisson"):
        agreement(prediction_of(torch.zeros(3, 2, 1), Gaussian(0.5)), prediction_of(torch.zeros(3, 2, 1), Poisson()))


def test_predictions_at_different_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="same inputs"):
        of_numbers(torch.zeros(3, 2, 1), torch.zeros(3, 4, 1))


def test_figures_print_in_one_line() -> None:
    assert str(of_classes([[0.5, 0.5]], [[0.5, 0.5]])) == "top-1 agreement 1.000, total variation 0"
    assert str(of_numbers(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))).startswith("Wasserstein distance 1,")
