"""Microcanonical Langevin dynamics of constant speed: the gradient turns the drift (Robnik et al. 2023).

In: particles, a step size and a length.  Out: the particles that much further on, and the mean square energy error.
For minibatches one step with friction and noise.
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

    e = -grad/|grad|, delta = length |grad|/(D - 1), zeta = exp(-delta), which cannot overflow:
    u <- (u + e (sinh delta + (e.u)(cosh delta - 1))) / (cosh delta + (e.u) sinh delta)
       = w / |w|,  w = zeta u + e (1 - zeta)(1 + zeta + (e.u)(1 - zeta)) / 2.

    Small operations take most of the time of a small network's step: there are as few here as can be.

    Returns:
        The new u, and log(cosh delta + (e.u) sinh delta) = delta + log |w| (N, 1): the change of kinetic energy a
        dimension, of D - 1.
    """
    norm, tiny = torch.linalg.vector_norm(grad, dim=-1, keepdim=True), torch.finfo(grad.dtype).tiny
    minus_delta = norm * (length * (-1 / (u.shape[-1] - 1)))
    norm = norm.clamp_min(tiny)
    against = (grad * u).sum(-1, keepdim=True) / norm  # -e.u
    zeta = torch.exp(minus_delta)
    left = 1 - zeta
    along = left * (left * (against + 1) - 2) / norm  # twice the part of w in the gradient's direction
    w = torch.addcmul(zeta * u, grad, along, value=0.5)
    size = torch.linalg.vector_norm(w, dim=-1, keepdim=True).clamp_min(tiny)
    return w / size, torch.log(size) - minus_delta


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
    half = eps * 0.5
    u, first = turn(drift, _padded(grad * scale, padding), half)
    # A network has no padding: operations on nothing take as long as those on a few numbers.
    is_padded, dim = padding.shape[1] > 0, theta.shape[1]
    theta = theta + eps * (scale * (u[:, :dim] if is_padded else u))
    moved = padding + eps * u[:, dim:] if is_padded else padding
    value, grad = value_and_grad(theta)
    u, second = turn(u, _padded(grad * scale, moved), half)
    error = torch.add(value - energy, (first + second).squeeze(-1), alpha=u.shape[1] - 1)
    if is_padded:
        error = error + (moved**2 - padding**2).sum(-1) / 2
    if noise is not None and not (isinstance(nu, float) and nu == 0):
        u = u + nu * noise
        u = u / torch.linalg.vector_norm(u, dim=-1, keepdim=True)
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
        noise = ground.share.normal_like(p.drift) if due else noise
        *rest, error = step(*state, noise, ground.posterior_scale, eps, nu if due else 0.0)
        state, squares = tuple(rest), squares + error**2
    theta, drift, energy, grad, padding = state
    moved = replace(p, theta=theta, drift=drift, energy=energy, grad=grad, own={"padding": padding})
    return replace(moved, path=p.path + length, num_gradients=p.num_gradients + num_steps), squares / num_steps


def langevin_step(
    value_and_grad: ValueAndGrad,
    theta: Tensor,
    velocity: Tensor,
    grad: Tensor,
    noise: Tensor,
    eps: Tensor,
    momentum: float | Tensor,
    units: Tensor,
    root: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """One gradient, in units of each coordinate (D,), and of directions where there is a root (D, D).

    Returns:
        theta, velocity, energy and gradient after the step.
    """
    # In place: of a large model, memory that is allocated anew takes a good part of the gradient's time.
    pull = (eps * units) * grad if root is None else eps * ((units * grad) @ root)
    velocity = (momentum * velocity).sub_(pull).add_((2 * (1 - momentum) * eps).sqrt() * noise)
    theta = theta + units * (velocity if root is None else velocity @ root)
    value, grad = value_and_grad(theta)
    return theta, velocity, value, grad
