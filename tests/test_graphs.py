"""Claims about recorded graphs: tidying keeps the results, and work is done only where the calls pay for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_metricbnn import BatchedPotential
from pyro_metricbnn.energy.handlers import Unvalidated
from pyro_metricbnn.graphs import execution
from pyro_metricbnn.graphs.execution import BatchedFunction, Execution
from pyro_metricbnn.graphs.tracing import fitting_a_cache, tidy, traced, worth_compiling
from tests.models import CASES, noise

Outputs = tuple[Tensor, ...]


def operations(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def untidied(fn: Callable[..., Outputs], *inputs: Tensor) -> fx.GraphModule:
    return make_fx(fn)(*inputs)


# ------------------------------------------------------------------------------------------- tidying


@pytest.mark.parametrize("name", ["linear_regression", "eight_schools_non_centred", "classifier"])
def test_tidying_a_models_energy_keeps_every_bit(name: str) -> None:
    graph, theta = energy_graph(name)
    before = graph(theta)
    tidy(graph)
    assert all(torch.equal(one, two) for one, two in zip(before, graph(theta), strict=True))


@pytest.mark.parametrize("name", ["linear_regression", "poisson_regression", "classifier"])
def test_tidying_a_models_energy_drops_a_tenth_of_its_operations(name: str) -> None:
    graph, _ = energy_graph(name)
    before = len(operations(graph))
    tidy(graph)
    assert len(operations(graph)) < 0.9 * before


def energy_graph(name: str) -> tuple[fx.GraphModule, Tensor]:
    """The untidied record of one particle's value and gradient, without data among its inputs."""
    case = next(case for case in CASES if case.name == name)
    potential = BatchedPotential(case.model, *case.args, **case.kwargs)
    theta = noise(potential.dim)

    def energy(theta: Tensor) -> Outputs:
        return grad_and_value(lambda t: potential._energy(t, *potential._data))(theta)

    with Unvalidated():
        return untidied(energy, theta), theta


def test_a_tidied_graph_gives_the_functions_results_for_other_inputs() -> None:
    def fn(x: Tensor) -> Outputs:
        return (x.view(3).expand(3).detach() * torch.ones(3).exp() + x.sin() + x.sin(),)

    other = torch.randn(3)
    assert torch.equal(traced(fn, torch.randn(3))(other)[0], fn(other)[0])


def test_what_depends_on_no_input_is_computed_once() -> None:
    def fn(x: Tensor) -> Outputs:
        return (x + torch.arange(3).exp().log().cumsum(0),)

    assert operations(traced(fn, torch.zeros(3))) == ["aten.add.Tensor"]


def test_an_operation_that_is_repeated_is_done_once() -> None:
    def fn(x: Tensor) -> Outputs:
        return (x.sin() * x.cos() + x.sin(),)

    assert operations(traced(fn, torch.zeros(3))).count("aten.sin.default") == 1


def test_operations_with_different_numbers_are_both_done() -> None:
    def fn(x: Tensor) -> Outputs:
        return (x.sum(0, keepdim=True) + x.sum(1, keepdim=True), x * 2, x * 3)

    x = torch.randn(3, 3)
    assert all(torch.equal(one, two) for one, two in zip(traced(fn, x)(x), fn(x), strict=True))


def test_a_view_that_changes_the_shape_stays() -> None:
    def fn(x: Tensor) -> Outputs:
        return (x.view(2, 3),)

    assert traced(fn, torch.zeros(6))(torch.zeros(6))[0].shape == (2, 3)


def test_a_multiplication_by_one_that_changes_the_dtype_stays() -> None:
    def fn(x: Tensor) -> Outputs:
        return (torch.ops.aten.mul.Scalar(x, 1.0), torch.ops.aten.div.Scalar(x, 1))

    whole = torch.arange(3)
    assert [result.dtype for result in traced(fn, whole)(whole)] == [torch.float32, torch.float32]


def test_a_graph_that_writes_into_its_tensors_is_left_alone() -> None:
    def fn(x: Tensor) -> Outputs:
        total, other = torch.zeros(3), torch.zeros(3)  # equal when made, not afterwards
        total.add_(x)
        return (total, other)

    graph = untidied(fn, torch.ones(3))
    before = operations(graph)
    tidy(graph)
    assert operations(graph) == before


def test_a_graph_that_writes_into_its_tensors_gives_the_same_at_each_call() -> None:
    def fn(x: Tensor) -> Outputs:
        total = torch.zeros(3)
        total.add_(x)
        return (total,)

    graph = traced(fn, torch.ones(3))
    assert graph(torch.ones(3))[0].tolist() == graph(torch.ones(3))[0].tolist() == [1.0, 1.0, 1.0]


