"""Claims about the export to ArviZ; they hold for ArviZ 0.x and 1.x."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_metricbnn import Descent, DriftRefineKernel, MetricBNN, to_arviz

from .runs import GROUPS, X, Y, hierarchical, regression

matplotlib.use("Agg")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # 0.23 announces 1.0
    import arviz as az

IS_OLD = "InferenceData" in vars(az)
PLOTS = ["plot_trace", "plot_ppc" if IS_OLD else "plot_ppc_dist", "plot_posterior" if IS_OLD else "plot_dist"]
COUNTS = torch.tensor([[1.0, 0, 2, 1], [3, 2, 5, 4], [0, 0, 1, 0]], dtype=torch.float64)
POINTS = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)


def rich(counts: Tensor, points: Tensor) -> None:
    """Crossed plates, constrained sites, a deterministic one, and two observed, one with an event."""
    rate = pyro.sample("rate", dist.Gamma(counts.new_tensor(2.0), 1.0))
    scale = pyro.sample("scale", dist.LogNormal(counts.new_zeros(2), 1.0).to_event(1))
    cities, years = pyro.plate("city", 3, dim=-2), pyro.plate("year", 4, dim=-1)
    with cities:
        effect = pyro.sample("effect", dist.Normal(counts.new_zeros(()), 0.5))
        level = pyro.deterministic("level", rate * effect.exp())
        with years:
            pyro.sample("counts", dist.Poisson(level), obs=counts)
    with pyro.plate("place", 3):
        pyro.sample("points", dist.MultivariateNormal(scale * 0, torch.diag(scale)), obs=points)


def rich_samples(num_samples: int = 7) -> dict[str, Tensor]:
    shapes = {"rate": (), "scale": (2,), "effect": (3, 1)}
    return {name: torch.rand(num_samples, *shape, dtype=torch.float64) + 0.1 for name, shape in shapes.items()}


def branching(y: Tensor) -> None:
    """vmap cannot run it."""
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(mean if mean > 0 else 2 * mean, 1.0), obs=y)


def coins(flips: Tensor) -> None:
    """Many observations of one distribution, without a plate."""
    pyro.sample("obs", dist.Bernoulli(pyro.sample("p", dist.Beta(1.0, 1.0))), obs=flips)


def loop(model: Any, samples: dict[str, Tensor], *args: Any) -> list[Any]:
    """A Pyro trace for each draw."""
    num_samples = len(next(iter(samples.values())))
    traces = []
    for s in range(num_samples):
        conditioned = poutine.condition(model, data={name: value[s] for name, value in samples.items()})
        traces.append(poutine.trace(conditioned).get_trace(*args))
        traces[-1].compute_log_prob()
    return traces


def looped_log_likelihood(model: Any, samples: dict[str, Tensor], site: str, *args: Any) -> np.ndarray:
    return torch.stack([trace.nodes[site]["log_prob"].detach() for trace in loop(model, samples, *args)]).numpy()


@pytest.fixture(scope="module")
def nuts() -> MCMC:
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(hierarchical, max_tree_depth=4), num_samples=40, warmup_steps=20, disable_progbar=True)
    mcmc.run(GROUPS)
    return mcmc


@pytest.fixture(scope="module")
def exports(groups: MetricBNN, nuts: MCMC) -> dict[str, Any]:
    """One model's posterior from everything that has one."""
    return {
        "walk": groups.to_arviz(),
        "latent posterior": groups.to_arviz(num_samples=40),
        "NUTS": to_arviz(nuts, hierarchical, GROUPS),
        "AutoNormal": to_arviz(AutoNormal(hierarchical), hierarchical, GROUPS, num_samples=10),
        "samples": to_arviz(nuts.get_samples(), hierarchical, GROUPS),
    }


def described(data: Any) -> dict[str, Any]:
    """Variables, dims and coords of the groups that do not belong to a sampler."""
    names = ("posterior", "posterior_predictive", "log_likelihood", "observed_data", "constant_data")
    groups = {name: data[name] for name in names if name in (data.groups() if IS_OLD else data.children)}
    return {
        name: {
            "dims": {variable: group[variable].dims for variable in group.data_vars},
            "coords": {dim: group[dim].values.tolist() for dim in group.coords if dim not in ("chain", "draw")},
        }
        for name, group in groups.items()
    }


