"""Claims about Ctrl-C: what was walked is kept and usable, and with a checkpoint goes on to the same bits."""

import functools
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import MCMC
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pyro_metricbnn import Adam, AutoencoderMap, KernelMap, MetricBNN, Trajectories, find_map, health
from pyro_metricbnn.energy.potential import BatchedPotential
from pyro_metricbnn.files import storage
from pyro_metricbnn.search import map_search
from pyro_metricbnn.walk.record import Recorder

from .killed import INTERRUPTIONS, KINDS, NUM_STEPS, X, Y, arguments, folder_of, kernel, network, walked

ROOT = Path(__file__).parent.parent


class Fuse(nn.Linear):
    """A line that is interrupted at its n-th call. Models copy it: the calls are those of the last that was made."""

    calls = 0

    def __init__(self, burns_at: int = -1) -> None:
        torch.manual_seed(0)
        super().__init__(1, 1)
        self.burns_at = burns_at
        Fuse.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Fuse.calls += 1
        if Fuse.calls == self.burns_at:
            raise KeyboardInterrupt
        return super().forward(x)


@functools.cache
def unbroken(kind: str) -> tuple[Trajectories, int]:
    """A whole walk, and how many calls of the network it took."""
    return walked(kind, net=Fuse()), Fuse.calls


def interrupted_at(part: float, kind: str = "full") -> Fuse:
    """A network that is interrupted after so much of a walk, whatever was called before it."""
    num_calls, of_the_walk = unbroken(kind)[1], 4 * NUM_STEPS  # three refinements and the point itself
    return Fuse(num_calls - int((1 - part) * of_the_walk))


def assert_a_beginning(found: Trajectories, whole: Trajectories) -> int:
    """Whether these are the first points of the walk; gives how many."""
    length = found.num_steps
    assert torch.equal(found.thetas, whole.thetas[:, : length + 1])
    assert torch.equal(found.energies, whole.energies[:, : length + 1])
    assert torch.equal(found.energy_errors, whole.energy_errors[:, :length])
    assert found.positions[-1] == 1
    assert bool(found.is_good.all())
    return length


def run(net: nn.Module, path: Path | None = None, **settings: Any) -> MetricBNN:
    metric = MetricBNN(kernel(net), num_particles=3, **settings)
    args, kwargs = arguments("full", metric.model, path)
    return metric.run(*args, **kwargs)


# --------------------------------------------------------------------------------------- the walk