def test_a_graph_that_draws_random_numbers_is_left_alone() -> None:
    def fn(x: Tensor) -> Outputs:
        return (x + torch.randn(3), x + torch.randn(3))

    one, two = traced(fn, torch.zeros(3))(torch.zeros(3))
    assert not torch.equal(one, two)


def test_the_results_of_two_calls_share_no_memory() -> None:
    """Who adds something to a result in place must not change the next one."""

    def fn(x: Tensor) -> Outputs:
        return (x + 1, torch.ones(3) * 2)

    graph = traced(fn, torch.zeros(3))
    graph(torch.zeros(3))[1].add_(1)
    assert graph(torch.zeros(3))[1].tolist() == [2.0, 2.0, 2.0]


# -------------------------------------------------------------------------- what the calls pay for


class Counted:
    """A function of one particle that counts how often Python runs it: a record runs without Python."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, theta: Tensor, *data: Tensor) -> Outputs:
        self.runs += 1
        return (theta.sin().sum(),)


def run_of(calls: int, theta: Tensor, **execution: Any) -> Counted:
    fn = Counted()
    batched = BatchedFunction(fn, Execution(**execution))
    for _ in range(calls):
        batched(theta)
    return fn


def test_auto_mode_does_not_trace_for_a_few_expected_calls() -> None:
    assert run_of(5, torch.zeros(3, 2), expected_calls=execution.CALLS_WORTH_A_TRACE - 1).runs == 5


def test_auto_mode_traces_at_once_when_many_calls_are_expected() -> None:
    assert run_of(5, torch.zeros(3, 2), expected_calls=execution.CALLS_WORTH_A_TRACE).runs == 1


def test_auto_mode_traces_when_unexpected_calls_have_become_many() -> None:
    assert run_of(execution.CALLS_WORTH_A_TRACE + 20, torch.zeros(3, 2)).runs == execution.CALLS_WORTH_A_TRACE


@pytest.fixture
def compiled_functions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is handed to torch.compile, which here gives it back as it is."""
    functions: list[Any] = []

    def compiling(fn: Any, **_: Any) -> Any:
        functions.append(fn)
        return fn

    monkeypatch.setattr(torch, "compile", compiling)
    return functions


def test_auto_mode_does_not_compile_a_short_run(compiled_functions: list[Any]) -> None:
    run_of(100, torch.zeros(3, 2), expected_calls=100)
    assert compiled_functions == []


def test_auto_mode_compiles_a_run_that_is_long_enough(compiled_functions: list[Any]) -> None:
    run_of(5, torch.zeros(3, 2), expected_calls=10**9)
    assert len(compiled_functions) == 1


def test_vmap_mode_never_traces() -> None:
    assert run_of(5, torch.zeros(3, 2), mode="vmap", expected_calls=10**9).runs == 5


def test_trace_mode_traces_at_the_first_call() -> None:
    assert run_of(5, torch.zeros(3, 2), mode="trace").runs == 1


def test_loop_mode_records_one_particle_once() -> None:
    assert run_of(5, torch.zeros(3, 2), mode="loop").runs == 1


def test_a_new_number_of_particles_makes_a_new_record() -> None:
    fn = Counted()
    batched = BatchedFunction(fn, Execution(mode="trace"))
    for number in (2, 3, 2, 3):
        batched(torch.zeros(number, 2))
    assert fn.runs == 2


def test_a_last_chunk_that_is_not_full_needs_no_record_of_its_own() -> None:
    assert run_of(1, torch.zeros(5, 2), mode="trace", chunk_size=2).runs == 1


def a_layer(theta: Tensor, data: Tensor) -> Outputs:
    """Rows (n, 4) -> 50 units -> a sum: between them n x 50 numbers for 200 of theta."""
    return ((data @ theta.unflatten(-1, (4, 50))).tanh().sum(),)


@pytest.mark.parametrize(("num_rows", "at_once"), [(1_000, 10), (10_000, 2), (100_000, 1)])
def test_as_many_particles_are_taken_at_once_as_fit_a_cache(num_rows: int, at_once: int) -> None:
    theta, data = torch.randn(10, 200), torch.randn(num_rows, 4)
    assert fitting_a_cache(traced(vmap(a_layer, in_dims=(0, None)), theta, data), theta) == at_once


def test_more_inputs_than_units_do_not_count_for_each_particle() -> None:
    def fn(theta: Tensor, data: Tensor) -> Outputs:
        return ((data @ theta.unflatten(-1, (400, 2))).tanh().sum(),)

    theta, data = torch.randn(10, 800), torch.randn(5_000, 400)  # 8 MB of data, 80 if they were repeated
    assert fitting_a_cache(traced(vmap(fn, in_dims=(0, None)), theta, data), theta) == 10


