"""Claims about the pictures: where they are drawn, what they leave alone, and that they show what there is."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from torch import Tensor, nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

from pyro_metricbnn import (
    AutoencoderMap,
    BatchedPotential,
    Bernoulli,
    Categorical,
    Gaussian,
    KernelMap,
    MetricBNN,
    bayesianize,
    plots,
    predict,
)
from pyro_metricbnn.diagnostics import risk_coverage, selective
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.plots.walks import Plane
from pyro_metricbnn.predictions.prediction import Prediction

from .runs import X, Y

GRID = torch.linspace(-3, 3, 30)[:, None]
Draw = Callable[[Axes | None], Axes]


def linear_prediction(num_draws: int = 500, likelihood: Likelihood | None = None) -> Prediction:
    f = torch.randn(num_draws, 1, 1) * GRID
    return Prediction(f=f, likelihood=likelihood or Gaussian(0.5), parameters={})


def corners(x: Tensor) -> Prediction:
    """Three classes, sure of themselves far from the origin."""
    logits = torch.stack([4 * x[:, 0], -4 * x[:, 0], 4 * x[:, 1]], dim=-1)
    return Prediction(f=logits[None], likelihood=Categorical(), parameters={})


POINTS = torch.tensor([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
LABELS = torch.tensor([1, 0, 2, 0])


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def autoencoder(metric: MetricBNN) -> AutoencoderMap:
    return AutoencoderMap(4, num_hidden=16, num_epochs=25).fit(metric.trajectories, progress=False)


KINDS = ["band", "decision", "reliability", "detection", "roc", "risk", "walks", "energy", "segments", "losses"]


@pytest.fixture(params=KINDS)
def draw(request: pytest.FixtureRequest, metric: MetricBNN, autoencoder: AutoencoderMap) -> Draw:
    prediction = linear_prediction()
    kinds: dict[str, Draw] = {
        "band": lambda ax: plots.plot_band(prediction, GRID, (X, Y), ax=ax),
        "decision": lambda ax: plots.plot_decision(corners, POINTS, LABELS, grid_size=15, ax=ax),
        "reliability": lambda ax: plots.plot_reliability(torch.tensor([0.1, 0.7]), torch.tensor([0, 1]), ax=ax),
        "detection": lambda ax: plots.plot_detection(GRID, GRID + 2, ax=ax),
        "roc": lambda ax: plots.plot_detection(GRID, GRID + 2, show="roc", ax=ax),
        "risk": lambda ax: plots.plot_risk_coverage(risk_coverage(GRID, GRID**2), ax=ax),
        "walks": lambda ax: plots.plot_walks(metric, grid_size=8, ax=ax),
        "energy": lambda ax: plots.plot_energy(metric, ax=ax),
        "segments": lambda ax: plots.plot_segments(metric, ax=ax),
        "losses": lambda ax: plots.plot_losses(autoencoder, ax=ax),
    }
    return kinds[request.param]


def test_a_picture_is_drawn_on_the_axes_that_are_given(draw: Draw) -> None:
    ax = Figure(layout="constrained").add_subplot()
    assert draw(ax) is ax
    assert ax.has_data()


def test_a_picture_without_axes_gets_a_figure_of_its_own(draw: Draw) -> None:
    before = plt.figure()
    assert draw(None).figure is not before
    assert not before.axes


def test_a_picture_has_labels_and_a_legend(draw: Draw) -> None:
    ax = draw(None)
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert all(text.get_text() for text in ax.get_legend().get_texts())


def test_a_legend_is_within_the_picture_and_not_on_the_data(draw: Draw) -> None:
    ax = draw(None)
    ax.figure.canvas.draw()
    legend, whole = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert legend.x0 >= 0
    assert legend.y0 >= 0
    assert legend.x1 <= whole.x1
    assert legend.y1 < ax.get_window_extent().y0


def test_a_picture_leaves_the_style_and_the_current_figure_alone(draw: Draw) -> None:
    current, style = plt.figure(), dict(matplotlib.rcParams)
    draw(Figure().add_subplot())
    assert plt.gcf() is current
    assert not current.axes
    assert dict(matplotlib.rcParams) == style


def test_a_picture_uses_up_no_random_numbers(draw: Draw) -> None:
    before = torch.get_rng_state()
    draw(None)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_picture_refuses_what_is_no_axes(draw: Draw) -> None:
    with pytest.raises(ValueError, match="must be a matplotlib axes"):
        draw(plt.figure())


def test_without_matplotlib_a_picture_says_what_to_install(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro_metricbnn\[plots\]'"):
        draw(None)


# --------------------------------------------------------------------------------- predictions


def draw_all(dtype: torch.dtype) -> list[Axes]:
    """Every picture, from data of this precision on the CPU."""
    x = torch.linspace(-1, 1, 12, device="cpu", dtype=dtype)[:, None]
    model = bayesianize(nn.Linear(1, 1, device="cpu", dtype=dtype), Gaussian(0.3))
    run = MetricBNN(model, num_particles=3, num_steps=6).run(x, x, progress=False)
    autoencoder = AutoencoderMap(2, num_hidden=4, num_epochs=25).fit(run.trajectories, progress=False)
    both, labels = torch.cat([x, x.flip(0) ** 2], dim=1), torch.arange(12, device="cpu") % 2
    net = bayesianize(nn.Linear(2, 2, device="cpu", dtype=dtype), Categorical())
    draws = {"weight": both[:5, :, None] @ both[:5, None], "bias": both[:5]}
    classes = predict(net, draws, both)
    return [
        plots.plot_band(run.predict(x), x, (x, x)),
        plots.plot_decision(lambda at: predict(net, draws, at), both, labels, grid_size=8),
        plots.plot_reliability(classes.probs, labels),
        plots.plot_detection(run.predict(x), run.predict(x + 9)),
        plots.plot_risk_coverage({"one": selective(classes, labels), "two": selective(classes, labels, score="std")}),
        plots.plot_walks(run, grid_size=8),
        plots.plot_energy(run),
        plots.plot_segments(run),
        plots.plot_losses(autoencoder),
    ]


def test_every_picture_is_drawn_from_float64() -> None:
    assert all(ax.has_data() for ax in draw_all(torch.float64))


@pytest.mark.usefixtures("_adam_keeps_off_the_default_device")
def test_no_picture_makes_a_tensor_on_the_default_device() -> None:
    with torch.device("meta"):
        axes = draw_all(torch.float32)
    assert all(ax.has_data() for ax in axes)


def edges(ax: Axes, label: str) -> Tensor:
    """The low and the high edge (2, n) of a band."""
    (band,) = [part for part in ax.collections if part.get_label() == label]
    vertices = torch.as_tensor(np.array(band.get_paths()[0].vertices))
    return torch.stack([torch.stack([y.min(), y.max()]) for y in _by_x(vertices)], dim=1)


def _by_x(vertices: Tensor) -> list[Tensor]:
    return [vertices[vertices[:, 0] == x, 1] for x in vertices[:, 0].unique()]


def test_the_edges_of_the_inner_band_are_quantiles_of_the_function() -> None:
    prediction = linear_prediction()
    drawn = edges(plots.plot_band(prediction, GRID, level=0.8), "80% of functions")
    wanted = prediction.f.squeeze(-1).quantile(torch.tensor([0.1, 0.9]), dim=0)
    torch.testing.assert_close(drawn, wanted.double(), atol=1e-5, rtol=1e-5)


def test_the_edges_of_the_outer_band_are_quantiles_of_new_observations() -> None:
    prediction = linear_prediction(4000)
    drawn = edges(plots.plot_band(prediction, GRID, level=0.9), "90% of observations")
    deviation = (GRID.squeeze() ** 2 + 0.25).sqrt().double()
    torch.testing.assert_close(drawn[1], 1.645 * deviation, atol=0.03, rtol=0.06)
    torch.testing.assert_close(drawn[0], -1.645 * deviation, atol=0.03, rtol=0.06)


def test_the_order_of_the_inputs_does_not_matter_to_a_band() -> None:
    prediction, shuffle = linear_prediction(), torch.randperm(30)
    shuffled = Prediction(f=prediction.f[:, shuffle], likelihood=Gaussian(0.5), parameters={})
    straight, other = (plots.plot_band(p, x).lines[0] for p, x in ((prediction, GRID), (shuffled, GRID[shuffle])))
    np.testing.assert_allclose(straight.get_xydata(), other.get_xydata(), atol=1e-6)


def test_a_band_far_wider_than_the_data_does_not_hide_them() -> None:
    wild = Prediction(f=1000 * torch.randn(50, 30, 1), likelihood=Gaussian(0.5), parameters={})
    low, high = plots.plot_band(wild, GRID, (X, Y)).get_ylim()
    assert high - low < 4 * float(Y.max() - Y.min())


def test_a_band_of_zeros_and_ones_shows_their_probability_alone() -> None:
    ax = plots.plot_band(linear_prediction(likelihood=Bernoulli()), GRID)
    assert [part.get_label() for part in ax.collections] == ["90% of functions"]
    assert edges(ax, "90% of functions").max() <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.plot_band(linear_prediction(), GRID[:5]), "x has 5 rows, the prediction 30"),
        (lambda: plots.plot_band(linear_prediction(), GRID, level=90), "level must be between 0 and 1"),
        (lambda: plots.plot_band(linear_prediction(), GRID.expand(-1, 2)), r"x has shape \(30, 2\)"),
        (lambda: plots.plot_band(linear_prediction(), GRID, (X, Y[:3])), "40 rows, its y 3"),
        (lambda: plots.plot_band(corners(POINTS), POINTS[:, 0]), "use plot_decision"),
        (lambda: plots.plot_decision(corners, GRID, LABELS), r"must be \(n, 2\)"),
        (lambda: plots.plot_decision(corners, POINTS, LABELS[:2]), "x has 4 rows, y 2"),
        (lambda: plots.plot_decision(corners, POINTS, LABELS, show="doubt"), "show must be one of 'confidence'"),
        (lambda: plots.plot_decision(lambda x: x, POINTS, LABELS), "must be a Prediction, got Tensor: pass a run"),
        (lambda: plots.plot_reliability(torch.tensor([2.0]), torch.tensor([1])), "not logits"),
        (lambda: plots.plot_reliability(torch.tensor([0.5]), torch.tensor([1, 0])), "probs has 1 rows, y 2"),
        (lambda: plots.plot_reliability(torch.ones(2, 2, 2) / 2, torch.tensor([1, 0])), r"must be \(n, C\)"),
        (lambda: plots.plot_reliability(torch.tensor([0.5]), torch.tensor([1]), num_bins=0), "num_bins"),
        (lambda: plots.plot_walks("walk"), "must be Trajectories or a MetricBNN"),
        (lambda: plots.plot_energy(MetricBNN(lambda: None)), "call run"),
        (lambda: plots.plot_segments(KernelMap()), "has not been fitted"),
        (lambda: plots.plot_losses(AutoencoderMap()), "has no losses"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(call: Callable[[], Axes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_colours_of_a_decision_are_the_probability_of_the_likeliest_class() -> None:
    ax = plots.plot_decision(corners, POINTS, LABELS, grid_size=9, margin=0.5)
    mesh = ax.collections[0]
    grid = torch.as_tensor(np.array(mesh.get_coordinates())).reshape(-1, 2).float()
    wanted = corners(grid).probs.amax(-1)
    np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), wanted, atol=1e-5)
    assert mesh.get_clim() == pytest.approx((1 / 3, 1.0))


def test_the_boundary_of_a_decision_is_where_two_classes_are_equal() -> None:
    def sides(x: Tensor) -> Prediction:
        return Prediction(f=(3 * x[:, :1] - 0.6)[None], likelihood=Bernoulli(), parameters={})

    ax = plots.plot_decision(sides, POINTS, LABELS.clamp_max(1), grid_size=41)
    boundary = next(part for part in ax.collections if isinstance(part, ContourSet))
    np.testing.assert_allclose(boundary.get_paths()[0].vertices[:, 0], 0.2, atol=0.02)


@pytest.mark.parametrize("show", ["confidence", "entropy", "mutual_information"])
def test_a_run_can_be_asked_for_each_kind_of_doubt(show: str) -> None:
    model = bayesianize(nn.Linear(2, 3), Categorical())
    metric = MetricBNN(model, num_particles=3, num_steps=5).run(POINTS, LABELS, progress=False)
    ax = plots.plot_decision(metric, POINTS, LABELS, show=show, grid_size=8, num_samples=10)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["class 0", "class 1", "class 2"]


def observed(ax: Axes) -> Any:
    """Points (bins, 2) of a reliability diagram."""
    return next(line for line in ax.lines if line.get_marker() == "o").get_xydata()


def test_calibrated_probabilities_lie_near_the_diagonal() -> None:
    probs = torch.rand(20_000)
    points = observed(plots.plot_reliability(probs, torch.bernoulli(probs)))
    assert len(points) == 10
    np.testing.assert_allclose(points[:, 1], points[:, 0], atol=0.04)


def test_overconfident_classes_lie_below_the_diagonal() -> None:
    logits = torch.randn(5000, 3)
    y = torch.distributions.Categorical(logits=logits).sample()
    points = observed(plots.plot_reliability((4 * logits).softmax(-1), y))
    assert (points[:, 1] < points[:, 0])[-3:].all()


def test_the_calibration_error_is_the_mean_distance_from_the_diagonal() -> None:
    probs, y = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.2]), torch.tensor([1, 1, 0, 0, 0])
    legend = plots.plot_reliability(probs, y).get_legend()
    assert "observed (ECE 0.360)" in [text.get_text() for text in legend.get_texts()]


def test_the_histograms_share_their_bins_and_the_legend_has_the_area() -> None:
    ax = plots.plot_detection(torch.rand(50), torch.rand(60) + 2, num_bins=7)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "like the data",
        "from elsewhere (AUROC 1.000)",
    ]
    corners = [patch.get_path().vertices[:, 0] for patch in ax.patches]
    assert set(corners[0]) == set(corners[1])


def test_scores_that_are_all_equal_can_be_drawn() -> None:
    assert plots.plot_detection(torch.zeros(5), torch.zeros(5)).patches


def test_curves_are_drawn_with_their_names_and_the_best_order() -> None:
    curve = risk_coverage(torch.rand(20), torch.rand(20))
    ax = plots.plot_risk_coverage({"ours": curve, "theirs": curve})
    said = [text.get_text().split(" (")[0] for text in ax.get_legend().get_texts()]
    assert said == ["ours", "best order", "theirs"]


# --------------------------------------------------------------------------------------- walks


def test_the_energies_that_are_drawn_are_the_records(metric: MetricBNN) -> None:
    ax, walk = plots.plot_energy(metric), metric.trajectories
    drawn = np.stack([line.get_ydata() for line in ax.lines[: walk.num_particles]])
    np.testing.assert_array_equal(drawn, walk.energies)


def test_a_frozen_walk_ends_where_it_froze(metric: MetricBNN) -> None:
    walk = metric.trajectories
    frozen = replace(walk, frozen_at=torch.where(torch.arange(5) == 2, 7, walk.frozen_at))
    ax = plots.plot_energy(frozen)
    assert len(ax.lines[2].get_xdata()) == 7
    cross = next(line for line in ax.lines if line.get_label() == "froze here")
    assert cross.get_ydata() == pytest.approx(float(walk.energies[2, 6]))


def test_walks_start_at_the_map_in_the_middle_of_their_plane(metric: MetricBNN) -> None:
    ax = plots.plot_walks(metric.trajectories)
    starts = [line.get_xydata()[0] for line in ax.lines[: metric.num_particles]]
    np.testing.assert_allclose(starts, 0.0, atol=1e-5)


def test_the_background_is_the_models_energy_in_the_plane(metric: MetricBNN) -> None:
    walk, potential = metric.trajectories, BatchedPotential(metric.model, X, Y)
    mesh = plots.plot_walks(walk, potential, grid_size=6).collections[0]
    places = torch.as_tensor(np.array(mesh.get_coordinates())).reshape(-1, 2).float()
    energies = potential.value(Plane.of_walks(walk).lift(places))
    above = (energies - energies.min()).clamp_min(1)
    np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), above, rtol=1e-3)


def test_the_planes_axes_are_orthonormal_and_hold_the_most_variance(metric: MetricBNN) -> None:
    plane = Plane.of_walks(metric.trajectories)
    torch.testing.assert_close(plane.axes @ plane.axes.T, torch.eye(2, dtype=torch.float64))
    points = metric.trajectories.thetas[:, 1:].flatten(0, 1).double()
    other = torch.linalg.qr(torch.randn(points.shape[1], 2, dtype=torch.float64))[0].T
    assert (points @ plane.axes.T).var(0).sum() > (points @ other.T).var(0).sum()


def test_every_segment_of_the_kernel_map_can_be_seen(metric: MetricBNN) -> None:
    ax = plots.plot_segments(metric.latent_map)
    segments = [line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
    lengths = [float(np.linalg.norm(np.ptp(line.get_xydata(), axis=0))) for line in segments]
    assert len(lengths) == metric.num_particles
    assert min(lengths) > 0.3 * max(lengths) > 0


def test_the_losses_that_are_drawn_are_the_records(autoencoder: AutoencoderMap) -> None:
    ax = plots.plot_losses(autoencoder)
    drawn = next(line for line in ax.lines if line.get_label() == "reconstruction").get_ydata()
    np.testing.assert_allclose(drawn, [row["reconstruction"] for row in autoencoder.losses])


def test_what_is_expected_under_each_draw_averages_to_the_mean(metric: MetricBNN) -> None:
    prediction = predict(metric.model, metric.get_samples(), X)  # type: ignore[arg-type]
    torch.testing.assert_close(prediction.expected.mean(0), prediction.mean)
