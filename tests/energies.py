"""What Pyro itself gives for a model's energy, to compare with."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

from pyro_metricbnn import BatchedPotential
from tests.models import (
    CASES,
    ONE,
    ZERO,
    Case,
    noise,
)

BY_NAME = {case.name: case for case in CASES}
every_case = pytest.mark.parametrize("name", BY_NAME)
NUM_PARTICLES = 5


def potential_of(case: Case, **execution: Any) -> BatchedPotential:
    return BatchedPotential(case.model, *case.args, **case.kwargs).using(**execution)


def particles(dim: int, number: int = NUM_PARTICLES) -> Tensor:
    return 0.7 * noise(number, dim, seed=dim)


def pyros_energy(case: Case, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of Pyro's own potential_fn, one particle after another."""
    shapes, potential_fn, _, _ = initialize_model(case.model, case.args, case.kwargs)
    values, gradients = [], []
    for row in theta:
        row = row.clone().requires_grad_()
        parts = row.split([part.numel() for part in shapes.values()])  # in the order of the model's sites
        value = potential_fn({n: part.reshape(shapes[n].shape) for n, part in zip(shapes, parts, strict=True)})
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, row)[0])
    return torch.stack(values), torch.stack(gradients)


@cache
def expected(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Particles of a case, and Pyro's values and gradients at them."""
    theta = particles(potential_of(BY_NAME[name]).dim)
    return theta, *pyros_energy(BY_NAME[name], theta)


@cache
def computed(name: str, mode: str) -> tuple[Tensor, Tensor]:
    """Ours; once for the two claims about it."""
    theta = expected(name)[0]
    return potential_of(BY_NAME[name], mode=mode).value_and_grad(theta)


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs, rtol=1e-10, atol=1e-10)


def branching(y: Tensor) -> None:
    """Takes another path where `switch` is positive; its gradient has no `switch` in it but the prior's."""
    switch = pyro.sample("switch", dist.Normal(ZERO, ONE))
    level = pyro.sample("level", dist.Normal(ZERO, ONE))
    location = level if switch > 0 else 3 * level
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(location, ONE), obs=y)
