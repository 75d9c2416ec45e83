"""Riemannian Laplace (Bergamin et al. 2023, "Riemannian Laplace approximations for Bayesian neural networks").

Velocities are drawn from the Laplace Gaussian at the trained weights (full Gauss-Newton matrix, for more than 9,000
weights its Kronecker factors; our prior) and pushed through the exponential map of the metric I + grad L grad L': along
the geodesic with that velocity, for unit time. The metric is that of the graph {(theta, L(theta))}: a straight line on
the loss surface, as an ant walks it.

How the geodesics are computed. The usual way is to solve c'' = -grad L <c', H c'> / (1 + |grad L|^2) with
Hessian-vector products. With ReLU that gives other curves than geodesics: the gradient jumps at the kinks, which no
Hessian sees. On Glass the speed on the surface, constant along a geodesic, grew 7-fold (Bogacki-Shampine, tolerance
1e-2), 3-fold with differences of gradients for the Hessian, and at tolerance 1e-3 no sample arrived in 400
evaluations. Here the point moves on the surface itself by RATTLE, the integrator of free motion under a constraint,
with gradients alone: over the whole way the speed keeps to 3 percent on Glass and 15 on Australian without help, and
is set right at each step; a seventh of the turn a step changes how far the ends lie by 1 to 5 percent. All samples
are one batch, each with a step of its own.

Which loss. The paper's L is the full energy, summed over the data and with the prior: `loss_scale=1`. A geodesic of
length |v|, about the square root of D, cannot climb by more than its length, while draws of the posterior lie about
D / 2 above the minimum: for thousands of weights the metric of the full sum holds the samples far too low (Glass: 36
above the minimum; D / 2 is 787). Bergamin et al. also take subsets of the data for speed, which weakens the metric in
the same way. `loss_scale` multiplies L in the metric, not in the Gaussian; 0 would be the plain Laplace approximation,
and 1 / n the metric of the mean loss. "Riem LA" is as published, with temperatures to choose from (a lower one is the
same geodesics cut short at its square root); "Riem LA, weak metric", which is ours, chooses among loss scales below 1.

Where the loss is very stiff (Snelson's regression with noise 0.3: curvature 8e5) a geodesic bounces between steep
walls, and in `MAX_CALLS` gradients none gets further than 0.06 of its way at loss_scale 1, 0.7 at 0.01.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..task import Task
from .laplace import MAX_DIM, gaussian, networks
from .method import Method, Predictor

NUM_SAMPLES = 50
MAX_CALLS = 1500  # gradients of all samples, 4 to 12 ms each; at loss_scale 1 three UCI networks need 200 to 1,300
PUBLISHED = tuple({"loss_scale": 1.0, "temperature": value} for value in (1.0, 0.1, 0.01, 0.001))
WEAK = ({"loss_scale": 0.03, "temperature": 0.1}, {"loss_scale": 0.1}, {"loss_scale": 0.03}, {"loss_scale": 0.01})
WEAKER = ({"loss_scale": 0.003}, {"loss_scale": 0.001})
CITE = "Bergamin et al. 2023, Riemannian Laplace approximations for Bayesian neural networks"

FIRST_STEP = 0.02  # of unit time
MAX_TURN = 0.3  # by which the direction may change in half a step
SMALL_STEP = 1e-3  # below it a turn comes from a kink, and no smaller step takes it away
TOLERANCE = 1e-2  # of the height, relative to the length of the step
MAX_NEWTON = 4
GROWTH, SHRINKAGE = 1.15, 0.5  # with 1.3 more steps fail, and Glass takes 567 calls instead of 527

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]  # theta (N, D) -> L (N,), grad L (N, D)


def fit(task: Task, loss_scale: float = 1.0, temperature: float = 1.0) -> Predictor:
    """Networks at the ends of the geodesics."""
    # Traced, not compiled: compiling takes 4 to 7 s and saves 2 ms of 5 in each of at most MAX_CALLS calls.
    potential = task.potential(MAX_CALLS).using(mode="trace")
    structure = "full" if len(task.theta_star) <= MAX_DIM else "kron"
    return networks(task, ends(task, gaussian(task, structure, temperature), potential.value_and_grad, loss_scale))


def ends(task: Task, posterior: Any, loss: Loss, loss_scale: float) -> Tensor:
    """The ends (S, D) of those geodesics that got there, with velocities from laplace-torch's posterior."""
    velocity = (posterior.sample(task.count(NUM_SAMPLES, 4)) - posterior.mean).detach().float()
    start = task.theta_star.expand_as(velocity)
    geodesics = exponential_map(loss, start, velocity, loss_scale=loss_scale, max_calls=task.count(MAX_CALLS, 500))
    lost = int((~geodesics.arrived).sum())
    if lost == len(start):
        raise RuntimeError(f"none of {lost} geodesics reached its end in {geodesics.num_calls} gradients.")
    if lost:
        warnings.warn(
            f"{lost} of {len(start)} geodesics did not reach their ends in {geodesics.num_calls} gradients; "
            "they are left out.",
            stacklevel=2,
        )
    return geodesics.theta[geodesics.arrived]


