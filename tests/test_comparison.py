"""Claims about the comparison of posteriors: that its figures are those of their own functions, and what it refuses.

They hold for ArviZ 0.x and 1.x.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_metricbnn import (
    Bernoulli,
    Categorical,
    Gaussian,
    MetricBNN,
    Poisson,
    agreement,
    bayesianize,
    calibration,
    compare,
    function_mixing,
    predict,
    to_arviz,
)
from pyro_metricbnn.comparison.comparison import Comparison
from pyro_metricbnn.comparison.evidence import leave_one_out
from pyro_metricbnn.comparison.scores import COLUMNS, Heading, Score
from pyro_metricbnn.diagnostics.calibration import ClassCalibration, RealCalibration
from pyro_metricbnn.diagnostics.mixing import ess, r_hat
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.model.structure import Layout
from pyro_metricbnn.predictions.prediction import Prediction
from pyro_metricbnn.predictions.sources import PosteriorDraws, Source, source_of
from pyro_metricbnn.walk.trajectories import Arguments

from .runs import GROUPS, X, Y, hierarchical, regression

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # 0.23 announces 1.0
    import arviz as az

IS_OLD = "InferenceData" in vars(az)
X_TEST = torch.linspace(-2.5, 2.5, 30)[:, None]
Y_TEST = torch.sin(2 * X_TEST)


def noisy(metric: MetricBNN, num_draws: int = 200, seed: int = 0) -> dict[str, Tensor]:
    """Draws around a run's MAP: a posterior that is there at once."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + 0.1 * torch.randn((num_draws, *value.shape), generator=generator, dtype=value.dtype)
        for name, value in metric.map_params.items()
    }


def judged(metric: MetricBNN, draws: dict[str, Tensor], x: Tensor) -> Prediction:
    return predict(metric.model, draws, x)  # type: ignore[arg-type]


def chains(draws: dict[str, Tensor], num_chains: int = 4) -> dict[str, Tensor]:
    return {name: value.unflatten(0, (num_chains, -1)) for name, value in draws.items()}


def group_draws(num_draws: int = 120, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"mean": (), "spread": (), "share": (3,), "effect": (6,)}
    draws = {name: torch.randn((num_draws, *shape), generator=generator) for name, shape in shapes.items()}
    return {**draws, "spread": draws["spread"].exp(), "share": draws["share"].softmax(-1)}


@pytest.fixture(scope="module")
def nuts() -> MCMC:
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(hierarchical, max_tree_depth=4), num_samples=80, warmup_steps=40, disable_progbar=True)
    mcmc.run(GROUPS)
    return mcmc


@pytest.fixture(scope="module")
def networks(metric: MetricBNN) -> Comparison:
    pyro.set_rng_seed(0)
    posteriors = {"run": metric, "chains": chains(noisy(metric)), "draws": noisy(metric, 50, seed=1)}
    tests: dict[str, Any] = {"x_test": X_TEST, "y_test": Y_TEST, "seconds": {"run": 1.5}, "stages": False}
    return compare(metric.model, posteriors, X, Y, **tests, reference="chains", num_samples=200, pictures=False)


# ----------------------------------------------------------------------------------------- predictions


def test_posteriors_are_rows_in_their_order(networks: Comparison) -> None:
    assert list(networks.table.index) == ["run", "chains", "draws"]


def test_predictive_figures_are_those_of_calibration(networks: Comparison, metric: MetricBNN) -> None:
    found = calibration(judged(metric, noisy(metric), X_TEST), Y_TEST)
    assert isinstance(found, RealCalibration)
    expected = [found.nll, found.rmse, found.crps, found.coverage[2], found.width[2]]
    keys = ["test_nll", "test_rmse", "test_crps", "test_coverage_90", "test_width_90"]
    np.testing.assert_allclose(networks.table.loc["chains", keys].to_list(), expected, rtol=1e-6)


def test_figures_of_classes_are_those_of_calibration() -> None:
    model = bayesianize(nn.Linear(2, 3), Categorical())
    draws = {"weight": torch.randn(40, 3, 2), "bias": torch.randn(40, 3)}
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    row = compare(model, {"draws": draws}, x, y, pictures=False).table.loc["draws"]
    found = calibration(predict(model, draws, x), y)
    assert isinstance(found, ClassCalibration)
    figures = [row[f"train_{key}"] for key in ("nll", "accuracy", "brier", "ece")]
    np.testing.assert_allclose(figures, [found.nll, found.accuracy, found.brier, found.ece], rtol=1e-6)