# ---------------------------------------------------------------------------------- log-likelihood


@pytest.mark.parametrize("site", ["counts", "points"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_the_log_likelihood_is_that_of_a_loop_over_pyro_traces(site: str, chunk_size: int | None) -> None:
    samples = rich_samples()
    data = to_arviz(samples, rich, COUNTS, POINTS, chunk_size=chunk_size)
    expected = looped_log_likelihood(rich, samples, site, COUNTS, POINTS)
    np.testing.assert_allclose(data["log_likelihood"][site].values[0], expected, rtol=1e-12, atol=1e-13)


def test_for_the_log_likelihood_the_model_runs_as_often_for_many_draws_as_for_few() -> None:
    calls = []

    def counted(*args: Tensor) -> None:
        calls.append(args)
        rich(*args)

    numbers = []
    for num_samples in (2, 300):
        calls.clear()
        to_arviz(rich_samples(num_samples), counted, COUNTS, POINTS, posterior_predictive=False)
        numbers.append(len(calls))
    assert numbers[0] == numbers[1]


def test_a_model_that_vmap_cannot_run_has_the_log_likelihood_of_the_loop() -> None:
    samples = {"mean": torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)}
    y = POINTS[:, 0]
    values = to_arviz(samples, branching, y)["log_likelihood"]["obs"].values[0]
    np.testing.assert_allclose(values, looped_log_likelihood(branching, samples, "obs", y), rtol=1e-12)


def test_nothing_is_made_on_the_default_device() -> None:
    samples = rich_samples()
    expected = to_arviz(samples, rich, COUNTS, POINTS)["log_likelihood"]["counts"].values
    with torch.device("meta"):
        data = to_arviz(samples, rich, COUNTS, POINTS, posterior_predictive=False)
    np.testing.assert_array_equal(data["log_likelihood"]["counts"].values, expected)


def test_masked_observations_have_no_log_likelihood() -> None:
    def masked(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("data", len(y)), poutine.mask(mask=torch.tensor([True, False, True])):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)

    values = to_arviz({"mean": torch.randn(5)}, masked, torch.ones(3))["log_likelihood"]["obs"].values
    assert ((values == 0) == [False, True, False]).all()


def test_loo_of_the_export_is_loo_of_the_loop(metric: MetricBNN) -> None:
    samples = metric.get_samples()
    data, looped = to_arviz(samples, metric.model, X, Y), to_arviz(samples, metric.model, X, Y)
    looped["log_likelihood"]["obs"][...] = looped_log_likelihood(metric.model, samples, "obs", X, Y)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the shape of the tail
        one, two = az.loo(data), az.loo(looped)
    name = "elpd_loo" if IS_OLD else "elpd"
    np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-5)


@pytest.mark.parametrize("site", ["counts", "points"])
def test_in_float64_loo_of_the_export_is_loo_of_a_loop_over_pyro_traces(site: str) -> None:
    samples = rich_samples(400)
    data, looped = to_arviz(samples, rich, COUNTS, POINTS), to_arviz(samples, rich, COUNTS, POINTS)
    looped["log_likelihood"][site][...] = looped_log_likelihood(rich, samples, site, COUNTS, POINTS)[None]
    assert data["log_likelihood"][site].dtype == np.float64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the shape of the tail
        one, two = (az.loo(each, var_name=site, pointwise=True) for each in (data, looped))
    for name in ("elpd_loo", "loo_i", "pareto_k") if IS_OLD else ("elpd", "elpd_i", "pareto_k"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-10)


# ------------------------------------------------------------------------- variables, dims, coords


@pytest.mark.parametrize("other", ["latent posterior", "NUTS", "AutoNormal", "samples"])
def test_all_sources_of_one_model_give_the_same_variables_dims_and_coords(exports: dict[str, Any], other: str) -> None:
    assert described(exports["walk"]) == described(exports[other])


