"""Claims about memory that runs out: half as much at a time is tried, once, and said; the results are the same."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_metricbnn import BatchedPotential, DriftRefineKernel, Gaussian, Steer, bayesianize, predict, to_arviz
from pyro_metricbnn.energy.minibatches import Minibatches, MinibatchPotential
from pyro_metricbnn.graphs import execution
from pyro_metricbnn.model.structure import find_layout
from pyro_metricbnn.predictions.pointwise import Pointwise
from pyro_metricbnn.runtime.out_of_memory import NotEnoughMemory, is_out_of_memory, with_less_at_once

ROOT = Path(__file__).parent.parent
X = torch.linspace(-2, 2, 40)[:, None]
Y = torch.sin(2 * X)
WORDS = {
    "GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "CPU": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: ..."
    ),
    "MPS": RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    "Python": MemoryError(),
}


class Memory(TorchDispatchMode):
    """Holds no tensor of more than so many numbers."""

    def __init__(self, limit: int, error: Exception = WORDS["GPU"]) -> None:
        super().__init__()
        self.limit, self.error, self.refusals = limit, error, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.is_tensor(result) and result.numel() > self.limit:
            self.refusals += 1
            raise self.error
        return result


def network() -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), Gaussian(0.3))


def potential(mode: str) -> BatchedPotential:
    return BatchedPotential(network(), X, Y).using(mode=mode)


THETA = 0.3 * torch.randn(10, 25, generator=torch.Generator().manual_seed(1))
HALF = 5 * len(X) * 8  # numbers in the hidden layer of five particles, the largest tensor on the way


# -------------------------------------------------------------------------------------- by itself


@pytest.mark.parametrize("name", WORDS)
def test_every_allocators_word_for_it_is_understood(name: str) -> None:
    assert is_out_of_memory(WORDS[name])


def test_other_errors_are_left_alone() -> None:
    def run(size: int) -> None:
        assert size == 8
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        with_less_at_once(run, 8, "rows", "predict")


def failing_above(limit: int, tried: list[int]) -> Callable[[int], Tensor]:
    def run(size: int) -> Tensor:
        tried.append(size)
        drawn = torch.rand(2)
        if size > limit:
            raise MemoryError
        return drawn

    return run


def test_half_is_tried_once_from_the_same_random_state_and_said() -> None:
    tried: list[int] = []
    pyro.set_rng_seed(4)
    expected = torch.rand(2)
    pyro.set_rng_seed(4)
    with pytest.warns(UserWarning, match=r"short with 9 rows at once.*chunk_size=5 to predict next time"):
        drawn = with_less_at_once(failing_above(5, tried), 9, "rows", "predict", draws=True)
    assert tried == [9, 5]
    assert torch.equal(drawn, expected)


def test_a_second_failure_says_which_size_was_tried_and_what_to_do() -> None:
    tried: list[int] = []
    with (
        pytest.warns(UserWarning, match="short"),
        pytest.raises(NotEnoughMemory, match=r"chunk_size=5.*Pass 2 or less"),
    ):
        with_less_at_once(failing_above(4, tried), 9, "rows", "predict")
    assert tried == [9, 5]


def test_one_at_a_time_cannot_be_halved() -> None:
    with pytest.raises(NotEnoughMemory, match=r"chunk_size=1, .*Fewer cannot be.*batch_size="):
        with_less_at_once(failing_above(0, []), 1, "rows", "predict")


def test_the_failed_attempt_holds_no_memory_while_the_next_one_runs() -> None:
    alive: list[bool] = []

    class Large:
        def __del__(self) -> None:
            alive.clear()

    def run(size: int) -> bool:
        if size < 4:
            return bool(alive)
        large = Large()
        alive.append(True)
        raise MemoryError(large)

    with pytest.warns(UserWarning, match="short"):
        assert not with_less_at_once(run, 4, "rows", "predict")


# --------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("mode", ["vmap", "trace"])
def test_a_gradient_that_does_not_fit_is_that_of_two_halves(mode: str) -> None:
    expected = potential(mode).using(chunk_size=5).value_and_grad(THETA)
    short = potential(mode)
    with Memory(HALF), pytest.warns(UserWarning, match=r"10 particles.*chunk_size=5 to DriftRefineKernel"):
        found = short.value_and_grad(THETA)
    assert all(map(torch.equal, found, expected))
    torch.testing.assert_close(found, potential(mode).value_and_grad(THETA))


def test_the_next_gradient_does_not_fail_first() -> None:
    short = potential("vmap")
    with Memory(HALF) as memory, pytest.warns(UserWarning, match="short"):
        short.grad(THETA)
    with memory:
        short.grad(THETA)
    assert memory.refusals == 1


def test_a_gradient_whose_half_does_not_fit_either_says_so() -> None:
    with Memory(HALF // 2), pytest.warns(UserWarning, match="short"):  # noqa: SIM117
        with pytest.raises(MemoryError, match=r"chunk_size=5, which counts particles.*Pass 2 or less"):
            potential("vmap").grad(THETA)


def test_memory_that_is_short_while_compiling_is_not_taken_for_a_missing_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*_: Any) -> Any:
        raise WORDS["GPU"]

    monkeypatch.setattr(torch, "compile", lambda *_, **__: no_room)
    failures: list[Exception] = []
    with pytest.raises(torch.OutOfMemoryError):
        execution.compiled(no_room, (), no_room, failures)
    assert failures == []


def test_a_compiled_step_that_does_not_fit_goes_on_with_compiled_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(value_and_grad: Any, theta: Tensor, length: float) -> tuple[Tensor, ...]:
        value, grad = value_and_grad(theta)
        return theta - length * grad, value

    def compiled(fn: Any, inputs: Any, otherwise: Any, failures: Any) -> Any:  # without a compiler
        sizes.append(len(next(iter(inputs))))
        return fn

    sizes: list[int] = []
    monkeypatch.setattr(execution, "compiled", compiled)
    expected = step(potential("compile").using(chunk_size=5).value_and_grad, THETA, 0.1)
    sizes.clear()
    inside = potential("compile").inside(step)
    inside(THETA, 0.1)
    with Memory(HALF), pytest.warns(UserWarning, match=r"short with 10 particles"):
        first, second = inside(THETA, 0.1), inside(THETA, 0.1)
    assert sizes == [10, 5]
    assert all(map(torch.equal, first, expected))
    assert all(map(torch.equal, second, expected))


def test_a_retried_gradient_sees_the_same_minibatch() -> None:
    def gradients() -> list[tuple[Tensor, Tensor]]:
        pyro.set_rng_seed(0)
        data = Minibatches((X, Y), 20)
        batches = MinibatchPotential(network(), data, data.num_data)
        return [batches.value_and_grad(THETA) for _ in range(3)]

    expected = gradients()
    with Memory(HALF // 2), pytest.warns(UserWarning, match="short"):
        found = gradients()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("settings", [{}, {"batch_size": 20}])
def test_a_walk_that_runs_out_of_memory_ends_where_it_would_have(settings: dict[str, Any]) -> None:
    def walk() -> Tensor:
        pyro.set_rng_seed(0)
        kernel = DriftRefineKernel(network(), refiner=Steer(path=0.5), num_steps=2)
        start = {name: value.detach() for name, value in network().trained_params.items()}
        return kernel.walk(X, Y, num_particles=10, map_params=start, progress=False, **settings).thetas

    expected = walk()
    with Memory(HALF * settings.get("batch_size", 40) // 40), pytest.warns(UserWarning, match="10 particles"):
        found = walk()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------- predictions and log-likelihoods


def weights(num_samples: int) -> dict[str, Tensor]:
    torch.manual_seed(2)
    return {name: torch.randn(num_samples, *value.shape) for name, value in network().trained_params.items()}


def test_predictions_that_do_not_fit_are_those_of_half_the_rows() -> None:
    expected = predict(network(), weights(30), X, chunk_size=20).f
    with Memory(30 * 20 * 8), pytest.warns(UserWarning, match=r"40 rows of x.*chunk_size=20 to predict"):
        found = predict(network(), weights(30), X).f
    assert torch.equal(found, expected)
    torch.testing.assert_close(found, predict(network(), weights(30), X).f)


def test_predictions_whose_half_does_not_fit_either_say_so() -> None:
    with Memory(30 * 10 * 8), pytest.warns(UserWarning, match="short"):  # noqa: SIM117
        with pytest.raises(MemoryError, match=r"chunk_size=20, which counts rows of x.*Pass 10 or less"):
            predict(network(), weights(30), X)


LIMITED = """
import resource, torch, warnings
from torch import nn
from pyro_metricbnn import Gaussian, bayesianize, predict