def test_agreement_is_that_with_the_reference(networks: Comparison, metric: MetricBNN) -> None:
    one, of = (judged(metric, draws, X_TEST) for draws in (noisy(metric, 50, seed=1), noisy(metric)))
    expected = vars(agreement(one, of))
    assert {key: networks.table.loc["draws", key] for key in expected} == pytest.approx(expected, rel=1e-6)


def test_the_references_own_agreement_is_that_of_its_two_halves(networks: Comparison, metric: MetricBNN) -> None:
    draws = noisy(metric)
    halves = ({name: value[part] for name, value in draws.items()} for part in (slice(100), slice(100, None)))
    expected = vars(agreement(*(judged(metric, half, X_TEST) for half in halves)))
    assert {key: networks.table.loc["chains", key] for key in expected} == pytest.approx(expected, rel=1e-6)


def test_a_networks_chains_are_judged_by_their_functions(networks: Comparison, metric: MetricBNN) -> None:
    for name, samples in (("chains", chains(noisy(metric))), ("run", metric.get_samples(group_by_chain=True))):
        found = function_mixing(metric.model, samples, X)
        figures = networks.table.loc[name, ["r_hat", "ess"]].to_list()
        assert figures == pytest.approx([found.worst_r_hat, found.worst_ess], rel=1e-6)


def test_draws_without_an_order_have_no_r_hat(networks: Comparison) -> None:
    assert networks.table["r_hat"].isna().to_list() == [False, False, True]


def test_seconds_are_in_the_table_where_they_are_known(networks: Comparison) -> None:
    assert networks.table["seconds"].fillna(-1).to_list() == [1.5, -1, -1]


def test_without_test_data_a_network_is_judged_on_its_data_and_the_table_says_so(metric: MetricBNN) -> None:
    table = compare(metric.model, {"draws": noisy(metric)}, X, Y, pictures=False).table
    found = calibration(judged(metric, noisy(metric), X), Y)
    assert table.loc["draws", "train_nll"] == pytest.approx(found.nll, rel=1e-6)
    assert not [key for key in table if key.startswith("test_")]


@pytest.mark.parametrize("likelihood", [Bernoulli(), Poisson(), Gaussian(dist.LogNormal(0.0, 1.0))])
def test_every_likelihood_can_be_compared(likelihood: Likelihood) -> None:
    model = bayesianize(nn.Linear(2, 1), likelihood)
    draws = {"weight": torch.randn(30, 1, 2), "bias": torch.randn(30, 1)}
    if isinstance(likelihood, Gaussian):
        draws["scale"] = torch.rand(30) + 0.5
    y = (torch.arange(8.0)[:, None] % 2).float()
    table = compare(model, {"a": draws, "b": draws}, torch.randn(8, 2), y, reference="a", pictures=False).table
    assert table.notna().all(axis=None)


# ---------------------------------------------------------------------------------------- leave-one-out


