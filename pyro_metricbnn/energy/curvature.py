"""In: a BatchedPotential, a point (D,) and units (D,) of its coordinates.  Out: the Hessian, or products with it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .potential import BatchedPotential

SMALL, LARGE = 150, 300  # coordinates


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
