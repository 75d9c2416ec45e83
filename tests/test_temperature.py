"""Claims about posteriors at other temperatures than 1."""

import math
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from torch import nn

from pyro_metricbnn import (
    BatchedPotential,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    bayesianize,
    choose_temperature,
)
from pyro_metricbnn.model.structure import find_layout
from pyro_metricbnn.predictions.pointwise import Pointwise
from pyro_metricbnn.refiners.steer import Steer

from .runs import X, Y, hierarchical, regression
from .targets import linear_gaussian

GROUPS_Y = torch.randn(6, generator=torch.Generator().manual_seed(3))


def test_the_tempered_energy_is_that_of_the_model_under_poutine_scale() -> None:
    warm = BatchedPotential(hierarchical, GROUPS_Y).at(4.0)
    params, energy, _, _ = initialize_model(poutine.scale(hierarchical, scale=0.25), (GROUPS_Y,))
    torch.testing.assert_close(warm.value(warm.sites.flatten_unconstrained(params)[None])[0], energy(params))


def test_a_potential_that_was_tempered_stays_as_it_was() -> None:
    potential = BatchedPotential(hierarchical, GROUPS_Y)
    theta = torch.zeros(1, potential.dim)
    before, warm = potential.value_and_grad(theta)[0], potential.at(4.0).value_and_grad(theta)[0]
    assert not torch.equal(before, warm)
    assert torch.equal(potential.value_and_grad(theta)[0], before)


def test_a_gaussian_posterior_at_four_is_twice_as_wide() -> None:
    covariance = torch.diag(torch.linspace(0.2, 2.0, 10, dtype=torch.float64) ** 2)
    model = linear_gaussian(covariance, torch.zeros(10, dtype=torch.float64))
    kernel = DriftRefineKernel(model, refiner=Steer(effort=4.0), temperature=4.0)
    walk = kernel.walk(num_particles=20, progress=False)
    ratio = walk.samples()["x"].std(0) / covariance.diagonal().sqrt()
    assert float(ratio.mean()) == pytest.approx(2.0, abs=0.1)


def test_the_one_that_predicts_the_validation_rows_best_is_chosen() -> None:
    pyro.set_rng_seed(1)
    x = torch.randn(30, 8)
    y = x[:, :1] + 2.0 * torch.randn(30, 1)  # the model below takes the noise for a fortieth of that
    x_valid = torch.randn(200, 8)
    y_valid = x_valid[:, :1] + 2.0 * torch.randn(200, 1)
    model = bayesianize(nn.Linear(8, 1), Gaussian(0.05), prior_scale=10.0)
    settings: dict[str, Any] = {"num_particles": 6, "num_steps": 30, "progress": False}
    choice = choose_temperature(model, x, y, validation=(x_valid, y_valid), temperatures=(1, 16, 400), **settings)
    assert choice.best.kernel.temperature == 400
    assert list(choice.nll) == [1, 16, 400]
    assert choice.nll[400] == min(choice.nll.values())


def test_the_score_is_the_negative_log_predictive_density_an_observation() -> None:
    model = regression()
    choice = choose_temperature(
        model,
        X,
        Y,
        validation=(X, Y),
        temperatures=[2.0],
        num_samples=2000,
        num_particles=3,
        num_steps=5,
        progress=False,
    )
    layout = find_layout(model, (X, Y), {})
    each = Pointwise(model, (X, Y), {}, layout).given_data(choice.best.draw(2000))[0]["obs"]
    expected = -float((each.logsumexp(0) - math.log(2000)).mean())
    assert choice.nll[2.0] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    for make in (DriftRefineKernel, MetricBNN):
        with pytest.raises(ValueError, match="temperature must be positive"):
            make(regression(), temperature=temperature)
    with pytest.raises(ValueError, match="temperature must be positive"):
        BatchedPotential(hierarchical, GROUPS_Y).at(temperature)


def test_all_temperatures_are_looked_at_before_the_first_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricBNN, "run", lambda *_, **__: pytest.fail("a walk was begun"))
    with pytest.raises(ValueError, match="temperature must be positive"):
        choose_temperature(regression(), X, Y, validation=(X, Y), temperatures=(1.0, -4.0))


def test_validation_data_without_observations_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is observed"):
        choose_temperature(regression(), X, Y, validation=(X,))


def test_validation_data_that_is_one_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"as \(x, y\)"):
        choose_temperature(regression(), X, Y, validation=X)  # type: ignore[arg-type]


def test_a_saved_run_keeps_its_temperature(tmp_path: Path) -> None:
    model = regression()
    metric = MetricBNN(model, num_particles=2, num_steps=3, temperature=4.0).run(X, Y, progress=False)
    metric.save(tmp_path / "warm.pt")
    assert MetricBNN.load(tmp_path / "warm.pt", model).kernel.temperature == 4.0


def test_a_walk_does_not_go_on_at_another_temperature(tmp_path: Path) -> None:
    file = tmp_path / "walk.pt"
    settings: dict[str, Any] = {"num_particles": 2, "checkpoint": file, "progress": False}
    DriftRefineKernel(regression(), num_steps=3).walk(X, Y, **settings)
    with pytest.raises(ValueError, match=r"temperature was 1\.0, now 4\.0"):
        DriftRefineKernel(regression(), num_steps=3, temperature=4.0).walk(X, Y, **settings)


def test_validation_rows_without_a_density_are_said() -> None:
    beyond = torch.full_like(Y, 1e30)
    settings: dict[str, Any] = {"temperatures": [1.0], "num_particles": 2, "num_steps": 3, "progress": False}
    with pytest.raises(ValueError, match="no temperature gives the validation rows"):
        choose_temperature(regression(), X, Y, validation=(X, beyond), **settings)


def test_what_a_kernel_says_is_not_said_again() -> None:
    kernel = DriftRefineKernel(regression(), temperature=4.0)
    with pytest.raises(ValueError, match="temperature would be the kernel's to say"):
        MetricBNN(kernel, temperature=1.0)
