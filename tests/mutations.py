"""Files that strangers may send: ways to spoil a saved posterior and a checkpoint, and what opens them.

`python -m tests.mutations FOLDER FIRST COUNT` spoils in a process of its own, so that one that crashes is seen.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pyro_metricbnn import AutoencoderMap, DriftRefineKernel, Gaussian, MetricBNN, Steer, bayesianize
from pyro_metricbnn.files.storage import FORMAT, read, write
from pyro_metricbnn.files.tree import CODES

X = torch.linspace(-2, 2, 6)[:, None]
Y = torch.sin(2 * X)
START = {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}


@functools.cache
def network() -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Linear(1, 1), Gaussian(0.3))


def metric(latent_map: Any = None) -> MetricBNN:
    kernel = DriftRefineKernel(network(), refiner=Steer(path=1, step_size=1.0), num_steps=3)
    return MetricBNN(kernel, num_particles=2, latent_map=latent_map)


def go_on(path: Path) -> object:
    """The run that a checkpoint is of."""
    return metric().run(X, Y, map_params=START, checkpoint=path, checkpoint_every=0, progress=False)


def load(path: Path) -> object:
    loaded = MetricBNN.load(path, network())
    loaded.draw(2)
    return loaded


OPEN: dict[str, Callable[[Path], object]] = {"kernel map": load, "autoencoder": load, "checkpoint": go_on}


@functools.cache
def sound(kind: str) -> bytes:
    """The bytes of a file that opens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.pt")
        torch.manual_seed(0)
        if kind == "checkpoint":
            go_on(path)
            content: Any = read(path, "checkpoint").values
            content["step"] = 2  # one step is left
            part = content["record"]
            for name in ("thetas", "energies", "energy_errors", "drift_survived"):
                part[name] = part[name][:, :-1]
            for name in ("step_sizes", "paths", "gradients"):
                part[name] = part[name][:-1]
            write(path, "checkpoint", content)
        else:
            latent_map = AutoencoderMap(2, num_hidden=4, num_epochs=1) if kind == "autoencoder" else None
            metric(latent_map).run(X, Y, map_params=START, progress=False).save(path)
        return path.read_bytes()


# ------------------------------------------------------------------------------------- the parts of a file

Blocks = dict[str, tuple[str, list[int], bytes]]  # code of the type, shape and bytes of each tensor