def test_plates_name_the_axes_and_others_have_numbers() -> None:
    found = described(to_arviz(rich_samples(), rich, COUNTS, POINTS))
    assert found["posterior"]["dims"]["effect"] == ("chain", "draw", "city", "effect_dim_1")
    assert found["posterior"]["dims"]["scale"] == ("chain", "draw", "scale_dim_0")
    assert found["posterior_predictive"]["dims"]["points"] == ("chain", "draw", "place", "points_dim_1")
    assert found["log_likelihood"]["dims"]["points"] == ("chain", "draw", "place")
    assert found["observed_data"]["dims"]["counts"] == ("city", "year")
    assert found["observed_data"]["coords"]["year"] == [0, 1, 2, 3]


def test_the_rows_of_a_plate_can_have_labels() -> None:
    data = to_arviz(rich_samples(), rich, COUNTS, POINTS, coords={"city": ["Oslo", "Rome", "Bern"]})
    assert data["posterior"]["effect"].sel(city="Rome").shape == (1, 7, 1)


def test_a_plate_named_chain_does_not_meet_the_chains() -> None:
    def model(y: Tensor) -> None:
        with pyro.plate("chain", 3):
            pyro.sample("obs", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    data = to_arviz({"mean": torch.randn(5, 3)}, model, torch.ones(3))
    assert data["posterior"]["mean"].dims == ("chain", "draw", "chain_plate")


def test_deterministic_sites_are_in_the_posterior() -> None:
    samples = rich_samples()
    level = to_arviz(samples, rich, COUNTS, POINTS)["posterior"]["level"]
    assert level.dims == ("chain", "draw", "city", "level_dim_1")
    np.testing.assert_allclose(level.values[0], samples["rate"][:, None, None] * samples["effect"].exp(), rtol=1e-12)


def test_the_output_of_a_network_is_among_its_predictions(metric: MetricBNN) -> None:
    data = metric.to_arviz(num_samples=4, log_likelihood=False)
    assert "f" not in data["posterior"]
    assert data["posterior_predictive"]["f"].dims == ("chain", "draw", "data", "f_dim_1")


def test_what_a_model_observes_is_not_constant_data(metric: MetricBNN) -> None:
    data = metric.to_arviz(X, Y, num_samples=2)
    assert list(data["constant_data"].data_vars) == ["x"]
    assert data["constant_data"]["x"].dims == ("data", "x_dim_1")
    np.testing.assert_array_equal(data["observed_data"]["obs"].values, Y.numpy())


# --------------------------------------------------------------------------------------- the groups


def test_a_chain_is_a_particle_and_a_draw_a_step(groups: MetricBNN, exports: dict[str, Any]) -> None:
    expected = groups.get_samples(group_by_chain=True)["effect"]
    np.testing.assert_array_equal(exports["walk"]["posterior"]["effect"].values, expected.numpy())


def test_the_latent_posterior_is_four_chains(exports: dict[str, Any]) -> None:
    assert exports["latent posterior"]["posterior"]["share"].shape == (4, 10, 3)


def test_the_walk_says_its_energies_its_drift_and_its_refinement_steps(
    groups: MetricBNN, exports: dict[str, Any]
) -> None:
    stats = exports["walk"]["sample_stats"]
    np.testing.assert_array_equal(stats["energy"].values, groups.trajectories.energies[:, 1:].numpy())
    np.testing.assert_array_equal(stats["drift_survived"].values, groups.trajectories.drift_survived.numpy())
    assert (stats["refinement_steps"].values >= 1).all()


def test_a_refiner_that_pulls_back_has_its_own_number_of_refinement_steps() -> None:
    model = regression()
    metric = MetricBNN(DriftRefineKernel(model, refiner=Descent(num_refinements=3), num_steps=4), num_particles=2)
    metric.run(X, Y, map_params=model.trained_params, progress=False)
    data = metric.to_arviz(log_likelihood=False, posterior_predictive=False)
    assert (data["sample_stats"]["refinement_steps"].values == 3).all()


def test_a_particle_that_froze_is_no_chain(groups: MetricBNN) -> None:
    frozen_at = groups.trajectories.frozen_at.clone()
    frozen_at[1] = 3
    data = to_arviz(replace(groups.trajectories, frozen_at=frozen_at), hierarchical, GROUPS)
    assert data["posterior"]["chain"].values.tolist() == [0, 2, 3, 4]


def test_nuts_says_which_draws_diverged(nuts: MCMC, exports: dict[str, Any]) -> None:
    found = np.flatnonzero(exports["NUTS"]["sample_stats"]["diverging"].values[0])
    assert found.tolist() == sorted(nuts.diagnostics()["divergences"]["chain 0"])


def test_an_mcmc_run_remembers_its_arguments(nuts: MCMC, exports: dict[str, Any]) -> None:
    assert described(to_arviz(nuts, hierarchical)) == described(exports["NUTS"])


def test_a_walk_remembers_its_arguments(groups: MetricBNN, exports: dict[str, Any]) -> None:
    assert described(to_arviz(groups.trajectories, hierarchical)) == described(exports["walk"])


@pytest.mark.slow
def test_two_runs_of_one_kernel_export_their_own_data() -> None:
    kernel = DriftRefineKernel(hierarchical, num_steps=4)
    data = (GROUPS, GROUPS + 1)
    runs = [MetricBNN(kernel, num_particles=2).run(one, progress=False) for one in data]
    for run, one in zip(runs, data, strict=True):
        observed = run.to_arviz(posterior_predictive=False)["observed_data"]["obs"].values
        np.testing.assert_array_equal(observed, one.numpy())


def test_few_draws_of_a_sampler_are_exported() -> None:
    mcmc = MCMC(NUTS(hierarchical, max_tree_depth=2), num_samples=2, warmup_steps=2, disable_progbar=True)
    mcmc.run(GROUPS)
    assert to_arviz(mcmc, hierarchical)["sample_stats"]["diverging"].shape == (1, 2)


@pytest.mark.parametrize(
    ("num_samples", "shape"), [(40, (4, 10)), (18, (3, 6)), (10, (2, 5)), (8, (2, 4)), (13, (1, 13)), (4, (1, 4))]
)
def test_independent_draws_are_four_chains_or_as_many_as_divide_them(
    groups: MetricBNN, num_samples: int, shape: tuple[int, int]
) -> None:
    exported = [
        groups.to_arviz(num_samples=num_samples),
        to_arviz(groups.guide, hierarchical, GROUPS, num_samples=num_samples),
        to_arviz(AutoNormal(hierarchical), hierarchical, GROUPS, num_samples=num_samples),
    ]
    for data in exported:
        assert data["posterior"]["mean"].shape == data["posterior_predictive"]["obs"].shape[:2] == shape
        assert data["log_likelihood"]["obs"].shape[:2] == shape


def test_independent_draws_have_an_r_hat(exports: dict[str, Any]) -> None:
    for source in ("latent posterior", "AutoNormal"):
        assert az.summary(exports[source])["r_hat"].notna().all()


def test_the_chains_of_a_guide_are_its_draws_in_their_order() -> None:
    numbers = iter(torch.linspace(0.1, 0.9, 20))

    def guide(flips: torch.Tensor) -> None:
        pyro.sample("p", dist.Delta(next(numbers)))

    exported = to_arviz(guide, coins, torch.ones(3), num_samples=20)["posterior"]["p"].values
    assert exported.shape == (4, 5)
    assert (np.diff(exported.flatten()) > 0).all()


def test_new_observations_have_the_models_mean_and_deviation(metric: MetricBNN) -> None:
    data = metric.to_arviz(num_samples=200)["posterior_predictive"]
    noise = (data["obs"] - data["f"].values).values
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 0.3) < 0.02


