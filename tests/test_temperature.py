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
    Categorical,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    bayesianize,
    choose_temperature,
)
from pyro_metricbnn.model.structure import find_layout
from pyro_metricbnn.predictions.pointwise import Pointwise
from pyro_metricbnn.refiners.steer import Steer
from pyro_metricbnn.tempering import TemperatureScores

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


def test_a_gaussian_posterior_at_a_hundredth_is_a_tenth_as_wide() -> None:
    covariance = torch.diag(torch.linspace(0.2, 2.0, 10, dtype=torch.float64) ** 2)
    model = linear_gaussian(covariance, torch.zeros(10, dtype=torch.float64))
    kernel = DriftRefineKernel(model, refiner=Steer(effort=4.0), temperature=0.01)
    walk = kernel.walk(num_particles=20, progress=False)
    ratio = walk.samples()["x"].std(0) / covariance.diagonal().sqrt()
    assert float(ratio.mean()) == pytest.approx(0.1, abs=0.005)


def test_an_energy_on_other_data_of_the_same_shapes_is_that_of_a_new_one() -> None:
    model, theta = regression(), torch.randn(3, 25)
    other = BatchedPotential(model, X, Y).on(X + 1, Y - 1)
    torch.testing.assert_close(other.grad(theta), BatchedPotential(model, X + 1, Y - 1).grad(theta))


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


# --------------------------------------------------------------------------- temperature="auto"


def classifier(hidden: int = 16) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))
    return bayesianize(net, Categorical(), prior_scale=3.0)