def arviz_loo(data: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the shape of the tail
        return az.loo(data, pointwise=True, reff=1.0)


def test_elpd_is_arvizs_of_the_export(networks: Comparison, metric: MetricBNN) -> None:
    found = arviz_loo(to_arviz(noisy(metric), metric.model, X, Y))
    each = found.loo_i if IS_OLD else found.elpd_i
    row = networks.table.loc["chains"]
    assert row["elpd_loo"] == pytest.approx(float(each.sum()), rel=1e-9)
    assert row["elpd_se"] == pytest.approx(np.sqrt(len(X)) * each.values.std(ddof=1), rel=1e-9)
    assert row["num_bad_k"] == (found.pareto_k.values > 0.7).sum()


def test_the_best_is_not_behind_itself_and_the_others_are_by_observations(
    networks: Comparison, metric: MetricBNN
) -> None:
    table, totals = networks.table, networks.table["elpd_loo"]
    assert table.loc[totals.idxmax(), "elpd_diff"] == 0
    np.testing.assert_allclose(table["elpd_diff"], totals - totals.max(), rtol=1e-9)
    pair = [arviz_loo(to_arviz(one, metric.model, X, Y)) for one in (noisy(metric), noisy(metric, 50, seed=1))]
    first, second = ((one.loo_i if IS_OLD else one.elpd_i).values for one in pair)
    two = compare(metric.model, {"a": noisy(metric), "b": noisy(metric, 50, seed=1)}, X, Y, pictures=False).table
    assert two["elpd_diff_se"].max() == pytest.approx(np.sqrt(len(X)) * (first - second).std(ddof=1), rel=1e-9)


def test_several_observed_sites_are_left_out_one_observation_at_a_time() -> None:
    def two_sites(y: Tensor, z: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        pyro.sample("z", dist.Normal(mean, 2.0), obs=z)

    draws = {"mean": torch.randn(100).double()}
    y, z = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor(0.5).double()
    table = compare(two_sites, {"draws": draws}, y, z, pictures=False).table
    each = torch.cat(
        [dist.Normal(draws["mean"][:, None], 1.0).log_prob(y), dist.Normal(draws["mean"], 2.0).log_prob(z)[:, None]], 1
    )
    assert table.loc["draws", "elpd_loo"] == pytest.approx(float(leave_one_out({"all": each})[0].sum()), rel=1e-12)


def test_masked_observations_count_for_nothing() -> None:
    def masked(y: Tensor, seen: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("data", len(y)), poutine.mask(mask=seen):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)

    draws, y = {"mean": torch.randn(100)}, torch.randn(6)
    seen = torch.tensor([True, False, True, True, False, True])
    masked_out = compare(masked, {"draws": draws}, y, seen, pictures=False).table
    left_out = compare(masked, {"draws": draws}, y[seen], seen[seen], pictures=False).table
    keys = ["elpd_loo", "elpd_se", "num_bad_k"]
    np.testing.assert_allclose(masked_out[keys], left_out[keys], rtol=1e-6)


@pytest.mark.parametrize("draws", [torch.zeros(1), torch.zeros(100), torch.randn(5)])
def test_too_few_draws_that_differ_have_no_elpd(draws: Tensor) -> None:
    def normal(y: Tensor) -> None:
        pyro.sample("obs", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    posteriors = {"few": {"mean": draws}, "many": {"mean": torch.randn(100)}}
    table = compare(normal, posteriors, torch.zeros(3), pictures=False).table
    assert table["elpd_loo"].isna().to_list() == [True, False]


# ------------------------------------------------------------------------------- models without networks


def test_a_model_without_a_network_has_moments_and_mixing_of_its_coordinates() -> None:
    first, second = group_draws(), group_draws(seed=1)
    table = compare(hierarchical, {"a": chains(first), "b": second}, GROUPS, reference="a", pictures=False).table
    flat = [torch.cat([v.reshape(120, -1) for v in one.values()], 1).double() for one in (first, second)]
    error = (flat[1].mean(0) - flat[0].mean(0)).abs() / flat[0].std(0, correction=0)
    ratio = flat[1].std(0, correction=0) / flat[0].std(0, correction=0)
    grouped = flat[0].unflatten(0, (4, -1))
    assert table.loc["b", "mean_error"] == pytest.approx(float(error.max()), rel=1e-5)
    assert table.loc["b", "std_ratio"] == pytest.approx(float(ratio[ratio.log().abs().argmax()]), rel=1e-5)
    assert table.loc["a", "r_hat"] == pytest.approx(float(r_hat(grouped).max()), rel=1e-6)
    assert table.loc["a", "ess"] == pytest.approx(float(ess(grouped).min()), rel=1e-6)


def test_all_kinds_of_posteriors_of_one_model_are_compared(groups: MetricBNN, nuts: MCMC) -> None:
    guide = AutoNormal(hierarchical)
    posteriors = [groups, nuts, guide, groups.trajectories, nuts.get_samples(), nuts.get_samples()]
    result = compare(hierarchical, posteriors, num_samples=60, pictures=False)
    assert list(result.table.index) == ["MetricBNN", "NUTS", "AutoNormal", "walk", "samples 1", "samples 2"]
    assert result.table["elpd_loo"].notna().all()
    assert result.table["draws"].to_list() == [60, 60, 60, 60, 60, 60]


def test_a_model_that_observes_nothing_is_compared_by_its_coordinates() -> None:
    def prior() -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0))

    posteriors = {"a": {"z": torch.randn(4, 50)}, "b": {"z": torch.randn(50)}}
    table = compare(prior, posteriors, reference="a", pictures=False).table
    assert list(table) == ["mean_error", "std_ratio", "r_hat", "ess", "draws"]


# ---------------------------------------------------------------------------- kinds of posteriors from outside


class Ensemble(list):
    """Trained weights of several networks, as another library may have them."""


@source_of.register(Ensemble)
class EnsembleSource(Source):
    """All that it takes to compare and to export them."""

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        return PosteriorDraws(values={name: torch.stack([one[name] for one in self.given]) for name in layout.latent})


class Blur:
    """A posterior that can give as many draws as one likes, around a point."""

    def __init__(self, mode: dict[str, Tensor]) -> None:
        self.mode = mode


@source_of.register(Blur)
class BlurSource(Source):
    draws_anew = True

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        mode, number = self.given.mode, num_samples or 10
        return PosteriorDraws(values={n: v + 0.1 * torch.randn(number, *v.shape) for n, v in mode.items()})


@pytest.fixture
def ensemble(metric: MetricBNN) -> Ensemble:
    draws = noisy(metric, 40)
    return Ensemble({name: value[s] for name, value in draws.items()} for s in range(40))


def test_a_kind_of_posterior_from_outside_is_compared(metric: MetricBNN, ensemble: Ensemble) -> None:
    result = compare(metric.model, [ensemble, Blur(metric.map_params)], X, Y, num_samples=50, pictures=False)
    assert dict(result.posteriors) == {"Ensemble": "Ensemble: 40 draws", "Blur": "Blur: 50 draws"}
    same = compare(metric.model, {"draws": noisy(metric, 40)}, X, Y, pictures=False).table
    assert result.table.loc["Ensemble", "train_nll"] == same.loc["draws", "train_nll"]


def test_a_kind_of_posterior_from_outside_is_exported(metric: MetricBNN, ensemble: Ensemble) -> None:
    data = to_arviz(ensemble, metric.model, X, Y)["posterior"]
    np.testing.assert_array_equal(data["2.bias"].values[0], noisy(metric, 40)["2.bias"].numpy())
    assert to_arviz(Blur(metric.map_params), metric.model, X, Y, num_samples=7)["posterior"].sizes["draw"] == 7


# ------------------------------------------------------------------------------------ what it leaves alone


def test_draws_of_samples_use_up_no_random_numbers(metric: MetricBNN) -> None:
    state = torch.get_rng_state()
    compare(metric.model, {"draws": noisy(metric)}, X, Y)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_gives_the_same_table(groups: MetricBNN) -> None:
    tables = []
    for _ in range(2):
        pyro.set_rng_seed(3)
        tables.append(compare(hierarchical, {"run": groups}, num_samples=50, pictures=False).table)
    assert tables[0].equals(tables[1])


def test_more_draws_than_wanted_are_taken_evenly(metric: MetricBNN) -> None:
    draws = noisy(metric, 100)
    kept = {name: value[torch.linspace(0, 99, 30).round().long()] for name, value in draws.items()}
    tables = [compare(metric.model, {"a": one}, X, Y, num_samples=30, pictures=False).table for one in (draws, kept)]
    assert tables[0].equals(tables[1])


def double_posteriors() -> tuple[Any, dict[str, Any], Tensor, Tensor]:
    x = torch.linspace(-1, 1, 12, device="cpu", dtype=torch.float64)[:, None]
    model = bayesianize(nn.Linear(1, 1, device="cpu", dtype=torch.float64), Gaussian(0.3))
    run = MetricBNN(model, num_particles=3, num_steps=10).run(x, x, progress=False)
    return model, {"run": run, "walk": run.trajectories}, x, x


def test_float64_posteriors_are_compared_with_pictures() -> None:
    model, posteriors, x, y = double_posteriors()
    result = compare(model, posteriors, x, y, reference="walk", num_samples=40)
    assert result.table.notna().all(axis=None)
    assert result.sections


def test_nothing_is_made_on_the_default_device() -> None:
    with torch.device("meta"):
        model, posteriors, x, y = double_posteriors()
        result = compare(model, posteriors, x, y, x_test=x, y_test=y, reference="walk", num_samples=40, stages=False)
    assert result.table.notna().all(axis=None)


# ---------------------------------------------------------------------------------------- what is said


def score(good: Any, **figures: float) -> Score:
    return Score(replace(COLUMNS["nll"], good=good, digits=2), Heading("h"), figures)


@pytest.mark.parametrize(
    ("good", "figures", "best"),
    [
        ("low", {"a": 0.5, "b": 0.6}, {"a"}),
        ("high", {"a": 0.5, "b": 0.6}, {"b"}),
        (0.9, {"a": 0.5, "b": 0.95, "c": 1.0}, {"b"}),
        ("low", {"a": 0.501, "b": 0.502, "c": 0.6}, {"a", "b"}),
        ("low", {"a": 0.501, "b": 0.502}, set()),
        ("low", {"a": float("nan"), "b": 0.6, "c": 0.7}, {"b"}),
        (None, {"a": 0.5, "b": 0.6}, set()),
    ],
)
def test_the_best_is_the_one_that_prints_the_best_figure(good: Any, figures: dict[str, float], best: set[str]) -> None:
    assert score(good, **figures).best == best


def test_the_reference_is_not_in_the_race_for_agreement(networks: Comparison) -> None:
    of_agreement = [one for one in networks.scores if one.heading.title.startswith("Agreement")]
    assert [one.column.key for one in of_agreement] == ["wasserstein", "wasserstein_f"]
    assert all("chains" not in one.best for one in of_agreement)


def test_chains_that_do_not_agree_are_warned_of(metric: MetricBNN) -> None:
    apart = chains(noisy(metric))
    apart["2.bias"] = apart["2.bias"] + torch.arange(4.0)[:, None, None]
    result = compare(metric.model, {"apart": apart, "draws": noisy(metric)}, X, Y, pictures=False)
    assert any("R-hat" in text for text in result.warnings["apart"])
    assert not any("R-hat" in text for text in result.warnings["draws"])


def test_a_printed_comparison_has_each_posterior_and_its_warnings(networks: Comparison) -> None:
    lines = str(networks).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["run", "chains", "draws"]
    assert sum(line.startswith("WARNING") for line in lines) == sum(map(len, networks.warnings.values()))


# ---------------------------------------------------------------------------------------- bad input


BAD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "empty": (lambda m, d: compare(m, {}, X, Y), "no posterior to compare"),
    "empty list": (lambda m, d: compare(m, [], X, Y), "no posterior to compare"),
    "one": (lambda m, d: compare(m, AutoNormal(m), X, Y), "must be a dict of them by name, or a list"),
    "bare samples": (lambda m, d: compare(m, d, X, Y), "samples by site are one posterior"),
    "name": (lambda m, d: compare(m, {3: d}, X, Y), "names of posteriors must be texts"),  # type: ignore[dict-item]
    "blank name": (lambda m, d: compare(m, {" ": d}, X, Y), "texts that are not empty"),
    "no mcmc": (lambda m, d: compare(m, [d, MCMC(NUTS(m), 3)], X, Y), "'NUTS' cannot be compared: .*call mcmc.run"),
    "no run": (lambda m, d: compare(m, [MetricBNN(m)], X, Y), "'MetricBNN' cannot .*nothing has been walked"),
    "number": (lambda m, d: compare(m, {"a": 3}, X, Y), "'a' cannot .*int, which has no posterior draws"),
    "model": (lambda m, d: compare(m, {"a": m}, X, Y), "'a' cannot .*the model itself"),
    "other model": (lambda m, d: compare(m, {"a": d, "b": group_draws()}, X, Y), "'b' cannot .*no site of the model"),
    "other guide": (lambda m, d: compare(m, {"b": lambda *_: None}, X, Y), "'b' cannot .*lack the latent site"),
    "reference": (
        lambda m, d: compare(m, {"a": d}, X, Y, reference="b"),
        "'b' is none of the posteriors: they are 'a'",
    ),
    "seconds": (lambda m, d: compare(m, {"a": d}, X, Y, seconds={"b": 1}), "seconds has 'b'"),
    "negative": (lambda m, d: compare(m, {"a": d}, X, Y, seconds={"a": -1}), "must be a finite number"),
    "y_test": (lambda m, d: compare(m, {"a": d}, X, Y, y_test=Y), "x_test is missing"),
    "x_test": (lambda m, d: compare(m, {"a": d}, X, Y, x_test=X), "y_test is missing"),
    "lengths": (lambda m, d: compare(m, {"a": d}, X, Y, x_test=X, y_test=Y[:3]), "y has shape"),
    "no network": (
        lambda m, d: compare(hierarchical, {"a": group_draws()}, GROUPS, x_test=X, y_test=Y),
        "x_test is for networks",
    ),
    "no y": (lambda m, d: compare(m, {"a": d}, X), "y is missing"),
    "no data": (lambda m, d: compare(m, {"a": d}), "the model does not run"),
    "few": (lambda m, d: compare(m, {"a": d}, X, Y, num_samples=1), "num_samples must be at least 2"),
    "chunk": (lambda m, d: compare(m, {"a": d}, X, Y, chunk_size=0), "chunk_size must be at least 1"),
    "infinite": (lambda m, d: compare(m, {"a": {**d, "2.bias": d["2.bias"] / 0}}, X, Y), "'a' cannot .*not finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_long_work(case: str, metric: MetricBNN, monkeypatch: pytest.MonkeyPatch) -> None:
    def long_work(*_: Any) -> None:
        raise AssertionError("long work has started")

    call, said = BAD[case]
    monkeypatch.setattr("pyro_metricbnn.comparison.comparison.gather", long_work)
    with pytest.raises(ValueError, match=said):
        call(regression(), noisy(metric))


def test_without_matplotlib_it_says_what_to_install_before_long_work(
    metric: MetricBNN, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pyro_metricbnn\[plots\].*pictures=False"):
        compare(metric.model, {"draws": noisy(metric)}, X, Y)
