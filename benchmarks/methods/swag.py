"""SWAG: a Gaussian with the moments of the iterates of SGD (Maddox et al., 2019).

From the MAP, SGD with momentum and a constant rate on minibatches of 32; a point each epoch (each 20 steps, where an
epoch is shorter) goes into the moments: the mean, a diagonal, and the last 20 deviations from the running mean. The
covariance is half the diagonal and half the low-rank part, as in the paper. Rates are those of the mean energy,
for regression in units of the noise variance: of half the mean squared error.
"""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

from ..task import Task
from .hmc import predictor
from .method import NUM_DRAWS, Method, Predictor
from .sgld import BATCH_SIZE, minibatches

RANK = 20
MOMENTUM = 0.9
NUM_POINTS = 100
LEAST_STEPS = 20  # between two points


class Moments:
    """The moments of points (D,) that come one after another."""

    def __init__(self, rank: int = RANK) -> None:
        self.count = 0
        self.mean, self.square = torch.zeros(()), torch.zeros(())
        self._deviations: deque[Tensor] = deque(maxlen=rank)

    def add(self, theta: Tensor) -> None:
        """Take in one point."""
        self.mean = (self.count * self.mean + theta) / (self.count + 1)
        self.square = (self.count * self.square + theta**2) / (self.count + 1)
        self.count += 1
        self._deviations.append(theta - self.mean)

    @property
    def variance(self) -> Tensor:
        """Of each coordinate: (D,)."""
        return (self.square - self.mean**2).clamp_min(0)

    @property
    def deviations(self) -> Tensor:
        """The last points less the mean when they came: (rank, D)."""
        return torch.stack(tuple(self._deviations))

    def draw(self, num_draws: int) -> Tensor:
        """Points of the Gaussian: (num_draws, D)."""
        factors = self.deviations / math.sqrt(2 * max(1, len(self._deviations) - 1))
        diagonal = torch.randn(num_draws, len(self.mean)) * (self.variance / 2).sqrt()
        return self.mean + diagonal + torch.randn(num_draws, len(factors)) @ factors


def moments(task: Task, lr: float) -> Moments:
    """The moments of SGD's iterates."""
    num_data, num_points = len(task.problem.x), task.count(NUM_POINTS, 4)
    every = max(LEAST_STEPS, num_data // BATCH_SIZE)
    potential = minibatches(task, every * num_points)
    theta = task.theta_star[None].clone()
    velocity, seen = torch.zeros_like(theta), Moments()
    lr = lr * task.noise_variance
    for _ in range(num_points):
        for _ in range(every):
            velocity = MOMENTUM * velocity + potential.grad(theta) / num_data
            theta = theta - lr * velocity
        seen.add(theta[0])
    return seen


def fit(task: Task, lr: float) -> Predictor:
    """Draws of the Gaussian."""
    return predictor(task, moments(task, lr).draw(NUM_DRAWS))


METHODS = (
    Method(
        "SWAG",
        fit,
        settings=tuple({"lr": lr} for lr in (1e-2, 3e-2, 1e-1, 2e-1)),
        below=({"lr": 3e-3}, {"lr": 1e-3}),
        above=({"lr": 5e-1}, {"lr": 1.0}),
        cite="Maddox et al., A simple baseline for Bayesian uncertainty in deep learning, NeurIPS 2019",
    ),
)
