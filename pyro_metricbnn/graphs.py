"""Run a function of one particle for all particles at once, as fast as the number of calls pays for.

In: fn(theta (D,), *data) -> tensors.  Out: the same for theta (N, D).

Four ways, measured on a Snelson network of 2,209 weights with 20 particles:
- "vmap": torch.func.vmap of the Python function; Pyro's handlers run at each call.
- "trace": the aten operations of one such call, recorded once (0.3 to 2 s) and tidied: 3 times as fast.
- "compile": that record through torch.compile: 12 times, for 3 to 25 s of compiling.
- "loop": the record of one particle, run for each; for wide convolutions, where vmap is slower than a loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.func import vmap

from .arguments import check_count
from .memory import is_out_of_memory, with_less_at_once
from .turns import in_turn

Mode = Literal["auto", "vmap", "trace", "compile", "loop"]
Outputs = tuple[Tensor, ...]

# What decides "auto". Counts, not stopwatches: the ways differ in the last bits, and the same seed has
# to give the same walk on a busy machine too.
CALLS_WORTH_A_TRACE = 40
COMPILE_SECONDS = 12.0  # 5 to 25 measured
SECONDS_PER_NODE = 8e-6
SECONDS_PER_FLOP = 5e-11
LOOP_PAYS = 10.0  # times the cost of the nodes
COMPILED_SAVES = 0.8  # of the traced graph's time

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a batched function runs.

    Args:
        mode: One of the ways above, or "auto".
        expected_calls: How often it will be called; "auto" weighs it against tracing and compiling.
        chunk_size: At most this many particles at once, for when memory is short. Where it turns out to be, half as
            many are tried, and said.
    """

    mode: Mode = "auto"
    expected_calls: int | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "vmap", "trace", "compile", "loop"):
            raise ValueError(f"mode must be 'auto', 'vmap', 'trace', 'compile' or 'loop', got {self.mode!r}.")
        if self.chunk_size is not None:
            check_count("chunk_size", self.chunk_size, "it counts particles.")
        if self.expected_calls is not None:
            check_count("expected_calls", self.expected_calls, "it is how often the function will be called.", least=0)


