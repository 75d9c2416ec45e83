"""Claims about walks that were killed: they go on to the bits of an unbroken one, or say why not."""

import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import (
    Adam,
    AutoencoderMap,
    Descent,
    DriftRefineKernel,
    Gaussian,
    Langevin,
    MetricBNN,
    Steer,
    Trajectories,
    bayesianize,
)
from pyro_metricbnn.files import storage
from pyro_metricbnn.search import map_search
from pyro_metricbnn.walk import checkpoint
from pyro_metricbnn.walk.checkpoint import fingerprint

ROOT = Path(__file__).parent.parent
X = torch.linspace(-2, 2, 12)[:, None]
Y = torch.sin(2 * X)


def network(prior_scale: float = 1.0, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return bayesianize(nn.Linear(1, 1), Gaussian(0.3), prior_scale=prior_scale)


def loader(own: bool = False, **settings: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7) if own else None
    return DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, generator=generator, **settings)


class Jittered(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Augmented as it is read, from the generators of Python and torch."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + 0.01 * random.random(), Y[index] + 0.01 * torch.randn(1)


STEER, ADAM = Steer(path=2), Adam(num_refinements=3)
WALKS: dict[str, tuple[Any, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "steer": (STEER, lambda: ((X, Y), {})),
    "adam": (ADAM, lambda: ((X, Y), {})),
    "descent": (Descent(alpha=0.01, eta=1e-4, num_refinements=2), lambda: ((X,), {"y": Y})),
    "minibatches": (STEER, lambda: ((X, Y), {"batch_size": 5})),
    "langevin": (Langevin(effort=0.1), lambda: ((X, Y), {"batch_size": 5})),
    "langevin on a loader": (Langevin(effort=0.1), lambda: ((loader(),), {})),
    "loader": (ADAM, lambda: ((loader(),), {})),
    "loader's own generator": (STEER, lambda: ((loader(own=True),), {})),
    "loader that augments": (ADAM, lambda: ((DataLoader(Jittered(), batch_size=4, shuffle=True),), {})),
}


def walk(name: str, path: Path | None = None, **settings: Any) -> Trajectories:
    refiner, data = WALKS[name]
    pyro.set_rng_seed(3)
    args, kwargs = data()
    settings = {"num_particles": 3, "checkpoint_every": 0, "checkpoint": path, "progress": False, **settings}
    return DriftRefineKernel(network(), refiner=refiner, num_steps=6).walk(*args, **kwargs, **settings)


@functools.cache
def unbroken(name: str, thin: int = 1) -> tuple[Trajectories, Tensor]:
    """A walk without a checkpoint, and what is drawn after it."""
    return walk(name, thin=thin), torch.rand(3)


@functools.cache
def finished(name: str) -> bytes:
    """The checkpoint of a walk that is over."""
    with tempfile.TemporaryDirectory() as folder:
        walk(name, Path(folder, "walk.pt"))
        return Path(folder, "walk.pt").read_bytes()


def assert_the_same(one: Trajectories, two: Trajectories) -> None:
    for name, value in one.state().items():
        other = getattr(two, name)
        assert torch.equal(value, other) if torch.is_tensor(value) else value == other, name


class Killed(BaseException):
    """Stands for a kill in the tests that stay in one process."""


def die(after: int, how: Callable[[], None]) -> Callable[..., None]:
    """storage.write that dies after so many writes."""
    count = 0

    def write(*args: Any) -> None:
        nonlocal count
        storage.write(*args)
        count += 1
        if count == after:
            how()

    return write


def stop() -> None:
    raise Killed


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_search, "BATCH_STEPS", 8)


pytestmark = pytest.mark.filterwarnings("ignore:the MAP search did not converge")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "walk.pt"
    assert [file.name for file in tmp_path.iterdir()] in ([], ["walk.pt"])


def kill(path: Path, name: str, after: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write", die(after, stop))
        with pytest.raises(Killed):
            walk(name, path, **settings)


# ---------------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_that_was_stopped_goes_on_to_the_same_bits(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, drawn = unbroken(name)
    kill(path, name, 3, monkeypatch)
    assert_the_same(walk(name, path), expected)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("after", range(1, 8))
def test_it_does_not_matter_where_it_was_stopped(after: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(path, "minibatches", after, monkeypatch, thin=2)
    assert_the_same(walk("minibatches", path, thin=2), unbroken("minibatches", 2)[0])


def test_a_walk_that_is_stopped_again_and_again_gets_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        kill(path, "loader", 1, monkeypatch)
    assert_the_same(walk("loader", path), unbroken("loader")[0])


@pytest.mark.parametrize("every", [0.0, 1e9])
@pytest.mark.parametrize("name", ["steer", "minibatches"])
def test_how_often_it_is_written_does_not_change_the_bits(name: str, every: float, path: Path) -> None:
    expected, drawn = unbroken(name)
    assert_the_same(walk(name, path, checkpoint_every=every), expected)
    assert torch.equal(torch.rand(3), drawn)


def test_a_finished_walk_is_read_from_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(finished("adam"))
    expected, _ = unbroken("adam")
    monkeypatch.setattr(Adam, "advance", None)
    monkeypatch.setattr(checkpoint, "write", None)
    assert_the_same(walk("adam", path), expected)


def test_a_frozen_particle_stays_frozen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Adam.advance

    def freezing(self: Adam, ground: Any, particles: Any) -> Any:
        moved, error = advance(self, ground, particles)
        energy = torch.where(moved.theta[:, 0] == moved.theta[0, 0], torch.nan, moved.energy)
        return replace(moved, energy=energy), error

    monkeypatch.setattr(Adam, "advance", freezing)
    with pytest.warns(UserWarning, match="1 of 3 particles"):
        whole = walk("adam")
    kill(path, "adam", 3, monkeypatch)
    with pytest.warns(UserWarning, match="1 of 3 particles"):
        resumed = walk("adam", path)
    assert resumed.frozen_at.tolist() == whole.frozen_at.tolist() == [1, 7, 7]


def test_a_run_that_was_stopped_in_the_fit_goes_on_to_the_same_bits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(path: Path | None) -> dict[str, Tensor]:
        pyro.set_rng_seed(0)
        latent = AutoencoderMap(2, num_hidden=8, num_epochs=3)
        metric = MetricBNN(network(), num_particles=3, num_steps=6, latent_map=latent)
        return metric.run(X, Y, checkpoint=path, progress=False).draw(5)

    whole = run(None)
    with monkeypatch.context() as patched:
        patched.setattr(AutoencoderMap, "_train", lambda *_: stop())
        with pytest.raises(Killed):
            run(path)
    resumed = run(path)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_resumed_walk_says_so_in_its_bar(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(path, "adam", 3, monkeypatch)
    walk("adam", path, progress=True)
    said = capsys.readouterr().err
    assert "walk (resumed)" in said
    assert "MAP" not in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steer", "adam", "minibatches"])
def test_a_compiled_walk_that_was_stopped_goes_on_to_the_same_bits(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = DriftRefineKernel.__init__
    monkeypatch.setattr(DriftRefineKernel, "__init__", lambda self, *a, **k: kernel(self, *a, compile=True, **k))
    whole = walk(name)
    kill(path, name, 3, monkeypatch)
    torch._dynamo.reset()
    assert_the_same(walk(name, path), whole)


# -------------------------------------------------------------------------------------- real kills


def kill_for_real(folder: str) -> None:
    """Start each walk in a process of its own, which the system kills: one in the middle of a write."""
    map_search.BATCH_STEPS = 8

    def kill_me(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_me_in_the_next_write() -> None:
        os.replace = kill_me  # type: ignore[assignment]

    for name in KILLED:
        if os.fork():
            assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
            continue
        checkpoint.write = die(3, kill_me_in_the_next_write if name == "adam" else kill_me)
        walk(name, Path(folder, f"{name}.pt"))
        os._exit(0)


KILLED = ("steer", "adam", "minibatches", "loader")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_walks_that_the_system_killed_go_on_to_the_same_bits(tmp_path: Path) -> None:
    code = f"from tests.test_checkpoint import kill_for_real; kill_for_real({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=ROOT)
    steps = [storage.read(tmp_path / f"{name}.pt", "checkpoint").value("step", int) for name in KILLED]
    assert steps == [2, 2, 2, 2]
    for name in KILLED:
        assert_the_same(walk(name, tmp_path / f"{name}.pt"), unbroken(name)[0])


# ---------------------------------------------------------------------------------- another walk


def other_walk(path: Path, model: Any = None, data: tuple[Any, ...] = (X, Y), **settings: Any) -> Trajectories:
    kernel: dict[str, Any] = {"refiner": STEER, "num_steps": 6}
    kernel |= {
        name: settings.pop(name) for name in ("refiner", "num_steps", "compile", "chunk_size") if name in settings
    }
    settings = {"num_particles": 3, "progress": False, **settings}
    return DriftRefineKernel(model or network(), **kernel).walk(*data, checkpoint=path, **settings)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("num_steps", 7, "num_steps was 6, now 7"),
        ("num_particles", 4, "num_particles was 3, now 4"),
        ("thin", 2, "thin was 1, now 2"),
        ("refiner", Steer(path=3), r"refiner was Steer\(.*path=2.*now Steer\(.*path=3"),
        ("compile", False, "compile was None, now False"),
        ("chunk_size", 2, "chunk_size was None, now 2"),
        ("storage_dtype", torch.float16, r"storage_dtype was None, now torch\.float16"),
        ("data", (X, Y + 1e-6), "data was"),
        ("batch_size", 4, "data was"),
        ("model", network(seed=1), "trained weights\\) was"),
        ("model", network(prior_scale=1.1), r"another model: the energy at the MAP was"),
    ],
)
def test_a_file_of_another_walk_is_refused(setting: str, value: Any, said: str, path: Path) -> None:
    path.write_bytes(finished("steer"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"(?s){said}.*another path, or delete the file"):
        other_walk(path, **{setting: value})
    assert path.read_bytes() == before


def test_other_sites_are_refused(path: Path) -> None:
    def model(x: Tensor, y: Tensor) -> None:
        slope = pyro.sample("slope", dist.Normal(x.new_zeros(()), 1.0))
        pyro.sample("obs", dist.Normal(slope * x, 1.0).to_event(2), obs=y)

    path.write_bytes(finished("steer"))
    with pytest.raises(ValueError, match=r"sites was .*now .*slope"):
        other_walk(path, model)


def test_a_saved_posterior_is_no_checkpoint(path: Path) -> None:
    storage.write(path, "posterior", {})
    with pytest.raises(ValueError, match=r"is no checkpoint, but a saved MetricBNN: MetricBNN\.load reads it"):
        walk("steer", path)


@pytest.mark.parametrize("part", ["step", "particles", "record", "ground", "potential", "random", "energy"])
def test_a_checkpoint_that_makes_no_sense_is_refused(part: str, path: Path) -> None:
    path.write_bytes(finished("minibatches"))
    changed = {"theta": 3} if part in ("particles", "random") else 7
    storage.write(path, "checkpoint", {**storage.read(path, "checkpoint").values, part: changed})
    with pytest.raises(ValueError, match="makes no sense"):
        walk("minibatches", path)


def test_a_place_that_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_metricbnn.walk.kernel.find_map", None)
    with pytest.raises(FileNotFoundError, match="make it first"):
        walk("steer", tmp_path / "no" / "walk.pt")
    with pytest.raises(ValueError, match="is a folder"):
        walk("steer", tmp_path)
    with pytest.raises(ValueError, match="checkpoint_every must not be negative"):
        walk("steer", tmp_path / "walk.pt", checkpoint_every=-1)


@pytest.mark.parametrize(
    "other", [(X + 1e-7, 1), (X, 2), (X.double(), 1), (X.T, 1), {"x": X, "y": 1}, (X, 1, None), (X, "1")]
)
def test_a_fingerprint_tells_data_apart(other: Any) -> None:
    assert fingerprint((X.clone(), 1)) == fingerprint((X, 1)) != fingerprint(other)