def test_weights_that_are_most_of_the_memory_are_not_taken_in_parts() -> None:
    def fn(theta: Tensor) -> Outputs:
        return ((2 * theta).sum(),)

    theta = torch.randn(10, 10**6)
    assert fitting_a_cache(traced(vmap(fn), theta), theta) == 10


@pytest.mark.parametrize("mode", ["trace", "compile"])
def test_parts_that_fit_a_cache_give_what_all_at_once_does(mode: Any, compiled_functions: list[Any]) -> None:
    theta, data = torch.randn(9, 200), torch.randn(10_000, 4)
    batched = BatchedFunction(a_layer, Execution(mode=mode))
    for _ in range(3):
        torch.testing.assert_close(batched(theta, data), vmap(a_layer, in_dims=(0, None))(theta, data))
    assert len(compiled_functions) == (mode == "compile")


def test_data_that_change_from_call_to_call_are_not_baked_into_the_record() -> None:
    def fn(theta: Tensor, data: Tensor) -> Outputs:
        return ((theta * data).sum(),)

    batched = BatchedFunction(fn, Execution(mode="trace"))
    batched(torch.ones(3, 2), torch.ones(2))
    assert batched(torch.ones(3, 2), 5 * torch.ones(2))[0].tolist() == [10.0, 10.0, 10.0]


@pytest.mark.parametrize("mode", ["trace", "loop"])
def test_what_is_selected_from_the_data_by_value_is_not_baked_into_the_record(mode: Any) -> None:
    """Minibatches with missing values have one shape, but not one number of values that are there."""

    def fn(theta: Tensor, data: Tensor) -> Outputs:
        return grad_and_value(lambda t: (t * data[data > 0]).mean())(theta)

    batched = BatchedFunction(fn, Execution(mode=mode))
    batched(torch.ones(3, 1), torch.tensor([1.0, -1.0, -1.0]))
    assert batched(torch.ones(3, 1), torch.tensor([1.0, 2.0, 6.0]))[0].tolist() == [[3.0]] * 3


def test_data_of_another_type_make_a_new_record() -> None:
    def fn(theta: Tensor, data: Tensor) -> Outputs:
        return ((theta * (data / 2)).sum(),)

    batched = BatchedFunction(fn, Execution(mode="trace"))
    batched(torch.ones(3, 2), torch.ones(2, dtype=torch.long))
    halves = torch.full((2,), 0.5, dtype=torch.float64)
    assert batched(torch.ones(3, 2), halves)[0].tolist() == [0.5, 0.5, 0.5]


def convolution_runs_batched(image: Tensor, **execution: Any) -> bool:
    """Whether the last record of a convolution of the image is one of all particles together."""
    channels, batched = image.shape[1], []

    def fn(theta: Tensor) -> Outputs:
        batched.append(torch._C._functorch.is_batchedtensor(theta))
        return (torch.nn.functional.conv2d(image, theta.view(channels, channels, 3, 3)).sum(),)

    BatchedFunction(fn, Execution(**execution))(torch.randn(3, 9 * channels**2))
    return batched[-1]


def test_large_convolutions_run_one_particle_after_another_on_a_cpu() -> None:
    """There vmap is slower than a loop."""
    assert not convolution_runs_batched(torch.randn(4, 8, 96, 96), mode="auto", expected_calls=1000)


def test_small_convolutions_run_all_particles_at_once() -> None:
    assert convolution_runs_batched(torch.randn(1, 1, 5, 5), mode="auto", expected_calls=1000)


def test_large_convolutions_run_all_particles_at_once_where_the_user_says_trace() -> None:
    assert convolution_runs_batched(torch.randn(4, 8, 96, 96), mode="trace")


def test_convolutions_give_the_same_in_auto_mode_and_under_vmap() -> None:
    image, theta = noise(4, 8, 96, 96), noise(3, 576)

    def fn(theta: Tensor) -> Outputs:
        return (torch.nn.functional.conv2d(image, theta.view(8, 8, 3, 3)).tanh().sum(),)

    auto, plain = (BatchedFunction(fn, Execution(mode=m, expected_calls=1000))(theta)[0] for m in ("auto", "vmap"))
    torch.testing.assert_close(auto, plain, rtol=1e-12, atol=1e-12)


def graph_of_products(size: int) -> fx.GraphModule:
    return traced(lambda x: (x @ x,), torch.zeros(size, size))


def test_compiling_becomes_worth_it_as_the_calls_grow() -> None:
    graph = graph_of_products(100)
    worth = [worth_compiling(graph, 10**power) for power in range(10)]
    assert worth == sorted(worth) and set(worth) == {False, True}  # noqa: PT018


