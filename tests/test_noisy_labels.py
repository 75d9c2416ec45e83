"""Claims about labels of which a part is random: the mixture's density, what is inferred, and what is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_metricbnn import (
    BatchedPotential,
    Categorical,
    Gaussian,
    MetricBNN,
    NoisyCategorical,
    bayesianize,
    calibration,
    compare,
    health,
    predict,
    to_arviz,
)
from pyro_metricbnn.predictions import Prediction
from tests.models import noise, real

F3, CLASSES = noise(6, 3), torch.arange(6) % 3
RATE = 0.4  # of two classes' labels a fifth is then wrong


def labelled(num_rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of two classes that lie apart, labels of which a part is random, and the right ones."""
    own = torch.Generator().manual_seed(seed)
    clean = torch.randint(2, (num_rows,), generator=own)
    x = torch.randn(num_rows, 8, generator=own)
    x[:, 0] += 3.0 * (2 * clean - 1)
    coin = torch.randint(2, (num_rows,), generator=own)
    return x, torch.where(torch.rand(num_rows, generator=own) < RATE, coin, clean), clean


X, Y, _ = labelled(200, 1)
X_TEST, Y_TEST, CLEAN_TEST = labelled(1000, 2)


def overfitted() -> nn.Module:
    """A network that knows its labels, right or wrong, by heart."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(500):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
    return net


def run(likelihood: Categorical) -> MetricBNN:
    pyro.set_rng_seed(0)
    return MetricBNN(bayesianize(overfitted(), likelihood)).run(X, Y, progress=False)


@pytest.fixture(scope="module")
def noisy() -> MetricBNN:
    return run(NoisyCategorical())


@pytest.fixture(scope="module")
def sure() -> MetricBNN:
    return run(Categorical())


# ------------------------------------------------------------------------------------------- density


def test_the_density_is_that_of_the_mixture() -> None:
    found = NoisyCategorical(0.3).distribution(F3).log_prob(CLASSES).exp()
    torch.testing.assert_close(found, 0.7 * F3.softmax(-1).gather(-1, CLASSES[:, None])[:, 0] + 0.1)


def test_an_inferred_rate_is_the_one_of_the_density() -> None:
    given, inferred = NoisyCategorical(0.3), NoisyCategorical()
    found = inferred.distribution(F3, label_noise=real(0.3)).log_prob(CLASSES)
    torch.testing.assert_close(found, given.distribution(F3).log_prob(CLASSES))


@pytest.mark.parametrize("rate", [0.0, 1e-9, 0.3, 0.999])
def test_the_probabilities_of_all_labels_sum_to_one(rate: float) -> None:
    torch.testing.assert_close(NoisyCategorical(rate).class_probs(F3).sum(-1), torch.ones_like(F3[:, 0]))


def test_a_rate_of_nothing_is_the_density_of_clean_labels() -> None:
    clean, none = Categorical().distribution(F3), NoisyCategorical(0).distribution(F3)
    torch.testing.assert_close(none.log_prob(CLASSES), clean.log_prob(CLASSES))


@pytest.mark.parametrize("size", [1e4, 1e30])
@pytest.mark.parametrize("rate", [0, 1e-30, 0.3, 1 - 1e-6])
def test_extreme_logits_have_finite_densities_and_gradients(rate: float, size: float) -> None:
    f = (size * F3.float()).requires_grad_()
    density = NoisyCategorical(rate).distribution(f).log_prob(CLASSES)
    density.sum().backward()
    assert f.grad is not None
    assert density.isfinite().all()
    assert f.grad.isfinite().all()


@pytest.mark.parametrize("far", [-200.0, 200.0])
def test_a_rate_at_either_end_has_a_finite_energy_and_gradient(far: float) -> None:
    model = bayesianize(nn.Linear(8, 2), NoisyCategorical())
    potential = BatchedPotential(model, X, Y)
    theta = torch.full((1, potential.dim), far)
    energy, grad = potential.value_and_grad(theta)
    assert energy.isfinite().all()
    assert grad.isfinite().all()


def test_a_label_that_no_logit_explains_costs_no_more_than_a_random_one() -> None:
    f = torch.tensor([[1000.0, 0.0]])
    assert float(NoisyCategorical(0.1).distribution(f).log_prob(torch.tensor([1]))) == pytest.approx(-2.9957, abs=1e-4)


# ------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    "rate", [-0.1, 1, 1.5, float("nan"), float("inf"), "some", True, [0.1], torch.ones(2)], ids=str
)
def test_a_rate_that_is_no_part_is_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match=r"rate must .*the part of the labels that are random"):
        NoisyCategorical(rate)


@pytest.mark.parametrize("prior", [dist.HalfNormal(1.0), dist.Uniform(0.0, 2.0), dist.Normal(0.1, 0.01)])
def test_a_prior_that_reaches_beyond_a_part_is_refused(prior: Any) -> None:
    with pytest.raises(ValueError, match="not all from 0 to 1"):
        NoisyCategorical(prior)


def test_a_prior_of_several_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="one rate for all labels"):
        NoisyCategorical(dist.Beta(torch.ones(3), 9.0))


def test_only_a_rate_that_is_inferred_is_a_site() -> None:
    likelihoods = [NoisyCategorical(), NoisyCategorical(dist.Uniform(0.0, 0.5)), NoisyCategorical(0.2)]
    sites = [BatchedPotential(bayesianize(nn.Linear(8, 2), one), X, Y).sites.names for one in likelihoods]
    assert ["label_noise" in names for names in sites] == [True, True, False]


def test_the_rates_name_is_not_for_weights() -> None:
    net = nn.Linear(2, 2)
    net.label_noise = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="needs for itself"):
        bayesianize(net, Categorical())


def test_outputs_of_a_softmax_are_refused() -> None:
    model = bayesianize(nn.Sequential(nn.Linear(8, 2), nn.Softmax(-1)), NoisyCategorical())
    with pytest.raises(ValueError, match="softmax, and NoisyCategorical reads logits"):
        MetricBNN(model).run(X, Y, progress=False)


def test_samples_without_the_rate_are_refused_with_what_to_pass() -> None:
    model = bayesianize(nn.Linear(8, 2), NoisyCategorical())
    weights = {name: value[None] for name, value in model.trained_params.items()}
    with pytest.raises(ValueError, match="'label_noise' is missing"):
        predict(model, weights, X).log_prob(Y)


# ----------------------------------------------------------------------------------------- the rate


@pytest.mark.parametrize("prior", [None, dist.Uniform(0.0, 0.9)])
def test_the_fitted_rate_is_that_of_the_labels_where_the_logits_are_right(prior: Any) -> None:
    _, y, clean = labelled(5000, 3)
    fitted = NoisyCategorical(prior).fitted(20.0 * F.one_hot(clean).float(), y)
    assert float(fitted["label_noise"]) == pytest.approx(RATE, abs=0.03)


def test_the_fitted_rate_is_within_its_prior() -> None:
    _, y, clean = labelled(500, 3)
    fitted = NoisyCategorical(dist.Uniform(0.0, 0.1)).fitted(20.0 * F.one_hot(clean).float(), y)
    assert 0 < float(fitted["label_noise"]) < 0.1


def test_the_inferred_rate_is_near_the_truth(noisy: MetricBNN) -> None:
    assert float(noisy.get_samples()["label_noise"].mean()) == pytest.approx(RATE, abs=0.12)


def test_new_labels_are_predicted_better_than_by_taking_labels_as_right(noisy: MetricBNN, sure: MetricBNN) -> None:
    pyro.set_rng_seed(0)
    with_noise, without = noisy.predict(X_TEST, 300), sure.predict(X_TEST, 300)
    assert float(with_noise.log_prob(Y_TEST).mean()) > float(without.log_prob(Y_TEST).mean()) + 0.01


def test_predictions_are_nowhere_as_sure_as_those_that_take_labels_as_right(noisy: MetricBNN, sure: MetricBNN) -> None:
    pyro.set_rng_seed(0)
    most = [metric.predict(X_TEST, 300).class_probs.amax(-1).quantile(0.95) for metric in (noisy, sure)]
    assert float(most[0]) < float(most[1]) - 0.05


def test_clean_labels_are_predicted_better_than_by_taking_labels_as_right(noisy: MetricBNN, sure: MetricBNN) -> None:
    pyro.set_rng_seed(0)
    clean, without = noisy.predict(X_TEST, 300).clean, sure.predict(X_TEST, 300)
    assert float(clean.log_prob(CLEAN_TEST).mean()) > float(without.log_prob(CLEAN_TEST).mean())


# ------------------------------------------------------------------------------- where a walk leaves


def test_a_walk_leaves_from_networks_that_the_mixture_trained(noisy: MetricBNN) -> None:
    assert len(noisy.trajectories.energies[:, 0].unique()) == 8
    given = overfitted().get_parameter("0.weight")
    assert not torch.allclose(noisy.map_params["0.weight"], given)


@pytest.mark.parametrize(
    ("likelihood", "settings"),
    [(NoisyCategorical(), {"num_networks": 1}), (NoisyCategorical(), {"batch_size": 100}), (NoisyCategorical(0), {})],
    ids=["one", "batches", "clean"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_walk_leaves_from_the_maximum_near_the_given_network(likelihood: Any, settings: dict[str, Any]) -> None:
    model = bayesianize(overfitted(), likelihood)
    metric = MetricBNN(model, num_particles=4, num_steps=4, effort=0.02).run(X, Y, progress=False, **settings)
    assert len(metric.trajectories.energies[:, 0].unique()) == 1


# ---------------------------------------------------------------------------------------- predictions


def one_draw(rate: float = 0.3) -> Prediction:
    return Prediction(f=F3[None], likelihood=NoisyCategorical(), parameters={"label_noise": real(rate)[None]})


def test_probabilities_density_and_calibration_are_all_of_the_observed_label() -> None:
    prediction = one_draw()
    chosen = prediction.class_probs.gather(-1, CLASSES[:, None])[:, 0]
    torch.testing.assert_close(prediction.probs, prediction.class_probs)
    torch.testing.assert_close(prediction.log_prob(CLASSES).exp(), chosen)
    assert calibration(prediction, CLASSES).nll == pytest.approx(-float(chosen.log().mean()))


def test_the_clean_prediction_is_the_softmax() -> None:
    torch.testing.assert_close(one_draw().clean.probs, F3.softmax(-1))


def test_the_clean_prediction_of_clean_labels_is_itself() -> None:
    prediction = Prediction(f=F3[None], likelihood=Categorical(), parameters={})
    torch.testing.assert_close(prediction.clean.probs, prediction.probs)


def test_numbers_have_no_clean_labels() -> None:
    with pytest.raises(ValueError, match="for classes"):
        _ = Prediction(f=F3[None], likelihood=Gaussian(0.3), parameters={}).clean


def test_new_labels_are_as_often_wrong_as_the_rate_says() -> None:
    f = torch.tensor([[50.0, 0.0]]).expand(20_000, 1, 2)
    rates = torch.full((20_000,), 0.4)
    drawn = Prediction(f=f, likelihood=NoisyCategorical(), parameters={"label_noise": rates}).sample()
    assert float(drawn.double().mean()) == pytest.approx(0.2, abs=0.02)


# ------------------------------------------------------------------------------------- the whole flow


def test_a_run_comes_back_from_a_file(noisy: MetricBNN, tmp_path: Path) -> None:
    noisy.save(tmp_path / "run.safetensors")
    loaded = MetricBNN.load(tmp_path / "run.safetensors", noisy.model)
    assert torch.equal(loaded.get_samples()["label_noise"], noisy.get_samples()["label_noise"])


def test_pyros_predictive_draws_the_observed_labels(noisy: MetricBNN) -> None:
    drawn = Predictive(noisy.model, guide=noisy.guide, num_samples=50)(X_TEST[:40])["obs"]
    assert drawn.shape == (50, 40)


def test_arviz_has_the_rate_and_the_log_likelihood_of_each_label(noisy: MetricBNN) -> None:
    model: Any = noisy.model
    data = to_arviz(noisy, model, X, Y)
    each = predict(model, {name: value[:1] for name, value in noisy.get_samples().items()}, X).log_prob(Y)
    assert data["posterior"]["label_noise"].shape[:1] == (20,)
    found = torch.as_tensor(data["log_likelihood"]["obs"].values).flatten(0, 1)[0]
    torch.testing.assert_close(found.to(each), each, rtol=1e-3, atol=1e-4)


def test_it_is_compared_summarised_and_looked_at_as_others_are(
    noisy: MetricBNN, capsys: pytest.CaptureFixture[str]
) -> None:
    table = compare(noisy.model, {"MetricBNN": noisy}, X, Y, num_samples=50, pictures=False).table
    assert table["train_nll"].notna().all()
    noisy.summary()
    assert "label_noise" in capsys.readouterr().out
    assert str(health(noisy))
