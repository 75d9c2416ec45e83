"""Each likelihood against the formula that torch has for it, and what it says about targets that do not fit."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pyro_metricbnn import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, NoisyCategorical, Poisson
from pyro_metricbnn.model.likelihoods import Likelihood
from tests.models import noise, real

F1, F3, F2x2 = noise(6, 1), noise(6, 3), noise(6, 2, 2)  # outputs of networks for six inputs
CLASSES = torch.arange(6) % 3
BITS = (noise(6, 1, seed=4) > 0).double()
COUNTS = (3 * noise(6, 1, seed=5)).abs().round()
HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


def log_prob(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    return likelihood.distribution(f).log_prob(likelihood.targets(f, y))


def gaussian_log_prob(mean: Tensor, scale: Tensor | float, y: Tensor) -> Tensor:
    """By hand, summed over all but the first dimension."""
    scale = torch.as_tensor(scale, dtype=mean.dtype)
    density = -0.5 * ((y - mean) / scale) ** 2 - scale.log() - HALF_LOG_2_PI
    return density.reshape(len(mean), -1).sum(-1)


# ------------------------------------------------------------------------------------- log densities


@pytest.mark.parametrize("f", [F1, F3, F2x2, F1[:, 0]], ids=["one", "three", "matrix", "none"])
def test_gaussian_is_the_normal_density_summed_over_outputs(f: Tensor) -> None:
    y = noise(*f.shape, seed=9)
    torch.testing.assert_close(log_prob(Gaussian(0.3), f, y), gaussian_log_prob(f, 0.3, y))


def test_gaussian_takes_a_scale_for_each_output() -> None:
    scales, y = real(0.1, 1.0, 3.0), noise(6, 3, seed=9)
    torch.testing.assert_close(log_prob(Gaussian(scales), F3, y), gaussian_log_prob(F3, scales, y))


def test_heteroscedastic_gaussian_reads_means_then_raw_scales() -> None:
    f, y = noise(6, 4), noise(6, 2, seed=9)
    expected = gaussian_log_prob(f[:, :2], F.softplus(f[:, 2:]) + 1e-4, y)
    torch.testing.assert_close(log_prob(HeteroscedasticGaussian(), f, y), expected)


def test_heteroscedastic_gaussian_has_a_bounded_density_where_the_scale_vanishes() -> None:
    f = torch.tensor([[0.0, -1000.0]], dtype=torch.float64)
    largest = -math.log(1e-4) - HALF_LOG_2_PI
    torch.testing.assert_close(log_prob(HeteroscedasticGaussian(), f, torch.zeros(1, 1)), real(largest)[None])


def test_categorical_is_minus_the_cross_entropy() -> None:
    expected = -F.cross_entropy(F3, CLASSES, reduction="none")
    torch.testing.assert_close(log_prob(Categorical(), F3, CLASSES), expected)


def test_bernoulli_is_minus_the_binary_cross_entropy() -> None:
    expected = -F.binary_cross_entropy_with_logits(F1, BITS, reduction="none").sum(-1)
    torch.testing.assert_close(log_prob(Bernoulli(), F1, BITS), expected)


def test_poisson_is_minus_the_poisson_loss() -> None:
    loss = F.poisson_nll_loss(F1, COUNTS, log_input=True, reduction="none") + torch.lgamma(COUNTS + 1)
    torch.testing.assert_close(log_prob(Poisson(), F1, COUNTS), -loss.sum(-1))


@pytest.mark.parametrize(
    ("likelihood", "f"),
    [
        (Gaussian(1.0), F1),
        (Gaussian(1.0), F2x2),
        (Gaussian(1.0), F1[:, 0]),
        (HeteroscedasticGaussian(), noise(6, 2)),
        (Categorical(), F3),
        (NoisyCategorical(0.2), F3),
        (Bernoulli(), F1),
        (Poisson(), F1),
    ],
)
def test_a_likelihood_has_one_density_for_each_input(likelihood: Likelihood, f: Tensor) -> None:
    assert likelihood.distribution(f).batch_shape == (6,)


@pytest.mark.parametrize("likelihood", [Gaussian(0.5), HeteroscedasticGaussian(), Bernoulli(), Poisson()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_density_has_the_dtype_of_the_outputs(likelihood: Likelihood, dtype: torch.dtype) -> None:
    f = torch.zeros(6, 2, dtype=dtype)
    y = torch.ones(6, 1 if isinstance(likelihood, HeteroscedasticGaussian) else 2)
    assert log_prob(likelihood, f, y).dtype == dtype


def test_only_a_gaussian_with_a_prior_on_its_scale_has_a_parameter() -> None:
    likelihoods = [Gaussian(1.0), HeteroscedasticGaussian(), Categorical(), Bernoulli(), Poisson()]
    named = {name for likelihood in likelihoods for name in likelihood.parameters(F1)}
    assert (named, set(Gaussian(dist.HalfNormal(1.0)).parameters(F1))) == (set(), {"scale"})


def test_a_sampled_scale_is_the_one_of_the_density() -> None:
    density = Gaussian(dist.HalfNormal(1.0)).distribution(F1, scale=torch.tensor(0.2))
    torch.testing.assert_close(density.log_prob(F1 + 1), gaussian_log_prob(F1, float(torch.tensor(0.2)), F1 + 1))


# -------------------------------------------------------------------------------- what is said of them


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), HeteroscedasticGaussian(), Bernoulli(), Poisson()])
def test_moments_are_those_of_the_distribution(likelihood: Likelihood) -> None:
    f = noise(6, 2)
    mean, variance = likelihood.moments(f)
    torch.testing.assert_close((mean, variance), (likelihood.distribution(f).mean, likelihood.distribution(f).variance))


def test_moments_of_classes_are_their_probabilities_and_how_they_scatter() -> None:
    probs = F3.softmax(-1)
    torch.testing.assert_close(Categorical().moments(F3), (probs, probs - probs**2))


@pytest.mark.parametrize(("likelihood", "f", "shape"), [(Categorical(), F3, (6, 3)), (Bernoulli(), F2x2, (6, 2, 2, 2))])
def test_probabilities_of_all_classes_sum_to_one(likelihood: Likelihood, f: Tensor, shape: tuple[int, ...]) -> None:
    probs = likelihood.class_probs(f)
    assert probs.shape == shape
    torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]))


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), HeteroscedasticGaussian(), Poisson()])
def test_numbers_have_no_class_probabilities(likelihood: Likelihood) -> None:
    assert likelihood.observes == "numbers"
    with pytest.raises(ValueError, match="for classes"):
        likelihood.class_probs(F1)


def test_what_is_identified_of_logits_does_not_change_with_a_shift_of_all() -> None:
    seen = Categorical().identified(F3)
    torch.testing.assert_close(Categorical().identified(F3 + F1), seen)
    torch.testing.assert_close(Categorical().class_probs(seen), Categorical().class_probs(F3))


# ------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Bernoulli(), Poisson()])
def test_targets_of_shape_n_are_taken_for_outputs_of_shape_n_1(likelihood: Likelihood) -> None:
    y = BITS
    assert torch.equal(log_prob(likelihood, F1, y[:, 0]), log_prob(likelihood, F1, y))


def test_targets_of_shape_n_1_are_taken_for_outputs_of_shape_n() -> None:
    assert torch.equal(log_prob(Gaussian(0.3), F1[:, 0], BITS), log_prob(Gaussian(0.3), F1[:, 0], BITS[:, 0]))


def test_heteroscedastic_targets_of_shape_n_are_taken_for_two_outputs() -> None:
    f, y = noise(6, 2), noise(6, seed=9)
    assert torch.equal(log_prob(HeteroscedasticGaussian(), f, y), log_prob(HeteroscedasticGaussian(), f, y[:, None]))


def test_class_numbers_in_a_column_are_taken() -> None:
    assert torch.equal(log_prob(Categorical(), F3, CLASSES[:, None]), log_prob(Categorical(), F3, CLASSES))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
def test_class_numbers_of_any_whole_type_are_taken(dtype: torch.dtype) -> None:
    y = (torch.arange(6) % 2).to(dtype)
    assert torch.equal(log_prob(Categorical(), F3, y), log_prob(Categorical(), F3, y.long()))


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Bernoulli(), Poisson()])
def test_whole_numbers_are_taken_as_targets(likelihood: Likelihood) -> None:
    assert torch.equal(log_prob(likelihood, F1, BITS.long()), log_prob(likelihood, F1, BITS))


@pytest.mark.parametrize(
    ("likelihood", "f"), [(Gaussian(0.3), F1), (Bernoulli(), F1), (Poisson(), F1), (HeteroscedasticGaussian(), F2x2)]
)
@pytest.mark.parametrize("shape", [(5,), (5, 1), (6, 7), (7, 1), ()])
def test_targets_that_do_not_fit_are_refused_with_both_shapes(
    likelihood: Likelihood, f: Tensor, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"y has shape .*, but the network's output has \(6, "):
        likelihood.targets(f, torch.zeros(shape))


def test_targets_that_do_not_fit_are_refused_with_the_shape_to_pass() -> None:
    with pytest.raises(ValueError, match=r"Pass y of shape \(6, 1\)"):
        Gaussian(0.3).targets(F1, torch.zeros(5))


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Categorical()])
@pytest.mark.parametrize("y", [[0.0] * 6, torch.zeros(6).numpy()], ids=["list", "array"])
def test_targets_that_are_no_tensor_are_refused(likelihood: Likelihood, y: Any) -> None:
    with pytest.raises(ValueError, match="tensor"):
        likelihood.targets(noise(6, 2), y)


def test_one_hot_classes_are_refused_with_the_form_to_pass() -> None:
    with pytest.raises(ValueError, match="class numbers, not one-hot"):
        Categorical().targets(F3, F.one_hot(CLASSES))


def test_classes_as_real_numbers_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"y\.long\(\)"):
        Categorical().targets(F3, CLASSES.double())


@pytest.mark.parametrize("f", [F1, F1[:, 0]])
def test_a_single_logit_is_refused_by_categorical_with_what_to_do(f: Tensor) -> None:
    with pytest.raises(ValueError, match=r"use Bernoulli\(\)"):
        Categorical().targets(f, CLASSES)


@pytest.mark.parametrize("likelihood", [Categorical(), NoisyCategorical(0.2), Bernoulli(), Poisson()])
def test_targets_outside_the_support_are_refused(likelihood: Likelihood) -> None:
    f = F3 if isinstance(likelihood, Categorical) else F1
    with pytest.raises(ValueError, match=r"-1|support|from 0"):
        log_prob(likelihood, f, torch.full((6,), -1))


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_odd_number_of_outputs_is_refused_by_the_heteroscedastic_density(outputs: int) -> None:
    with pytest.raises(ValueError, match="two outputs a target"):
        HeteroscedasticGaussian().distribution(noise(6, outputs))


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_odd_number_of_outputs_is_said_before_anything_about_targets(outputs: int) -> None:
    with pytest.raises(ValueError, match="two outputs a target"):
        HeteroscedasticGaussian().targets(noise(6, outputs), noise(6))


# ------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, -1.0]), "wide"], ids=str)
def test_a_noise_scale_that_is_no_positive_number_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match="scale must be positive"):
        Gaussian(scale)


@pytest.mark.parametrize("shape", [(5,), (6,), (6, 3)])
def test_a_noise_scale_that_would_widen_the_output_is_refused(shape: tuple[int, ...]) -> None:
    """(6,) against outputs (6, 1) would broadcast to 36 densities."""
    with pytest.raises(ValueError, match="scale"):
        Gaussian(torch.ones(shape)).distribution(F1)


@pytest.mark.parametrize("floor", [-1.0, float("nan")])
def test_a_floor_below_zero_is_refused(floor: float) -> None:
    with pytest.raises(ValueError, match="floor"):
        HeteroscedasticGaussian(floor)


def test_likelihoods_with_the_same_settings_are_equal() -> None:
    assert (Gaussian(0.3), Categorical()) == (Gaussian(0.3), Categorical())
    assert NoisyCategorical(0.3) == NoisyCategorical(0.3) != NoisyCategorical()
