"""Claims about wrong calls of what a run gives: latent maps, posteriors, predictions, exports, pictures."""

from __future__ import annotations

import inspect

import pytest
import torch
from pyro.infer.autoguide import AutoDelta
from torch import Tensor

import pyro_metricbnn
from pyro_metricbnn import (
    AutoencoderMap,
    AutoMetric,
    KernelMap,
    MetricBNN,
    MetricPosterior,
    Ranks,
    Trajectories,
    TrajectoryPosterior,
    agreement,
    calibration,
    compare,
    detection,
    function_mixing,
    health,
    join_ranks,
    k_hat,
    plots,
    predict,
    risk_coverage,
    selective,
    to_arviz,
)
from tests.test_bad_input import TABLE as MODELS
from tests.wrong_calls import (
    INF,
    LABELS,
    NAN,
    PLANE,
    Wrong,
    X,
    Y,
    anything,
    assert_goes_on_working,
    assert_refused,
    chains,
    class_prediction,
    classes,
    classifier,
    draws,
    each,
    mean_of,
    meta,
    metric,
    network,
    prediction,
    refuses,
    refuses_type,
    spoiled,
    walk,
)

TABLE = [
    refuses("run: ranks", lambda: Ranks(gather="some"), "gather must be"),  # type: ignore[arg-type]
    refuses("run: joining", lambda: join_ranks(seed=0, timeout=-1.0), "timeout must be positive"),
    refuses("latent map: size", lambda: AutoencoderMap(0), "latent_dim must be at least 1"),
    refuses("latent map: units", lambda: AutoencoderMap(2, num_hidden=0), "num_hidden must be at least 1"),
    refuses("latent map: rate", lambda: AutoencoderMap(2, lr=-1.0), "lr must be positive"),
    refuses_type("latent map: samples", lambda: KernelMap().fit(draws()), "trajectories must be the Trajectories"),  # type: ignore[arg-type]
    refuses_type("latent map: name", lambda: AutoencoderMap.paper(colour=3), "colour"),
    Wrong("latent map: too early", lambda: KernelMap().decode(X), AttributeError, "has not been fitted"),
    refuses("latent map: point", lambda: metric().latent_map.decode(torch.zeros(2, 9)), "must end in 3"),
    refuses("posterior: unfitted", lambda: MetricPosterior(KernelMap()), "has not been fitted"),
    refuses_type("posterior: walk", lambda: MetricPosterior(walk()), "latent_map must be a fitted LatentMap"),  # type: ignore[arg-type]
    refuses(
        "posterior: tube", lambda: MetricPosterior(metric().latent_map, torch.ones(7)), "each of the 2 coordinates"
    ),
    refuses_type("posterior: a list", lambda: metric().posterior.log_prob([0.0, 0.0]), "the value must be a tensor"),  # type: ignore[arg-type]
    refuses("posterior: shape", lambda: metric().posterior.log_prob(torch.zeros(9)), r"must end in \(2,\)"),
    refuses_type("posterior: samples", lambda: TrajectoryPosterior(draws()), "must be the Trajectories"),
    refuses_type(
        "guide: posterior", lambda: AutoMetric(network(), walk(), walk().sites, (X, Y), {}), "posterior must be"
    ),
    refuses(
        "guide: other model",
        lambda: AutoMetric(classifier(), metric().posterior, walk().sites, (X, LABELS), {}),
        "sites are of another model",
    ),
    refuses("guide: level", lambda: metric().guide.quantiles([1.5]), "must be from 0 to 1"),
    refuses("guide: draws", lambda: metric().guide.sample_posterior(-1), "num_samples must be at least 1"),
    refuses("trajectories: thin", lambda: walk().thinned(7), "every must be at most 6"),
    refuses("trajectories: shapes", lambda: Trajectories(**{**vars(walk()), "energies": X}), "thetas ask for"),
    # predictions
    refuses_type("predict: model", lambda: predict(mean_of, draws(), X), "for networks made models by bayesianize"),  # type: ignore[arg-type]
    refuses_type("predict: samples", lambda: predict(network(), anything, X), "samples must be a dict"),
    refuses("predict: missing site", lambda: predict(network(), {"bias": X}, X), "lack the site 'weight'"),
    refuses("predict: chains", lambda: predict(network(), chains(), X), r"must be \(3, 1, 1\)"),
    refuses("predict: lengths", lambda: predict(network(), {**draws(), "bias": torch.zeros(4, 1)}, X), r"be \(10, 1\)"),
    refuses("predict: NaN weights", lambda: predict(network(), each(lambda v: v * NAN, draws()), X), "10 entries that"),
    refuses("predict: weights' device", lambda: predict(network(), each(meta, draws()), X), "on the meta device"),
    refuses_type("predict: arrays", lambda: predict(network(), each(Tensor.numpy, draws()), X), "must be a tensor"),
    refuses("predict: no draw", lambda: predict(network(), each(lambda v: v[:0], draws()), X), "at least one draw"),
    refuses("predict: x elsewhere", lambda: metric().predict(meta(X)), "x is on the meta device"),
    refuses("predict: columns", lambda: metric().predict(PLANE), r"does not run on x .*shape \(12, 2\)"),
    refuses("predict: precision", lambda: metric().predict(X.double()), "does not run on x .*torch.float64"),
    refuses("predict: NaN", lambda: metric().predict(spoiled(X)), "x has 1 entries that are not finite"),
    refuses("predict: no row", lambda: metric().predict(X[:0]), "no row to predict at"),
    refuses("predict: chunk", lambda: metric().predict(X, chunk_size=-1), "chunk_size must be at least 1"),
    refuses("prediction: level", lambda: prediction().quantile(1.5), "q must be from 0 to 1"),
    refuses("prediction: points", lambda: prediction().points(0), "num_points must be at least 1"),
    refuses("prediction: class", lambda: class_prediction().log_prob(LABELS - 1), "y has 4 values outside the support"),
    refuses("prediction: y elsewhere", lambda: prediction().log_prob(meta(Y)), "y is on the meta device"),
    refuses("prediction: probs", lambda: prediction().probs, "probs are for classes"),
    # what others read
    refuses_type("to_arviz: source", lambda: to_arviz(anything, network(), X, Y), "has no posterior draws"),
    refuses_type("to_arviz: model", lambda: to_arviz(walk(), anything, X, Y), "model must be a Pyro model"),
    refuses("to_arviz: no data", lambda: to_arviz(draws(), network()), "does not run on what it was given"),
    refuses_type("to_arviz: text", lambda: to_arviz(each(str, draws()), network(), X, Y), "no tensor of numbers"),
    refuses("to_arviz: elsewhere", lambda: to_arviz(each(meta, draws()), network(), X, Y), "on the meta device"),
    refuses_type("to_arviz: draws", lambda: metric().to_arviz(num_samples=2.5), "num_samples must be a whole number"),  # type: ignore[arg-type]
    refuses("to_arviz: axis", lambda: metric().to_arviz(coords={"rows": [1]}), "coords has 'rows', which is no axis"),
    refuses_type("to_arviz: coords", lambda: metric().to_arviz(coords=[1]), "coords must be a dict"),
    refuses_type("health: number", lambda: health(anything), "run must be Trajectories or a MetricBNN that has run"),
    refuses("health: too early", lambda: health(MetricBNN(network())), "call run"),
    refuses_type("function_mixing: model", lambda: function_mixing(mean_of, chains(), X), "for networks made models"),
    refuses("function_mixing: no chains", lambda: function_mixing(network(), draws(), X), "group_by_chain=True"),
    refuses_type(
        "function_mixing: arrays",
        lambda: function_mixing(network(), each(Tensor.numpy, chains()), X),
        "must be a tensor",
    ),
    refuses_type("k_hat: guide", lambda: k_hat(network(), anything, X, Y), "guide must be a Pyro guide"),
    refuses(
        "k_hat: one point", lambda: k_hat(network(), AutoDelta(network()), X, Y), "draws one point again and again"
    ),
    refuses("k_hat: other model", lambda: k_hat(classifier(), metric().guide, X, LABELS), "it is of another model"),
    refuses_type("calibration: prediction", lambda: calibration(anything, Y), "prediction must be a Prediction"),
    refuses_type("calibration: level", lambda: calibration(prediction(), Y, levels=0.9), "levels must be a list"),  # type: ignore[arg-type]
    refuses("calibration: NaN", lambda: calibration(prediction(), spoiled(Y)), "y has 1 entr"),
    refuses("calibration: bins", lambda: calibration(class_prediction(), LABELS, num_bins=0), "num_bins must be at"),
    refuses_type("agreement: reference", lambda: agreement(prediction(), anything), "reference must be a Prediction"),
    refuses("agreement: kinds", lambda: agreement(prediction(), class_prediction()), "the reference's Categorical"),
    refuses_type("detection: a list", lambda: detection([0.1], Y), "inside must be a tensor of scores"),
    refuses("detection: NaN", lambda: detection(X, spoiled(X)), "outside has 1 entries that are NaN"),
    refuses("detection: empty", lambda: detection(X[:0], X), "inside has no input: pass at least one"),
    refuses("detection: columns", lambda: detection(X, PLANE), r"outside has shape \(12, 2\), but must be \(n,\)"),
    refuses("detection: elsewhere", lambda: detection(X, meta(X)), "outside is on the meta device"),
    refuses("detection: name", lambda: detection(prediction(), prediction(), score="doubt"), "score must be one of"),
    refuses("detection: numbers", lambda: detection(prediction(), prediction(), score="entropy"), "are for classes"),
    refuses_type("detection: score", lambda: detection(prediction(), prediction(), score=anything), "must be a name"),
    refuses_type(
        "detection: function",
        lambda: detection(prediction(), prediction(), score=lambda _: anything),
        "the score of inside must be a tensor",
    ),
    refuses("detection: scores", lambda: detection(X, Y, score="std"), "inside has scores already: leave it out"),
    refuses("detection: kinds", lambda: detection(prediction(), class_prediction()), "outside of Categorical"),
    refuses_type("selective: prediction", lambda: selective(X, Y), "prediction must be a Prediction"),
    refuses("selective: NaN", lambda: selective(prediction(), spoiled(Y)), "y has 1 entries that are not finite"),
    refuses("selective: rows", lambda: selective(prediction(), Y[:5]), "y has shape"),
    refuses("selective: class", lambda: selective(class_prediction(), LABELS + 1), "y has values that are no class"),
    refuses("selective: lengths", lambda: risk_coverage(X, Y[:5]), "12 scores and 5 losses"),
    refuses(
        "selective: infinite", lambda: risk_coverage(X, spoiled(Y, INF)), "losses has 1 entries that are not finite"
    ),
    refuses("selective: none", lambda: selective(prediction(), Y).risk_at(0.0), "coverage must be positive"),
    refuses("selective: too many", lambda: selective(prediction(), Y).risk_at(80), "coverage must be from 0 to 1"),
    refuses_type("compare: model", lambda: compare(anything, {"a": walk()}, X, Y), "model must be a Pyro model"),
    refuses_type("compare: posteriors", lambda: compare(network(), anything, X, Y), "posteriors must be a dict"),
    refuses_type("compare: draws", lambda: compare(network(), {"a": walk()}, X, Y, num_samples=2.5), "must be a whole"),  # type: ignore[arg-type]
    refuses_type("compare: seconds", lambda: compare(network(), {"a": walk()}, X, Y, seconds={"a": "1"}), "a number"),  # type: ignore[dict-item]
    refuses("compare: other model", lambda: compare(network(), {"a": classes()}, X, Y), "'a' cannot be compared"),
    # pictures
    refuses_type("plots: no prediction", lambda: plots.plot_band(anything, X), "prediction must be a Prediction"),
    refuses("plots: lengths", lambda: plots.plot_band(prediction(), X, (X, Y[:4])), "of equal lengths"),
    refuses_type("plots: no pair", lambda: plots.plot_band(prediction(), X, X), r"data must be a pair \(x, y\)"),  # type: ignore[arg-type]
    refuses("plots: NaN", lambda: plots.plot_band(prediction(), spoiled(X)), "x has entries that are not finite"),
    refuses_type("plots: text", lambda: plots.plot_band(prediction(), "x"), "no tensor of numbers"),  # type: ignore[arg-type]
    refuses_type("plots: predictor", lambda: plots.plot_decision(anything, PLANE, LABELS), "predictor must be a run"),
    refuses("plots: grid", lambda: plots.plot_decision(classes(), PLANE, LABELS, grid_size=0), "grid_size must be at"),
    refuses("plots: columns", lambda: plots.plot_decision(classes(), PLANE, LABELS), "does not run on x"),
    refuses_type("plots: probs", lambda: plots.plot_reliability(class_prediction(), LABELS), "probs must be a tensor"),
    refuses("plots: class", lambda: plots.plot_reliability(Y.abs().flatten(), LABELS), "no class: labels"),
    refuses("plots: scores", lambda: plots.plot_detection(X, spoiled(X, INF)), "no place in a histogram"),
    refuses("plots: curve", lambda: plots.plot_detection(X, X, show="curve"), "show must be one of 'scores', 'roc'"),
    refuses_type("plots: risk", lambda: plots.plot_risk_coverage({"a": X}), "the curve 'a' must be what diagnostics"),  # type: ignore[dict-item]
    refuses("plots: no risk", lambda: plots.plot_risk_coverage({}), "curves is empty"),
    refuses_type("plots: walks", lambda: plots.plot_walks(draws()), "walks must be Trajectories"),
    refuses_type("plots: potential", lambda: plots.plot_walks(metric(), anything), "potential must be a Batched"),
    refuses_type("plots: map", lambda: plots.plot_segments(anything), "latent_map must be a fitted LatentMap"),
    refuses("plots: losses", lambda: plots.plot_losses(metric()), "KernelMap has no losses to draw"),
]


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: wrong.name)
def test_a_wrong_call_is_refused_at_once_and_in_words(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(wrong, monkeypatch)


@pytest.mark.parametrize("subject", dict.fromkeys(wrong.subject for wrong in TABLE))
def test_after_all_its_wrong_calls_a_right_one_works(subject: str) -> None:
    assert_goes_on_working(subject, TABLE)


def test_the_tables_have_every_public_name() -> None:
    used = {name for wrong in [*MODELS, *TABLE] for name in wrong.call.__code__.co_names}
    public = {name: getattr(pyro_metricbnn, name) for name in pyro_metricbnn.__all__}
    assert {name for name, value in public.items() if callable(value) and not inspect.isabstract(value)} <= used
