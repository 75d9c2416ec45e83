"""Claims about prior_scale="auto": the scale of a network's prior is chosen on rows that were not seen."""

from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_metricbnn import (
    BatchedPotential,
    Categorical,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    bayesianize,
    choose_temperature,
    inference,
)
from pyro_metricbnn.refiners.steer import Steer
from pyro_metricbnn.tempering import PriorScores
from pyro_metricbnn.tempering.prior_scales import rescaled, weights_in


def network(inputs: int = 12, hidden: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def auto(likelihood: Any = None, net: nn.Module | None = None) -> Any:
    return bayesianize(net or network(), likelihood or Gaussian(1.0), prior_scale="auto")


def rows(count: int, seed: int = 0, inputs: int = 12) -> tuple[Tensor, Tensor]:
    """There is little to learn, and there are many inputs to overfit."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=g)
    return x, 0.2 * x[:, :1] + torch.randn(count, 1, generator=g)


def ran(*args: Any, model: Any = None, temperature: Any = None, **settings: Any) -> MetricBNN:
    """A run whose walk is as short as can be."""
    pyro.set_rng_seed(0)
    walking: dict[str, Any] = {"num_particles": 2, "num_steps": 4, "refiner": Steer(path=1)}
    metric = MetricBNN(model or auto(), temperature=temperature, **walking)
    return metric.run(*args, **{"progress": False, **settings})


def chosen(*args: Any, **settings: Any) -> PriorScores:
    choice = ran(*args, **settings).prior_choice
    assert choice is not None
    return choice


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Gaussian()])
def test_the_energy_of_each_particle_is_that_of_a_model_with_its_scale(likelihood: Any, temperature: float) -> None:
    scales = torch.tensor([0.1, 0.7, 3.0])
    unit = BatchedPotential(auto(likelihood), *rows(20)).at(temperature)
    theta = torch.randn(2, 3, unit.dim)
    found = unit.estimated_by(partial(rescaled, scales, weights_in(unit)))
    for i, scale in enumerate(scales.tolist()):
        model = bayesianize(network(), likelihood, prior_scale=scale)
        expected = BatchedPotential(model, *rows(20)).at(temperature)
        (first, grad), (second, _) = (found.value_and_grad(one) for one in theta)
        value, of_model = expected.value_and_grad(theta[:, i])
        torch.testing.assert_close(grad[i], of_model[0], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(first[i] - second[i], value[0] - value[1], rtol=1e-4, atol=1e-2)


def test_useless_inputs_and_few_rows_get_a_narrow_prior() -> None:
    assert chosen(*rows(40), validation=rows(200, seed=1)).scale < 1


def test_folds_choose_where_no_rows_were_held_out() -> None:
    choice = chosen(*rows(40))
    assert choice.way == "cross-validation on 40 of 40 rows, held out in 4 folds"
    assert choice.scale <= 1
    assert choice.nll[0.4] < choice.nll[10.0]


def test_rows_that_tell_nothing_keep_the_scale_at_1() -> None:
    x, _ = rows(24)
    assert chosen(x, torch.zeros(24, 1), model=auto(Gaussian(100.0))).scale == 1  # noise that drowns every network


def test_the_model_has_what_was_chosen() -> None:
    model = auto()
    scale = chosen(*rows(40), model=model, validation=rows(200, seed=1)).scale
    assert scale != 1
    assert model.prior("0.weight").base_dist.scale.unique().tolist() == pytest.approx([scale])
    draws = Predictive(model, num_samples=400)(rows(2)[0])["0.weight"]
    assert float(draws.std()) == pytest.approx(scale, rel=0.1)
    fixed = BatchedPotential(bayesianize(network(), Gaussian(1.0), prior_scale=scale), *rows(40))
    theta = torch.randn(1, fixed.dim)
    torch.testing.assert_close(BatchedPotential(model, *rows(40)).grad(theta), fixed.grad(theta))


def test_a_model_that_has_not_been_run_has_standard_normal_priors() -> None:
    unit = BatchedPotential(bayesianize(network(), Gaussian(1.0), prior_scale=1.0), *rows(20))
    theta = torch.randn(3, unit.dim)
    assert torch.equal(BatchedPotential(auto(), *rows(20)).grad(theta), unit.grad(theta))


def test_a_run_on_other_data_chooses_again() -> None:
    model, validation = auto(), rows(200, seed=1)
    narrow = chosen(*rows(40), model=model, validation=validation).scale
    x, _ = rows(40)
    x_valid, _ = validation
    steep = chosen(x, 20 * x[:, :1], model=model, validation=(x_valid, 20 * x_valid[:, :1])).scale
    assert narrow < steep == model.normal_scales["0.weight"]


def test_the_same_seed_chooses_the_same() -> None:
    validation = rows(50, seed=1)
    assert chosen(*rows(24), validation=validation).nll == chosen(*rows(24), validation=validation).nll


def test_the_scale_is_chosen_before_the_temperature_which_then_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    metric = ran(*rows(24), validation=rows(50, seed=1), temperature="auto", progress=True)
    assert metric.prior_choice is not None
    assert metric.temperature_choice is not None
    said = capsys.readouterr().err
    assert 0 <= said.index(str(metric.prior_choice)) < said.index(str(metric.temperature_choice))


def test_a_choice_says_in_one_line_what_how_sure_and_at_what_cost() -> None:
    scores = {0.4: torch.zeros(50), 1.0: torch.linspace(0, 2, 50), 3.0: torch.linspace(0, 4, 50)}
    assert str(PriorScores.of(scores, "made rows", 1.23)) == (
        "prior scale 0.4, chosen in 1.2 s by made rows: NLL 0.000 a row; "
        "above the lowest: 1 +1.000 ± 0.084, 3 +2.000 ± 0.168"
    )


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (auto, {"batch_size": 10}, "the noise of minibatches heats them"),
        (lambda: auto(net=network(hidden=1000)), {}, "too large"),
        (lambda: auto(Gaussian()), {"num_networks": 1}, "the noise is inferred"),
    ],
)
def test_where_no_way_is_open_1_is_taken_and_said(model: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.warns(UserWarning, match=f'prior_scale="auto" takes 1: .*{why}'):
        assert chosen(*rows(40), model=model(), **settings).scale == 1


def test_minibatches_are_not_judged_by_walks_without_friction() -> None:
    with pytest.warns(UserWarning, match="the noise of minibatches heats them"):
        assert not chosen(*rows(40), batch_size=20, validation=rows(50, seed=1)).nll


def test_a_part_of_a_network_is_judged_on_validation_rows() -> None:
    model = bayesianize(network(), Gaussian(0.5), prior_scale="auto", where="2")
    assert chosen(*rows(40), model=model, validation=rows(50, seed=1)).nll


def test_a_kernel_of_such_a_model_chooses_too() -> None:
    pyro.set_rng_seed(0)
    kernel = DriftRefineKernel(auto(), num_steps=4, refiner=Steer(path=1))
    metric = MetricBNN(kernel, num_particles=2).run(*rows(40), validation=rows(50, seed=1), progress=False)
    assert metric.prior_choice is not None
    assert metric.prior_choice.nll


def test_a_model_with_numbers_chooses_nothing() -> None:
    model = bayesianize(network(), Gaussian(0.5), prior_scale=0.3)
    assert ran(*rows(24), model=model).prior_choice is None
    assert model.normal_scales["0.weight"] == 0.3


def test_a_saved_run_brings_its_scale_to_a_model_that_has_not_chosen(tmp_path: Path) -> None:
    metric = ran(*rows(40), validation=rows(200, seed=1))
    metric.save(tmp_path / "narrow.pt")
    other = auto()
    MetricBNN.load(tmp_path / "narrow.pt", other)
    assert metric.prior_choice is not None
    assert other.normal_scales["0.weight"] == metric.prior_choice.scale < 1


def test_a_run_that_was_loaded_and_saved_again_keeps_its_scale(tmp_path: Path) -> None:
    metric = ran(*rows(40), validation=rows(200, seed=1))
    metric.save(tmp_path / "once.pt")
    MetricBNN.load(tmp_path / "once.pt", auto()).save(tmp_path / "twice.pt")
    other = auto()
    MetricBNN.load(tmp_path / "twice.pt", other)
    assert metric.prior_choice is not None
    assert other.normal_scales["0.weight"] == metric.prior_choice.scale < 1


def test_a_file_of_before_scales_were_chosen_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bayesianize(network(), Gaussian(0.5))
    metric = ran(*rows(24), model=model)
    written = inference.write
    monkeypatch.setattr(
        inference, "write", lambda path, kind, content: written(path, kind, _without(content, "prior_scale"))
    )
    metric.save(tmp_path / "old.pt")
    assert MetricBNN.load(tmp_path / "old.pt", model).trajectories.num_particles == metric.num_particles


def _without(content: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != name}


def test_a_word_that_is_no_scale_is_refused() -> None:
    with pytest.raises(TypeError, match="or 'auto', got 'automatic'"):
        bayesianize(network(), Gaussian(0.5), prior_scale="automatic")  # type: ignore[arg-type]


def test_a_choice_for_some_parameters_is_refused() -> None:
    with pytest.raises(TypeError, match="one scale is chosen for all parameters"):
        bayesianize(network(), Gaussian(0.5), prior_scale={"0": "auto", "": 1.0})  # type: ignore[dict-item]


def test_a_checkpoint_of_a_scale_that_is_chosen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a checkpoint goes on at one prior scale"):
        chosen(*rows(40), checkpoint=tmp_path / "walk.pt")


def test_whole_runs_at_several_temperatures_want_a_number() -> None:
    net = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="would be chosen anew at each temperature"):
        choose_temperature(auto(Categorical(), net), *rows(20), validation=rows(20))
