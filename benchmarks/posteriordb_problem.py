"""A posterior of posteriordb as a Pyro model, with the way between its sites and Stan's parameters.

Where Stan has a flat prior, which Pyro cannot draw from, there is a normal or half-normal one here, 1,000 times as wide
as the data say: `flat` and `flat_positive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

WIDE = 1000.0  # a flat prior's deviation, in units of the data
Data = Mapping[str, Any]
Samples = Mapping[str, Tensor]


def as_they_are(samples: Samples) -> dict[str, Tensor]:
    """Sites that have the reference's names and values."""
    return dict(samples)


@dataclass(frozen=True)
class Problem:
    """A model, its arguments, and the way between its sites and the reference's parameters."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    parameters: Callable[[Samples], dict[str, Tensor]] = as_they_are  # from sites (S, ...)
    sites: Callable[[Samples], dict[str, Tensor]] = as_they_are  # from parameters (S, ...)


@dataclass(frozen=True)
class Posterior:
    """One of posteriordb's: the name of its data, a dash, the name of its model."""

    name: str
    problem: Callable[[Data], Problem]

    @property
    def data_name(self) -> str:
        return self.name.partition("-")[0]


def column(data: Data, name: str) -> Tensor:
    """A variable of the data (n,) in double precision."""
    return torch.tensor(data[name], dtype=torch.float64)


def flat(name: str, scale: Tensor) -> Tensor:
    """A vector with a flat prior in Stan, by its scales (n,)."""
    value: Tensor = pyro.sample(name, dist.Normal(torch.zeros_like(scale), WIDE * scale).to_event(1))
    return value


def flat_positive(name: str, scale: Tensor) -> Tensor:
    """A positive number with a flat prior in Stan."""
    value: Tensor = pyro.sample(name, dist.HalfNormal(WIDE * scale))
    return value
