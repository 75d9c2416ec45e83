"""Run a traced graph in memory that it keeps from call to call.

In: a graph of aten operations.  Out: a function with its results; large steps are written where the last call's were.

A megabyte that is allocated anew comes from the operating system page by page, and goes back there.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn.functional import softplus

from .products import is_pointwise

LARGE = 2**16  # bytes of a result, from which on its memory is kept
MOST_KEPT = 2**26  # bytes of all: networks for which that is too little have products that take longer than memory

aten = torch.ops.aten


class Place(NamedTuple):
    """Memory for one result at a time."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Workspace:
    """A graph with places of its own for its large results; each thread has its own places."""

    def __init__(self, graph: fx.GraphModule, places: list[Place]) -> None:
        self._graph, self.places, self._own = graph, places, threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"_graph": self._graph, "places": self.places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_graph"], state["places"])  # type: ignore[misc]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The graph's results, which are memory of their own."""
        if not hasattr(self._own, "places"):
            self._own.places = [torch.empty(of.shape, dtype=of.dtype, device=of.device) for of in self.places]
        return self._graph.forward(*inputs, *self._own.places)

    __call__ = forward


def in_workspace(graph: fx.GraphModule) -> Workspace:
    """The graph with its large results in kept memory, unless that is too much or on a GPU, and with quick calls.

    The results keep their bits: the same operations write them.
    """
    planned, values = _copied(graph)
    plan = _Plan(planned, values)
    plan.make()
    if sum(of.shape.numel() * of.dtype.itemsize for of in plan.places) > MOST_KEPT:
        (planned, _), plan.places = _copied(graph), []
    for node in planned.nodes:
        if node.target in _METHODS:
            node.op, node.target = "call_method", _METHODS[node.target]
        node.target = _SAME_BUT_QUICKER.get(node.target, node.target)
    return Workspace(fx.GraphModule(graph, planned), plan.places)


def _copied(graph: fx.GraphModule) -> tuple[fx.Graph, dict[fx.Node, Any]]:
    """A copy of the graph, and what is known of the results of its nodes."""
    copy, nodes = fx.Graph(), dict[fx.Node, fx.Node]()
    copy.output(copy.graph_copy(graph.graph, nodes))
    return copy, {new: old.meta.get("val") for old, new in nodes.items()}


# A call through torch.ops takes about 3 µs more than the function that users call: a third of a small one's time.
_METHODS = {aten.view.default: "view", aten.expand.default: "expand"}
_SAME_BUT_QUICKER: dict[Any, Callable[..., Any]] = {
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.split_with_sizes.default: torch.split_with_sizes,
    aten.cat.default: torch.cat,
    aten.bmm.default: torch.bmm,
    aten.bmm.out: torch.bmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.baddbmm.out: torch.baddbmm,
    aten.clamp_min.out: torch.clamp_min,
    aten.relu.default: torch.relu,
    aten.tanh.default: torch.tanh,
    aten.tanh.out: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
    aten.softplus.default: softplus,
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.mul.Scalar: torch.mul,
    aten.div.Tensor: torch.div,
    aten.div.Scalar: torch.div,
    aten.neg.default: torch.neg,
    aten.exp.default: torch.exp,
    aten.log.default: torch.log,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.sum.dim_IntList: torch.sum,
    aten.clone.default: torch.clone,
}