class BatchedFunction:
    """fn for a batch of thetas; one record for each combination of shapes it meets.

    Args:
        fn: The function of one theta.
        execution: How it runs.
        records: Those that the same function has made elsewhere; new ones are added.
    """

    def __init__(
        self, fn: Callable[..., Outputs], execution: Execution, records: dict[Any, fx.GraphModule] | None = None
    ) -> None:
        self._fn = fn
        self.execution = execution
        self._records = {} if records is None else records
        self._ready: dict[Any, Callable[..., Outputs]] = {}
        self._calls: dict[Any, int] = {}
        self._failures: list[Exception] = []  # of compiling: said once
        self._called_before: set[Any] = set()

    @property
    def called(self) -> list[Any]:
        """Shapes whose next call by itself is a compiled one; set, it goes on from where another process was."""
        return [key for key, ready in self._ready.items() if isinstance(ready, Compilable) and ready.called]

    @called.setter
    def called(self, keys: Iterable[Any]) -> None:
        self._called_before = set(keys)

    def __call__(self, theta: Tensor, *data: Tensor) -> Outputs:
        return self._with_less(partial(self._in_chunks, theta, data), theta)

    def _with_less(self, run: Callable[[int], Outputs], theta: Tensor) -> Outputs:
        """run(chunk_size), or with half of it where memory is short, from then on."""
        planned = min(self.execution.chunk_size or len(theta), len(theta))

        def at_most(size: int) -> Outputs:
            if size < planned:
                self.execution = replace(self.execution, chunk_size=size)
            return run(size)

        return with_less_at_once(at_most, planned, "particles", "DriftRefineKernel")

    def _in_chunks(self, theta: Tensor, data: tuple[Tensor, ...], size: int) -> Outputs:
        if size >= len(theta):
            return self._run(theta, data)
        chunks = [self._run(_pad(chunk, size), data) for chunk in theta.split(size)]
        return tuple(torch.cat(parts)[: len(theta)] for parts in zip(*chunks, strict=True))

    def inside(self, outer: Callable[..., Outputs], data: tuple[Tensor, ...]) -> Callable[..., Outputs]:
        """outer(this function of theta, theta, *inputs), compiled as a whole where this would be compiled.

        Between two gradients a walk does a few dozen small operations, which cost as much as a compiled
        gradient does.
        """
        whole: dict[Any, Callable[..., Outputs]] = {}

        def step_by_step(theta: Tensor, *inputs: Any) -> Outputs:
            return outer(lambda points: self(points, *data), theta, *inputs)

        def in_one(theta: Tensor, inputs: tuple[Any, ...], size: int) -> Outputs:
            ready = self._prepare(theta, data) if size >= len(theta) else None
            if not isinstance(ready, Compilable):
                return step_by_step(theta, *inputs)
            tensors = [torch.full_like(theta[0, 0], x) if isinstance(x, float) else x for x in inputs]
            if theta.shape not in whole:

                def at_once(theta: Tensor, *inputs: Any) -> Outputs:
                    return outer(lambda points: ready.graph(points, *data), theta, *inputs)

                whole[theta.shape] = compiled(at_once, (theta, *tensors), step_by_step, self._failures)
            with torch.no_grad(), in_turn():
                return whole[theta.shape](theta, *tensors)

        return lambda theta, *inputs: self._with_less(partial(in_one, theta, inputs), theta)

    def _run(self, theta: Tensor, data: tuple[Tensor, ...]) -> Outputs:
        ready = self._prepare(theta, data)
        if ready is None:
            ready = self._vmapped(len(data))
        with torch.no_grad():
            return ready(theta, *data)

    def _prepare(self, theta: Tensor, data: tuple[Tensor, ...]) -> Callable[..., Outputs] | None:
        """What runs these shapes, made when the calls are worth it; None for plain vmap."""
        key = _shapes(theta, data)
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        if key not in self._ready:
            mode, expected = self.execution.mode, self.execution.expected_calls
            few = expected < CALLS_WORTH_A_TRACE if expected is not None else calls < CALLS_WORTH_A_TRACE
            if mode == "vmap" or (mode == "auto" and few):
                return None
            ready = self._ready[key] = self._make_ready(theta, data)
            if isinstance(ready, Compilable):
                ready.called = key in self._called_before
        return self._ready[key]

    def _vmapped(self, num_data: int) -> Callable[..., Outputs]:
        return vmap(self._fn, in_dims=(0,) + (None,) * num_data)

    def _make_ready(self, theta: Tensor, data: tuple[Tensor, ...]) -> Callable[..., Outputs]:
        """Record the function for these shapes; to be compiled where that pays."""
        mode = self.execution.mode
        if mode == "loop":
            return self._one_by_one(theta, data)
        try:
            graph = self._recorded(theta, data)
        except RuntimeError as error:  # it reads numbers out of its data; where it branches on theta, vmap says so
            if is_out_of_memory(error):
                raise
            return self._vmapped(len(data))
        if mode == "auto" and theta.device.type == "cpu" and loop_is_faster(graph, len(theta)):
            return self._one_by_one(theta, data)
        pays = mode == "auto" and worth_compiling(graph, self.execution.expected_calls or 0)
        return Compilable(graph, self._failures) if mode == "compile" or pays else graph

    def _recorded(self, theta: Tensor, data: tuple[Tensor, ...]) -> fx.GraphModule:
        key = _shapes(theta, data)
        if key not in self._records:
            self._records[key] = record(self._vmapped(len(data)), theta, *data)
        return self._records[key]

    def _one_by_one(self, theta: Tensor, data: tuple[Tensor, ...]) -> Callable[..., Outputs]:
        """Particle after particle; through Python where a model branches on values and has no record."""
        try:
            return _looped(record(self._fn, theta[0], *data))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return _looped(self._fn)


