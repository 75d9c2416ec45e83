"""Claims about disks that are full: the old file is whole, nothing is left over, and the walk is not lost."""

import builtins
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pyro_metricbnn import MetricBNN, Trajectories
from pyro_metricbnn.files import storage
from pyro_metricbnn.files.lock import locked

from .killed import KINDS, arguments, draws, kernel, network, walked


@pytest.fixture(scope="module")
def metric() -> MetricBNN:
    one = MetricBNN(kernel(), num_particles=3)
    args, kwargs = arguments("full", one.model, None)
    return one.run(*args, **kwargs)


def full(which: Callable[[int], bool] = lambda _: True) -> Callable[..., Any]:
    """`open` on a disk that is full for the files, by number, that are new: the system's own device for it."""
    count = 0

    def opened(path: Any, mode: str) -> Any:
        nonlocal count
        count += 1
        if not which(count):
            return builtins.open(path, mode)
        Path(path).touch()
        return builtins.open("/dev/full", "wb")

    return opened


pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")


# -------------------------------------------------------------------------------------------- saves


def test_a_save_to_a_full_disk_says_what_happened_and_what_to_do(
    metric: MetricBNN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "posterior.pt"
    metric.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(storage, "open", full(), raising=False)
    with pytest.raises(OSError, match=r"posterior\.pt \(No space left on device\).*still whole. Make room") as caught:
        metric.save(path)
    assert caught.value.errno == 28
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_after_a_save_that_failed_the_posterior_can_be_used_and_saved_elsewhere(
    metric: MetricBNN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    expected = draws(metric)
    monkeypatch.setattr(storage, "open", full(lambda number: number == 1), raising=False)
    with pytest.raises(OSError, match="No space left"):
        metric.save(tmp_path / "posterior.pt")
    metric.save(tmp_path / "elsewhere.pt")
    for one in (metric, MetricBNN.load(tmp_path / "elsewhere.pt", network())):
        torch.manual_seed(1)
        assert torch.equal(draws(one), expected)


# -------------------------------------------------------------------------------------- checkpoints


def assert_the_same(one: Trajectories, two: Trajectories) -> None:
    assert torch.equal(one.thetas, two.thetas)
    assert torch.equal(one.energies, two.energies)


@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_whose_checkpoints_fail_warns_and_goes_on_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "open", full(), raising=False)
    with pytest.warns(UserWarning, match=r"only in memory: .*No space left.*will be tried again") as said:
        found = walked(kind, tmp_path / "walk.pt")
    assert_the_same(found, walked(kind))
    assert "This was the last try" in str(said[-1].message)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_failed_is_tried_again_at_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "walk.pt"
    steps = []
    write = storage.write

    def noted(target: Any, kind: str, content: Any) -> None:
        write(target, kind, content)
        steps.append(content["step"])

    monkeypatch.setattr("pyro_metricbnn.walk.checkpoint.write", noted)
    monkeypatch.setattr(storage, "open", full(lambda number: number in (1, 4, 5)), raising=False)
    with pytest.warns(UserWarning, match="will be tried again"):
        walked("full", path)
    assert steps == [1, 2, 5, 6, 7, 8]
    assert storage.read(path, "checkpoint").value("step", int) == 8


def test_the_next_turn_is_as_far_away_as_after_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    monkeypatch.setattr(storage, "open", full(lambda number: not tries.append(number)), raising=False)  # type: ignore
    with pytest.warns(UserWarning, match="only in memory"):
        walked("full", tmp_path / "walk.pt", checkpoint_every=1e9)
    assert tries == [1, 2]  # the first and the last turn


def test_a_failed_checkpoint_leaves_the_one_before_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "walk.pt"
    monkeypatch.setattr(storage, "open", full(lambda number: number > 3), raising=False)
    with pytest.warns(UserWarning, match="only in memory"):
        walked("minibatches", path)
    monkeypatch.undo()
    assert storage.read(path, "checkpoint").value("step", int) == 2
    assert_the_same(walked("minibatches", path), walked("minibatches"))


def test_a_folder_that_is_taken_away_does_not_cost_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    sync = os.fsync

    def taken_away(file: int) -> None:
        sync(file)
        folder.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(os, "fsync", taken_away)
    with pytest.warns(UserWarning, match="only in memory"):
        found = walked("full", folder / "walk.pt")
    assert found.num_steps == 8


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("pyro_metricbnn.walk.kernel.leave", None)
    with pytest.raises(PermissionError, match="cannot be written to: choose another place"):
        walked("full", tmp_path / "walk.pt")


# --------------------------------------------------------------------------------- what is left over


def test_a_checkpoint_of_one_name_is_not_another_ones_left_over(tmp_path: Path) -> None:
    long_ago = time.time() - 2 * storage.LEFT_OVER
    others = [tmp_path / ".walk.pt.tmp", tmp_path / ".walk2.pt.12345678.tmp", tmp_path / "walk.pt.12345678.tmp"]
    left = tmp_path / ".walk.pt.0a1b2c3d.tmp"
    for file in (*others, left):
        file.touch()
        os.utime(file, (long_ago, long_ago))
    storage.write(tmp_path / "walk.pt", "checkpoint", {})
    assert set(tmp_path.iterdir()) == {tmp_path / "walk.pt", *others}


def test_a_lock_file_that_was_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".walk.pt.lock").write_text("process 1 on another machine")
    with locked(tmp_path / "walk.pt"):
        assert str(os.getpid()) in (tmp_path / ".walk.pt.lock").read_text()
    assert list(tmp_path.iterdir()) == []


def test_where_files_cannot_be_locked_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("pyro_metricbnn.files.lock.fcntl.lockf", unsupported)
    left = tmp_path / ".walk.pt.0a1b2c3d.tmp"
    left.touch()
    with locked(tmp_path / "walk.pt"):
        assert left.exists()  # it may be another process's
