"""A stranger's archive of tensors, looked at before and after it is loaded.

In: a file.  Out: the tree of tensors and plain values in it; or an error, before anything of it is run or takes memory.

torch's `weights_only` runs no code, but lets through more than this library writes. Here a file is held to what
`storage` writes: a whole zip archive without compression, the operations and names of plain values, and tensors that
the file has the bytes for. Until that is known they are mapped and not read: what claims more ends where the file does.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PICKLE = "data.pkl"
OPERATIONS = {"PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT", "BINUNICODE", "GLOBAL", "REDUCE"}
OPERATIONS |= {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"}
OPERATIONS |= {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPERSID"}
OPERATIONS |= {"APPEND", "APPENDS", "SETITEM", "SETITEMS"}
NAMES = {"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch.storage UntypedStorage"}
NAMES |= {"collections OrderedDict", "torch Size"}
SCALARS = (bool, int, float, str, type(None), torch.Size, torch.dtype)
MAX_DEPTH = 100
MAX_GROWTH = 4  # of tensors over the file: several may share one storage


def load_tree(source: Path, device: torch.device | str | None) -> Any:
    """All that is in the file, in memory of its own, on `device` (None: where it was).

    Raises:
        ValueError: It is truncated or damaged, or holds what `storage` does not write.
    """
    _check_archive(source)
    try:
        document = torch.load(source, map_location=device, weights_only=True, mmap=True)
    except Exception as error:  # of some twenty types, by where a file is wrong
        raise ValueError(_refusal(source, error)) from error
    _check_tree(source, document)
    return _copied(document, {})


def _refusal(source: Path, error: Exception) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "is_available() is False" in str(error):
        return f"{source} has tensors of a device that is not here ({first}): pass device='cpu' to load it there."
    return _foreign(source, first)


def _foreign(source: Path, why: str) -> str:
    return (
        f"{source} has more than tensors and plain values, or is no file of pyro_metricbnn, and was not run: {why}. "
        "Do not open it in another way unless you trust who wrote it."
    )


# ----------------------------------------------------------------------------------- before it is loaded


def _check_archive(source: Path) -> None:
    """Refuse what is not a whole archive of plain values: torch does not look at the check sums."""
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > source.stat().st_size:
                raise zipfile.BadZipFile("it would unpack to more than it is")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise zipfile.BadZipFile("it is compressed")
            names = [entry.filename.lower() for entry in entries]  # torch does not tell cases apart
            pickles = [name for name in names if name.endswith(PICKLE)]
            if len(set(names)) < len(names) or len(pickles) != 1:
                raise zipfile.BadZipFile("it has an entry twice, or not the one of plain values")
            damaged = archive.testzip()
            if damaged:
                raise zipfile.BadZipFile(f"the check sum of {damaged} is wrong")
            pickled = archive.read(entries[names.index(pickles[0])])
    except PermissionError:
        raise
    except Exception as error:  # zipfile raises what it trips over
        raise ValueError(
            f"{source} is truncated or damaged, or no file of pyro_metricbnn ({error}): copy or write it again."
        ) from error
    why = _what_it_may_not_do(pickled)
    if why:
        raise ValueError(_foreign(source, why))


def _what_it_may_not_do(pickled: bytes) -> str:
    """The first operation or name that plain values do not need, in words; empty if there is none. Nothing is run."""
    try:
        for operation, argument, _ in pickletools.genops(pickled):
            if operation.name not in OPERATIONS:
                return f"it has the operation {operation.name}"
            if operation.name == "GLOBAL" and not _is_known(str(argument)):
                return f"it names {str(argument)[:80]!r}"
    except Exception as error:  # of what is no pickle
        return f"its values cannot be read ({(str(error).splitlines() or [''])[0][:80]})"
    return ""


def _is_known(name: str) -> bool:
    module, _, attribute = name.partition(" ")
    if module != "torch":
        return name in NAMES
    storage = attribute.endswith("Storage") and attribute.isidentifier()
    return storage or name in NAMES or isinstance(getattr(torch, attribute, None), torch.dtype)


# ------------------------------------------------------------------------------------ after it is loaded


def _check_tree(source: Path, document: Any) -> None:
    """Refuse other types, containers in themselves or in two places, and more numbers than the file has bytes for."""
    seen: set[int] = set()
    tensors: dict[Any, int] = {}
    waiting: list[tuple[Any, int]] = [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        kind = type(value)
        if kind is Tensor and value.layout == torch.strided and value.device.type != "meta":
            tensors[_place(value)] = value.nbytes
        elif kind in (list, tuple, dict):
            if value and id(value) in seen:
                raise ValueError(_foreign(source, "it has a list, tuple or dict in two places"))
            if depth > MAX_DEPTH:
                raise ValueError(_foreign(source, f"it is nested more than {MAX_DEPTH} deep"))
            seen.add(id(value))
            parts = [*value.keys(), *value.values()] if kind is dict else value
            waiting.extend((part, depth + 1) for part in parts)
        elif kind not in SCALARS:
            raise ValueError(_foreign(source, f"it has a {kind.__module__}.{kind.__qualname__}"))
    if sum(tensors.values()) > MAX_GROWTH * source.stat().st_size:
        raise ValueError(_foreign(source, "its tensors have more numbers than it has bytes for"))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """What tells the numbers of tensors apart."""
    bits = (tensor.is_conj(), tensor.is_neg(), tensor.storage_offset())
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, bits


def _copied(value: Any, copies: dict[Any, Tensor]) -> Any:
    """The tree with tensors that need the file no longer."""
    if type(value) is Tensor:
        place = _place(value)
        if place not in copies:
            copies[place] = value.detach().clone()
        return copies[place]
    if type(value) is dict:
        return {_copied(key, copies): _copied(part, copies) for key, part in value.items()}
    return type(value)(_copied(part, copies) for part in value) if type(value) in (list, tuple) else value
