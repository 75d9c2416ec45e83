"""Batches without end, and all rows that they are taken of.

In: a DataLoader, or tensors and a batch size.  Out: `Stream`, batch after batch, with the place in them; `all_rows`.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from ..files.storage import Content
from ..runtime.arguments import check_type, check_whole
from ..runtime.randomness import random_state, set_random_state
from .frozen_part import Rows

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def check_lasting(data: Any) -> None:
    """Refuse a generator."""
    if isinstance(data, Iterator):
        once = f"a {type(data).__name__}, which can be gone through only once"
        raise ValueError(f"the data are {once}, and a walk needs many passes: pass tensors, or a DataLoader.")


class Stream:
    """Batches without end, pass after pass, and the place in them.

    A loader cannot say where it is. So the place is the state of the generators at the start of the pass and the
    number of batches since, which are skipped. Persistent workers that draw numbers by themselves are not so exact.
    """

    def __init__(self, batches: Any, keeps_place: bool = False) -> None:
        check_type("batches", batches, Iterable, "a DataLoader, or a list of batches")
        check_lasting(batches)
        self.batches, self.keeps_place = batches, keeps_place
        self.taken = 0  # of the present pass
        self._at_start: dict[str, Any] = {}
        self._iterator = self._endless()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (self.batches, self.keeps_place)  # another process begins a pass of its own

    def __next__(self) -> Batch:
        try:
            return next(self._iterator)
        except BaseException as error:  # of the loader, or an interruption; the next call starts a new pass
            self._iterator = self._endless()
            if isinstance(error, Exception):
                error.add_note(f"This came from the {type(self.batches).__name__}, making batch {self.taken + 1}.")
            raise

    def _endless(self) -> Iterator[Batch]:
        while True:
            self._at_start, self.taken = random_state(self._own) if self.keeps_place else {}, 0
            for batch in self.batches:
                self.taken += 1
                yield arguments_of(batch)
            if not self.taken:
                raise ValueError("the loader gave no batch: there is no data to walk on.")

    @property
    def _own(self) -> list[torch.Generator]:
        """The loader's own generators, each once."""
        sampler, batch_sampler = (getattr(self.batches, name, None) for name in ("sampler", "batch_sampler"))
        holders = (self.batches, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        generators = [getattr(holder, "generator", None) for holder in holders]
        return list({id(found): found for found in generators if isinstance(found, torch.Generator)}.values())

    def state(self) -> dict[str, Any]:
        return {"at_start": self._at_start, "taken": self.taken}

    def restore(self, state: Content) -> Batch:
        """Go to that place; gives the last batch before it. The global generators stay where that took them."""
        wanted = state.value("taken", int)
        set_random_state(state.value("at_start", dict), self._own)
        self._iterator = self._endless()
        batch = next(self._iterator)
        while self.taken < wanted:
            before, batch = self.taken, next(self._iterator)
            if self.taken <= before:
                said = f"{before} batches a pass, but {wanted} or more when the walk was saved"
                raise ValueError(f"the loader gave {said}: go on with the loader that it began with.")
        return batch


class Minibatches:
    """Random minibatches of one size of tensors with the same number of rows, from the global generator.

    Each pass takes a new permutation and leaves out the rows that do not fill a batch.
    """

    def __init__(self, args: tuple[Any, ...], batch_size: int) -> None:
        check_whole("batch_size", batch_size, "it counts the rows of a batch.")
        rows = {len(arg) if arg.dim() else 0 for arg in args if torch.is_tensor(arg)}
        if len(rows) != 1:
            advice = "pass x and y of equal length, or a DataLoader."
            raise ValueError(f"batch_size needs data with the same number of rows, got {sorted(rows)}: {advice}")
        self.num_data = rows.pop()
        if not 1 <= batch_size <= self.num_data:
            raise ValueError(f"batch_size must be from 1 to the number of rows, {self.num_data}, got {batch_size}.")
        self.args, self.batch_size = args, batch_size
        self.rows: Tensor | None = None  # of the last batch that was taken

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        order = torch.randperm(self.num_data, device="cpu")
        for start in range(0, self.num_data - self.batch_size + 1, self.batch_size):
            self.rows = order[start : start + self.batch_size]
            yield self._at(self.rows)

    def in_order(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """All rows once, in their order: see `Rows`."""
        for rows in filled_up(self.num_data, size):
            yield tuple(leaf for leaf in self._at(rows) if torch.is_tensor(leaf))

    def _at(self, rows: Tensor) -> tuple[Any, ...]:
        return tuple(arg[rows.to(arg.device)] if torch.is_tensor(arg) else arg for arg in self.args)


def arguments_of(batch: Any) -> Batch:
    """The model's arguments in what a loader gives."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    parts = batch if isinstance(batch, (list, tuple)) else (batch,)
    # Several inputs of a row are a tuple, of which torch's default_collate makes a list.
    return tuple(tuple(part) if isinstance(part, list) else part for part in parts), {}


def filled_up(num_data: int, size: int) -> Iterator[Tensor]:
    """The numbers of all rows in batches of one size: the last has the last row as often as it takes."""
    for start in range(0, num_data, size):
        yield torch.arange(start, start + size, device="cpu").clamp_max(num_data - 1)


class LoaderRows:
    """All rows of a DataLoader's dataset, each once. No generator is left in another state."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader, self.num_data = loader, len(loader.dataset)  # type: ignore[arg-type]

    def in_order(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """All rows once, in their order: see `Rows`."""
        before = random_state()
        try:
            yield from self._read(size)
        finally:
            set_random_state(before)

    def is_random(self, size: int) -> bool:
        """Whether the same rows are others when they are read again, as with random transforms."""
        before = random_state()
        try:
            first, second = next(self._read(size)), next(self._read(size))
        finally:
            set_random_state(before)
        return not all(torch.equal(one, two) for one, two in zip(first, second, strict=True))

    def _read(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        same = {"collate_fn": self.loader.collate_fn, "num_workers": self.loader.num_workers}
        for batch in DataLoader(self.loader.dataset, batch_size=size, **same):  # type: ignore[arg-type]
            leaves = tuple(leaf for leaf in tree_leaves(arguments_of(batch)) if torch.is_tensor(leaf))
            count = len(leaves[0])
            rows = next(filled_up(count, size))
            yield tuple(leaf[rows] if leaf.shape[:1] == (count,) else leaf for leaf in leaves)


def all_rows(batches: Any, size: int) -> Rows | None:
    """Where all rows can be read once; None where they cannot, or are others each time, which is said."""
    if isinstance(batches, Minibatches):
        return batches
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return None
    if batches.batch_size is None and batches.batch_sampler is None:  # its dataset gives batches, not rows
        return None
    rows = LoaderRows(batches)
    if rows.is_random(size):
        warnings.warn(
            "the loader gives other data when it reads the same rows again (random transforms?): layers that are not "
            "inferred are computed anew for each batch. Without them they are computed once, and a walk is faster.",
            stacklevel=2,
        )
        return None
    return rows