class _Plan:
    """Which result goes where: a place is free again after the last operation that reads it, or a view of it."""

    def __init__(self, graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
        self.graph, self.places = graph, list[Place]()
        self._nodes, self._values = list(graph.nodes), values
        # Of a wide network what is as large as theta is let go: it is most of the memory that a walk takes.
        self._least = max(LARGE, _num_bytes(values[self._nodes[0]]) + 1)
        self._inputs: list[fx.Node] = []
        self._place_of: dict[fx.Node, int] = {}  # of a result that has one
        self._owner: dict[fx.Node, set[fx.Node]] = {}  # whose memory a result may be
        self._last: dict[fx.Node, int] = {}

    def make(self) -> None:
        self._find_lives()
        free: list[int] = []
        for position, node in enumerate(self._nodes):
            if (writes := _writing(node)) is not None and self._is_large(node):
                place = self._in_place(node, position)
                place = self._take(node, free) if place is None else place
                self._place_of[node] = place
                self._write(node, writes, self._inputs[place])
            ended = [of for of in self._place_of if self._last[of] == position]
            taken = {place for of, place in self._place_of.items() if self._last[of] > position}
            free += [place for of in ended if (place := self._place_of[of]) not in taken and place not in free]
            for of in ended:
                del self._place_of[of]

    def _find_lives(self) -> None:
        end = len(self._nodes)
        for position, node in enumerate(self._nodes):
            owners = set().union(*(self._owner[of] for of in node.all_input_nodes)) if _may_alias(node) else set()
            self._owner[node] = owners | {node}
            for of in node.all_input_nodes:
                for owner in self._owner[of]:
                    self._last[owner] = end if node.op == "output" else position
            self._last.setdefault(node, position)

    def _is_large(self, node: fx.Node) -> bool:
        value = self._values.get(node)
        if not torch.is_tensor(value) or value.device.type != "cpu" or self._last[node] == len(self._nodes):
            return False
        return value.is_contiguous() and _num_bytes(value) >= self._least

    def _in_place(self, node: fx.Node, position: int) -> int | None:
        """The place of an argument that nothing needs any more, where the operation goes from entry to entry.

        Another argument may show parts of it, as in h - h[:1]: then it is still being read.
        """
        if not is_pointwise(node):
            return None
        value = self._values[node]
        for of in node.all_input_nodes:
            ends = self._last[of] == position and self._owner[of] == {of} and of in self._place_of
            shown = any(of in self._owner[other] for other in node.all_input_nodes if other is not of)
            if ends and not shown and self._values[of].shape == value.shape and self._values[of].dtype == value.dtype:
                return self._place_of[of]
        return None

    def _take(self, node: fx.Node, free: list[int]) -> int:
        value = self._values[node]
        wanted = Place(value.shape, value.dtype, value.device)
        for place in free:
            if self.places[place] == wanted:
                free.remove(place)
                return place
        self.places.append(wanted)
        last = [of for of in self.graph.nodes if of.op == "placeholder"][-1]
        with self.graph.inserting_after(last):
            self._inputs.append(self.graph.placeholder(f"place{len(self.places) - 1}"))
        return len(self.places) - 1

    def _write(self, node: fx.Node, writes: Callable[..., Any], place: fx.Node) -> None:
        """The same operation with its result in that place."""
        if writes is aten.copy_.default:
            node.args, node.kwargs = (place, node.args[0]), {}
        else:
            node.args = (*node.args, 0) if writes is aten.clamp_min.out else node.args
            node.kwargs = {**node.kwargs, writes._schema.arguments[-1].name: place}  # type: ignore[attr-defined]
        node.target = writes


def _num_bytes(value: Any) -> int:
    return value.numel() * value.element_size() if torch.is_tensor(value) else 0


def _may_alias(node: fx.Node) -> bool:
    """Whether a result may lie in the memory of an argument: a view, one of several results, or nobody knows."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload) or operation is aten._unsafe_view.default:
        return True
    return any(of.alias_info is not None for of in operation._schema.returns)


def _writing(node: fx.Node) -> Any:
    """The operation that writes the same result into given memory; None where the processor has none of its own."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload):
        return None
    if operation is aten.relu.default:  # has none; the same to the bit
        return aten.clamp_min.out
    if operation is aten.clone.default:
        return aten.copy_.default if set(node.kwargs.values()) <= {torch.contiguous_format} else None
    own = [(of.name, str(of.type)) for of in operation._schema.arguments]
    for name in operation.overloadpacket.overloads():
        other = getattr(operation.overloadpacket, name)
        *others, last = other._schema.arguments or [None]
        if last is not None and last.is_out and [(of.name, str(of.type)) for of in others] == own:
            full_name = f"{other._schema.name}.{name}"
            return other if torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CPU") else None
    return None
