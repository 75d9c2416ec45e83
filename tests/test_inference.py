"""Claims about the front door."""

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


def test_the_summary_and_diagnostics_are_mcmcs(metric: MetricBNN, capsys: pytest.CaptureFixture[str]) -> None:
    metric.summary()
    assert "r_hat" in capsys.readouterr().out
    diagnostics = metric.diagnostics()
    assert diagnostics["frozen"] == []
    assert set(diagnostics["2.bias"]) == {"n_eff", "r_hat"}


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
