"""posteriordb's models against Stan's reference draws, and the figures of simulation-based calibration."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import posteriordb, sbc
from benchmarks.posteriordb_data import made
from benchmarks.posteriordb_models import forward, posteriors
from benchmarks.posteriordb_problem import Posterior, Problem
from pyro_metricbnn import BatchedPotential

EVERY_POSTERIOR = pytest.mark.parametrize("posterior", posteriors(), ids=lambda posterior: posterior.name)


def posterior_of(name: str) -> Posterior:
    (found,) = (one for one in posteriors() if one.name == name)
    return found


def problem_on_made_data(name: str) -> Problem:
    posterior = posterior_of(name)
    return posterior.problem(made(posterior.data_name))


# ------------------------------------------------------------------------------------------- the models


def test_there_are_37_posteriors_of_different_names() -> None:
    assert len({posterior.name for posterior in posteriors()}) == 37


@EVERY_POSTERIOR
def test_energy_and_gradient_are_finite_on_made_data(posterior: Posterior) -> None:
    problem = posterior.problem(made(posterior.data_name))
    potential = BatchedPotential(problem.model, *problem.args)
    energy, grad = potential.value_and_grad(torch.full((1, potential.sites.dim), 0.1, dtype=torch.float64))
    assert energy.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize(
    "name",
    [
        *("eight_schools-eight_schools_noncentered", "gp_pois_regr-gp_pois_regr", "hmm_example-hmm_example"),
        *("bball_drive_event_0-hmm_drive_0", "low_dim_gauss_mix-low_dim_gauss_mix"),
    ],
)
def test_sites_come_back_from_the_parameters_that_they_make(name: str) -> None:
    problem = problem_on_made_data(name)
    potential = BatchedPotential(problem.model, *problem.args)
    theta = 0.3 * torch.randn(5, potential.sites.dim, dtype=torch.float64)
    back = potential.flatten(problem.sites(problem.parameters(potential.unflatten(theta))))
    torch.testing.assert_close(back, theta, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_steps", [2, 3, 8, 13])
def test_steps_joined_in_pairs_are_the_forward_algorithm(num_steps: int) -> None:
    transition, emission = torch.randn(3, 3).log_softmax(-1), torch.randn(num_steps, 3)
    reached = emission[0]
    for step in emission[1:]:
        reached = torch.logsumexp(reached[:, None] + transition, dim=0) + step
    torch.testing.assert_close(forward(transition, emission), reached.logsumexp(0))


def reference_draws(folder: Path, name: str) -> dict[str, Tensor]:
    """Draws (S, ...) by parameter."""
    with np.load(folder / f"{name}.npz") as file:
        columns = dict(zip(map(str, file["names"]), torch.tensor(file["draws"]).double().unbind(1), strict=True))
    found: dict[str, Tensor] = {}
    for parameter in dict.fromkeys(name.partition("[")[0] for name in columns):
        parts = [column for name, column in columns.items() if name.startswith(f"{parameter}[")]
        found[parameter] = torch.stack(parts, dim=1) if parts else columns[parameter]
    return found


@EVERY_POSTERIOR
def test_the_energy_has_no_slope_on_average_over_stans_draws(posterior: Posterior, data_folder: Path | None) -> None:
    folder = data_folder and data_folder / "posteriordb"
    if folder is None or not folder.exists():
        pytest.skip("METRICBNN_DATA has no folder posteriordb")
    problem = posterior.problem(posteriordb.read_data(posterior, folder))
    potential = BatchedPotential(problem.model, *problem.args)
    theta = potential.flatten(problem.sites(reference_draws(folder, posterior.name)))
    slopes = potential.grad(theta) @ torch.linalg.cholesky(theta.T.cov())  # along the posterior's own axes
    errors = slopes.std(0) / math.sqrt(len(slopes))
    assert float((slopes.mean(0) / errors).abs().max()) < 5.0


# ---------------------------------------------------------------------------------------- what is read


def test_moments_of_the_reference_are_read_from_a_clone_of_posteriordb(tmp_path: Path) -> None:
    path = tmp_path / "posterior_database/reference_posteriors/draws/draws/arK-arK.json.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arK-arK.json", json.dumps([{"alpha": [1.0, 2.0]}, {"alpha": [3.0, 4.0]}]))
    found = posteriordb.read_reference(posterior_of("arK-arK"), tmp_path)
    assert found == {"alpha": (2.5, pytest.approx(np.std([1, 2, 3, 4], ddof=1)))}


def test_a_folder_without_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="clone of stan-dev/posteriordb"):
        posteriordb.read_data(posterior_of("arK-arK"), tmp_path)


def test_the_worst_parameter_is_the_one_whose_mean_is_farthest_in_deviations() -> None:
    reference = {"alpha": (0.0, 10.0), "beta[1]": (1.0, 0.1)}
    found = posteriordb.errors({"alpha": (2.0, 10.0), "beta[1]": (0.9, 0.2)}, reference)
    assert found["worst"] == "beta[1]"
    assert found["mean"] == pytest.approx(-1.0)
    assert (found["least deviation"], found["largest deviation"]) == (pytest.approx(1.0), pytest.approx(2.0))


def test_a_posterior_that_is_off_without_a_warning_is_named() -> None:
    off = {"mean": 0.4, "seconds": 1.0}
    text = posteriordb.verdict({"silent": {**off, "warnings": []}, "warned": {**off, "warnings": ["no maximum"]}})
    assert "2 off by more than 0.25 deviations, 1 of them without a warning: silent" in text


@pytest.mark.slow
def test_without_a_reference_nuts_is_one(tmp_path: Path) -> None:
    posteriordb.main(["gp_regr", "--quick", "--out", str(tmp_path)])
    assert "gp_pois_regr-gp_regr" in (tmp_path / "posteriordb" / "posteriordb.md").read_text()


# -------------------------------------------------------------------------- simulation-based calibration


def conjugate_ranks(narrowed: float) -> list[int]:
    """Of 200 means of a normal among draws of their posteriors, exact or that many times as narrow."""
    truth = torch.randn(200)
    y = truth[:, None] + torch.randn(200, 4)
    centre, deviation = y.sum(1) / 5, math.sqrt(1 / 5)
    draws = centre[:, None] + deviation / narrowed * torch.randn(200, sbc.NUM_RANKED)
    return [sbc.rank(float(value), row) for value, row in zip(truth, draws, strict=True)]


def test_ranks_among_exact_draws_are_uniform() -> None:
    found = sbc.uniformity(conjugate_ranks(1.0))
    assert found.p_value > 0.01
    assert found.distance < found.critical


def test_ranks_among_draws_that_are_twice_too_narrow_are_not_uniform() -> None:
    found = sbc.uniformity(conjugate_ranks(2.0))
    assert found.p_value < 0.01
    assert found.distance > found.critical


def test_every_rank_once_is_as_uniform_as_can_be() -> None:
    found = sbc.uniformity(range(sbc.NUM_RANKED + 1))
    assert found.p_value == 1
    assert found.distance == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("study", sbc.studies(), ids=lambda study: study.name)
def test_a_truth_from_the_prior_has_the_quantities_that_are_ranked(study: sbc.Study) -> None:
    truth, y = sbc.simulated(study)
    assert len(truth) >= 2
    assert all(map(math.isfinite, truth.values()))
    assert len(y) == len(study.inputs[0])


@pytest.mark.slow
def test_calibration_leaves_a_table_and_a_picture(tmp_path: Path) -> None:
    sbc.main(["normal", "--quick", "--out", str(tmp_path)])
    assert "normal: scale" in (tmp_path / "sbc" / "sbc.md").read_text()
    assert (tmp_path / "sbc" / "sbc.png").read_bytes().startswith(b"\x89PNG")
