"""Run a function of one particle for all particles at once, as fast as the number of calls pays for.

In: fn(theta (D,), *data) -> tensors.  Out: the same for theta (N, D).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.distributions import Distribution
from torch.func import vmap

from ..runtime.arguments import check_count, first_line
from ..runtime.out_of_memory import is_out_of_memory, with_less_at_once
from ..runtime.progress import stage
from ..runtime.threads import in_turn
from .tracing import Outputs, fitting_a_cache, loop_is_faster, traced, worth_compiling
from .workspace import Workspace, in_workspace

Mode = Literal["auto", "vmap", "trace", "compile", "loop"]

CALLS_WORTH_A_TRACE = 40
BRANCHES = ("data-dependent control flow", "tracing tensor", ".item()", "dynamic shape")  # torch's words for one


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a batched function runs.

    Args:
        mode: "vmap": the Python function under vmap, Pyro's handlers at each call. "trace": the operations of one such
            call, traced once, about 3 times as fast. "compile": that graph through torch.compile, about 12 times, for
            3 to 25 s of compiling. "loop": particle after particle. "auto": what the calls to come are worth.
        expected_calls: How often it will be called.
        chunk_size: At most this many particles at once. Where memory is short, half as many are tried, and said.
    """

    mode: Mode = "auto"
    expected_calls: int | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "vmap", "trace", "compile", "loop"):
            raise ValueError(f"mode must be 'auto', 'vmap', 'trace', 'compile' or 'loop', got {self.mode!r}.")
        check_count("chunk_size", self.chunk_size, "it counts particles.", or_none=True)
        check_count("expected_calls", self.expected_calls, "it is how often it will be called.", least=0, or_none=True)

    @property
    def is_worth_a_trace(self) -> bool:
        """Whether it will be called often enough for work ahead of the first call, as far as one knows."""
        if self.mode == "auto":
            return self.expected_calls is not None and self.expected_calls >= CALLS_WORTH_A_TRACE
        return self.mode != "vmap"