def test_the_same_seed_gives_the_same_new_observations(groups: MetricBNN) -> None:
    drawn = []
    for _ in range(2):
        pyro.set_rng_seed(1)
        drawn.append(groups.to_arviz(log_likelihood=False)["posterior_predictive"]["obs"].values)
    np.testing.assert_array_equal(*drawn)


def test_each_observation_is_drawn_by_itself_where_there_is_no_plate() -> None:
    flips = torch.tensor([1.0, 0, 1, 1])
    data = to_arviz({"p": torch.full((500,), 0.5)}, coins, flips)
    drawn = data["posterior_predictive"]["obs"].values[0]
    assert drawn.shape == (500, 4)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.25


def test_the_prior_has_the_priors_mean() -> None:
    data = to_arviz(rich_samples(), rich, COUNTS, POINTS, prior=400)
    assert data["prior"]["level"].shape == (1, 400, 3, 1)
    assert abs(float(data["prior"]["rate"].mean()) - 2.0) < 0.3  # of Gamma(2, 1)
    assert data["prior_predictive"]["counts"].shape == (1, 400, 3, 4)


def test_groups_can_be_left_out(groups: MetricBNN) -> None:
    data = groups.to_arviz(log_likelihood=False, posterior_predictive=False)
    present = {name.strip("/") for name in data.groups if name != "/"} if not IS_OLD else set(data.groups())
    assert present == {"posterior", "sample_stats", "observed_data"}