def unpacked(data: bytes) -> tuple[str, Blocks]:
    """The text of the plain values, and the tensors: by hand, so that any of it can be changed."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    text = header.pop("__metadata__")[FORMAT]
    blocks: Blocks = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        blocks[name] = entry["dtype"], entry["shape"], data[start + first : start + last]
    return text, blocks


def packed(text: str, blocks: Blocks, change_header: Callable[[bytes], bytes] = lambda header: header) -> bytes:
    """A file of these parts, with check sums that are right."""
    types = {code: dtype for dtype, code in CODES.items()}
    sums, header, end = {"": zlib.crc32(text.encode())}, {}, 0
    for name, (code, shape, numbers) in blocks.items():
        sums[name] = zlib.crc32(numbers, zlib.crc32(f"{types[code]} {tuple(shape)}".encode()))
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [end, end + len(numbers)]}
        end += len(numbers)
    metadata = {"__metadata__": {FORMAT: text, "crc32": json.dumps(sums)}}
    head = change_header(json.dumps({**metadata, **header}).encode())
    return len(head).to_bytes(8, "little") + head + b"".join(numbers for _, _, numbers in blocks.values())


def with_text(data: bytes, change: Callable[[str], str]) -> bytes:
    """The file with other plain values."""
    text, blocks = unpacked(data)
    return packed(change(text), blocks)


def with_numbers(data: bytes, name: str, change: Callable[[bytes], bytes]) -> bytes:
    """The file with other bytes in one of its tensors."""
    text, blocks = unpacked(data)
    code, shape, numbers = blocks[name]
    return packed(text, {**blocks, name: (code, shape, change(numbers))})


# ---------------------------------------------------------------------------------------- spoiled bytes


def spoiled_bytes(data: bytes, chance: random.Random) -> bytes:
    """One of: a bit flipped, bytes written over, cut off, a part left out, a part twice."""
    spoiled = bytearray(data)
    at, length = chance.randrange(len(data)), chance.randrange(1, 64)
    way = chance.randrange(5)
    if way == 0:
        spoiled[at] ^= 1 << chance.randrange(8)
    elif way == 1:
        spoiled[at : at + length] = chance.randbytes(length)
    elif way == 2:
        del spoiled[at:]
    elif way == 3:
        del spoiled[at : at + length]
    else:
        spoiled[at:at] = spoiled[at : at + length]
    return bytes(spoiled)


def spoiled_inside(data: bytes, chance: random.Random) -> bytes:
    """The same within the plain values, the header or a tensor, so that the check sums are right."""
    text, blocks = unpacked(data)
    where = chance.random()
    if where < 0.6:
        return with_text(data, lambda text: spoiled_bytes(text.encode(), chance).decode("utf-8", "replace"))
    if where < 0.8:
        return packed(text, blocks, lambda header: spoiled_bytes(header, chance))
    name = chance.choice([name for name, (_, _, numbers) in blocks.items() if numbers])
    return with_numbers(data, name, lambda numbers: spoiled_bytes(numbers, chance))


# ----------------------------------------------------------------------------------------- spoiled values

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    0.0,
    float("nan"),
    "odd",
    (),
    [[]],
    {"a": 1},
    {3: torch.ones(1)},
    torch.zeros(0),
    torch.full((2, 2), float("nan")),
    torch.ones(3, dtype=torch.int64),
    torch.float64,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values of a tree; of a long list to its first few."""
    if path:
        yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree[:4]):
            yield from places(value, (*path, i))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the tree with another value at this place."""
    if not path:
        return value
    first, *rest = path
    if isinstance(tree, dict):
        return {key: replaced(old, tuple(rest), value) if key == first else old for key, old in tree.items()}
    return type(tree)(replaced(old, tuple(rest), value) if i == first else old for i, old in enumerate(tree))


@functools.cache
def document(kind: str) -> Any:
    """What is said of a file, and its content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.pt")
        path.write_bytes(sound(kind))
        said = json.loads(unpacked(sound(kind))[0])
        return {**said, "content": read(path, said["kind"]).values}


def saved(document: Any) -> bytes:
    """The file of such a document."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.pt")
        write(path, "posterior", document["content"])
        said = {name: document[name] for name in ("version", "kind")}
        return with_text(path.read_bytes(), lambda text: json.dumps({**json.loads(text), **said}, default=str))


def spoiled_value(kind: str, chance: random.Random) -> bytes:
    tree = document(kind)
    path = chance.choice(list(places(tree)))
    return saved(replaced(tree, path, copy.deepcopy(chance.choice(ODD))))


# ------------------------------------------------------------------------------------------------ a trial


def trial(number: int, folder: Path) -> str:
    """Open one spoiled file: what happened, in a word; anything but a ValueError is raised."""
    chance = random.Random(number)
    kind = chance.choice(list(OPEN))
    way = chance.randrange(3)
    if way == 0:
        data = spoiled_bytes(sound(kind), chance)
    elif way == 1:
        data = spoiled_inside(sound(kind), chance)
    else:
        data = spoiled_value(kind, chance)
    path = folder / f"{number}.pt"
    path.write_bytes(data)
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            OPEN[kind](path)
    except ValueError as error:
        if not str(error).strip():
            raise AssertionError(f"trial {number}: an error without words") from error
        return "refused"
    except Exception as error:
        raise AssertionError(f"trial {number} ({kind}, way {way}): {type(error).__name__}: {error}") from error
    finally:
        torch.set_rng_state(state)
        path.unlink()
    return "opened"


if __name__ == "__main__":
    words = [
        trial(number, Path(sys.argv[1])) for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3]))
    ]
    print(len(words), words.count("refused"), words.count("opened"))
