"""What all tests share: a seed, and the folder of real data."""

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pyro
import pytest
import torch

from pyro_metricbnn import MetricBNN

from .runs import hierarchical_run, network_run

NEEDS_BENCHMARKS = ["test_benchmark*.py", "test_claims.py", "test_figures.py", "test_pyro_models.py"]
collect_ignore_glob = [] if find_spec("sklearn") else NEEDS_BENCHMARKS  # with the extra test alone


def pytest_configure() -> None:
    """One core for each worker of pytest -n, and for the processes that its tests start."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    yield
    assert torch.get_default_dtype() == torch.float32, "a test or the library left the default dtype changed"
    switches = pyro.distributions.is_validation_enabled(), torch.distributions.Distribution._validate_args
    assert switches == (True, True), "a test or the library left validation of Pyro or of torch switched off"


@pytest.fixture(scope="session")
def _adam_keeps_off_the_default_device() -> None:
    """What runs with `meta` as the default device needs an Adam whose counter is on the CPU: not torch 2.10's."""
    z = torch.zeros(1, requires_grad=True)
    z.grad = torch.ones(1)
    optimizer = torch.optim.Adam([z], foreach=False)
    with torch.device("meta"), suppress(RuntimeError):  # it cannot read such a counter
        optimizer.step()
    if optimizer.state[z]["step"].device.type != "cpu":
        pytest.skip("torch's own Adam makes its counter on the default device: upgrade torch")


@pytest.fixture(scope="session")
def data_folder() -> Path | None:
    """Real data sets, where METRICBNN_DATA says; None without it."""
    folder = os.environ.get("METRICBNN_DATA")
    return Path(folder) if folder else None


@pytest.fixture
def _compiles_by_itself() -> Iterator[None]:
    """For a test that calls torch.compile or torch.export, which switch validation off in their first call."""
    yield
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture(params=[True, False], ids=["validation_on", "validation_off"])
def _validation(request: pytest.FixtureRequest) -> Iterator[None]:
    with pyro.validation_enabled(request.param):
        yield


@pytest.fixture(scope="session")
def metric() -> MetricBNN:
    """A small regression network's posterior."""
    return network_run()


@pytest.fixture(scope="session")
def groups() -> MetricBNN:
    """That of a hierarchical model with constrained sites and a plate."""
    return hierarchical_run()
