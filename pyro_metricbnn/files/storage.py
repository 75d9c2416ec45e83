"""Files that cannot run code, and a save that cannot destroy the file that was there.

In: a tree of tensors and plain Python values.  Out: a file, and from it the tree again, checked.

A file is torch's zip of tensors: what is not a tensor, a number, a string or a container of them is refused, on the way
in and, by `archive`, on the way out.
"""

from __future__ import annotations

import errno
import glob
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..runtime.arguments import check_type
from .archive import load_tree

FORMAT, VERSION = "pyro_metricbnn", 1
KINDS = {
    "posterior": "a saved MetricBNN: MetricBNN.load reads it",
    "checkpoint": "the checkpoint of a walk: pass it as checkpoint= to go on with that walk",
}
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

    def part(self, name: str) -> Content:
        """The values under `name`."""
        return Content(self.path, self.value(name, dict), f"{self.within}{name}.")

    def tensor(self, name: str, *shape: int | None, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of this shape (None: any length) and precision (None: any floating one)."""
        value = self.values.get(name)
        wanted = f"a {dtype or 'floating-point'} tensor of shape ({', '.join(str(n or 'any') for n in shape)})"
        if not torch.is_tensor(value) or value.dim() != len(shape):
            raise self.wrong(name, wanted)
        if any(n is not None and n != m for n, m in zip(shape, value.shape, strict=True)):
            raise self.wrong(name, wanted)
        if value.dtype != dtype if dtype is not None else not value.is_floating_point():
            raise self.wrong(name, wanted)
        return value

    def wrong(self, name: str, wanted: str) -> ValueError:
        """The error for an entry that is missing or not what it should be."""
        value = self.values.get(name)
        found = f"a {value.dtype} tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else repr(value)[:80]
        said = f"is {found}" if name in self else "is missing"
        return ValueError(
            f"{self.path} makes no sense: {self.within}{name} {said}, but should be {wanted}. "
            "The file was changed, or not written by this library: write it again."
        )


# ------------------------------------------------------------------------------------------- write


def write(path: FilePath, kind: str, content: Mapping[str, Any]) -> None:
    """Write a file of this kind, or leave the one that is there as it is.

    Raises:
        ValueError: The content has an object that a file without code cannot hold.
        OSError: The disk is full, the folder missing, ...
    """
    target = writable(path)
    document = {"format": FORMAT, "version": VERSION, "kind": kind, "content": plain(content)}
    write_whole(target, lambda file: torch.save(document, file))


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
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):  # torch's writer trips over what a full disk said
            cause = cause.__context__
        raise OSError(
            getattr(cause, "errno", None) or errno.EIO,
            f"could not write {target} ({getattr(cause, 'strerror', None) or error}): what was there before is still "
            "whole. Make room, or choose another place",
        ) from error
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
    check_path(path)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ValueError(f"{target} is a folder: name a file in it.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist: make it first.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"the folder {target.parent} cannot be written to: choose another place.")
    return target


def check_path(path: Any) -> None:
    """Refuse what names no file."""
    check_type("path", path, (str, os.PathLike), "the name of a file, a str or a pathlib.Path")


def plain(value: Any, where: str = "") -> Any:
    """The tree without what only Python would know: tensors as they are, numbers without NumPy's types."""
    if torch.is_tensor(value) and value.layout == torch.strided:
        value = value.detach()
        whole = value.untyped_storage().nbytes() == value.nbytes  # else torch would write what it is a view of
        return value.as_subclass(Tensor) if whole else value.as_subclass(Tensor).clone()
    if isinstance(value, (bool, int, float, str)):
        return next(base(value) for base in (bool, int, float, str) if isinstance(value, base))
    if value is None or type(value) in (torch.Size, torch.dtype):
        return value
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    if type(value) is dict:
        return {plain(key): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise ValueError(
        f"{where or 'the content'} is a {type(value).__module__}.{type(value).__qualname__}: a file that cannot run "
        "code holds only dense tensors, numbers, strings, None, and lists, tuples and dicts of them."
    )


# -------------------------------------------------------------------------------------------- read


def read(path: FilePath, kind: str, device: torch.device | str | None = None) -> Content:
    """The content of a file of this kind, its tensors on `device` (None: where they were).

    Raises:
        FileNotFoundError: There is no file.
        ValueError: It is truncated, damaged, foreign, of another kind or of a newer version.
    """
    check_path(path)
    source = Path(path)
    if source.is_dir():
        raise ValueError(f"{source} is a folder: name the file in it.")
    if not source.exists():
        raise FileNotFoundError(f"there is no file {source}: check the name and the working folder, {Path.cwd()}.")
    document = load_tree(source, device)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{source} is not a file of {FORMAT}: it was written by another program.")
    if type(document.get("version")) is not int or document["version"] > VERSION:
        raise ValueError(
            f"{source} has format {document.get('version')!r}, and this version of {FORMAT} reads up to {VERSION}: "
            f"a newer one wrote it. Upgrade with pip install --upgrade {FORMAT}."
        )
    content = Content(source, document)
    found = content.value("kind", str)
    if found != kind:
        raise ValueError(f"{source} is no {kind}, but {KINDS.get(found, repr(found)[:80])}.")
    return content.part("content")
