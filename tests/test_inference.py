"""Claims about the front door."""

from pathlib import Path

import pyro
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import AutoencoderMap, BatchedPotential, Descent, DriftRefineKernel, MetricBNN, Steer, predict

from .runs import X, Y, hierarchical, regression


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


def test_the_summary_of_a_model_is_mcmcs(groups: MetricBNN, capsys: pytest.CaptureFixture[str]) -> None:
    groups.summary()
    assert "r_hat" in capsys.readouterr().out


def test_the_summary_of_a_network_is_by_site_and_by_function_value(
    metric: MetricBNN, capsys: pytest.CaptureFixture[str]
) -> None:
    metric.summary()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert lines[-1].startswith("R-hat of 40 function values")
    assert len(lines) == 8


def test_the_diagnostics_are_mcmcs(metric: MetricBNN) -> None:
    diagnostics = metric.diagnostics()
    assert diagnostics["frozen"] == []
    assert set(diagnostics["2.bias"]) == {"n_eff", "r_hat"}


def test_reprs_are_one_line_that_says_what_there_is(metric: MetricBNN) -> None:
    assert repr(metric) == "MetricBNN(5 walks of 30 points, D = 25, KernelMap)"
    assert (
        repr(MetricBNN(hierarchical, effort=0.5))
        == "MetricBNN(20 particles, Steer(effort=0.5), KernelMap, not run yet)"
    )
    assert repr(metric.trajectories) == "Trajectories(5 walks of 30 points, D = 25)"


def test_effort_is_reached_from_the_front_door() -> None:
    assert MetricBNN(hierarchical, effort=4.0).kernel.refiner == Steer(effort=4.0)
    assert MetricBNN(hierarchical, refiner=Steer(path=2.0), effort=4.0).kernel.refiner == Steer(path=2.0, effort=4.0)
    with pytest.raises(ValueError, match="effort is a knob of Steer"):
        MetricBNN(hierarchical, refiner="adam", effort=4.0)


@pytest.mark.slow
def test_two_runs_of_one_kernel_keep_their_own_data(tmp_path: Path) -> None:
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=2), num_steps=5)
    first = MetricBNN(kernel, num_particles=3).run(X, Y, progress=False)
    second = MetricBNN(kernel, num_particles=3).run(X[:10], Y[:10], progress=False)
    assert [len(run.trajectories.arguments[0][0]) for run in (first, second)] == [40, 10]
    assert first.to_arviz()["log_likelihood"]["obs"].shape[2:] == (40,)
    first.save(tmp_path / "first.safetensors")
    loaded = MetricBNN.load(tmp_path / "first.safetensors", regression())
    assert torch.equal(loaded.trajectories.arguments[0][0], X)
    pyro.set_rng_seed(5)
    refined = first.draw(4, num_refinements=2)["2.bias"]
    alone = MetricBNN.from_walk(kernel, first.trajectories, progress=False)
    pyro.set_rng_seed(5)
    assert torch.equal(alone.draw(4, num_refinements=2)["2.bias"], refined)


@pytest.mark.slow
def test_a_loaded_minibatch_run_does_not_pass_one_batch_off_as_all_the_data(tmp_path: Path) -> None:
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=2), num_steps=5)
    MetricBNN(kernel, num_particles=3).run(X, Y, batch_size=16, progress=False).save(tmp_path / "run.safetensors")
    loaded = MetricBNN.load(tmp_path / "run.safetensors", regression())
    with pytest.raises(ValueError, match="took its data in batches"):
        loaded.to_arviz()
    assert loaded.to_arviz(X, Y)["log_likelihood"]["obs"].shape[2:] == (40,)


def test_joined_walks_have_one_posterior() -> None:
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=2), num_steps=5)
    walks = [kernel.walk(X, Y, num_particles=n, progress=False) for n in (2, 3)]
    metric = MetricBNN.from_walk(kernel, walks[0].join(walks[1]), progress=False)
    assert metric.trajectories.thetas.shape[:2] == (5, 6)
    assert metric.latent_map.num_segments == 5
    with pytest.raises(ValueError, match="the same sites and as many points"):
        walks[0].join(walks[1].thinned(2))


