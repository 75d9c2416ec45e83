"""Claims about processes that the system killed: files are whole, and the same call goes on to the same bits."""

import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import pyro
import pytest
import torch
from torch import Tensor

from pyro_metricbnn import AutoencoderMap, MetricBNN, Trajectories
from pyro_metricbnn.files import storage

from .killed import EPOCHS, KILLS, KINDS, MOMENTS, WRITES, draws, fitted, folder_of, network, walked

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all the killed processes left."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-W", "ignore", "-m", "tests.killed", str(folder), *KILLS]
    subprocess.run(command, check=True, cwd=ROOT)
    return folder


@functools.cache
def unbroken(kind: str) -> tuple[Trajectories, Tensor]:
    return walked(kind), torch.rand(3)


def assert_the_same(one: Trajectories, two: Trajectories) -> None:
    for name, value in one.state().items():
        other = getattr(two, name)
        assert torch.equal(value, other) if torch.is_tensor(value) else value == other, name


def step(path: Path) -> int:
    return storage.read(path, "checkpoint").value("step", int)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_that_was_killed_in_a_step_goes_on_to_the_same_bits(kind: str, moment: int, root: Path) -> None:
    path = folder_of(root, "walk", kind, moment) / "walk.pt"
    assert moment <= step(path) < 8
    expected, drawn = unbroken(kind)
    assert_the_same(walked(kind, path), expected)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("place", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_that_was_killed_in_writing_goes_on_to_the_same_bits(kind: str, place: str, root: Path) -> None:
    path = folder_of(root, "write", kind, place) / "walk.pt"
    assert step(path) == (3 if place == "after the rename" else 2)
    assert_the_same(walked(kind, path), unbroken(kind)[0])
    assert list(path.parent.iterdir()) == [path]  # what the killed one left is cleared away


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_in_training_its_map_goes_on_to_the_same_bits(kind: str, root: Path) -> None:
    path = folder_of(root, "fit", kind) / "walk.pt"
    assert step(path) == 8
    assert torch.equal(draws(fitted(kind, path)), draws(fitted(kind)))


@pytest.mark.parametrize("place", WRITES)
def test_a_file_that_was_being_saved_over_is_the_old_or_the_new_one_whole(place: str, root: Path) -> None:
    path = folder_of(root, "save", place) / "posterior.pt"
    loaded = MetricBNN.load(path, network())
    assert loaded.tube_scale == (0.5 if place == "after the rename" else None)
    assert torch.equal(loaded.trajectories.thetas, unbroken("full")[0].thetas)


@pytest.mark.parametrize("place", WRITES[:3])
def test_what_a_killed_save_left_goes_with_a_later_save(place: str, root: Path) -> None:
    path = folder_of(root, "save", place) / "posterior.pt"
    (left,) = set(path.parent.iterdir()) - {path}
    metric = MetricBNN.load(path, network())
    metric.save(path)
    assert left.exists()  # it might be another process's that is still writing
    long_ago = time.time() - 2 * storage.LEFT_OVER
    os.utime(left, (long_ago, long_ago))
    metric.save(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_second_process_on_one_checkpoint_is_refused_and_told_who_has_it(root: Path) -> None:
    path = folder_of(root, "beside") / "walk.pt"
    said = path.with_name("second").read_text()
    assert "a walk that goes on in another process (" + path.with_name("first").read_text() in said
    assert "Wait until it is over, stop it, or take another path" in said


def test_the_lock_of_a_killed_process_holds_nobody_up(root: Path) -> None:
    path = folder_of(root, "beside") / "walk.pt"
    assert ".walk.pt.lock" in path.with_name("lock").read_text()
    assert 0 < step(path) < 8
    assert_the_same(walked("full", path), unbroken("full")[0])
    assert not path.with_name(".walk.pt.lock").exists()


def test_the_kills_were_in_training() -> None:
    pyro.set_rng_seed(0)
    metric = fitted("full")
    assert isinstance(metric.latent_map, AutoencoderMap)
    assert len(metric.latent_map.losses) > max(EPOCHS)