torch.set_num_threads(1)
model = bayesianize(nn.Sequential(nn.Linear(1, 1000), nn.Tanh(), nn.Linear(1000, 1)), Gaussian(0.3))
weights = {name: torch.randn(300, *value.shape) for name, value in model.trained_params.items()}
x = torch.linspace(-2, 2, 200)[:, None]
expected = predict(model, weights, x, chunk_size=100).f
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 360 * 2**20, resource.RLIM_INFINITY))  # a hidden layer has 240
with warnings.catch_warnings(record=True) as said:
    found = predict(model, weights, x).f
print(torch.equal(found, expected), said[0].message)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_predictions_go_on_when_the_system_gives_no_more_memory() -> None:
    command = [sys.executable, "-W", "always", "-c", LIMITED]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.startswith("True memory was short with 200 rows of x at once")


def test_a_model_that_does_not_fit_at_all_is_not_said_to_have_wrong_arguments() -> None:
    with Memory(100), pytest.raises(torch.OutOfMemoryError):
        BatchedPotential(network(), X, Y)


def pointwise(chunk_size: int | None = None) -> Pointwise:
    return Pointwise(network(), (X, Y), {}, find_layout(network(), (X, Y), {}), chunk_size)


def test_log_likelihoods_that_do_not_fit_are_those_of_half_the_draws() -> None:
    expected, _ = pointwise(15).given_data(weights(30))
    with Memory(15 * 40 * 8), pytest.warns(UserWarning, match=r"30 draws.*chunk_size=15 to to_arviz"):
        found, _ = pointwise().given_data(weights(30))
    assert torch.equal(found["obs"], expected["obs"])


def test_new_observations_that_do_not_fit_draw_what_half_the_draws_would_have() -> None:
    pyro.set_rng_seed(5)
    expected, after = pointwise(15).new_observations(weights(30))["obs"], torch.rand(1)
    pyro.set_rng_seed(5)
    with Memory(15 * 40 * 8), pytest.warns(UserWarning, match="short"):
        found = pointwise().new_observations(weights(30))["obs"]
    assert torch.equal(found, expected)
    assert torch.equal(torch.rand(1), after)


def test_log_likelihoods_whose_half_does_not_fit_either_are_not_run_one_by_one() -> None:
    with Memory(5 * 40 * 8), pytest.warns(UserWarning, match="short"):  # noqa: SIM117
        with pytest.raises(MemoryError, match=r"chunk_size=15, which counts draws"):
            to_arviz(weights(30), network(), X, Y, posterior_predictive=False)