def test_a_walk_takes_an_energy_in_place_of_arguments() -> None:
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=2), num_steps=5)
    potential = BatchedPotential(kernel.model, X, Y)
    walk = kernel.walk(potential=potential, num_particles=2, progress=False)
    assert walk.arguments == ((X, Y), {})
    with pytest.raises(ValueError, match="pass it, or them, not both"):
        kernel.walk(X, Y, potential=potential)
    with pytest.raises(ValueError, match="of another model"):
        kernel.walk(potential=BatchedPotential(regression(), X, Y))


def test_a_loader_runs_end_to_end() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=2), num_steps=5)
    metric = MetricBNN(kernel, num_particles=3).run(loader, progress=False)
    assert metric.predict(X, num_samples=4).mean.shape == (40, 1)


def test_before_a_run_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="call run"):
        MetricBNN(hierarchical).draw(3)


def test_a_users_own_map_is_left_from_as_it_is() -> None:
    model = regression()
    own = {name: torch.full_like(value, 0.1) for name, value in model.trained_params.items()}
    kernel = DriftRefineKernel(model, refiner=Steer(path=2), num_steps=3)
    metric = MetricBNN(kernel, num_particles=2).run(X, Y, map_params=own, progress=False)
    assert all(torch.equal(metric.map_params[name], value) for name, value in own.items())


def test_a_users_own_map_has_to_be_whole() -> None:
    with pytest.raises(ValueError, match=r"2\.bias"):
        MetricBNN(regression()).run(X, Y, map_params={"0.weight": torch.zeros(8, 1)}, progress=False)


def test_refined_draws_have_energies_nearer_to_the_walks(metric: MetricBNN) -> None:
    rough = MetricBNN(metric.kernel, num_particles=5, tube_scale=0.3).run(X, Y, progress=False)
    potential = BatchedPotential(rough.model, X, Y)
    energies = [
        float(potential.value(potential.flatten(rough.draw(40, num_refinements=count))).mean()) for count in (0, 60)
    ]
    walked = float(rough.trajectories.energies[:, 1:].mean())
    assert abs(energies[1] - walked) < 0.2 * abs(energies[0] - walked)


def test_refining_needs_no_particular_number_of_draws(metric: MetricBNN) -> None:
    assert metric.draw(7, num_refinements=2)["2.bias"].shape == (7, 1)
    assert metric.predict(X, 3, num_refinements=1).f.shape == (3, 40, 1)


@pytest.mark.parametrize("call", ["draw", "refine", "particles", "task", "tube"])
def test_counts_and_names_that_make_no_sense_are_refused(call: str, metric: MetricBNN) -> None:
    with pytest.raises(ValueError, match="must"):
        {
            "draw": lambda: metric.draw(0),
            "refine": lambda: metric.draw(3, num_refinements=-1),
            "particles": lambda: MetricBNN(hierarchical, num_particles=0),
            "task": lambda: MetricBNN.paper(regression(), task="speech"),
            "tube": lambda: MetricBNN(hierarchical, tube_scale=-1.0),
        }[call]()


def test_too_few_latent_dimensions_are_refused_before_the_walk() -> None:
    with pytest.raises(ValueError, match="less than the 20 walks"):
        MetricBNN(hierarchical, latent_dim=3)


# ------------------------------------------------------------------------------- the paper's setting


@pytest.mark.parametrize(
    ("task", "num_steps"), [("regression", 100), ("classification", 100), ("uci", 50), ("images", 50)]
)
def test_the_papers_setting_has_its_numbers(task: str, num_steps: int) -> None:
    metric = MetricBNN.paper(regression(), task=task)
    assert metric.kernel.refiner == Descent(alpha=0.1, num_refinements=10, eta=1e-3, mean_loss=True)
    assert (metric.num_particles, metric.kernel.num_steps, metric.tube_scale) == (10, num_steps, 0.0)
    assert isinstance(metric._unfitted_map, AutoencoderMap)


def test_the_papers_walk_leaves_the_trained_weights_as_they_are() -> None:
    model = regression()
    metric = MetricBNN.paper(model, task="uci")
    metric._unfitted_map.num_epochs = 2  # type: ignore[attr-defined]
    metric.run(X, Y, progress=False)
    assert all(torch.equal(metric.map_params[name], value) for name, value in model.trained_params.items())


def test_the_papers_setting_draws_and_predicts() -> None:
    metric = MetricBNN.paper(regression(), task="uci")
    metric._unfitted_map.num_epochs = 5  # type: ignore[attr-defined]
    metric.run(X, Y, progress=False)
    assert metric.predict(X, num_samples=3).mean.shape == (40, 1)
