"""ESPRO: an ensemble of points drawn from a simplex of low energy (Benton et al., 2021).

The trained network is the first vertex. The others are added one at a time, those before them held: each descends the
energy's mean over random points of the simplex, less lambda times the logarithm of its volume, so that the simplex is
as large as its energy allows. The paper has simplexes around several trained networks; here there is one network, as
for all methods that start from it.

The volume of the Cayley-Menger determinant is that of the base times the new vertex's height over it, divided by the
dimension. So the gradient of its logarithm in the new vertex is the height as a vector, divided by its square.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import LEARNING_RATE, Task
from .hmc import predictor
from .method import NUM_DRAWS, Method, Predictor

NUM_VERTICES = 5
NUM_STEPS = 400  # for each vertex
NUM_POINTS = 10  # of the simplex, for each step
START = 0.1  # deviation of a new vertex from the middle of the others, in the weights' own


def points(vertices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Uniform draws from the simplex of vertices (K, D): the points (count, D) and their weights (count, K)."""
    weights = torch.distributions.Exponential(torch.ones(len(vertices))).sample((count,))
    weights = weights / weights.sum(-1, keepdim=True)
    return weights @ vertices, weights


def height(base: Tensor, vertex: Tensor) -> Tensor:
    """From the plane through base (K, D) up to the vertex (D,): (D,)."""
    edges = base[1:] - base[0]
    rest = vertex - base[0]
    if not len(edges):
        return rest
    directions = torch.linalg.qr(edges.T).Q  # (D, K - 1)
    return rest - directions @ (directions.T @ rest)


def log_volume(vertices: Tensor) -> Tensor:
    """The logarithm of the volume of the simplex of vertices (K + 1, D)."""
    heights = [height(vertices[:k], vertices[k]).norm() / k for k in range(1, len(vertices))]
    return torch.stack(heights).log().sum()


def simplex(task: Task, weight: float, num_vertices: int, num_steps: int) -> Tensor:
    """Vertices (K, D), the first of which is the MAP; the weight is lambda, in units of the energy."""
    potential = task.potential(num_steps * (num_vertices - 1))
    vertices = task.theta_star[None]
    for _ in range(1, num_vertices):
        vertex = vertices.mean(0) + START * vertices[0].std() * torch.randn_like(vertices[0])
        optimizer = torch.optim.Adam([vertex], lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
        for _ in range(num_steps):
            inside, shares = points(torch.cat([vertices, vertex[None]]), NUM_POINTS)
            descent = (shares[:, -1:] * potential.grad(inside)).mean(0)
            up = height(vertices, vertex)
            vertex.grad = descent - weight * up / up.pow(2).sum()
            optimizer.step()
            schedule.step()
        vertices = torch.cat([vertices, vertex[None]])
    return vertices


def fit(task: Task, weight: float) -> Predictor:
    """Draws from the simplex."""
    vertices = simplex(task, weight, task.count(NUM_VERTICES), task.count(NUM_STEPS, 10))
    return predictor(task, points(vertices, NUM_DRAWS)[0])


METHODS = (
    Method(
        "ESPRO",
        fit,
        settings=tuple({"weight": weight} for weight in (10.0, 100.0, 1000.0, 3000.0)),
        below=({"weight": 1.0}, {"weight": 0.1}),
        above=({"weight": 10_000.0}, {"weight": 30_000.0}),
        cite="Benton et al., Loss surface simplexes for mode connecting volumes and fast ensembling, ICML 2021",
    ),
)
