"""Claims about several inferences at once: in threads of one process, and in child processes."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import MCMC
from pyro.infer.mcmc.api import _MultiSampler
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor
from tqdm.auto import tqdm

from pyro_metricbnn import BatchedPotential, DriftRefineKernel, MetricBNN, Steer, predict
from pyro_metricbnn.energy.handlers import Unvalidated
from pyro_metricbnn.energy.minibatches import MinibatchPotential
from pyro_metricbnn.runtime.threads import in_turn

from .models import normal_mean, real
from .runs import GROUPS, X, Y, hierarchical, regression

ROOT = Path(__file__).parent.parent
MANY = torch.linspace(-2, 2, 40_000)[:, None]
SWITCHES = (pyro.distributions, pyro.infer, pyro.poutine)


def strict(y: Tensor) -> None:
    """Sets its own parameter, and asks for validation of its own distributions."""
    shift = pyro.param("shift", y.new_zeros(()))
    mean = pyro.sample("level", pyro.distributions.Normal(shift, 1.0, validate_args=True))
    with pyro.plate("rows", len(y)):
        pyro.sample("obs", pyro.distributions.Normal(mean, 1.0, validate_args=True), obs=y)


CASES: dict[str, tuple[Any, tuple[Tensor, ...], torch.dtype]] = {
    "network": (regression(), (X, Y), torch.float32),
    "hierarchy": (hierarchical, (GROUPS,), torch.float32),
    "double": (normal_mean, (real(1.0, 2.0, 3.0),), torch.float64),
    "strict": (strict, (torch.ones(4),), torch.float32),
}


def walked(name: str) -> MetricBNN:
    model, args, _ = CASES[name]
    kernel = DriftRefineKernel(model, refiner=Steer(path=1.0, warmup=0.0), num_steps=4, compile=False)
    return MetricBNN(kernel, num_particles=3).run(*args, progress=False)


def check(name: str, metric: MetricBNN) -> None:
    """The record is of this model and no other: its energies are those of its points."""
    model, args, dtype = CASES[name]
    walk = metric.trajectories
    potential = BatchedPotential(model, *args)
    assert walk.sites.names == potential.sites.names
    assert walk.thetas.dtype == dtype
    energies = potential.value(walk.thetas.flatten(0, 1)).reshape(walk.energies.shape)
    torch.testing.assert_close(walk.energies, energies, rtol=1e-4, atol=1e-3)


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """All tasks in threads that leave together; the first error of any is raised."""
    gate = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        gate.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(run, task) for task in tasks]]


@pytest.mark.parametrize("pair", [("network", "double"), ("hierarchy", "strict")], ids="-".join)
def test_two_inferences_in_threads_each_walk_their_own_model(pair: tuple[str, str]) -> None:
    for _ in range(2):
        metrics = at_once(*(lambda name=name: walked(name) for name in pair))
        for name, metric in zip(pair, metrics, strict=True):
            check(name, metric)
    assert all(module.is_validation_enabled() for module in SWITCHES)
    assert not _PYRO_STACK


# ----------------------------------------------------------------------------------------- threads


def test_two_threads_in_blocks_without_validation_leave_it_as_it_was() -> None:
    def hold(seconds: float) -> None:
        with Unvalidated():
            time.sleep(seconds)

    at_once(lambda: hold(0.01), lambda: hold(0.05))  # the first would end inside the second
    assert all(module.is_validation_enabled() for module in SWITCHES)
    assert not _PYRO_STACK


def test_a_recorded_energy_runs_without_pyro() -> None:
    potential = BatchedPotential(hierarchical, GROUPS).using(mode="trace")
    theta = torch.zeros(2, potential.dim)
    expected = potential.value_and_grad(theta)  # records
    with in_turn():  # as another thread would that runs its model
        (found,) = at_once(lambda: potential.value_and_grad(theta))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_one_network_predicts_in_many_threads_what_it_predicts_alone(metric: MetricBNN) -> None:
    model: Any = metric.model
    samples = [metric.draw(3) for _ in range(4)]
    expected = [predict(model, draws, X).f for draws in samples]
    for _ in range(5):
        found = at_once(*(lambda draws=draws: predict(model, draws, X).f for draws in samples))
        assert all(map(torch.equal, found, expected))


# --------------------------------------------------------------------------------------- processes


@pytest.fixture
def _two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_child(method: str, function: Callable[..., Any], *args: Any) -> Any:
    """What the function gives in a process of its own, in plain values."""
    context: Any = mp.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_answer, args=(theirs, function, args))
    child.start()
    theirs.close()  # so that a child that dies without a word is noticed
    try:
        assert ours.poll(300), "the child gave no answer"
        return ours.recv()
    finally:
        child.kill()
        child.join()


def _answer(connection: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    connection.send(function(*args))


def energies_of_a_walk(kernel: DriftRefineKernel) -> list[float]:
    """A walk on data that torch shares out among its threads."""
    torch.manual_seed(1)
    model: Any = kernel.model
    walk = kernel.walk(MANY, MANY, num_particles=2, map_params=model.trained_params, progress=False)
    return walk.energies.flatten().tolist()


def draws_of(metric: MetricBNN) -> list[float]:
    torch.manual_seed(2)
    return metric.draw(2)["0.weight"].flatten().tolist()


def new_kernel() -> DriftRefineKernel:
    return DriftRefineKernel(
        regression(), refiner=Steer(path=0.004, warmup=0.0, step_size=0.01), num_steps=2, compile=False
    )


@pytest.mark.slow
def test_a_forked_child_walks_where_the_parents_walk_was_the_first_use_of_torch() -> None:
    code = (
        "from tests.test_threads import *; torch.set_num_threads(2); energies_of_a_walk(new_kernel());"
        "print(len(in_child('fork', energies_of_a_walk, new_kernel())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "6"


@pytest.mark.usefixtures("_two_torch_threads")
def test_a_forked_child_walks_after_its_parent_has_walked() -> None:
    expected = energies_of_a_walk(new_kernel())
    assert in_child("fork", energies_of_a_walk, new_kernel()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("pickled", ["kernel", "potential", "minibatches", "metric"])
def test_what_has_walked_can_be_pickled_and_goes_on(metric: MetricBNN, pickled: str) -> None:
    potential = BatchedPotential(hierarchical, GROUPS)
    batches = MinibatchPotential(metric.model, [(X, Y)], num_data=len(X))
    theirs = {"kernel": metric.kernel, "potential": potential, "minibatches": batches, "metric": metric}[pickled]
    ours = pickle.loads(pickle.dumps(theirs))
    if isinstance(ours, MetricBNN):
        assert draws_of(ours) == draws_of(metric)
        assert ours.guide(X, Y)["0.weight"].shape == (8, 1)
    elif isinstance(ours, BatchedPotential):
        theta = torch.ones(2, ours.dim)
        assert torch.equal(ours.value(theta), theirs.value(theta))  # type: ignore[attr-defined]
    else:
        assert ours.relax(metric.trajectories, metric.trajectories.thetas[:, -1], 1).isfinite().all()


def bar() -> int:
    with in_turn():
        return sum(tqdm(range(3), disable=True))


def test_a_forked_child_has_bars_where_another_thread_was_at_one() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with tqdm.get_lock():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child("fork", bar) == 3
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_a_spawned_child_draws_and_walks_what_it_is_sent(metric: MetricBNN) -> None:
    assert in_child("spawn", draws_of, metric) == draws_of(metric)
    assert in_child("spawn", energies_of_a_walk, new_kernel()) == pytest.approx(
        energies_of_a_walk(new_kernel()), rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_chains_of_pyros_mcmc_walk_in_processes_of_their_own(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 4)  # with few cores Pyro takes no processes
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=0.1, warmup=0.0), num_steps=3, compile=False)
    mcmc = MCMC(kernel, num_samples=3, warmup_steps=1, num_chains=2, mp_context=method, disable_progbar=True)
    assert isinstance(mcmc.sampler, _MultiSampler)
    mcmc.run(X, Y)
    weights = mcmc.get_samples(group_by_chain=True)["0.weight"]
    assert weights.shape[:2] == (2, 3)
    assert not torch.equal(weights[0], weights[1])
