"""What does not depend on theta is computed once: the frozen layers of a network, or a kernel matrix of the data.

In: an energy of one particle, fn(theta (D,), *data), and its data.  Out: `FrozenPart`: what to pass in the place of the
data, and the rest of the energy, a function of theta and of that.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, fx
from torch.func import functionalize, grad_and_value

from ..graphs.tracing import Outputs, aten, flops, is_pure, traced

Data = tuple[Tensor, ...]

PAYS = 0.1  # of the work of one particle's energy: a smaller part that is frozen is not worth a cut
IN_MEMORY = 2**31  # bytes of a frozen part of all rows; a larger one is in a file that is mapped to memory
ROUNDING = 100.0  # times the precision: what one row may differ by in another company
SAME_GRADIENT = 0.5  # power of the precision: what the gradients of the whole and of the cut energy may differ by
_CHEAP = {aten.clone.default, aten._to_copy.default, aten._unsafe_view.default}


class UnequalBatches(Exception):
    """Batches are of several shapes, and the graph is of one."""


class Rows(Protocol):
    """All rows that batches are taken of."""

    num_data: int

    def in_order(self, size: int) -> Iterator[Data]:
        """All of them, once, in batches of one size; the last is filled up with its last row."""


class FrozenPart:
    """The energy cut in two: `before`, of the data alone, and `after`, of theta and what came before.

    With `rows` the data are batches, and the results of `before` are kept for each row: they are looked up by the
    numbers of a batch's rows, or by what is in them. A row that is not known is computed with its batch.
    """

    def __init__(self, before: fx.GraphModule, after: fx.GraphModule, data: Data, rows: Rows | None) -> None:
        self._before, self.after = before, after
        self._reads, self._uses = before.meta["leaves"], after.meta["leaves"]  # numbers of the data
        self._shapes = _shapes(data)
        self._last: tuple[Data, tuple[int, ...], Data] = ((), (), ())  # data, how often they were written to, and kept
        self._slots: dict[bytes, int] = {}  # of rows by what is in them
        self._store = None if rows is None else self._of_all(rows, data)
        self._inputs = _shapes(self.kept(data))

    def takes(self, inputs: Data) -> bool:
        """Whether these are for `after`; data of other shapes, as of a last batch, are not cut."""
        return _shapes(inputs) == self._inputs

    def kept(self, data: Data, numbers: Tensor | None = None) -> Data:
        """What `after` takes in the place of the data; the data themselves where they have other shapes."""
        if _shapes(data) != self._shapes:
            return data
        last, versions, kept = self._last
        now = tuple(leaf._version for leaf in data)
        if versions != now or not all(_is_same(one, other) for one, other in zip(last, data, strict=True)):
            kept = (*self._frozen(data, numbers), *(data[i] for i in self._uses))
            self._last = data, now, kept
        return kept

    def _frozen(self, data: Data, numbers: Tensor | None) -> Data:
        if self._store is not None:
            slots = self._look_up(data) if numbers is None else numbers
            if slots is not None:
                return tuple(values[slots.to(values.device)].to(data[0].device) for values in self._store)
        with torch.no_grad():
            return self._before(*data)

    def _of_all(self, rows: Rows, data: Data) -> Data:
        """The frozen part of all rows, computed in their own order: another order would have other last bits."""
        store: Data = ()
        with torch.no_grad():
            for number, batch in enumerate(rows.in_order(len(data[0]))):
                if _shapes(batch) != self._shapes:
                    raise UnequalBatches
                values, first = self._before(*batch), number * len(data[0])
                store = store or tuple(_room(rows.num_data, value) for value in values)
                count = min(len(data[0]), rows.num_data - first)
                for room, value in zip(store, values, strict=True):
                    room[first : first + count] = value[:count]
                for i, digest in enumerate(self._digests(batch)[:count]):
                    self._slots[digest] = first + i
        return store

    def _look_up(self, data: Data) -> Tensor | None:
        """Where the rows of a batch are kept; None if one of them is new."""
        slots = [self._slots.get(digest, -1) for digest in self._digests(data)]
        return None if -1 in slots else torch.tensor(slots, device="cpu")

    def _digests(self, data: Data) -> list[bytes]:
        """One for each row, of all that the frozen part is computed of."""
        leaves = [data[i].detach().cpu().contiguous() for i in self._reads]
        parts = [leaf.reshape(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
        digests = [hashlib.blake2b(digest_size=16) for _ in parts[0]]
        for part in parts:
            for digest, row in zip(digests, part, strict=True):
                digest.update(row.data)
        return [digest.digest() for digest in digests]


def frozen_part(
    fn: Callable[..., Outputs], theta: Tensor, data: Data, rows: Callable[[], Rows | None] | None
) -> FrozenPart | None:
    """The energy fn cut where it begins to depend on theta; None where that does not pay, or is not safe.

    Args:
        fn: The energy of one particle, as one or more terms.
        theta: A point (D,) at which both ways are compared.
        data: All of its data, or a batch.
        rows: For batches, where all rows are read; it may give None, and then there is no cut.
    """
    if not data or (rows is not None and (not data[0].dim() or len(data[0]) < 2)):
        return None
    try:
        graph = traced(functionalize(fn), theta, *data)
    except RuntimeError:  # it branches on values, or cannot be traced for another reason
        return None
    if not all(map(is_pure, graph.graph.nodes)):
        return None
    fixed = _fixed(graph, None if rows is None else len(data[0]))
    if rows is not None:
        fixed = _row_wise(graph, fixed, data)
    before, after = _cut(graph, fixed)
    if not _pays(before, after) or not _agrees(fn, before, after, theta, data):
        return None
    if rows is None:
        return FrozenPart(before, after, data, None)
    found = rows()
    try:
        return None if found is None else FrozenPart(before, after, data, found)
    except (OSError, UnequalBatches):  # no room on the disk; padded to the longest of a batch
        return None


def _fixed(graph: fx.GraphModule, num_rows: int | None) -> set[fx.Node]:
    """What is computed of the data alone; in batches, of those data alone that have a row for each observation."""
    theta, *data = (node for node in graph.graph.nodes if node.op == "placeholder")
    moves = {theta}
    if num_rows is not None:
        moves |= {leaf for leaf in data if leaf.meta["val"].shape[:1] != (num_rows,)}
    fixed = set()
    for node in graph.graph.nodes:
        if not moves.isdisjoint(node.all_input_nodes):
            moves.add(node)
        elif node.op == "call_function":
            fixed.add(node)
    return fixed


def _row_wise(graph: fx.GraphModule, fixed: set[fx.Node], data: Data) -> set[fx.Node]:
    """Those of them that have a row for each of the data's, whatever the other rows of the batch are.

    Batches of the first half alone, and of the second half alone, in another order, must give each row what it had.
    """
    num_rows = len(data[0])
    every = torch.arange(num_rows, device="cpu")
    values, found = _values(graph, fixed, data), set(fixed)
    for half in every.tensor_split(2):
        chosen = half[every % len(half)].flip(0)
        others = _values(graph, fixed, tuple(_taken(leaf, chosen) for leaf in data))
        found = {node for node in found if _same_rows(values[node], others[node], chosen)}
    return found


def _taken(leaf: Tensor, rows: Tensor) -> Tensor:
    return leaf[rows.to(leaf.device)] if leaf.shape[:1] == rows.shape else leaf


def _values(graph: fx.GraphModule, nodes: set[fx.Node], data: Data) -> dict[fx.Node, Any]:
    """What these operations give."""
    leaves = [node for node in graph.graph.nodes if node.op == "placeholder"][1:]
    values: dict[fx.Node, Any] = dict(zip(leaves, data, strict=True))
    with torch.no_grad():
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                values[node] = getattr(graph, node.target)
            elif node in nodes:
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
    return values


def _same_rows(value: Any, other: Any, chosen: Tensor) -> bool:
    if not torch.is_tensor(value) or value.shape[:1] != chosen.shape:
        return False
    expected = _taken(value, chosen)
    if not value.is_floating_point():
        return torch.equal(expected, other)
    scale = float(value.abs().max()) if value.numel() else 0.0
    return bool(((expected - other).abs() <= ROUNDING * torch.finfo(value.dtype).eps * scale).all())


def _cut(graph: fx.GraphModule, may_keep: set[fx.Node]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The graphs before and after the last of these operations; `meta["leaves"]` has which data each reads.

    What only shows or copies a tensor is done again: a layer's output is kept once, not for each particle.
    """
    nodes = list(graph.graph.nodes)
    theta, *leaves = (node for node in nodes if node.op == "placeholder")
    kept = {node for node in may_keep if torch.is_tensor(node.meta.get("val")) and not _only_shows(node)}
    needed, frozen = {nodes[-1], theta}, []
    for node in reversed(nodes):
        if node in needed and node in kept:
            frozen.append(node)
        elif node in needed:
            needed.update(node.all_input_nodes)
    earlier = set(frozen)
    for node in reversed(nodes):
        if node in earlier:
            earlier.update(node.all_input_nodes)
    before = _graph(graph, leaves, [node for node in nodes if node in earlier], tuple(frozen))
    used = [leaf for leaf in leaves if leaf in needed]
    rest = [node for node in nodes if node in needed and node not in frozen]
    after = _graph(graph, [theta, *frozen, *used], rest, nodes[-1].args[0])
    before.meta["leaves"] = [i for i, leaf in enumerate(leaves) if leaf in earlier]
    after.meta["leaves"] = [i for i, leaf in enumerate(leaves) if leaf in needed]
    return before, after


