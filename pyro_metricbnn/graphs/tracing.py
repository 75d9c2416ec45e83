"""Trace the operations of a function once, without Python and Pyro in them, and say what they cost.

In: fn and inputs.  Out: a graph of aten operations, tidied, with products that the processor is quick at.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..runtime.progress import stage
from ..runtime.threads import in_turn
from .products import quick_products

Outputs = tuple[Tensor, ...]

# What decides how a graph runs. Counts, not stopwatches: the ways differ in the last bits, and the same seed has
# to give the same walk on a busy machine too.
COMPILE_SECONDS = 12.0  # of a graph of up to SMALL_GRAPH nodes; 5 to 25 measured
COMPILE_SECONDS_PER_NODE = 0.07  # of the others: 240 nodes take twice as long as 42, and 915 5.5 times
SMALL_GRAPH, MOST_COMPILED = 100, 2000  # nodes; of a long loop over time, unrolled, compiling takes minutes
SECONDS_PER_NODE = 8e-6
SECONDS_PER_FLOP = 5e-11
LOOP_PAYS = 10.0  # times the cost of the nodes
COMPILED_SAVES = 0.8  # of the traced graph's time
TOO_LARGE, IN_CACHE = 2**23, 2**22  # bytes of a result: from when parts are taken, and of a part
MUCH = 10  # times as large as the weights

aten = torch.ops.aten


def traced(fn: Callable[..., Outputs], *inputs: Tensor) -> fx.GraphModule:
    """The aten operations of one call, without what changes nothing."""
    _start_autograd()
    from torch._guards import TracingContext, tracing  # these import hundreds of modules
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    # Each operation's shape is kept as a fake tensor. One mode for all: one for each takes half of the tracing's time.
    shapes = TracingContext(FakeTensorMode(allow_fallback_kernels=True))
    with in_turn(), stage("tracing"):
        with tracing(shapes):
            graph = make_fx(fn)(*inputs)
        if any(map(_selects_by_value, graph.graph.nodes)):
            raise RuntimeError("the shapes depend on values: a graph would keep those of its first inputs")
        tidy(graph)
        quick_products(graph)
    return graph


def _start_autograd() -> None:
    """Differentiate something small: torch's first gradient starts a thread for each device that is not the CPU.

    What the tracer imports counts as one, and with such a thread forked children refuse every gradient.
    """
    with torch.enable_grad():
        x = torch.zeros((), device="cpu", requires_grad=True)
        torch.autograd.grad(x, x)


def tidy(graph: fx.GraphModule) -> None:
    """Drop operations that give back their input, constant and repeated ones. The results keep their bits.

    A graph that writes into its own tensors is left alone: there, equal operations need not have equal results.
    """
    if not all(map(is_pure, graph.graph.nodes)):
        return
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and _gives_back_input(node):
            node.replace_all_uses_with(node.args[0])
        elif _turns_back(node):
            node.replace_all_uses_with(node.args[0].args[0])
    _fold_constants(graph)
    graph.graph.eliminate_dead_code()
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.graph.nodes):
        if node.op not in ("call_function", "get_attr"):
            continue
        key = (node.target, repr(node.args), repr(sorted(node.kwargs.items())))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.graph.erase_node(node)
        else:
            seen[key] = node
    output = next(node for node in graph.graph.nodes if node.op == "output")
    for constant in [node for node in output.all_input_nodes if node.op == "get_attr"]:
        with graph.graph.inserting_before(output):  # who changes a result in place must not change the constant
            output.replace_input_with(constant, graph.graph.call_function(aten.clone.default, (constant,)))
    graph.recompile()


def _fold_constants(graph: fx.GraphModule) -> None:
    """Compute once what depends on no input, or only on its shape: a prior's scales, their logarithms, zeros, ..."""
    values: dict[fx.Node, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            values[node] = getattr(graph, node.target)
        elif node.target in _FILLED and all(torch.is_tensor(of.meta.get("val")) for of in node.all_input_nodes):
            like = node.meta["val"]
            zero = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
            values[node] = zero + 1 if node.target is aten.ones_like.default else zero
        elif node.op == "call_function" and all(source in values for source in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    for number, (node, value) in enumerate(values.items()):
        if node.op == "call_function" and torch.is_tensor(value):
            name = f"_folded{number}"
            graph.register_buffer(name, value)
            with graph.graph.inserting_before(node):
                constant = graph.graph.get_attr(name)
            constant.meta["val"] = value
            node.replace_all_uses_with(constant)


_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.expand.default}
_FILLED = {aten.new_zeros.default, aten.zeros_like.default, aten.ones_like.default}
_COPIES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}