class BatchedFunction:
    """fn for a batch of thetas; one graph for each combination of shapes, added to those made elsewhere (`graphs`)."""

    def __init__(
        self,
        fn: Callable[..., Outputs],
        execution: Execution,
        graphs: dict[Any, fx.GraphModule] | None = None,
        not_batched: list[str] | None = None,
    ) -> None:
        self._fn = fn
        self.execution = execution
        self._graphs = {} if graphs is None else graphs
        self._not_batched = [] if not_batched is None else not_batched  # why vmap cannot run it, in torch's words
        self._ready: dict[Any, Callable[..., Outputs]] = {}
        self._calls: dict[Any, int] = {}
        self._parts: dict[Any, int] = {}  # how often shapes are called for one call of larger ones
        self._failures: list[Exception] = []  # of compiling: said once
        self.called_before: set[Any] = set()  # what `called` was where another process stopped

    @property
    def called(self) -> list[Any]:
        """Shapes whose next call by itself is a compiled one."""
        return [key for key, ready in self._ready.items() if isinstance(ready, Compilable) and ready.called]

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
        missing = -len(theta) % size  # chunks of one shape need one graph
        padded = torch.cat([theta, theta[-1:].expand(missing, -1)]) if missing else theta
        chunks = [self._run(chunk, data) for chunk in padded.split(size)]
        return tuple(torch.cat(parts)[: len(theta)] for parts in zip(*chunks, strict=True))

    def inside(self, outer: Callable[..., Outputs], data: tuple[Tensor, ...]) -> Callable[..., Outputs]:
        """outer(this function of theta, theta, *inputs), compiled as a whole where this would be compiled.

        What a walk does between two gradients costs as much as a compiled gradient.
        """
        whole: dict[Any, Callable[..., Outputs]] = {}
        straight: dict[torch.Size, Workspace] = {}  # what runs these points whole and uncompiled

        def step_by_step(theta: Tensor, *inputs: Any) -> Outputs:
            return outer(lambda points: self(points, *data), theta, *inputs)

        def at_once_traced(ready: Workspace, theta: Tensor, inputs: tuple[Any, ...]) -> Outputs:
            with torch.no_grad():
                return outer(lambda points: ready.forward(points, *data), theta, *inputs)

        def in_one(theta: Tensor, inputs: tuple[Any, ...], size: int) -> Outputs:
            ready = self._prepare(theta, data) if size >= len(theta) else None
            if isinstance(ready, Workspace):
                straight[theta.shape] = ready
                return at_once_traced(ready, theta, inputs)
            if not isinstance(ready, Compilable):
                return step_by_step(theta, *inputs)
            tensors = [torch.full_like(theta[0, 0], x) if isinstance(x, float) else x for x in inputs]
            if theta.shape not in whole:

                def at_once(theta: Tensor, *inputs: Any) -> Outputs:
                    return outer(lambda points: ready.graph(points, *data), theta, *inputs)

                whole[theta.shape] = compiled(at_once, (theta, *tensors), step_by_step, self._failures)
            with torch.no_grad(), in_turn():
                return whole[theta.shape](theta, *tensors)

        def run(theta: Tensor, *inputs: Any) -> Outputs:
            if (ready := straight.get(theta.shape)) is not None:
                try:
                    return at_once_traced(ready, theta, inputs)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    straight.clear()
            return self._with_less(partial(in_one, theta, inputs), theta)

        return run

    def _run(self, theta: Tensor, data: tuple[Tensor, ...]) -> Outputs:
        ready = self._prepare(theta, data) or self._vmapped(len(data))
        try:
            with torch.no_grad():
                return ready(theta, *data)
        except RuntimeError as error:
            if self._not_batched or self.execution.mode == "loop" or not _may_loop(error):
                raise
            return self._first_loop(theta, data, error)

    def _first_loop(self, theta: Tensor, data: tuple[Tensor, ...], error: RuntimeError) -> Outputs:
        """Particle after particle from here on, which is said, if that goes; else the error."""
        try:
            with torch.no_grad():
                results = [self._fn(particle, *data) for particle in theta]
        except Exception:
            raise error from None
        self._not_batched.append(first_line(error))
        self._ready.clear()
        warnings.warn(
            "the particles run one after another, which is slower about as many times as there are particles: vmap "
            f"cannot run the model for all of them at once ({first_line(error)}). Write that operation out in plain "
            "ones, or leave its weights out with bayesianize(..., where=).",
            stacklevel=2,
        )
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def _prepare(self, theta: Tensor, data: tuple[Tensor, ...]) -> Callable[..., Outputs] | None:
        """What runs these shapes, made when the calls are worth it; None for plain vmap."""
        key = _shapes(theta, data)
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        if key not in self._ready:
            mode, expected = self.execution.mode, self.execution.expected_calls
            few = expected < CALLS_WORTH_A_TRACE if expected is not None else calls < CALLS_WORTH_A_TRACE
            if not self._not_batched and (mode == "vmap" or (mode == "auto" and few)):
                return None
            ready = self._ready[key] = self._make_ready(theta, data)
            if isinstance(ready, Compilable):
                ready.called = key in self.called_before
        return self._ready[key]

    def _vmapped(self, num_data: int) -> Callable[..., Outputs]:
        return vmap(self._fn, in_dims=(0,) + (None,) * num_data)

    def _make_ready(self, theta: Tensor, data: tuple[Tensor, ...]) -> Callable[..., Outputs]:
        """Trace the function for these shapes; to be compiled where that pays."""
        mode, key, batched = self.execution.mode, _shapes(theta, data), self._vmapped(len(data))
        if mode == "loop" or self._not_batched:
            return self._one_by_one(theta, data)
        graph = self._graphs.get(key) or _traced_if_possible(batched, theta, *data)
        if graph is None:  # where it branches on theta, vmap says so
            return batched
        self._graphs[key] = graph
        if mode == "auto" and theta.device.type == "cpu" and loop_is_faster(graph, len(theta)):
            return self._one_by_one(theta, data)
        if theta.device.type == "cpu" and (size := fitting_a_cache(graph, theta)) < len(theta):
            self._parts[_shapes(theta[:size], data)] = -(-len(theta) // size)
            return lambda theta, *data: self._in_chunks(theta, data, size)
        calls = (self.execution.expected_calls or 0) * self._parts.get(key, 1)
        pays = mode == "auto" and worth_compiling(graph, calls)
        return Compilable(graph, self._failures) if mode == "compile" or pays else in_workspace(graph)

    def _one_by_one(self, theta: Tensor, data: tuple[Tensor, ...]) -> Callable[..., Outputs]:
        """Particle after particle; for wide convolutions, where vmap is slower than a loop."""
        graph = _traced_if_possible(self._fn, theta[0], *data)
        single = self._fn if graph is None else in_workspace(graph)

        def run(theta: Tensor, *data: Tensor) -> Outputs:
            results = [single(particle, *data) for particle in theta]
            return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

        return run


def _shapes(theta: Tensor, data: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return (theta.shape, *((leaf.shape, leaf.dtype) for leaf in data))


def _may_loop(error: RuntimeError) -> bool:
    """Whether the error may be vmap's own: not memory, not a branch on values, not random numbers, not our own word."""
    words = (*BRANCHES, "randomness")
    return not is_out_of_memory(error) and not any(word in str(error) for word in words)


def _traced_if_possible(fn: Callable[..., Outputs], *inputs: Tensor) -> fx.GraphModule | None:
    """The function's graph; None where it branches on values, or reads numbers out of its data."""
    try:
        return traced(fn, *inputs)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


class Compilable:
    """A graph that is compiled at its second call: what runs only inside a larger compiled function never is."""

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


@contextmanager
def _validation_kept() -> Iterator[None]:
    """The user's choice in force again: torch switches validation off for all distributions when it first compiles."""
    chosen = Distribution._validate_args
    try:
        yield
    finally:
        Distribution.set_default_validate_args(chosen)


def compiled(
    fn: Callable[..., Outputs], inputs: Iterable[Any], otherwise: Callable[..., Outputs], failures: list[Exception]
) -> Callable[..., Outputs]:
    """fn through torch.compile; `otherwise`, with a warning, where that cannot be done."""
    if failures:
        return otherwise
    if isinstance(fn, FunctionType):  # torch compiles a code object for eight closures only: each walk has its own
        fn = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    try:
        with torch.no_grad(), in_turn(), _validation_kept(), stage("compiling"):
            fast = torch.compile(fn, dynamic=False)
            fast(*inputs)
    except Exception as error:  # no C++ compiler, an operation that cannot be lowered, ...
        if is_out_of_memory(error):
            raise
        failures.append(error)
        warnings.warn(
            f"the energy could not be compiled ({first_line(error)}); the traced graph runs instead, about three times "
            "as slow. Install a C++ compiler, or pass compile=False to say that this is fine.",
            stacklevel=2,
        )
        return otherwise
    return fast
