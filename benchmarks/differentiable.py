"""The energy for samplers of other libraries, which differentiate it themselves.

In: a `BatchedPotential`.  Out: U (N,) of theta (N, D), whose derivative is the potential's own fast gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_metricbnn import BatchedPotential


class _KnownGradient(torch.autograd.Function):
    """Value and gradient come in one pass; asked for the derivative, it hands out what it has."""

    @staticmethod
    def forward(theta: Tensor, potential: BatchedPotential) -> tuple[Tensor, Tensor]:
        return potential.value_and_grad(theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return cotangents[0][:, None] * gradient, None


def differentiable(potential: BatchedPotential, theta: Tensor) -> Callable[[Tensor], Tensor]:
    """U of each row, for autograd and torch.func; theta (N, D) is any point of the shape that it will be called with.

    The potential is called there first: recorded inside a transform of torch.func, it would take theta for a constant.
    """
    for _ in range(2):  # what is to be compiled is at the second call
        potential.grad(theta)
    return lambda points: _KnownGradient.apply(points, potential)[0]
