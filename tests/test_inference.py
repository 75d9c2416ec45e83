"""Claims about the front door, the guide and the predictions."""

import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import (
    Bernoulli,
    Categorical,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    Steer,
    bayesianize,
    predict,
)

X = torch.linspace(-2, 2, 40)[:, None]
Y = torch.sin(2 * X)


def hierarchical(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
    spread = pyro.sample("spread", dist.LogNormal(y.new_zeros(()), 1.0))
    share = pyro.sample("share", dist.Dirichlet(y.new_ones(3)))
    with pyro.plate("groups", len(y)):
        effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), 1.0))
        pyro.sample("obs", dist.Normal(mean + spread * effect + share[0], 0.5), obs=y)


def regression() -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), Gaussian(0.3))


@pytest.fixture(scope="module")
def metric() -> MetricBNN:
    torch.manual_seed(0)
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=6), num_steps=30)
    return MetricBNN(kernel, num_particles=5).run(X, Y, progress=False)


@pytest.fixture(scope="module")
def groups() -> MetricBNN:
    torch.manual_seed(0)
    return MetricBNN(hierarchical, num_particles=5, num_steps=30).run(torch.linspace(-1, 1, 6), progress=False)


# --------------------------------------------------------------------------------- front door


def test_after_a_run_everything_is_there(metric: MetricBNN) -> None:
    assert metric.map_params["0.weight"].shape == (8, 1)
    assert metric.trajectories.thetas.shape == (5, 31, 25)
    assert metric.get_samples()["0.weight"].shape == (150, 8, 1)
    assert metric.get_samples(group_by_chain=True)["0.weight"].shape == (5, 30, 8, 1)
    assert metric.draw(7)["2.bias"].shape == (7, 1)
    assert metric.posterior.event_shape == (25,)


def test_draws_of_constrained_sites_are_in_their_supports(groups: MetricBNN) -> None:
    draws = groups.draw(50)
    assert draws["effect"].shape == (50, 6)
    assert (draws["spread"] > 0).all()
    torch.testing.assert_close(draws["share"].sum(-1), torch.ones(50))


def test_draws_have_the_spread_of_the_walk(metric: MetricBNN) -> None:
    f, g = (predict(metric.model, s, X).f.std(0) for s in (metric.get_samples(), metric.draw(1000)))  # type: ignore[arg-type]
    assert float(g.mean() / f.mean()) == pytest.approx(1.0, abs=0.15)


def test_the_summary_and_diagnostics_are_mcmcs(metric: MetricBNN, capsys: pytest.CaptureFixture[str]) -> None:
    metric.summary()
    assert "r_hat" in capsys.readouterr().out
    diagnostics = metric.diagnostics()
    assert diagnostics["frozen"] == []
    assert set(diagnostics["2.bias"]) == {"n_eff", "r_hat"}


def test_a_loader_runs_end_to_end() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    metric = MetricBNN(regression(), num_particles=3, num_steps=5).run(loader, progress=False)
    assert metric.predict(X, num_samples=4).mean.shape == (40, 1)


def test_before_a_run_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="call run"):
        MetricBNN(hierarchical).draw(3)


# -------------------------------------------------------------------------------------- guide


def test_stock_predictive_takes_the_guide(metric: MetricBNN) -> None:
    drawn = Predictive(metric.model, guide=metric.guide, num_samples=6)(X[:9])
    assert drawn["obs"].shape == drawn["f"].shape == (6, 9, 1)


def test_the_elbo_is_finite(groups: MetricBNN) -> None:
    assert torch.isfinite(torch.tensor(Trace_ELBO().loss(groups.model, groups.guide, torch.linspace(-1, 1, 6))))


def test_a_guides_trace_replays_in_the_model(groups: MetricBNN) -> None:
    y = torch.linspace(-1, 1, 6)
    guide_trace = poutine.trace(groups.guide).get_trace(y)
    model_trace = poutine.trace(poutine.replay(groups.model, guide_trace)).get_trace(y)
    assert torch.equal(model_trace.nodes["effect"]["value"], guide_trace.nodes["effect"]["value"])
    assert [frame.name for frame in guide_trace.nodes["effect"]["cond_indep_stack"]] == ["groups"]


def test_median_and_quantiles_need_no_data(groups: MetricBNN) -> None:
    quantiles = groups.guide.quantiles([0.1, 0.5, 0.9])
    assert quantiles["effect"].shape == (3, 6)
    assert (quantiles["spread"].diff(dim=0) > 0).all()
    assert torch.equal(groups.guide.median()["spread"], quantiles["spread"][1])


def test_pickling_a_guide_leaves_the_live_one_whole(groups: MetricBNN) -> None:
    copy = pickle.loads(pickle.dumps(groups.guide))
    assert groups.guide.model is not None
    groups.guide(torch.linspace(-1, 1, 6))
    assert copy.sample_posterior(3)["effect"].shape == (3, 6)


# -------------------------------------------------------------------------------- predictions


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
