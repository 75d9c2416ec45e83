"""Claims about several inferences at once: in threads of one process, and in child processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyro
import pytest
import torch
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_metricbnn import BatchedPotential, DriftRefineKernel, MetricBNN, Steer

from .models import normal_mean, real
from .runs import GROUPS, X, Y, hierarchical, regression

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
        metrics = at_once(*(lambda name=name: walked(name) for name in pair))  # type: ignore[misc]
        for name, metric in zip(pair, metrics, strict=True):
            check(name, metric)
    assert all(module.is_validation_enabled() for module in SWITCHES)
    assert not _PYRO_STACK
