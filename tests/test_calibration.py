"""Claims about calibration, on predictions whose figures are known."""

import math

import pytest
import torch
from torch import Tensor

from pyro_metricbnn import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson, calibration
from pyro_metricbnn.diagnostics.calibration import ClassCalibration, RealCalibration, reliability
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.predictions.prediction import Prediction


def prediction_of(f: Tensor, likelihood: Likelihood) -> Prediction:
    return Prediction(f=f, likelihood=likelihood, parameters={})


def of_classes(probs: Tensor, y: Tensor, num_bins: int = 15) -> ClassCalibration:
    figures = calibration(prediction_of(probs.log()[None], Categorical()), y, num_bins=num_bins)
    assert isinstance(figures, ClassCalibration)
    return figures


def of_numbers(f: Tensor, likelihood: Likelihood, y: Tensor) -> RealCalibration:
    figures = calibration(prediction_of(f, likelihood), y)
    assert isinstance(figures, RealCalibration)
    return figures


# --------------------------------------------------------------------------------------- of classes


def test_labels_drawn_from_the_probabilities_have_no_calibration_error() -> None:
    probs = torch.distributions.Dirichlet(torch.ones(3)).sample((50_000,))
    assert of_classes(probs, torch.distributions.Categorical(probs).sample()).ece < 0.01


def test_a_sure_prediction_that_is_right_half_the_time_has_an_error_of_a_half() -> None:
    sure = torch.tensor([[1.0, 0.0]]).repeat(10, 1)
    assert of_classes(sure + 1e-12, torch.arange(10) % 2).ece == pytest.approx(0.5, abs=1e-5)


def test_brier_accuracy_and_nll_are_those_computed_by_hand() -> None:
    figures = of_classes(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    assert figures.brier == pytest.approx((2 * 0.3**2 + 2 * 0.6**2) / 2)
    assert figures.accuracy == 0.5
    assert figures.nll == pytest.approx(-(math.log(0.7) + math.log(0.4)) / 2)


def test_the_reliability_curve_counts_every_input_once() -> None:
    curve = of_classes(
        torch.tensor([[0.55, 0.45], [0.95, 0.05], [0.97, 0.03]]), torch.tensor([0, 0, 1]), 10
    ).reliability
    assert curve.count.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    torch.testing.assert_close(curve.confidence[[5, 9]], torch.tensor([0.55, 0.96]))
    assert curve.accuracy[[5, 9]].tolist() == [1.0, 0.5]
    assert curve.accuracy[:5].isnan().all()


def test_a_confidence_of_one_is_in_the_last_bin() -> None:
    assert reliability(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).count[-1] == 1


@pytest.mark.parametrize("num_classes", [2, 7])
def test_the_calibration_error_is_torchmetrics(num_classes: int) -> None:
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    probs = torch.distributions.Dirichlet(torch.ones(num_classes)).sample((500,))
    y = torch.randint(num_classes, (500,))
    expected = theirs.multiclass_calibration_error(probs, y, num_classes=num_classes, n_bins=15)
    assert of_classes(probs, y).ece == pytest.approx(float(expected), abs=1e-6)


def test_a_bernoulli_has_the_figures_of_two_classes() -> None:
    logits, y = torch.randn(4, 30, 1), torch.randint(2, (30, 1))
    two = torch.cat([torch.zeros_like(logits), logits], -1)
    one = calibration(prediction_of(logits, Bernoulli()), y.float())
    other = calibration(prediction_of(two, Categorical()), y.squeeze(-1))
    assert isinstance(one, ClassCalibration)
    assert isinstance(other, ClassCalibration)
    assert (one.nll, one.brier, one.ece) == pytest.approx((other.nll, other.brier, other.ece), rel=1e-4)


# --------------------------------------------------------------------------------------- of numbers


def test_intervals_of_the_true_distribution_cover_what_they_say() -> None:
    f = torch.randn(5_000, 1)
    figures = of_numbers(f[None], Gaussian(0.5), f + 0.5 * torch.randn_like(f))
    assert figures.coverage == pytest.approx(figures.levels, abs=0.02)
    assert figures.rmse == pytest.approx(0.5, rel=0.03)


def test_intervals_of_one_normal_have_its_width() -> None:
    figures = of_numbers(torch.zeros(1, 3, 1), Gaussian(2.0), torch.zeros(3, 1))
    assert figures.width == pytest.approx([4 * z for z in (0.6745, 1.2816, 1.6449, 1.96)], rel=0.01)


def test_intervals_of_many_draws_that_agree_have_the_width_of_one() -> None:
    figures = of_numbers(torch.zeros(3000, 2, 1), Gaussian(2.0), torch.zeros(2, 1))
    assert figures.width == pytest.approx([4 * z for z in (0.6745, 1.2816, 1.6449, 1.96)], rel=0.01)


def test_draws_that_differ_make_intervals_wider() -> None:
    f = torch.randn(3000, 5, 1)
    figures = of_numbers(f, Gaussian(1.0), torch.zeros(5, 1))
    assert figures.width[0] == pytest.approx(2 * 0.6745 * math.sqrt(2), rel=0.05)


def test_crps_of_a_normal_at_its_mean_is_the_closed_form() -> None:
    figures = of_numbers(torch.zeros(1, 1, 1), Gaussian(1.0), torch.zeros(1, 1))
    assert figures.crps == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi), rel=0.01)


def test_nll_is_that_of_the_density() -> None:
    figures = of_numbers(torch.zeros(1, 2, 1), Gaussian(1.0), torch.tensor([[0.0], [1.0]]))
    assert figures.nll == pytest.approx(0.5 * math.log(2 * math.pi) + 0.25)


@pytest.mark.parametrize(("likelihood", "num_outputs"), [(HeteroscedasticGaussian(), 2), (Poisson(), 1)])
def test_other_likelihoods_of_numbers_have_figures(likelihood: Likelihood, num_outputs: int) -> None:
    prediction = prediction_of(torch.ones(300, 200, num_outputs), likelihood)
    figures = calibration(prediction, prediction.sample()[0])
    assert isinstance(figures, RealCalibration)
    assert figures.coverage[-1] > 0.9
    assert math.isfinite(figures.crps)


def test_y_without_its_last_dimension_is_the_same() -> None:
    f, y = torch.randn(5, 8, 1), torch.randn(8)
    assert of_numbers(f, Gaussian(0.3), y) == of_numbers(f, Gaussian(0.3), y[:, None])


def test_figures_print_in_one_line() -> None:
    assert "ECE" in str(of_classes(torch.tensor([[0.7, 0.3]]), torch.tensor([0])))
    assert "coverage 50%: 100.0%" in str(of_numbers(torch.zeros(1, 1, 1), Gaussian(1.0), torch.zeros(1, 1)))


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("settings", [{"num_bins": 0}, {"levels": ()}, {"levels": (0.5, 1.0)}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        calibration(prediction_of(torch.zeros(1, 2, 1), Gaussian(1.0)), torch.zeros(2, 1), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_that_are_no_class_are_refused(label: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        of_classes(torch.tensor([[0.7, 0.3]]), torch.tensor([label]))


def test_observations_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="1 entries that are not finite"):
        of_numbers(torch.zeros(1, 2, 1), Gaussian(1.0), torch.tensor([[0.0], [float("nan")]]))


def test_no_observations_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        of_numbers(torch.zeros(1, 0, 1), Gaussian(1.0), torch.zeros(0, 1))


def test_observations_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="y has shape"):
        of_numbers(torch.zeros(1, 2, 1), Gaussian(1.0), torch.zeros(3, 1))