class Geodesics(NamedTuple):
    """The last points of N geodesics.

    Args:
        theta: Where they are (N, D).
        velocity: With what velocity (N, D).
        time: How far they came, of unit time (N,).
        growth: By how much the integrator alone would have changed the logarithm of the speed (N,).
        num_calls: Gradients of all, one after another.
    """

    theta: Tensor
    velocity: Tensor
    time: Tensor
    growth: Tensor
    num_calls: int

    @property
    def arrived(self) -> Tensor:
        """Which reached unit time (N,)."""
        return (self.time >= 1) & self.theta.isfinite().all(-1)


class _Point(NamedTuple):
    """A moving point of the surface."""

    theta: Tensor  # (N, D)
    velocity: Tensor  # (N, D)
    climb: Tensor  # <grad L, velocity>, the vertical velocity (N,)
    height: Tensor  # L (N,)
    grad: Tensor  # (N, D)


def exponential_map(
    loss: Loss, theta: Tensor, velocity: Tensor, *, loss_scale: float = 1.0, max_calls: int = MAX_CALLS
) -> Geodesics:
    """Geodesics of the metric I + grad L grad L' from theta (N, D) with a velocity (N, D), for unit time.

    A step of RATTLE: half a push along the normal (-grad L, 1) at the old point, so strong that the step ends on the
    surface (a scalar equation, by Newton); half a push along the normal at the new point that makes the velocity
    tangent there. Each call is one Newton step for those samples that still look for their push.
    """

    def evaluated(at: Tensor) -> tuple[Tensor, Tensor]:
        height, grad = loss(at)
        return loss_scale * height, loss_scale * grad

    height, grad = evaluated(theta)
    point = _Point(theta, velocity, _dot(grad, velocity), height, grad)
    speed = (_dot(velocity, velocity) + point.climb**2).sqrt()
    rounding = 4 * torch.finfo(height.dtype).eps
    time, growth, push, push_rate, tries = (torch.zeros_like(speed) for _ in range(5))
    step = torch.full_like(speed, FIRST_STEP)
    num_calls = 1
    while num_calls < max_calls and bool((time < 1).any()):
        step = torch.minimum(step, 1 - time)
        moving = time < 1
        half = point.velocity - push[:, None] * point.grad
        there = point.theta + step[:, None] * half
        height, grad = evaluated(there)
        num_calls += 1
        miss = height - point.height - step * (point.climb + push)  # how far above the surface's tangent motion
        second = (_dot(grad, half) - point.climb - push) / (1 + _dot(grad, grad))
        turn = torch.maximum(
            push.abs() * (1 + _dot(point.grad, point.grad)).sqrt(), second.abs() * (1 + _dot(grad, grad)).sqrt()
        ) / speed.clamp_min(torch.finfo(speed.dtype).tiny)
        overlap = _dot(grad, point.grad)
        on_surface = miss.abs() <= TOLERANCE * step * speed + rounding * height.abs()
        done = moving & on_surface & ((turn <= MAX_TURN) | (step < SMALL_STEP))
        hopeless = (tries >= MAX_NEWTON) | (overlap < -0.5) | ~miss.isfinite()
        failed = moving & ~done & (on_surface | hopeless)

        new_velocity, new_climb = half - second[:, None] * grad, point.climb + push + second
        ratio = speed / (_dot(new_velocity, new_velocity) + new_climb**2).sqrt().clamp_min(1e-30)
        new = _Point(there, new_velocity * ratio[:, None], new_climb * ratio, height, grad)
        point = _Point(
            *(torch.where(done if a.dim() == 1 else done[:, None], a, b) for a, b in zip(new, point, strict=True))
        )
        time = torch.where(done, time + step, time)
        time = torch.where(time > 1 - 1e-5, torch.ones_like(time), time)
        growth = torch.where(done, growth - ratio.log(), growth)

        easy = torch.where(tries <= 1, GROWTH, torch.where(tries <= 2, 1.0, 0.8))
        straight = (0.7 * MAX_TURN / turn.clamp_min(1e-8)).clamp_min(SHRINKAGE)
        push_rate = torch.where(done, second / step, push_rate)
        step = torch.where(done, step * torch.minimum(easy, straight), torch.where(failed, SHRINKAGE * step, step))
        push = torch.where(done | failed, push_rate * step, push + miss / (step * (1 + overlap)))
        tries = torch.where(done | failed, torch.zeros_like(tries), tries + 1)
    return Geodesics(point.theta, point.velocity, time, growth, num_calls)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row: (N, D), (N, D) -> (N,)."""
    return (a * b).sum(-1)


METHODS = (
    Method("Riem LA", fit, settings=PUBLISHED, needs="laplace-torch", cite=CITE),
    Method("Riem LA, weak metric", fit, settings=WEAK, above=WEAKER, needs="laplace-torch", cite=CITE),
)