def _shapes(theta: Tensor, data: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return (theta.shape, *((leaf.shape, leaf.dtype) for leaf in data))


class Compilable:
    """A record that is compiled at its second call: one that runs inside a larger compiled function never is."""

    def __init__(self, graph: fx.GraphModule, failures: list[Exception]) -> None:
        self.graph = graph
        self._failures = failures
        self.called = False
        self._fast: Callable[..., Outputs] | None = None

    def __call__(self, *inputs: Tensor) -> Outputs:
        if not self.called:
            self.called = True
            return self.graph(*inputs)
        if self._fast is None:
            self._fast = compiled(self.graph, inputs, self.graph, self._failures)
        with in_turn():
            return self._fast(*inputs)


def record(fn: Callable[..., Outputs], *inputs: Tensor) -> fx.GraphModule:
    """The aten operations of one call, without what changes nothing."""
    _start_autograd()
    from torch.fx.experimental.proxy_tensor import make_fx  # imports hundreds of modules

    with in_turn():
        graph = make_fx(fn)(*inputs)
    if any(map(_selects_by_value, graph.graph.nodes)):
        raise RuntimeError("the shapes depend on values: a record would keep those of its first inputs")
    tidy(graph)
    return graph


def _start_autograd() -> None:
    """Differentiate something small.

    At its first gradient torch starts a thread for each device that is not the CPU. What the tracer imports counts as
    one, and with such a thread forked children refuse every gradient.
    """
    with torch.enable_grad():
        x = torch.zeros((), device="cpu", requires_grad=True)
        torch.autograd.grad(x, x)


def tidy(graph: fx.GraphModule) -> None:
    """Drop operations that give back their input, constant and repeated ones. The results keep their bits.

    A third of the nodes of a traced network go, and as much of the time of a call. A graph that writes
    into its own tensors is left alone: there, two equal operations need not have equal results.
    """
    if not all(map(_is_pure, graph.graph.nodes)):
        return
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and _gives_back_input(node):
            node.replace_all_uses_with(node.args[0])
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
    _copy_constant_results(graph)
    graph.recompile()


def _copy_constant_results(graph: fx.GraphModule) -> None:
    """Who changes a result in place must not change the constant."""
    output = next(node for node in graph.graph.nodes if node.op == "output")
    for constant in [node for node in output.all_input_nodes if node.op == "get_attr"]:
        with graph.graph.inserting_before(output):
            output.replace_input_with(constant, graph.graph.call_function(aten.clone.default, (constant,)))


def _fold_constants(graph: fx.GraphModule) -> None:
    """Compute once what depends on no input: a prior's scales, their logarithms, ..."""
    values: dict[fx.Node, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            values[node] = getattr(graph, node.target)
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
_COPIES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}


def _gives_back_input(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return False
    if node.target in _COPIES:
        return True
    if node.target in _VIEWS:
        return "val" in source.meta and node.meta["val"].shape == source.meta["val"].shape
    if node.target in (aten.mul.Scalar, aten.div.Scalar) and bool(node.args[1] == 1):
        return "val" in source.meta and node.meta["val"].dtype == source.meta["val"].dtype
    return False


def _selects_by_value(node: fx.Node) -> bool:
    """Whether the shape of a result depends on numbers, as that of x[x > 0] does."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload) or torch.Tag.dynamic_output_shape not in operation.tags:
        return False
    if operation is not aten.index.Tensor:
        return True
    return any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in node.all_input_nodes[1:])


def _is_pure(node: fx.Node) -> bool:
    """Whether an operation neither changes its arguments nor draws random numbers."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload):
        return True
    return not operation._schema.is_mutable and torch.Tag.nondeterministic_seeded not in operation.tags


def loop_is_faster(graph: fx.GraphModule, num_particles: int) -> bool:
    """Whether convolutions are by far most of the work: vmap groups them, which is slow on a CPU.

    20 particles, traced against loop: three wide layers (57,000 weights) 695 against 245 ms, LeNet 67 against 110.
    """
    nodes = list(graph.graph.nodes)
    convolving = SECONDS_PER_FLOP * sum(_flops(node) for node in nodes if node.target in _CONVOLUTIONS)
    return convolving / num_particles > LOOP_PAYS * SECONDS_PER_NODE * len(nodes)


def worth_compiling(graph: fx.GraphModule, expected_calls: int) -> bool:
    """Whether the calls to come save more time than compiling takes, by the size of the graph."""
    nodes = list(graph.graph.nodes)
    seconds = SECONDS_PER_NODE * len(nodes) + SECONDS_PER_FLOP * sum(map(_flops, nodes))
    return expected_calls * seconds * COMPILED_SAVES > COMPILE_SECONDS


_PRODUCTS = {aten.bmm.default, aten.mm.default, aten.addmm.default}
_CONVOLUTIONS = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def _flops(node: fx.Node) -> float:
    """Multiplications and additions of a product or convolution; other operations cost what their node does."""
    if node.target in _PRODUCTS:
        left, right = (source.meta["val"].shape for source in node.args[-2:])  # type: ignore[union-attr]
        return 2.0 * left.numel() * right[-1]
    if node.target in _CONVOLUTIONS:
        backward = node.target is aten.convolution_backward.default
        weight = node.args[2 if backward else 1].meta["val"]  # type: ignore[union-attr]
        image = node.args[0].meta["val"] if backward else node.meta["val"]  # type: ignore[union-attr]
        return 2.0 * _CONVOLUTIONS[node.target] * image.numel() * weight[0].numel()
    return 0.0


def compiled(
    fn: Callable[..., Outputs], inputs: Iterable[Any], otherwise: Callable[..., Outputs], failures: list[Exception]
) -> Callable[..., Outputs]:
    """fn through torch.compile; `otherwise`, with a warning, where that cannot be done."""
    if failures:
        return otherwise
    fast = torch.compile(_with_code_of_its_own(fn), dynamic=False)
    try:
        with torch.no_grad(), in_turn():
            fast(*inputs)
    except Exception as error:  # no C++ compiler, an operation that cannot be lowered, ...
        if is_out_of_memory(error):
            raise
        failures.append(error)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"the energy could not be compiled ({reason}); the traced graph runs instead, about three times "
            "as slow. Install a C++ compiler, or pass compile=False to say that this is fine.",
            stacklevel=2,
        )
        return otherwise
    return fast


def _with_code_of_its_own(fn: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """The same function. torch compiles one piece of code for at most eight sets of shapes and closures, and then runs
    it uncompiled: so would the ninth walk of a process.
    """
    if not isinstance(fn, FunctionType):
        return fn
    return FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def _looped(single: Callable[..., Outputs]) -> Callable[..., Outputs]:
    def run(theta: Tensor, *data: Tensor) -> Outputs:
        results = [single(particle, *data) for particle in theta]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    return run


def _pad(chunk: Tensor, size: int) -> Tensor:
    """Repeat the last particle, so that all chunks have one shape and need one record."""
    return chunk if len(chunk) == size else torch.cat([chunk, chunk[-1:].expand(size - len(chunk), -1)])