def _gives_back_input(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return False
    if node.target in _COPIES or (node.target is aten.pow.Tensor_Scalar and node.args[1] == 1):
        return True
    by_one = node.target in (aten.mul.Scalar, aten.div.Scalar) and bool(node.args[1] == 1)
    if "val" not in source.meta or not (by_one or node.target in _VIEWS):
        return False
    before, after = source.meta["val"], node.meta["val"]
    return bool(before.dtype == after.dtype if by_one else before.shape == after.shape)


def _turns_back(node: fx.Node) -> bool:
    """Whether it undoes the transposition before it."""
    before = node.args[0] if node.target is aten.transpose.int else None
    return isinstance(before, fx.Node) and before.target is node.target and before.args[1:] == node.args[1:]


def _selects_by_value(node: fx.Node) -> bool:
    """Whether the shape of a result depends on numbers, as that of x[x > 0] does."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload) or torch.Tag.dynamic_output_shape not in operation.tags:
        return False
    if operation is not aten.index.Tensor:
        return True
    return any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in node.all_input_nodes[1:])


def is_pure(node: fx.Node) -> bool:
    """Whether an operation neither changes its arguments nor draws random numbers."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload):
        return True
    return not operation._schema.is_mutable and torch.Tag.nondeterministic_seeded not in operation.tags


def loop_is_faster(graph: fx.GraphModule, num_particles: int) -> bool:
    """Whether convolutions are by far most of the work: vmap groups them, which is slow on a CPU."""
    nodes = list(graph.graph.nodes)
    convolving = SECONDS_PER_FLOP * sum(flops(node) for node in nodes if node.target in _CONVOLUTIONS)
    return convolving / num_particles > LOOP_PAYS * SECONDS_PER_NODE * len(nodes)


def fitting_a_cache(graph: fx.GraphModule, theta: Tensor) -> int:
    """How many of the particles theta (N, D) to take at once, so that what is computed of them stays in a cache.

    A layer's values for all rows and particles can be much larger than the weights; written to memory and read again,
    they take most of the time. Only what depends on theta counts: what is computed of the data alone does not shrink.
    """
    first, *rest = graph.graph.nodes
    seen, largest = {first}, 0
    for node in rest:
        if not seen.isdisjoint(node.all_input_nodes):
            seen.add(node)
            largest = max(largest, _memory(node))
    if largest < max(TOO_LARGE, MUCH * theta.nbytes):
        return len(theta)
    num_parts = min(len(theta), math.ceil(largest / IN_CACHE))
    return math.ceil(len(theta) / num_parts)


def _memory(node: fx.Node) -> int:
    """Bytes behind a result; a view, such as data that are repeated for each particle, has those of what it shows."""
    value = node.meta.get("val") if node.op == "call_function" else None
    return value.untyped_storage().nbytes() if torch.is_tensor(value) else 0


def worth_compiling(graph: fx.GraphModule, expected_calls: int) -> bool:
    """Whether the calls to come save more time than compiling takes."""
    nodes = list(graph.graph.nodes)
    seconds = SECONDS_PER_NODE * len(nodes) + SECONDS_PER_FLOP * sum(map(flops, nodes))
    compiling = COMPILE_SECONDS + COMPILE_SECONDS_PER_NODE * max(0, len(nodes) - SMALL_GRAPH)
    return len(nodes) <= MOST_COMPILED and expected_calls * seconds * COMPILED_SAVES > compiling


_PRODUCTS = {aten.bmm.default, aten.mm.default, aten.addmm.default}
_CONVOLUTIONS = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def flops(node: fx.Node) -> float:
    """Multiplications and additions of a product or convolution; other operations cost what their node does."""
    if node.target in _PRODUCTS:
        left, right = (source.meta["val"].shape for source in node.args[-2:])  # type: ignore[union-attr]
        return 2.0 * left.numel() * right[-1]
    if node.target not in _CONVOLUTIONS:
        return 0.0
    backward = node.target is aten.convolution_backward.default
    image, weight = (node.args[0], node.args[2]) if backward else (node, node.args[1])
    return 2.0 * _CONVOLUTIONS[node.target] * image.meta["val"].numel() * weight.meta["val"][0].numel()  # type: ignore[union-attr]
