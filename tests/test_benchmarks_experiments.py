"""The experiments run from the command line, in their quick setting."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import bias, closed_forms
from benchmarks.datasets import banana, snelson
from benchmarks.heat_maps import HeatMap, colour_scale
from benchmarks.prefixes import prefix
from pyro_metricbnn import BatchedPotential, MetricBNN

PNG = b"\x89PNG\r\n\x1a\n"
PICTURES = {
    "complexity": ("complexity.png",),
    "sensitivity": ("sensitivity_train.png", "sensitivity_gap.png"),
    "pca": ("pca.png",),
    "effort": (),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in PICTURES])
def experiment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of an experiment that was run, and its folder."""
    name: str = request.param
    out = tmp_path_factory.mktemp(name)
    run(name, out)
    return name, out / name


def run(name: str, out: Path) -> None:
    importlib.import_module(f"benchmarks.{name}").main(["--quick", "--out", str(out)])


def test_an_experiment_leaves_cells_and_a_table(experiment: tuple[str, Path]) -> None:
    name, out = experiment
    cells = json.loads((out / f"{name}.json").read_text())["cells"]
    assert sum("error" not in cell for cell in cells.values()) >= 5
    assert not [cell for cell in cells.values() if "pip install" in cell.get("error", "")]
    assert "|---|" in (out / f"{name}.md").read_text()


def test_an_experiments_pictures_are_png_files(experiment: tuple[str, Path]) -> None:
    name, out = experiment
    for picture in PICTURES[name]:
        assert (out / picture).read_bytes().startswith(PNG)


def test_a_second_call_runs_nothing_anew_and_gives_the_same_table(experiment: tuple[str, Path]) -> None:
    name, out = experiment
    cells, table = (out / f"{name}.json").read_bytes(), (out / f"{name}.md").read_text()
    run(name, out.parent)
    assert (out / f"{name}.json").read_bytes() == cells
    assert (out / f"{name}.md").read_text() == table


# --------------------------------------------------------------------------------- what they share


def test_a_prefix_of_a_walk_is_that_of_fewer_particles_and_steps(metric: MetricBNN) -> None:
    walk = metric.trajectories
    part = prefix(walk, 2, 5)
    assert torch.equal(part.thetas, walk.thetas[:2, :6])
    assert part.positions[-1] == 1
    assert part.is_good.all()


def test_a_prefix_longer_than_the_walk_is_refused(metric: MetricBNN) -> None:
    with pytest.raises(ValueError, match="walk longer"):
        prefix(metric.trajectories, 1, metric.trajectories.num_steps + 1)


def test_the_ordinary_split_of_made_snelson_data_has_validation_rows() -> None:
    problem = snelson(None, gap=False)
    assert problem.x_valid is not None
    assert (len(problem.x), len(problem.x_valid), len(problem.x_test)) == (120, 30, 50)


def test_made_banana_data_have_two_classes_and_standard_features() -> None:
    problem = banana(None)
    assert set(problem.y.tolist()) == {0, 1}
    torch.testing.assert_close(problem.x.std(0, correction=0), torch.ones(2))


def test_a_missing_value_does_not_spoil_the_scale_of_colours() -> None:
    scale = colour_scale([HeatMap([[0.0, 1.0], [float("nan"), 0.5]], "ab", "cd", "row", "column", "title")])
    assert scale.vmin == 0
    assert scale.vmax <= 1


@pytest.mark.parametrize("target", closed_forms.targets(), ids=lambda target: target.name)
def test_the_energy_of_a_closed_form_has_no_slope_on_average_over_its_exact_draws(target: closed_forms.Target) -> None:
    draws = target.draw(2000)
    potential = BatchedPotential(target.model)
    sizes = [site.shape.numel() for site in potential.sites.sites]
    parts = zip(potential.sites.sites, draws.split(sizes, dim=1), strict=True)
    grad = potential.grad(potential.flatten({site.name: part.reshape(-1, *site.shape) for site, part in parts}))
    error = grad.std(0) / math.sqrt(len(grad))
    assert float((grad.mean(0) / error).abs().max()) < 5.0


def test_the_bias_of_exact_draws_is_nothing_and_that_of_one_mode_of_two_is_not() -> None:
    target = closed_forms.two_modes("far apart", 5, 8.0)
    exact, others = target.draw(20_000), target.draw(20_000)
    found, of_one_mode = bias.errors(others, exact), bias.errors(others[others[:, 0] > 0], exact)
    assert found["mean"] < 0.05
    assert found["deviation"] == pytest.approx(1.0, abs=0.03)
    assert found["mass"] == pytest.approx(0.9, abs=0.01)
    assert of_one_mode["mean"] > 0.9
    assert of_one_mode["mass"] < 0.5


@pytest.mark.slow
def test_the_bias_of_a_named_closed_form_is_measured_and_in_the_table(tmp_path: Path) -> None:
    bias.main(["Gamma", "--quick", "--out", str(tmp_path)])
    assert "rate of a Poisson" in (tmp_path / "bias" / "bias.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last_layer", "spread"])
def test_an_experiment_on_an_image_network_leaves_cells_and_a_table(name: str, tmp_path: Path) -> None:
    pytest.importorskip("laplace")
    run(name, tmp_path)
    cells = json.loads((tmp_path / name / f"{name}.json").read_text())["cells"]
    assert not [cell["error"] for cell in cells.values() if "error" in cell]
    assert "|---|" in (tmp_path / name / f"{name}.md").read_text()