def rows(count: int, flipped: float = 0.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes on two sides of a line, some of them with the label of the other."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=g)
    wrong = torch.rand(count, generator=g) < flipped
    return x, ((x[:, 0] + x[:, 1] > 0) ^ wrong).long()


def chosen(*args: Any, model: Any = None, **settings: Any) -> TemperatureScores:
    """By a run whose walk is as short as can be."""
    pyro.set_rng_seed(0)
    metric = MetricBNN(model or classifier(), num_particles=2, num_steps=4, refiner=Steer(path=1), temperature="auto")
    metric.run(*args, progress=False, **settings)
    assert metric.temperature_choice is not None
    assert metric.kernel.temperature == metric.temperature_choice.temperature
    return metric.temperature_choice


def test_clean_labels_get_a_cold_posterior() -> None:
    assert chosen(*rows(80)).temperature < 1


def test_flipped_labels_do_not_get_a_cold_one() -> None:
    assert chosen(*rows(80, flipped=0.3)).temperature >= 1


def test_validation_rows_choose_where_there_are_some() -> None:
    choice = chosen(*rows(40), validation=rows(100, flipped=0.4, seed=1))
    assert choice.way == "100 validation rows"
    assert choice.temperature > 1  # clean rows to train on: only those that are flipped ask for a warm one


def test_the_same_seed_chooses_the_same() -> None:
    assert chosen(*rows(40)).nll == chosen(*rows(40)).nll


def test_the_nearest_to_1_is_taken_of_those_that_cannot_be_told_apart() -> None:
    noise = torch.randn(50, generator=torch.Generator().manual_seed(0))
    scores = {0.25: noise - noise.mean(), 1.0: torch.full((50,), 0.05), 4.0: torch.full((50,), 9.0)}
    choice = TemperatureScores.of(scores, "made rows", 0.0)
    assert choice.nll[0.25] < choice.nll[1.0]
    assert choice.temperature == 1.0


def test_folds_that_do_not_agree_cannot_tell_either() -> None:
    good, bad = torch.full((25,), -1.0), torch.full((25,), 0.5)
    scores = {0.25: torch.cat([good, bad]), 1.0: torch.zeros(50)}
    assert TemperatureScores.of(scores, "made rows", 0.0).temperature == 0.25
    assert TemperatureScores.of(scores, "made rows", 0.0, num_folds=2).temperature == 1.0


def test_the_best_is_taken_where_it_can_be_told() -> None:
    scores = {0.25: torch.rand(50) * 1e-3, 1.0: torch.full((50,), 0.05)}
    assert TemperatureScores.of(scores, "made rows", 0.0).temperature == 0.25


def test_a_temperature_without_a_finite_score_is_not_taken() -> None:
    scores = {0.25: torch.zeros(5), 1.0: torch.tensor([0.0, 0.0, 0.0, 0.0, math.inf])}
    assert TemperatureScores.of(scores, "made rows", 0.0).temperature == 0.25
    assert "finite density" in TemperatureScores.of({4.0: scores[1.0]}, "made rows", 0.0).warnings[0]


def test_the_grid_goes_on_from_an_end_that_is_taken() -> None:
    scores = {one: torch.full((9,), math.log(one)) + torch.arange(9) * 1e-3 for one in (0.25, 1.0, 4.0)}
    assert TemperatureScores.of(scores, "made rows", 0.0).next_values() == pytest.approx((0.025, 0.0025))


def test_the_grid_ends_where_the_last_step_brought_little() -> None:
    scores = {0.25: torch.zeros(9), 1.0: torch.full((9,), 0.005), 4.0: torch.ones(9)}
    choice = TemperatureScores.of(scores, "made rows", 0.0)
    assert (choice.temperature, choice.next_values()) == (0.25, ())


def test_a_choice_says_in_one_line_what_how_sure_and_at_what_cost() -> None:
    scores = {0.25: torch.zeros(50), 1.0: torch.linspace(0, 2, 50), 4.0: torch.linspace(0, 4, 50)}
    said = str(TemperatureScores.of(scores, "made rows", 1.23))
    assert said == (
        "temperature 0.25, chosen in 1.2 s by made rows: NLL 0.000 a row; "
        "above the lowest: 1 +1.000 ± 0.084, 4 +2.000 ± 0.168"
    )


def partly() -> Any:
    return bayesianize(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), Categorical(), where="2")


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (classifier, {"batch_size": 10}, "the noise of minibatches heats them"),
        (partly, {}, "only a part of it is Bayesian"),
        (lambda: classifier(hidden=4000), {}, "too large"),
    ],
)
def test_where_no_way_is_open_1_is_taken_and_said(model: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.warns(UserWarning, match=why):
        assert chosen(*rows(40), model=model(), **settings).temperature == 1


def test_few_rows_are_not_cut_into_folds() -> None:
    with pytest.warns(UserWarning, match="too few for folds"):
        assert chosen(*rows(12)).temperature == 1


def test_what_is_no_network_is_walked_at_1_which_is_said() -> None:
    with pytest.warns(UserWarning, match="networks made models by bayesianize"):
        assert chosen(GROUPS_Y, model=hierarchical).temperature == 1


def test_a_network_of_which_a_part_is_bayesian_is_judged_on_validation_rows() -> None:
    assert chosen(*rows(40), model=partly(), validation=rows(50, seed=1)).nll


def test_minibatches_are_not_judged_by_walks_without_friction() -> None:
    with pytest.warns(UserWarning, match="the noise of minibatches heats them"):
        assert not chosen(*rows(40), batch_size=20, validation=rows(50, seed=1)).nll


def test_a_run_chooses_again_on_other_data() -> None:
    pyro.set_rng_seed(0)
    metric = MetricBNN(classifier(), num_particles=2, num_steps=4, refiner=Steer(path=1), temperature="auto")
    cold = metric.run(*rows(80), progress=False).kernel.temperature
    assert metric.run(*rows(80, flipped=0.3), progress=False).kernel.temperature > cold


def test_a_word_that_is_no_temperature_is_refused() -> None:
    with pytest.raises(TypeError, match="a number or 'auto', got 'warm'"):
        MetricBNN(regression(), temperature="warm")  # type: ignore[arg-type]


def test_a_kernel_chooses_no_temperature_and_says_who_does() -> None:
    with pytest.raises(TypeError, match="MetricBNN"):
        DriftRefineKernel(regression(), temperature="auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass the model instead"):
        MetricBNN(DriftRefineKernel(regression()), temperature="auto")


def test_a_checkpoint_of_a_temperature_that_is_chosen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a checkpoint goes on at one temperature"):
        chosen(*rows(40), checkpoint=tmp_path / "walk.pt")


def test_a_softmax_is_refused_before_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_metricbnn.tempering.auto._by_folds", lambda *_: pytest.fail("a choice was begun"))
    with pytest.raises(ValueError, match="ends in a softmax"):
        chosen(*rows(40), model=bayesianize(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)), Categorical()))


def test_validation_rows_of_another_width_are_refused_before_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DriftRefineKernel, "ground", lambda *_, **__: pytest.fail("a search was begun"))
    with pytest.raises((ValueError, RuntimeError)):
        chosen(*rows(40), validation=(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)))


def test_what_was_chosen_is_saved(tmp_path: Path) -> None:
    pyro.set_rng_seed(0)
    model = classifier()
    metric = MetricBNN(model, num_particles=2, num_steps=4, refiner=Steer(path=1), temperature="auto")
    metric.run(*rows(80), progress=False).save(tmp_path / "cold.pt")
    assert MetricBNN.load(tmp_path / "cold.pt", model).kernel.temperature == metric.kernel.temperature < 1