# -------------------------------------------------------------------------------- ArviZ takes it


@pytest.mark.parametrize("source", ["walk", "latent posterior", "NUTS"])
def test_arviz_summarises_every_latent_number(exports: dict[str, Any], source: str) -> None:
    assert len(az.summary(exports[source])) == 1 + 1 + 3 + 6


@pytest.mark.filterwarnings("ignore")  # about the shape of the tail
def test_arviz_compares_the_walk_with_nuts(exports: dict[str, Any]) -> None:
    table = az.compare({name: exports[name] for name in ("walk", "latent posterior", "NUTS")})
    assert set(table.index) == {"walk", "latent posterior", "NUTS"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", ["walk", "NUTS"])
@pytest.mark.parametrize("plot", PLOTS)
def test_arviz_plots_it(exports: dict[str, Any], source: str, plot: str) -> None:
    assert getattr(az, plot)(exports[source]) is not None
    matplotlib.pyplot.close("all")


# --------------------------------------------------------------------------------------- bad input


def _minibatches() -> MetricBNN:
    model = regression()
    metric = MetricBNN(DriftRefineKernel(model, num_steps=3, refiner="adam"), num_particles=2)
    return metric.run(X, Y, map_params=model.trained_params, batch_size=10, progress=False)


def _loaded_minibatches() -> MetricBNN:
    with TemporaryDirectory() as folder:
        _minibatches().save(f"{folder}/run")
        return MetricBNN.load(f"{folder}/run", regression())


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "source": (lambda: to_arviz(3, hierarchical, GROUPS), "int, which has no posterior draws"),
    "model": (lambda: to_arviz(hierarchical, hierarchical, GROUPS), "the model itself"),
    "no run": (lambda: MetricBNN(hierarchical).to_arviz(), "nothing has been walked yet"),
    "no mcmc": (lambda: to_arviz(MCMC(NUTS(rich), 3), rich), "call mcmc.run"),
    "no arguments": (lambda: to_arviz(rich_samples(), rich), r"the model does not run .*\(none\)"),
    "missing": (lambda: to_arviz({"rate": torch.ones(3)}, rich, COUNTS, POINTS), "lack the latent site 'scale'"),
    "unknown": (
        lambda: to_arviz({**rich_samples(), "z": torch.ones(7)}, rich, COUNTS, POINTS),
        "'z', which is no site",
    ),
    "shape": (
        lambda: to_arviz({**rich_samples(), "scale": torch.ones(7, 3)}, rich, COUNTS, POINTS),
        r"'scale' have shape \(7, 3\)",
    ),
    "lengths": (
        lambda: to_arviz({**rich_samples(), "rate": torch.ones(5)}, rich, COUNTS, POINTS),
        "same number of chains and draws",
    ),
    "count": (lambda: to_arviz(rich_samples(), rich, COUNTS, POINTS, num_samples=3), "num_samples is for guides"),
    "prior": (lambda: to_arviz(rich_samples(), rich, COUNTS, POINTS, prior=True), "prior counts draws"),
    "chunk": (lambda: to_arviz(rich_samples(), rich, COUNTS, POINTS, chunk_size=0), "chunk_size must be at least 1"),
    "axis": (lambda: to_arviz(rich_samples(), rich, COUNTS, POINTS, coords={"town": [1]}), "'town', which is no axis"),
    "labels": (lambda: to_arviz(rich_samples(), rich, COUNTS, POINTS, coords={"city": [1]}), "1 labels for 'city'"),
    "batches": (lambda: _minibatches().to_arviz(), "took its data in batches"),
    "batches of a file": (lambda: _loaded_minibatches().to_arviz(), "took its data in batches"),
    "batches of a walk": (
        lambda: to_arviz(_minibatches().trajectories, regression()),
        "took its data in batches",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_explained(case: str) -> None:
    call, said = BAD[case]
    with pytest.raises(ValueError, match=said):
        call()