def _graph(whole: fx.GraphModule, inputs: list[fx.Node], nodes: list[fx.Node], outputs: Any) -> fx.GraphModule:
    graph, copies = fx.Graph(), {}
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{number}")
        copies[node].meta = dict(node.meta)
    for node in nodes:
        if node.op in ("call_function", "get_attr"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(fx.map_arg(outputs, copies.__getitem__))
    return fx.GraphModule(whole, graph)


def _only_shows(node: fx.Node) -> bool:
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload):
        return False
    return operation in _CHEAP or any(result.alias_info is not None for result in operation._schema.returns)


def _pays(before: fx.GraphModule, after: fx.GraphModule) -> bool:
    first, second = (sum(map(_work, part.graph.nodes)) for part in (before, after))
    return first > 0 and first >= PAYS * (first + second)


def _work(node: fx.Node) -> float:
    """About the multiplications and additions of an operation."""
    value = node.meta.get("val")
    if node.op != "call_function" or not torch.is_tensor(value) or _only_shows(node):
        return 0.0
    if "linalg" in str(node.target) or "cholesky" in str(node.target):
        return float(value.numel() * value.shape[-1])
    return flops(node) or float(value.numel())


def _agrees(
    fn: Callable[..., Outputs], before: fx.GraphModule, after: fx.GraphModule, theta: Tensor, data: Data
) -> bool:
    """Whether both ways have one value and one gradient.

    A traced energy knows its operations, not what the model said about their gradients: a `detach`, a `no_grad`, or a
    function with a backward pass of its own.
    """
    kept = (*before(*data), *(data[i] for i in after.meta["leaves"]))
    whole, value = grad_and_value(lambda point: sum(fn(point, *data)))(theta)
    cut, same = grad_and_value(lambda point: sum(after(point, *kept)))(theta)
    most = torch.finfo(theta.dtype).eps ** SAME_GRADIENT
    is_close = (cut - whole).norm() <= most * whole.norm() and (same - value).abs() <= most * value.abs()
    return bool(is_close)  # not a number is not close


def _room(num_rows: int, value: Tensor) -> Tensor:
    """Where a frozen tensor of all rows goes: memory, or a file that is gone with it."""
    shape = (num_rows, *value.shape[1:])
    num_bytes = num_rows * value[0].numel() * value.element_size()
    if num_bytes <= IN_MEMORY:
        return value.new_empty(shape)
    with tempfile.NamedTemporaryFile(prefix="frozen_part_") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk says so now, not in the midst of a walk
        mapped = torch.from_file(file.name, shared=True, size=num_bytes // value.element_size(), dtype=value.dtype)
    return mapped.reshape(shape)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _shapes(data: Data) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in data)
