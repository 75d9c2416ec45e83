"""Claims about predictions for all draws at once."""

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_metricbnn import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    MetricBNN,
    Poisson,
    bayesianize,
    calibration,
    predict,
)
from pyro_metricbnn.model.likelihoods import Likelihood

from .runs import X, Y

LIKELIHOODS: list[tuple[Likelihood, int]] = [
    (Gaussian(0.3), 1),
    (Gaussian(torch.linspace(0.1, 1, 40)[:, None]), 1),
    (Gaussian(dist.LogNormal(0.0, 1.0)), 2),
    (HeteroscedasticGaussian(), 2),
    (Categorical(), 3),
    (Bernoulli(), 1),
    (Poisson(), 1),
]


def drawn(likelihood: Likelihood, num_outputs: int) -> tuple[Any, dict[str, Tensor]]:
    """A model, and draws that are not its posterior's."""
    model = bayesianize(nn.Linear(1, num_outputs), likelihood)
    samples = {name: 0.3 * torch.randn(20, *model.net.get_parameter(name).shape) for name in model.names}
    if isinstance(getattr(likelihood, "scale", None), dist.Distribution):
        samples["scale"] = torch.rand(20) + 0.1
    return model, samples


def one_by_one(model: Any, samples: dict[str, Tensor], f: Tensor) -> list[Any]:
    """The distribution of the observations under each draw."""
    own = {name: value for name, value in samples.items() if name not in model.names}
    return [
        model.likelihood.distribution(row, **{name: value[s] for name, value in own.items()}) for s, row in enumerate(f)
    ]


def test_predictions_are_those_of_stock_predictive_on_the_same_draws(metric: MetricBNN) -> None:
    samples = metric.draw(8)
    theirs = Predictive(metric.model, posterior_samples=samples, return_sites=["f"])(X)["f"]
    torch.testing.assert_close(predict(metric.model, samples, X).f, theirs)  # type: ignore[arg-type]


def test_chunks_of_rows_give_the_same_predictions(metric: MetricBNN) -> None:
    samples = metric.draw(8)
    whole, parts = (predict(metric.model, samples, X, chunk_size=c) for c in (None, 3))  # type: ignore[arg-type]
    torch.testing.assert_close(whole.f, parts.f)


def test_the_deviation_splits_into_noise_and_model(metric: MetricBNN) -> None:
    prediction = metric.predict(X, num_samples=50)
    torch.testing.assert_close(prediction.noise_std, torch.full((40, 1), 0.3))
    torch.testing.assert_close(prediction.std**2, prediction.noise_std**2 + prediction.model_std**2)
    torch.testing.assert_close(prediction.model_std, prediction.f.std(0, correction=0))


def test_log_prob_averages_densities_before_the_logarithm(metric: MetricBNN) -> None:
    prediction = metric.predict(X, num_samples=30)
    each = dist.Normal(prediction.f, 0.3).log_prob(Y).squeeze(-1)
    torch.testing.assert_close(prediction.log_prob(Y), each.exp().mean(0).log(), atol=1e-4, rtol=1e-4)


def test_observations_in_an_array_have_the_log_prob_and_the_calibration_of_a_tensors(metric: MetricBNN) -> None:
    prediction = metric.predict(X, num_samples=20)
    torch.testing.assert_close(prediction.log_prob(Y.numpy()), prediction.log_prob(Y))
    assert calibration(prediction, Y.numpy()).nll == calibration(prediction, Y).nll


def test_quantiles_cover_what_they_say(metric: MetricBNN) -> None:
    prediction = metric.predict(X, num_samples=400)
    low, high = prediction.quantile(0.05), prediction.quantile(0.95)
    inside = (prediction.sample() > low) & (prediction.sample() < high)
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(("likelihood", "num_outputs"), [(Categorical(), 3), (Bernoulli(), 1)])
def test_class_predictions_have_probabilities_and_information(likelihood: Any, num_outputs: int) -> None:
    model = bayesianize(nn.Linear(1, num_outputs), likelihood)
    samples = {name: torch.randn(20, *model.net.get_parameter(name).shape) for name in model.names}
    prediction = predict(model, samples, X)
    assert ((prediction.probs >= 0) & (prediction.probs <= 1)).all()
    assert (prediction.entropy >= prediction.mutual_information).all()
    assert (prediction.mutual_information >= -1e-6).all()


