"""Claims about files of strangers: none runs code, none crashes the interpreter, none takes the machine's memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pyro_metricbnn.files.storage import read, write
from tests.mutations import OPEN, document, places, replaced, rewritten, saved, sound, trial

ROOT = Path(__file__).parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.pt"


@pytest.mark.parametrize("kind", OPEN)
def test_a_sound_file_opens(kind: str, path: Path) -> None:
    """Else every refusal below would mean nothing."""
    path.write_bytes(sound(kind))
    OPEN[kind](path)


# --------------------------------------------------------------------------------------- spoiled files


@pytest.mark.parametrize("kind", OPEN)
def test_a_file_cut_off_anywhere_is_said_to_be(kind: str, path: Path) -> None:
    whole = sound(kind)
    for length in range(0, len(whole), len(whole) // 50):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"file\.pt is truncated or damaged"):
            OPEN[kind](path)


def spoil(first: int, count: int, folder: Path) -> tuple[int, int]:
    """So many trials in a process of their own: how many were refused, and how many opened."""
    code = [sys.executable, "-m", "tests.mutations", str(folder), str(first), str(count)]
    result = subprocess.run(code, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    total, refused, opened = map(int, result.stdout.split())
    assert total == count
    return refused, opened


def test_the_interpreter_survives_hundreds_of_spoiled_files(tmp_path: Path) -> None:
    refused, opened = spoil(0, 250, tmp_path)
    assert refused > 150
    assert opened > 0  # what only changes a number, or a byte that says nothing


@pytest.mark.slow
def test_the_interpreter_survives_thousands_of_spoiled_files(tmp_path: Path) -> None:
    refused, _ = spoil(1_000, 4_000, tmp_path)
    assert refused > 2_400


def test_trials_are_the_same_at_each_run(tmp_path: Path) -> None:
    assert [trial(number, tmp_path) for number in range(5)] == [trial(number, tmp_path) for number in range(5)]


def test_a_place_beyond_numpys_numbers_is_refused(path: Path) -> None:
    """NumPy takes it, and reads beyond them at the next draw."""
    path.write_bytes(saved(replaced(document("checkpoint"), ("content", "random", "numpy", 2), 10**9)))
    with pytest.raises(ValueError, match="random generators makes no sense"):
        OPEN["checkpoint"](path)


@pytest.mark.parametrize("step_size", [0.0, 1e-300, -1.0, float("nan"), float("inf")])
def test_a_step_that_never_gets_anywhere_is_refused(step_size: float, path: Path) -> None:
    path.write_bytes(saved(replaced(document("checkpoint"), ("content", "particles", "step_size"), step_size)))
    with pytest.raises(ValueError, match=r"particles\.step_size is .*, but should be a length that a walk can go by"):
        OPEN["checkpoint"](path)


# ---------------------------------------------------------------------------------------- other formats


def in_memory(fill: Callable[[io.BytesIO], object]) -> bytes:
    target = io.BytesIO()
    fill(target)
    return target.getvalue()


def archived(target: io.BytesIO) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("readme.txt", "hello")


def tarred(target: io.BytesIO) -> None:
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))


FORMATS: dict[str, bytes] = {
    "empty": b"",
    "text": b"theta\n1.0\n",
    "json": json.dumps({"format": "pyro_metricbnn", "version": 1, "kind": "posterior", "content": {}}).encode(),
    "png": b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 1, 1, 8, 2, 0, 0, 0) + bytes(20),
    "zip": in_memory(archived),
    "empty zip": in_memory(lambda target: zipfile.ZipFile(target, "w").close()),
    "tar": in_memory(tarred),
    "gzip": gzip.compress(sound("kernel map")),
    "npz": in_memory(lambda target: np.savez(target, a=np.ones(3))),
    "npy": in_memory(lambda target: np.save(target, np.ones(3))),
    "pickle": pickle.dumps({"format": "pyro_metricbnn"}),
    "module": saved(nn.Linear(1, 1)),
    "state_dict": saved(nn.Linear(1, 1).state_dict()),
    "tensor": saved(torch.ones(3)),
    "old torch": in_memory(lambda f: torch.save({"a": torch.ones(3)}, f, _use_new_zipfile_serialization=False)),
    "behind text": b"#!/bin/sh\n" + sound("kernel map"),
}


@pytest.mark.parametrize("kind", ["kernel map", "checkpoint"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_another_format_is_refused_in_words(name: str, kind: str, path: Path) -> None:
    path.write_bytes(FORMATS[name])
    with pytest.raises(ValueError, match=r"file\.pt .*(no file of|written by another|is no checkpoint)"):
        OPEN[kind](path)
    assert path.read_bytes() == FORMATS[name]


@pytest.mark.parametrize("kind", OPEN)
def test_a_folder_is_no_file(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder"):
        OPEN[kind](tmp_path)


# ---------------------------------------------------------------------------------------------- payloads


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)

    def __hash__(self) -> int:
        return 7


def with_keys(tree: Any, payload: Payload) -> Any:
    """The tree with a payload as one more key of each dict."""
    if isinstance(tree, dict):
        return {**{key: with_keys(value, payload) for key, value in tree.items()}, payload: 1}
    return tree


def assert_refused_unrun(data: bytes, kind: str, path: Path) -> None:
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"file\.pt"):
        OPEN[kind](path)
    assert not (path.parent / "ran").exists()


@pytest.mark.parametrize("kind", OPEN)
def test_a_payload_runs_in_no_place_of_a_file(kind: str, path: Path) -> None:
    tree, payload = document(kind), Payload(path.parent / "ran")
    assert_refused_unrun(saved(with_keys(tree, payload)), kind, path)
    for place in places(tree):
        assert_refused_unrun(saved(replaced(tree, place, payload)), kind, path)


def test_the_payload_would_run_elsewhere(tmp_path: Path) -> None:
    """Else the claims above would mean nothing."""
    torch.load(io.BytesIO(saved(Payload(tmp_path / "ran"))), weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_does_not_run_in_any_entry_of_the_archive(protocol: int, path: Path) -> None:
    pickled = pickle.dumps(Payload(path.parent / "ran"), protocol)
    with zipfile.ZipFile(io.BytesIO(sound("kernel map"))) as archive:
        names = archive.namelist()
    for wanted in names:

        def change(name: str, old: bytes, wanted: str = wanted) -> bytes:
            return pickled if name == wanted else old

        path.write_bytes(rewritten(sound("kernel map"), change))
        with contextlib.suppress(ValueError):  # some entries say nothing, and the file opens
            OPEN["kernel map"](path)
        assert not (path.parent / "ran").exists()


def test_a_second_pickle_that_differs_in_case_is_refused(path: Path) -> None:
    """torch finds entries without regard to case, Python's zipfile does not."""
    data = io.BytesIO(sound("kernel map"))
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("archive/DATA.PKL", pickle.dumps(Payload(path.parent / "ran"), 2))
    assert_refused_unrun(data.getvalue(), "kernel map", path)


