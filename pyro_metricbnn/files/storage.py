"""Files that cannot run code, and a save that cannot destroy the file that was there.

In: a tree of tensors and plain values.  Out: a file of safetensors, with the rest as JSON and check sums in its
metadata, and from it the tree again, checked.
"""

import errno
import glob
import json
import os
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import torch
from safetensors import safe_open
from torch import Tensor

from ..runtime.arguments import check_type, first_line, real_device
from .tree import CODES, Tree, decoded

FORMAT, VERSION = "pyro_metricbnn", 2
KINDS = {
    "posterior": "a saved MetricBNN: MetricBNN.load reads it",
    "checkpoint": "the checkpoint of a walk: pass it as checkpoint= to go on with that walk",
}
MAX_HEADER = 100_000_000  # bytes: safetensors reads no longer one
LEFT_OVER = 3600.0  # seconds since a file that is being written was last written to: its process is no more
FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Content:
    """What a file holds; every look at it is checked, so that a file that makes no sense is said to."""

    path: Path
    values: Mapping[str, Any]
    within: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def value(self, name: str, *types: type) -> Any:
        """A plain value of one of these types."""
        value = self.values.get(name)
        if name not in self or type(value) not in types:
            raise self.wrong(name, "of type " + " or ".join(t.__name__ for t in types))
        return value

    def part(self, name: str) -> Self:
        """The values under `name`."""
        return replace(self, values=self.value(name, dict), within=f"{self.within}{name}.")

    def tensor(self, name: str, *shape: int | None, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of this shape (None: any length) and precision (None: any floating one)."""
        value: Any = self.values.get(name)
        fits = torch.is_tensor(value) and value.dim() == len(shape)
        fits = fits and all(n in (None, m) for n, m in zip(shape, value.shape, strict=True))
        if not fits or (value.dtype != dtype if dtype is not None else not value.is_floating_point()):
            lengths = ", ".join(str(n or "any") for n in shape)
            raise self.wrong(name, f"a {dtype or 'floating-point'} tensor of shape ({lengths})")
        return value

    def wrong(self, name: str, wanted: str) -> ValueError:
        """The error for an entry that is missing or not what it should be."""
        value = self.values.get(name)
        found = f"a {value.dtype} tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else repr(value)[:80]
        said = f"is {found}" if name in self else "is missing"
        sense = f"{self.within}{name} {said}, but should be {wanted}"
        return ValueError(
            f"{self.path} makes no sense: {sense}. It was changed, or is of another program: write it again."
        )


def write(path: FilePath, kind: str, content: Mapping[str, Any]) -> None:
    """Write a file of this kind, or leave the one that is there as it is.

    Raises ValueError of content that a file without code cannot hold, and OSError where the disk fails.
    """
    tree = Tree(content)
    tensors = dict(sorted(tree.tensors.items(), key=lambda named: -named[1].element_size()))  # so they are aligned
    text = json.dumps({"version": VERSION, "kind": kind, "content": tree.values})
    sums = {"": zlib.crc32(text.encode()), **{name: _check_sum(tensor) for name, tensor in tensors.items()}}
    header: dict[str, Any] = {"__metadata__": {FORMAT: text, "crc32": json.dumps(sums)}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": CODES[tensor.dtype], "shape": tensor.shape, "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > MAX_HEADER:
        room = f"{len(head)} bytes, and a file has room for {MAX_HEADER}"
        raise ValueError(f"what is not a tensor takes {room}: pass long lists of numbers as tensors.")

    def fill(file: IO[bytes]) -> None:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(_bytes(tensor))

    write_whole(path, fill)


def _bytes(tensor: Tensor) -> memoryview:
    """What a tensor is made of; copied only if it is scattered, or not in the processor's memory."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _check_sum(tensor: Tensor) -> int:
    return zlib.crc32(_bytes(tensor), zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode()))


