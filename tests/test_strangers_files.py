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
from safetensors.torch import save
from torch import nn

from pyro_metricbnn.files.storage import read, write
from tests.mutations import (
    OPEN,
    Blocks,
    document,
    packed,
    places,
    replaced,
    saved,
    sound,
    trial,
    unpacked,
    with_numbers,
)

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
    "module": in_memory(lambda target: torch.save(nn.Linear(1, 1), target)),
    "state_dict": in_memory(lambda target: torch.save(nn.Linear(1, 1).state_dict(), target)),
    "safetensors": save(nn.Linear(1, 1).state_dict()),
    "empty safetensors": save({}),
    "safetensors with our name": save({}, metadata={"pyro_metricbnn": "{}"}),
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


@pytest.mark.parametrize("kind", OPEN)
def test_a_payload_runs_in_no_place_of_a_file(kind: str, path: Path) -> None:
    tree, pickled = document(kind), pickle.dumps(Payload(path.parent / "ran"))
    as_tensor = torch.frombuffer(bytearray(pickled), dtype=torch.uint8)
    for place in places(tree):
        for payload in (pickled.decode("latin-1"), as_tensor, {pickled.decode("latin-1"): as_tensor}):
            path.write_bytes(saved(replaced(tree, place, payload)))
            with contextlib.suppress(ValueError):  # some places say nothing, and the file opens
                OPEN[kind](path)
            assert not (path.parent / "ran").exists()


def test_the_payload_would_run_elsewhere(tmp_path: Path) -> None:
    """Else the claims here would mean nothing."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_does_not_run_in_any_part_of_the_file(protocol: int, path: Path) -> None:
    whole = sound("kernel map")
    payload = Payload(path.parent / "ran")
    pickled = pickle.dumps(payload, protocol)
    text, blocks = unpacked(whole)
    spoiled = [with_numbers(whole, name, lambda _: pickled) for name in blocks]
    spoiled += [packed(text, blocks, lambda _: pickled), packed(pickled.decode("latin-1"), blocks), pickled]
    spoiled += [
        in_memory(lambda target: torch.save(Payload(path.parent / "ran"), target, pickle_protocol=protocol or 2))
    ]
    for data in spoiled:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"file\.pt"):
            OPEN["kernel map"](path)
        assert not (path.parent / "ran").exists()


@pytest.mark.parametrize("kind", OPEN)
def test_nothing_is_unpickled(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    path.write_bytes(sound(kind))
    for name in ("pickle.load", "pickle.loads", "torch.load"):
        monkeypatch.setattr(name, refuse)
    OPEN[kind](path)


def test_a_tensor_that_is_there_twice_is_refused(path: Path) -> None:
    text, blocks = unpacked(sound("kernel map"))
    name = next(iter(blocks))
    entry = json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})[1:].encode()
    path.write_bytes(packed(text, blocks, lambda header: header[:-1] + b", " + entry))
    with pytest.raises(ValueError, match=r"file\.pt is truncated or damaged"):
        OPEN["kernel map"](path)


# ------------------------------------------------------------------------------------------- memory bombs


def block(numbers: bytes, *shape: int) -> Blocks:
    return {"a": ("F32", list(shape), numbers)}


VALUE = json.dumps({"version": 2, "kind": "posterior", "content": {"dict": [["a", {"tensor": ["a", "cpu"]}]]}})


def claiming(end: int, *shape: int) -> bytes:
    """Six numbers that say that they are many more."""

    def change(header: bytes) -> bytes:
        return header.replace(b"[0, 24]", f"[0, {end}]".encode()).replace(b"[6]", str(list(shape)).encode())

    data = packed(VALUE, block(bytes(24), 6), change)
    assert data != packed(VALUE, block(bytes(24), 6))
    return data


def on_the_same_bytes() -> bytes:
    """One block of numbers under many names."""
    entry = json.dumps({"dtype": "F32", "shape": [10_000], "data_offsets": [0, 40_000]})
    more = "".join(f', "a{i}": {entry}' for i in range(10_000))
    named = json.dumps([[f"a{i}", {"tensor": [f"a{i}", "cpu"]}] for i in range(10_000)])
    text = json.dumps({"version": 2, "kind": "posterior", "content": {"dict": json.loads(named)}})
    return packed(text, block(bytes(40_000), 10_000), lambda header: header[:-1] + more.encode() + b"}")


def deep(inside: str) -> bytes:
    """A list in a list in a list ..."""
    return packed(VALUE.replace('{"tensor": ["a", "cpu"]}', inside), {})


BOMBS: dict[str, Callable[[], bytes]] = {
    "a header that claims more than the file": lambda: (10**8).to_bytes(8, "little") + sound("kernel map")[8:],
    "a header that claims all there is": lambda: b"\xff" * 8 + sound("kernel map")[8:],
    "a tensor that claims more than the file": lambda: claiming(4 * 10**9, 10**9),
    "a shape that claims more than its bytes": lambda: claiming(24, 10**9),
    "a shape beyond all numbers": lambda: claiming(24, 2**40, 2**40),
    "a negative shape": lambda: claiming(24, -6),
    "a tensor that ends before it begins": lambda: claiming(-24, 6),
    "many names of the same bytes": on_the_same_bytes,
    "deep lists": lambda: deep("[" * 100_000 + "]" * 100_000),
    "deep tuples": lambda: deep('{"tuple": [' * 100_000 + "]}" * 100_000),
    "a tensor without memory": lambda: packed(VALUE.replace("cpu", "meta"), block(bytes(24), 6)),
    "bytes that claim a larger type": lambda: packed(
        VALUE.replace('"cpu"', '"cpu", "torch.complex128"'), {"a": ("U8", [1], bytes(1))}
    ),
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
    with pytest.raises(
        ValueError, match=r"file\.pt (has tensors of a device|is truncated|was written by version 0\.1)"
    ):
        read(path, "posterior")


def test_many_names_of_one_tensor_are_one_tensor(path: Path) -> None:
    """Else a small file could take the machine's memory."""
    many = [["names", [{"tensor": ["a", "cpu"]}] * 10_000]]
    text = json.dumps({"version": 2, "kind": "posterior", "content": {"dict": many}})
    path.write_bytes(packed(text, block(bytes(40_000), 10_000)))
    assert len({value.data_ptr() for value in read(path, "posterior").value("names", list)}) == 1


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
