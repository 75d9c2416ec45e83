"""The curvature of the energy at a point, from differences of gradients.

In: a BatchedPotential, a point (D,) and the units (D,) of its coordinates.  Out: the Hessian, or products with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .potential import BatchedPotential

MAX_HESSIAN = 200  # coordinates: for larger models the whole Hessian takes longer than it is worth


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
