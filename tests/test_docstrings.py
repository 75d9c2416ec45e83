"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
import inspect
import pkgutil
import sys
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from torch import nn

import pyro_metricbnn
from pyro_metricbnn import plots
from pyro_metricbnn.plots.walks import Plane

MODULES = [
    module.name for module in pkgutil.walk_packages(pyro_metricbnn.__path__, "pyro_metricbnn.") if not module.ispkg
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small model, its data, a walk and a folder, which the examples use."""
    torch.manual_seed(0)
    x = torch.randn(20, 2)
    y = x.sum(-1, keepdim=True)
    model = pyro_metricbnn.bayesianize(nn.Linear(2, 1), pyro_metricbnn.Gaussian(0.5))
    walk = pyro_metricbnn.DriftRefineKernel(model, num_steps=10).walk(x, y, num_particles=4, progress=False)
    libraries = {"torch": torch, "nn": nn, "pyro": pyro, "dist": dist, "MCMC": MCMC, "plots": plots, "Plane": Plane}
    public = {name: getattr(pyro_metricbnn, name) for name in pyro_metricbnn.__all__}
    folder = tmp_path_factory.mktemp("examples")
    return {**libraries, **public, "x": x, "y": y, "model": model, "walk": walk, "folder": folder}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_what_they_say(name: str, names: dict[str, Any]) -> None:
    module = importlib.import_module(name)
    failed = doctest.testmod(module, extraglobs=names, verbose=False).failed
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    assert not failed


def test_every_public_name_has_an_example() -> None:
    public = {name: getattr(pyro_metricbnn, name) for name in pyro_metricbnn.__all__}
    to_call = {name: value for name, value in public.items() if callable(value) and not inspect.isabstract(value)}
    assert [name for name, value in to_call.items() if ">>>" not in (value.__doc__ or "")] == []
