"""The units of every length, and how sharp the energy is in them.

In: a BatchedPotential, and a point (D,).  Out: the prior's centre (D,) and scale (D,), `PriorUnits`; the Hessian there,
or products with it.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from ..model.sites import Site, check_structure
from ..model.structure import Node
from ..runtime.each_draw import for_each
from ..runtime.out_of_memory import is_out_of_memory
from .handlers import Unvalidated
from .potential import BatchedPotential

NUM_DRAWS = 300
SMALL, LARGE = 150, 300  # coordinates


@dataclass(frozen=True)
class PriorUnits:
    """Where the prior is, coordinate by coordinate."""

    center: Tensor  # (D,)
    scale: Tensor  # (D,)

    def theta(self, z: Tensor) -> Tensor:
        """From prior deviations to theta."""
        return self.center + self.scale * z

    def z(self, theta: Tensor) -> Tensor:
        """From theta to prior deviations."""
        return (theta - self.center) / self.scale


def prior_units(potential: BatchedPotential) -> PriorUnits:
    """The prior's location and spread of each coordinate of theta.

    Exact for sites whose prior is fixed and has moments; for the others from quantiles of prior draws, because priors
    of scales have heavy tails.

    Example:
        >>> units = prior_units(BatchedPotential(bayesianize(nn.Linear(2, 1), Gaussian(1.0), prior_scale=3.0), x, y))
        >>> units.scale
        tensor([3., 3., 3.])
    """
    first, second = _prior_trace(potential), _prior_trace(potential)
    draws: dict[str, Tensor] = {}
    found = []
    for site in potential.sites.sites:
        if _is_fixed(first.nodes[site.name], second.nodes[site.name]):
            found.append(_of_distribution(site, first.nodes[site.name]["fn"]))
        else:
            draws = draws or _prior_draws(potential)
            found.append(_of_draws(site, draws[site.name]))
    center, scale = (torch.cat([one.reshape(-1) for one in each]).detach() for each in zip(*found, strict=True))
    return PriorUnits(center, torch.where(scale.isfinite() & (scale > 0), scale, 1.0))


def _prior_trace(potential: BatchedPotential) -> poutine.Trace:
    with Unvalidated(), torch.no_grad():
        trace = poutine.trace(potential.model).get_trace(*potential.args, **potential.kwargs)
    check_structure(potential.sites, trace)
    return trace


def _is_fixed(one: Node, two: Node) -> bool:
    """Whether a site's prior does not depend on other sites: it gives one value the same density twice."""
    return torch.equal(one["fn"].log_prob(one["value"]), two["fn"].log_prob(one["value"]))


def _of_distribution(site: Site, prior: Any) -> tuple[Tensor, Tensor]:
    if site.shape == site.unconstrained_shape and prior.support.event_dim == len(prior.event_shape):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            value, deviation = prior.mean.expand(site.shape), prior.variance.sqrt().expand(site.shape)
            if torch.equal(site.transform.inv(value), value) and bool((value + deviation).isfinite().all()):
                return value, deviation
    return _of_draws(site, prior.sample((NUM_DRAWS,)))


def _of_draws(site: Site, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Median, and half the width of the middle 68 %, in unconstrained space."""
    free = site.transform.inv(draws)
    low, middle, high = (free.nan_to_num().quantile(q, dim=0) for q in (0.16, 0.5, 0.84))
    return middle, (high - low) / 2


def _prior_draws(potential: BatchedPotential) -> dict[str, Tensor]:
    """Draws of all sites from the prior, at once where the model allows it: (S, *site shape) by name."""

    def draw(_: Tensor) -> dict[str, Tensor]:
        trace = _prior_trace(potential)
        return {name: trace.nodes[name]["value"] for name in potential.sites.names}

    numbers = torch.arange(NUM_DRAWS, device=potential.sites.device)
    try:
        return for_each(draw, numbers)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return for_each(draw, numbers, chunk_size=1)


def smallness(dim: int) -> float:
    """How far a model of so many coordinates is treated as a small one: 1 up to SMALL, 0 from LARGE on.

    A small model's gradients are cheap and its posterior is narrower than its prior: its Hessian is worth its
    gradients, and its averages want a long path. Along the fiber of a network the posterior is as wide as the prior.
    """
    return min(1.0, max(0.0, math.log(LARGE / dim) / math.log(LARGE / SMALL)))


def by_size(dim: int, small: Callable[[], float], large: Callable[[], float]) -> float:
    """What small models have, what large ones have, or the geometric mean by `smallness` between them."""
    part = smallness(dim)
    if part in (0, 1):
        return small() if part else large()
    return small() ** part * large() ** (1 - part)


def hessian_times(potential: BatchedPotential, theta: Tensor, scale: Tensor, v: Tensor) -> Tensor:
    """The Hessian at theta in units of `scale`, times each row of v (n, D)."""
    center = theta.expand(len(v), -1)
    width = torch.finfo(v.dtype).eps ** (1 / 3)
    ahead, behind = (potential.grad(center + side * width * scale * v) for side in (1, -1))
    return (ahead - behind) * scale / (2 * width)


def hessian(potential: BatchedPotential, theta: Tensor, scale: Tensor, at_once: int) -> Tensor:
    """The Hessian at theta in units of `scale` (D, D), so many rows at once, in float64."""
    steps = torch.eye(len(theta), device=theta.device, dtype=theta.dtype)
    rows = torch.cat([hessian_times(potential, theta, scale, v) for v in steps.split(at_once)])
    return ((rows + rows.T) / 2).nan_to_num().double()