# ------------------------------------------------------------------------------------------- memory bombs


def laughs() -> Any:
    """Ten lists of ten lists of ..., each only once in memory."""
    inner: Any = ["ha"] * 10
    for _ in range(12):
        inner = [inner] * 10
    return inner


def deep() -> bytes:
    """A list in a list in a list ..., written without Python's stack."""
    levels = 100_000
    pickled = b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."
    return rewritten(saved([]), lambda name, old: pickled if name.endswith("data.pkl") else old)


def claiming(number: int) -> bytes:
    """Six numbers that say that they are many more."""
    much = b"J" + struct.pack("<i", number)

    def change(name: str, old: bytes) -> bytes:
        return old.replace(b"K\x06t", much + b"t").replace(b"K\x06\x85", much + b"\x85")

    data = rewritten(saved({"a": torch.arange(6.0)}), change)
    assert much in data
    return data


def itself() -> Any:
    inside: list[Any] = []
    inside.append(inside)
    return inside


def many_views() -> Any:
    numbers = torch.zeros(10_000)
    return [numbers.view(-1, 1 + i).mT for i in range(10_000) if 10_000 % (1 + i) == 0] * 1000


BOMBS: dict[str, Callable[[], bytes]] = {
    "a storage that claims more than its record": lambda: claiming(10**9),
    "a storage of negative length": lambda: claiming(-6),
    "one number, expanded": lambda: saved({"a": torch.zeros(1).expand(10**13)}),
    "lists of lists": lambda: saved(laughs()),
    "a list in itself": lambda: saved(itself()),
    "deep lists": deep,
    "many views of one storage": lambda: saved(many_views()),
    "a compressed archive": lambda: in_memory(compressed),
}


def compressed(target: io.BytesIO) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**8))


MEASURE = """
import resource, sys
from pyro_metricbnn.files.storage import read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        read(path, "posterior")
    except ValueError:
        continue
    sys.exit(f"{path} was opened")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_files_that_claim_to_be_huge_are_refused_and_take_no_memory(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    for number, make in enumerate(BOMBS.values()):
        (tmp_path / f"{number}.pt").write_bytes(make())
    files = sorted(map(str, tmp_path.iterdir()))
    result = subprocess.run([sys.executable, "-c", MEASURE, *files], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    assert float(result.stdout) < 150  # megabytes, for files of up to 5


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_claims_to_be_huge_is_refused_in_words(name: str, path: Path) -> None:
    path.write_bytes(BOMBS[name]())
    with pytest.raises(ValueError, match=r"file\.pt (has more than tensors|is truncated|is not a file)"):
        read(path, "posterior")


def test_a_loaded_tensor_does_not_need_its_file_any_longer(path: Path) -> None:
    write(path, "posterior", {"a": torch.arange(1000.0)})
    value = read(path, "posterior").tensor("a", 1000)
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(value, torch.arange(1000.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint16, torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_tensors_of_rare_types_come_back(dtype: torch.dtype, path: Path) -> None:
    numbers = torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    write(path, "posterior", {"a": numbers, "again": (numbers, numbers[None])})
    found = read(path, "posterior").values
    assert found["a"].dtype == dtype
    assert torch.equal(found["a"].to(torch.complex64), numbers.to(torch.complex64))
    assert torch.equal(found["again"][1].to(torch.complex64), numbers[None].to(torch.complex64))
