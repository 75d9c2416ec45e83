"""Microcanonical Langevin dynamics of constant speed: the gradient turns the drift (Robnik et al. 2023).

In: particles, a step size and a length.  Out: the particles that much further on, and the mean square energy error.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .state import Ground, Particles

NOISE_EVERY = 0.1  # of the path over which the noise renews the drift
ValueAndGrad = Callable[[Tensor], tuple[Tensor, Tensor]]


def turn(u: Tensor, grad: Tensor, length: float | Tensor) -> tuple[Tensor, Tensor]:
    """Turn unit vectors u (N, D) down the gradient for a path of `length`.

    e = -grad/|grad|, delta = length |grad|/(D - 1),
    u <- (u + e (sinh delta + (e.u)(cosh delta - 1))) / (cosh delta + (e.u) sinh delta),
    written with exp(-delta), which cannot overflow.

    Returns:
        The new u, and (D - 1) log(cosh delta + (e.u) sinh delta) (N,): the change of kinetic energy.
    """
    dims = u.shape[-1] - 1
    norm = grad.norm(dim=-1, keepdim=True)
    delta = length / dims * norm
    norm = norm.clamp_min(torch.finfo(grad.dtype).tiny)
    along = -(grad * u).sum(-1, keepdim=True) / norm  # e.u
    zeta = torch.exp(-delta)
    # e itself is never made: of all this only what is as large as u takes time.
    turned = torch.addcmul(2 * zeta * u, grad, -(1 - zeta) * (1 + zeta + along * (1 - zeta)) / norm)
    turned = turned / turned.norm(dim=-1, keepdim=True)
    growth = 0.5 * ((1 + along) + (1 - along).clamp_min(0) * zeta**2)
    kinetic = dims * (delta + torch.log(growth.clamp_min(torch.finfo(grad.dtype).tiny)))
    return turned, kinetic.squeeze(-1)


def steered_step(
    value_and_grad: ValueAndGrad,
    theta: Tensor,
    drift: Tensor,
    energy: Tensor,
    grad: Tensor,
    padding: Tensor,
    noise: Tensor | None,
    scale: Tensor,
    eps: float | Tensor,
    nu: float | Tensor,
) -> tuple[Tensor, ...]:
    """Half a turn, a move of length eps (of all, or (N, 1)), half a turn; then the noise.

    Returns:
        theta, drift, energy, grad, padding after the step, and its energy error (N,).
    """
    dim = theta.shape[1]
    u, first = turn(drift, _padded(grad * scale, padding), eps / 2)
    theta = theta + eps * scale * u[:, :dim]
    moved = padding + eps * u[:, dim:]
    value, grad = value_and_grad(theta)
    u, second = turn(u, _padded(grad * scale, moved), eps / 2)
    error = first + second + value - energy + (moved**2 - padding**2).sum(-1) / 2
    if noise is not None:
        u = u + nu * noise
        u = u / u.norm(dim=-1, keepdim=True)
    return theta, u, value, grad, moved, error


def _padded(grad: Tensor, padding: Tensor) -> Tensor:
    """The gradient with that of the standard-normal padding behind it."""
    return torch.cat([grad, padding], dim=-1) if padding.shape[-1] else grad


def steered(ground: Ground, particles: Particles, length: float, decoherence: float) -> tuple[Particles, Tensor]:
    """Steps of equal size, at most the particles', that add up to `length`; their mean square error (N,)."""
    p, dim = particles, particles.drift.shape[1]
    num_steps = max(1, math.ceil(length / p.step_size - 1e-9))
    eps = length / num_steps
    coherent = decoherence * math.sqrt(dim)
    # Normal numbers cost as much as a dozen operations: they come when they have something to turn.
    num_kicks = min(num_steps, math.ceil(length / (NOISE_EVERY * coherent)) or 1)
    nu = math.sqrt(math.expm1(2 * length / num_kicks / coherent) / dim)
    noise = torch.zeros_like(p.drift) if nu > 0 else None
    squares = torch.zeros_like(p.energy)
    state: tuple[Tensor, ...] = (p.theta, p.drift, p.energy, p.grad, p.own["padding"])
    step = ground.inside(steered_step)
    for i in range(1, num_steps + 1):
        due = nu > 0 and i * num_kicks // num_steps > (i - 1) * num_kicks // num_steps
        noise = torch.randn_like(p.drift) if due else noise
        *rest, error = step(*state, noise, ground.posterior_scale, eps, nu if due else 0.0)
        state, squares = tuple(rest), squares + error**2
    theta, drift, energy, grad, padding = state
    moved = replace(p, theta=theta, drift=drift, energy=energy, grad=grad, own={"padding": padding})
    return replace(moved, path=p.path + length, num_gradients=p.num_gradients + num_steps), squares / num_steps