def test_a_product_of_two_matrices_counts_as_that_of_one_with_itself() -> None:
    square, product = (
        graph_of_products(100),
        traced(lambda x, y: (x @ y,), torch.zeros(100, 100), torch.zeros(100, 100)),
    )
    assert [worth_compiling(square, 10**n) for n in range(9)] == [worth_compiling(product, 10**n) for n in range(9)]


def test_compiling_no_calls_is_never_worth_it() -> None:
    assert not worth_compiling(graph_of_products(100), 0)


def test_compiling_large_products_is_worth_it_for_fewer_calls() -> None:
    small, large = graph_of_products(2), graph_of_products(1000)
    calls = next(10**power for power in range(12) if worth_compiling(large, 10**power))
    assert not worth_compiling(small, calls)


def test_compiling_many_operations_is_worth_it_for_fewer_calls() -> None:
    def long(x: Tensor) -> Outputs:
        for _ in range(100):
            x = x.sin()
        return (x,)

    short_graph, long_graph = traced(lambda x: (x.sin(),), torch.zeros(3)), traced(long, torch.zeros(3))
    calls = next(10**power for power in range(12) if worth_compiling(long_graph, 10**power))
    assert not worth_compiling(short_graph, calls)


def unrolled(num_steps: int) -> fx.GraphModule:
    def fn(x: Tensor) -> Outputs:
        for _ in range(num_steps):
            x = x.sin()
        return (x,)

    return traced(fn, torch.zeros(3))


def test_what_compiling_takes_grows_with_the_operations() -> None:
    few, many = unrolled(90), unrolled(900)  # ten times the time to save
    calls = next(n for n in range(0, 100_000, 100) if worth_compiling(few, n))
    assert not worth_compiling(many, calls // 9)


def test_a_long_unrolled_loop_is_never_compiled_by_itself() -> None:
    assert not worth_compiling(unrolled(2500), 10**9)


# ----------------------------------------------------------------------------- inside a larger step


def test_a_step_around_the_function_gets_its_results() -> None:
    batched = BatchedFunction(lambda theta, data: ((theta * data).sum(),), Execution(mode="trace"))

    def step(function: Callable[[Tensor], Outputs], theta: Tensor, length: float) -> Outputs:
        return (theta + length * function(theta)[0][:, None],)

    moved = batched.inside(step, (torch.tensor([1.0, 2.0]),))(torch.ones(2, 2), 0.5)
    assert moved[0].tolist() == [[2.5, 2.5], [2.5, 2.5]]


def test_a_step_that_cannot_be_compiled_runs_uncompiled_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        def fail(*_: Any) -> Any:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    batched = BatchedFunction(lambda theta: (theta.sum(),), Execution(mode="compile"))
    step = batched.inside(lambda function, theta, length: (theta + length * function(theta)[0][:, None],), ())
    with pytest.warns(UserWarning, match="no compiler here"):
        moved = step(torch.ones(2, 2), 0.5)
    assert moved[0].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_record_that_cannot_be_compiled_runs_traced_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        def fail(*_: Any) -> Any:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    batched = BatchedFunction(lambda theta: (theta.sum(),), Execution(mode="compile"))
    with pytest.warns(UserWarning, match="the traced graph runs instead"):
        results = [batched(torch.ones(2, 2))[0].tolist() for _ in range(3)]
    assert results == [[2.0, 2.0]] * 3


def test_a_record_that_was_compiled_is_not_compiled_again(compiled_functions: list[Any]) -> None:
    run_of(6, torch.zeros(3, 2), mode="compile")
    assert len(compiled_functions) == 1


def test_a_step_is_compiled_together_with_the_function_in_it(compiled_functions: list[Any]) -> None:
    batched = BatchedFunction(lambda theta: (theta.sum(),), Execution(mode="compile"))
    step = batched.inside(lambda function, theta, length: (theta + length * function(theta)[0][:, None],), ())
    moved = [step(torch.ones(2, 2), 0.5)[0].tolist() for _ in range(3)]
    assert (len(compiled_functions), moved) == (1, [[[2.0, 2.0], [2.0, 2.0]]] * 3)


def test_the_tenth_step_of_a_process_is_compiled_like_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[fx.GraphModule] = []
    real = torch.compile

    def counted(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        lowered.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda fn, **settings: real(fn, backend=counted, **settings))
    for size in range(1, 11):
        batched = BatchedFunction(lambda theta: (theta.sum(),), Execution(mode="compile"))
        batched.inside(lambda function, theta: function(theta), ())(torch.zeros(2, size))
    assert len(lowered) == 10
