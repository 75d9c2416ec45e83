"""In: a model and a DataLoader, or tensors and a batch size.  Out: a BatchedPotential of the next batch."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, SubsetRandomSampler

from ..files.storage import Content
from ..graphs.execution import BatchedFunction, Execution
from ..model.sites import find_sites
from ..model.structure import Model
from ..runtime.arguments import check_count
from .batches import Batch, Minibatches, Stream, all_rows, check_lasting
from .frozen_part import Rows
from .handlers import ScaleObservations
from .inspection import taken_by
from .potential import BatchedPotential


class MinibatchPotential(BatchedPotential):
    """An unbiased estimate of U from a minibatch, the next one at each call.

    Observations are scaled to the full data: observed sites in a plate of the batch's length, or with so many rows.

    Args:
        model: A Pyro model of a batch.
        batches: A DataLoader, or anything else that can be iterated again and again, of tensors,
            tuples (the model's arguments) or dicts (its keyword arguments).
        num_data: The size of the full data; a DataLoader knows it.
        keeps_place: Whether the place in the batches can be saved, for a checkpoint.
    """

    def __init__(self, model: Model, batches: Any, num_data: int | None = None, *, keeps_place: bool = False) -> None:
        self.batches, self.is_noisy = batches, True
        self._numbers: Tensor | None = None  # of the rows of the present batch, where they are known
        self.num_data = num_data if num_data is not None else _num_rows(batches)
        check_count("num_data", self.num_data, "it is how many rows the full data have.")
        self._stream = Stream(batches, keeps_place)
        args, kwargs = next(self._stream)
        super().__init__(model, *args, **kwargs)
        worst = _rows_that_are_not_finite(self.source[0], len(self._data[0]) if self._data else 0)
        if worst:  # a batch that may come in the midst of a walk
            BatchedPotential(model, *worst)
        self._refuse_local_sites()

    def _refuse_local_sites(self) -> None:
        """A latent value for each row would be one value for the first rows of all batches."""
        size = len(self._data[0]) if self._data and self._data[0].dim() else 0

        def other_rows(leaf: Any) -> Any:
            if not torch.is_tensor(leaf) or not leaf.dim() or len(leaf) != size:
                return leaf
            return leaf[:-1] if size > 1 else torch.cat([leaf, leaf])

        args, kwargs = tree_map(other_rows, (self.args, self.kwargs))
        try:
            sites, _ = find_sites(self.model, args, kwargs)
        except Exception:  # a model of batches of this size alone has no site that follows their size
            return
        shapes = {site.name: site.shape for site in sites.sites}
        for site in self.sites.sites:
            if shapes.get(site.name, site.shape) != site.shape:
                raise ValueError(
                    f"the latent site {site.name!r} has a value for each row of a batch (shape {tuple(site.shape)} for "
                    f"{size} rows): all batches would share these, and what is inferred would be far too sure. Pass "
                    "all the data without batch_size= or a loader, or sum the site out of the model."
                )

    @property
    def num_observations(self) -> int:
        return self.num_data

    def fixed(self) -> Self:
        other = super().next_batch()
        other._bind(self.execution)
        return other

    def next_batch(self) -> Self:
        if self.is_noisy:
            self._take(next(self._stream))
        return super().next_batch()

    @property
    def source(self) -> Any:
        """The tensors where they can be seen, and the sizes of all and of a batch."""
        holder = self.batches if isinstance(self.batches, Minibatches) else getattr(self.batches, "dataset", None)
        tensors = getattr(holder, "args", getattr(holder, "tensors", ()))
        sampler = type(getattr(self.batches, "sampler", None)).__name__
        return tensors, type(self.batches).__name__, sampler, self.num_data, getattr(self.batches, "batch_size", None)

    def state(self) -> dict[str, Any]:
        return {**super().state(), **self._stream.state()}

    def restore(self, state: Content) -> None:
        super().restore(state)
        self._take(self._stream.restore(state))

    def _call(self, function: BatchedFunction, theta: Tensor) -> tuple[Tensor, ...]:
        if self.is_noisy:
            self._take(next(self._stream))
        return super()._call(function, theta)

    def _take(self, batch: Batch) -> None:
        leaves, spec = tree_flatten(batch)
        if spec != self._spec:
            need = "all batches need the same arguments. Check the loader's collate_fn."
            raise ValueError(f"the loader gave a batch of {spec} where the first was of {self._spec}: {need}")
        self.args, self.kwargs = batch
        self._data = tuple(leaf for leaf in leaves if torch.is_tensor(leaf))
        self._numbers = getattr(self.batches, "rows", None)

    def _cut(self, execution: Execution, rows: Callable[[], Rows | None] | None = None) -> None:
        """What does not depend on theta is kept for each row, where batches to come have more rows than there are."""
        if (execution.expected_calls or 0) * len(self._data[0]) >= self.num_data:
            super()._cut(execution, partial(all_rows, self.batches, len(self._data[0])))

    @property
    def _inputs(self) -> tuple[Tensor, ...]:
        return self._data if self._frozen is None else self._frozen.kept(self._data, self._numbers)

    def _scaled(self, model: Model) -> Model:
        size = len(self._data[0])
        return ScaleObservations(self.num_data / size, size)(model)


def _num_rows(batches: Any) -> int:
    """The size of the full data of a DataLoader: of the dataset, or of the part of it that is all there is to see."""
    try:
        if isinstance(sampler := getattr(batches, "sampler", None), SubsetRandomSampler):
            return len(sampler)
        return len(batches.dataset)
    except (AttributeError, TypeError, NotImplementedError) as error:
        holder = getattr(batches, "dataset", batches)
        raise ValueError(
            f"num_data is missing: {type(holder).__name__} does not say how many rows the full data have, and the "
            "likelihood is scaled to them. Pass num_data=, or a DataLoader whose dataset has a length."
        ) from error


def _rows_that_are_not_finite(tensors: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """As many rows of all of the data as a batch has, with those that have NaN or inf first; none if none has."""
    data = [leaf.detach().unsqueeze(-1) for leaf in tensors if torch.is_tensor(leaf)]
    if not size or len({len(leaf) for leaf in data}) != 1:
        return ()
    wrong = torch.stack([~leaf.flatten(1).isfinite().all(1).cpu() for leaf in data]).any(0)
    if not bool(wrong.any()):
        return ()
    rows = wrong.to(torch.uint8).argsort(descending=True, stable=True)[:size]
    return tuple(leaf[rows.to(leaf.device)] if torch.is_tensor(leaf) else leaf for leaf in tensors)


def potential_of(
    model: Model, args: tuple[Any, ...], kwargs: dict[str, Any], batch_size: int | None, keeps_place: bool = False
) -> BatchedPotential:
    """The energy of what a walk was given: arguments, arguments and a batch size, or a DataLoader."""
    args, kwargs = taken_by(model, args, kwargs)
    check_lasting(args[0] if args else None)
    from_loader, wrong = bool(args) and isinstance(args[0], DataLoader), ""
    if kwargs and (batch_size is not None or any(isinstance(arg, DataLoader) for arg in args)):
        wrong = f"keyword arguments ({', '.join(kwargs)}) are not cut into batches: pass (x, y), or a loader of dicts."
    elif from_loader and len(args) > 1:
        wrong = f"a DataLoader stands for all of the model's arguments, got {len(args) - 1} more: let it give them too."
    elif from_loader and batch_size is not None:
        wrong = "batch_size is the loader's to say: pass tensors, or a loader without it."
    elif batch_size is not None and not any(torch.is_tensor(arg) for arg in args):
        wrong = "batch_size needs tensors to take rows of: pass them before it, as x and y."
    if wrong:
        raise ValueError(wrong)
    if from_loader:
        return MinibatchPotential(model, args[0], keeps_place=keeps_place)
    if batch_size is not None:
        batches = Minibatches(args, batch_size)
        return MinibatchPotential(model, batches, batches.num_data, keeps_place=keeps_place)
    return BatchedPotential(model, *args, **kwargs)