@pytest.mark.parametrize("part", [0.6, 0.75, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_walk_gives_the_points_that_it_has_and_says_how_many(kind: str, part: float) -> None:
    with pytest.warns(UserWarning, match=rf"interrupted: it has \d of {NUM_STEPS} points.*checkpoint=path") as said:
        found = walked(kind, net=interrupted_at(part, kind))
    length = assert_a_beginning(found, unbroken(kind)[0])
    assert 4 <= length < NUM_STEPS
    assert f"has {length} of" in str(said[0].message)


@pytest.mark.parametrize("part", [0.3, 0.45, 0.7, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_with_a_checkpoint_the_same_call_goes_on_to_the_same_bits(kind: str, part: float, tmp_path: Path) -> None:
    path = tmp_path / "walk.pt"
    try:
        with warnings.catch_warnings(record=True) as said:
            walked(kind, path, interrupted_at(part, kind), checkpoint_every=1e9)
        assert f"goes on from {path}" in str(said[-1].message)
    except KeyboardInterrupt:
        assert part < 0.5
    assert 0 < storage.read(path, "checkpoint").value("step", int) < NUM_STEPS  # written when it was interrupted
    resumed = walked(kind, path)
    for name, value in unbroken(kind)[0].state().items():
        assert torch.equal(getattr(resumed, name), value) if torch.is_tensor(value) else True, name


def test_an_interrupted_walk_with_too_few_points_lets_the_interruption_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        walked("full", net=interrupted_at(0.4))


def test_a_point_that_was_half_recorded_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder.record

    def interrupted(self: Recorder, *args: Any) -> None:
        record(self, *args)
        if self.length == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "record", interrupted)
    with pytest.warns(UserWarning, match="it has 5 of 8"):
        found = walked("minibatches", tmp_path / "walk.pt")
    monkeypatch.undo()
    assert assert_a_beginning(found, unbroken("minibatches")[0]) == 5
    assert torch.equal(walked("minibatches", tmp_path / "walk.pt").thetas, unbroken("minibatches")[0].thetas)


def test_a_thinned_walk_counts_recorded_points() -> None:
    with pytest.raises(KeyboardInterrupt):
        walked("full", net=interrupted_at(0.75), thin=2)  # six steps are three points


def test_interrupted_in_a_write_it_writes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = os.fsync, iter(range(100))

    def interrupted(file: int) -> None:
        if next(calls) == 6:
            raise KeyboardInterrupt
        sync(file)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.warns(UserWarning, match="it has 6 of 8"):
        walked("full", tmp_path / "walk.pt")
    assert storage.read(tmp_path / "walk.pt", "checkpoint").value("step", int) == 6
    assert [file.name for file in tmp_path.iterdir()] == ["walk.pt"]


def test_interrupted_in_the_dataset_the_walk_can_still_be_refined_on() -> None:
    class Rows(Dataset[tuple[Tensor, Tensor]]):
        reads = 0

        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            self.reads += 1
            if self.reads == 300:
                raise KeyboardInterrupt
            return X[index], Y[index]

    walker = kernel()
    with pytest.warns(UserWarning, match=r"it has \d of 8"):
        walk = walker.walk(DataLoader(Rows(), batch_size=12), num_particles=3, map_params=start(), progress=False)
    assert walker.relax(walk, walk.thetas[:, -1], 2).shape == (3, 2)


def start() -> dict[str, Tensor]:
    return {name: value.detach() for name, value in network().trained_params.items()}


# ------------------------------------------------------------------------------- before and after it


def test_in_the_search_it_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        find_map(BatchedPotential(network(Fuse(9)), X, Y), progress=False)


def test_in_a_run_that_searches_it_goes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_search, "BATCH_STEPS", 8)
    metric = MetricBNN(network(Fuse(9)), num_particles=3)
    with pytest.raises(KeyboardInterrupt):
        metric.run(X, Y, checkpoint=tmp_path / "walk.pt", progress=False)
    assert list(tmp_path.iterdir()) == []


def saved(metric: MetricBNN, path: Path) -> MetricBNN:
    metric.save(path)
    return MetricBNN.load(path, network())


USES: dict[str, Callable[[MetricBNN, Path], Any]] = {
    "draw": lambda metric, _: metric.draw(5),
    "refined draws": lambda metric, _: metric.draw(5, num_refinements=2),
    "predict": lambda metric, _: metric.predict(X, num_samples=5).std,
    "guide": lambda metric, _: metric.guide.median(),
    "density": lambda metric, _: metric.posterior.log_prob(metric.trajectories.thetas[:, -1]),
    "save": lambda metric, path: saved(metric, path).draw(5),
    "arviz": lambda metric, _: metric.to_arviz(),
    "diagnostics": lambda metric, _: metric.diagnostics(),
    "summary": lambda metric, _: metric.summary(),
    "health": lambda metric, _: str(health(metric)),
}


@pytest.fixture(scope="module")
def interrupted() -> MetricBNN:
    """A run whose walk was interrupted with as few points as are enough."""
    with pytest.warns(UserWarning, match="it has 4 of 8"):
        metric = run(interrupted_at(0.62))
    assert metric.trajectories.thetas.shape == (3, 5, 2)
    return metric


@pytest.mark.parametrize("use", USES)
def test_everything_works_after_an_interrupted_walk(use: str, interrupted: MetricBNN, tmp_path: Path) -> None:
    USES[use](interrupted, tmp_path / "posterior.pt")


@pytest.mark.parametrize("latent_map", [KernelMap(), AutoencoderMap(2, num_hidden=8, num_epochs=30)])
def test_a_second_interruption_goes_through(latent_map: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelMap, "_choose", again)
    monkeypatch.setattr(AutoencoderMap, "_losses", again)
    with pytest.warns(UserWarning, match="was interrupted"), pytest.raises(KeyboardInterrupt):
        run(interrupted_at(0.8), latent_map=latent_map)


def test_after_one_in_the_fit_the_walk_is_there_and_can_be_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    metric = run(Fuse(), latent_map=AutoencoderMap(2, num_hidden=8, num_epochs=3))
    args, kwargs = arguments("minibatches", metric.model, None)
    monkeypatch.setattr(AutoencoderMap, "_losses", stop)
    with pytest.raises(KeyboardInterrupt):
        metric.run(*args, **kwargs)
    monkeypatch.undo()
    assert torch.equal(metric.trajectories.thetas, unbroken("minibatches")[0].thetas)
    assert metric.get_samples()["weight"].shape == (3 * NUM_STEPS, 1, 1)
    with pytest.raises(ValueError, match=re.escape("call fit() first")):  # not the draws of the run before
        metric.draw(5)
    metric.fit(KernelMap())
    assert torch.equal(metric.latent_map.theta_star, metric.trajectories.theta_star)


def test_a_fit_without_a_walk_asks_for_one() -> None:
    with pytest.raises(ValueError, match="call run"):
        MetricBNN(network()).fit()


def test_inside_pyros_mcmc_it_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    advance, steps = Adam.advance, iter(range(50))

    def interrupted(*args: Any) -> Any:
        if next(steps) == 10:
            raise KeyboardInterrupt
        return advance(*args)

    monkeypatch.setattr(Adam, "advance", interrupted)
    mcmc = MCMC(kernel(), num_samples=50, warmup_steps=1, disable_progbar=True)
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(X, Y)


def test_nothing_global_is_left_changed() -> None:
    pyro.enable_validation(True)
    with pytest.warns(UserWarning, match="was interrupted"):
        walked("full", net=interrupted_at(0.8))
    assert pyro.poutine.runtime._PYRO_STACK == []
    assert pyro.distributions.is_validation_enabled()
    assert torch.is_grad_enabled()


# ------------------------------------------------------------------------------------ real signals


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    command = [sys.executable, "-W", "ignore", "-m", "tests.killed", str(folder), "interrupt_walks"]
    subprocess.run(command, check=True, cwd=ROOT)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("moment", INTERRUPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_in_a_step_keeps_the_walk_and_the_same_call_goes_on(kind: str, moment: int, root: Path) -> None:
    path = folder_of(root, "interrupted", kind, moment) / "walk.pt"
    whole = unbroken(kind)[0].thetas
    step = storage.read(path, "checkpoint").value("step", int)
    assert moment <= step < NUM_STEPS
    assert path.with_name("raised").exists() == (step < 4)
    if step >= 4:
        assert torch.equal(torch.load(path.with_name("thetas.pt")), whole[:, : step + 1])
    assert torch.equal(walked(kind, path).thetas, whole)