def test_predictions_need_a_network(groups: MetricBNN) -> None:
    with pytest.raises(ValueError, match=r"pyro.infer.Predictive"):
        groups.predict(X)


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_moments_and_densities_are_those_of_the_draws_one_by_one(likelihood: Likelihood, num_outputs: int) -> None:
    model, samples = drawn(likelihood, num_outputs)
    prediction = predict(model, samples, X)
    each = one_by_one(model, samples, prediction.f)
    y = each[0].sample()
    log_prob = torch.stack([d.log_prob(y) for d in each]).exp().mean(0).log()
    torch.testing.assert_close(prediction.log_prob(y), log_prob, atol=1e-5, rtol=1e-5)
    if not isinstance(likelihood, Categorical):
        torch.testing.assert_close(prediction.mean, torch.stack([d.mean for d in each]).mean(0))
        torch.testing.assert_close(prediction.noise_std, torch.stack([d.variance for d in each]).mean(0).sqrt())


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_outputs_are_those_of_stock_predictive_for_every_likelihood(likelihood: Likelihood, num_outputs: int) -> None:
    model, samples = drawn(likelihood, num_outputs)
    theirs = Predictive(model, posterior_samples=samples, return_sites=["f"])(X)["f"]
    torch.testing.assert_close(predict(model, samples, X).f, theirs)


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_new_observations_scatter_as_stock_predictives_do(likelihood: Likelihood, num_outputs: int) -> None:
    model, samples = drawn(likelihood, num_outputs)
    many = {name: value.repeat(100, *[1] * (value.dim() - 1)) for name, value in samples.items()}
    theirs = Predictive(model, posterior_samples=many, return_sites=["obs"])(X)["obs"].double()
    ours = predict(model, many, X).sample().double()
    assert ours.shape == theirs.shape
    error = (theirs.var(0) / len(theirs)).sqrt().clamp_min(1e-3)
    assert float(((ours.mean(0) - theirs.mean(0)).abs() / error).max()) < 6.5


def test_draws_differ_in_what_they_observe() -> None:
    model, samples = drawn(Gaussian(0.3), 1)
    same = {name: value[:1].expand_as(value) for name, value in samples.items()}
    assert float(predict(model, same, X).sample().std(0).mean()) == pytest.approx(0.3, abs=0.05)


def test_a_likelihood_without_batching_rules_is_predicted_draw_by_draw() -> None:
    class Odd(Gaussian):
        def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
            return super().distribution(f + float(f.sum()) * 0)  # a number of a batched tensor: vmap refuses

    model, samples = drawn(Odd(0.3), 1)
    prediction = predict(model, samples, X)
    torch.testing.assert_close(prediction.mean, prediction.f.mean(0))
    assert prediction.sample().shape == (20, 40, 1)


def test_predictions_of_several_inputs_are_chunked_together() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.linear(a + b)

    model = bayesianize(Sum(), Gaussian(0.3))
    samples = {name: torch.randn(4, *model.net.get_parameter(name).shape) for name in model.names}
    whole, parts = (predict(model, samples, (X, Y), chunk_size=c).f for c in (None, 7))
    torch.testing.assert_close(whole, parts)


def test_samples_that_lack_a_site_are_refused() -> None:
    model, samples = drawn(Gaussian(0.3), 1)
    del samples["bias"]
    with pytest.raises(ValueError, match="lack the site 'bias'"):
        predict(model, samples, X)


@pytest.mark.parametrize("chunk_size", [0, -3])
def test_chunks_without_rows_are_refused(chunk_size: int) -> None:
    model, samples = drawn(Gaussian(0.3), 1)
    with pytest.raises(ValueError, match="chunk_size"):
        predict(model, samples, X, chunk_size=chunk_size)


def test_probabilities_of_a_regression_are_refused() -> None:
    model, samples = drawn(Gaussian(0.3), 1)
    with pytest.raises(ValueError, match="probs are for classes"):
        predict(model, samples, X).probs  # noqa: B018


@pytest.mark.parametrize(
    ("likelihood", "num_outputs", "said"),
    [
        (Gaussian(0.3), 1, "Prediction(20 draws at 40 inputs, Gaussian(scale=0.3))"),
        (Gaussian(torch.linspace(0.1, 1, 40)[:, None]), 1, "Prediction(20 draws at 40 inputs, Gaussian(...))"),
    ],
)
def test_a_prediction_prints_in_one_line(likelihood: Likelihood, num_outputs: int, said: str) -> None:
    assert repr(predict(*drawn(likelihood, num_outputs), X)) == said


def test_entropies_of_a_regression_are_refused() -> None:
    with pytest.raises(ValueError, match="entropies are for classes; Gaussian has none"):
        predict(*drawn(Gaussian(0.3), 1), X).entropy  # noqa: B018


def test_a_likelihood_needs_a_distribution_alone() -> None:
    class Laplace(Likelihood):
        def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
            return dist.Laplace(f, 0.5).to_event(1)

    prediction = predict(*drawn(Laplace(), 1), X)
    torch.testing.assert_close(prediction.mean, prediction.f.mean(0))
    torch.testing.assert_close(prediction.noise_std, torch.full((40, 1), 0.5**0.5))
    assert prediction.points(100).shape == (100, 40, 1)
    assert prediction.log_prob(Y).shape == (40,)