def write_whole(path: FilePath, fill: Callable[[IO[bytes]], object]) -> None:
    """All goes to a new file in the same folder, which takes the place of the old one when it is whole."""
    target = writable(path)
    clear_left_over(target, LEFT_OVER)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "xb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        said = f"could not write {target} ({error.strerror or error}): what was there before is still whole"
        raise OSError(error.errno or errno.EIO, f"{said}. Make room, or choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def clear_left_over(target: Path, idle: float) -> None:
    """Remove what processes that were killed while they wrote `target` left, if idle for so many seconds."""
    for file in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime >= idle:
                file.unlink()


def writable(path: FilePath) -> Path:
    """Where a file would be written, links followed; refused, before long work starts, where none can be."""
    target = Path(os.path.realpath(_no_folder(path)))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist: make it first.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"the folder {target.parent} cannot be written to: choose another place.")
    return target


def _no_folder(path: FilePath) -> Path:
    check_type("path", path, (str, os.PathLike), "the name of a file, a str or a pathlib.Path")
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder: name a file in it.")
    return Path(path)


class _Refusal(ValueError):
    """Of a file that is not damaged."""


def read(path: FilePath, kind: str, device: torch.device | str | None = None) -> Content:
    """The content of a file of this kind, its tensors on `device` (None: where they were), in memory of their own.

    Raises FileNotFoundError, and ValueError of a file that is damaged, foreign, or of another kind or version.
    """
    source = _no_folder(path)
    if not source.exists():
        raise FileNotFoundError(f"there is no file {source}: check the name and the working folder, {Path.cwd()}.")
    with source.open("rb") as file:
        if file.read(4) == b"PK\3\4":
            written = f"was written by version 0.1 of {FORMAT}, before the format changed, or is no file of it"
            raise ValueError(f"{source} {written}: run again and save.")
    try:
        values = _values(source, kind, device)
    except _Refusal:
        raise
    except Exception as error:  # of any type, by where a file is wrong
        wrong = f"is truncated or damaged, or no file of {FORMAT} ({first_line(error)})"
        raise ValueError(f"{source} {wrong}: copy or write it again.") from error
    return Content(source, {"content": values}).part("content")


def _values(source: Path, kind: str, device: torch.device | str | None) -> Any:
    # safetensors looks whether the tensors are as long as the file; old versions make them on the default device.
    with torch.device("cpu"), safe_open(source, framework="pt") as file:
        metadata = file.metadata() or {}
        if FORMAT not in metadata:
            raise _Refusal(f"{source} is not a file of {FORMAT}: it was written by another program.")
        sums = json.loads(metadata["crc32"])
        if sums[""] != zlib.crc32(metadata[FORMAT].encode()):
            raise ValueError("the check sum of its values is wrong")
        document = json.loads(metadata[FORMAT])
        if document["version"] > VERSION:
            newer = f"has format {document['version']}, and this version of {FORMAT} reads up to {VERSION}"
            raise _Refusal(f"{source} {newer}. Upgrade with pip install --upgrade {FORMAT}.")
        if document["kind"] != kind:
            raise _Refusal(f"{source} is no {kind}, but {KINDS.get(document['kind'], repr(document['kind'])[:80])}.")
        tensors: dict[str, Tensor] = {}

        def load(name: str, was_on: str) -> Tensor:
            if name not in tensors:
                tensor = file.get_tensor(name).clone()  # of what is mapped: it needs the file no longer
                if sums[name] != _check_sum(tensor):
                    raise ValueError(f"the check sum of {name} is wrong")
                try:
                    tensors[name] = tensor.to(real_device("device", was_on if device is None else device))
                except Exception as error:  # of a type that depends on the device
                    why = f"has tensors of a device that is not here ({first_line(error)})"
                    raise _Refusal(f"{source} {why}: pass device='cpu' to load it there.") from error
            return tensors[name]

        return decoded(document["content"], load)
