"""Riemannian Laplace of the linearised network (Bergamin et al. 2023, the section on linearised manifolds).

The loss of the metric is that of f(x) = f*(x) + J(x) (theta - theta*), whose curvature at the trained weights is the
Gauss-Newton matrix exactly; the geodesics of that loss are smooth and the predictions are the linearised network's.
The Jacobian of the training rows (n C, D) is made once; a gradient of all samples is then two products with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_metricbnn.energy.handlers import Unvalidated

from ..task import Task
from .laplace import gaussian, quiet
from .laplace_linearised import linearised_networks
from .method import Method, Predictor
from .riemannian import CITE, PUBLISHED, WEAK, WEAKER, Loss, ends


def fit(task: Task, loss_scale: float = 1.0, temperature: float = 1.0) -> Predictor:
    """Linearised networks at the ends of the geodesics."""
    posterior = gaussian(task, "full", temperature)
    return linearised_networks(task, ends(task, posterior, linearised_loss(task, posterior), loss_scale))


def linearised_loss(task: Task, posterior: Any) -> Loss:
    """The energy of the linearised network, and its gradient."""
    with quiet():
        jacobian, outputs = posterior.backend.jacobians(task.problem.x.double())
    jacobian, center = jacobian.flatten(0, 1).float(), outputs.detach().float()  # (n C, D), (n, C)
    targets = task.likelihood.targets(center, task.problem.y)

    def loss(theta: Tensor) -> tuple[Tensor, Tensor]:
        count = len(theta)
        f = center + ((theta - task.theta_star) @ jacobian.T).reshape(count, *center.shape)
        with torch.enable_grad(), Unvalidated():
            f.requires_grad_()
            rows = task.likelihood.distribution(f.flatten(0, 1))
            misfit = -rows.log_prob(targets.repeat(count, *[1] * (targets.dim() - 1))).reshape(count, -1).sum(-1)
            (slope,) = torch.autograd.grad(misfit.sum(), f)
        prior = theta.square().sum(-1) / (2 * task.prior_scale**2)
        return misfit.detach() + prior, slope.reshape(count, -1) @ jacobian + theta / task.prior_scale**2

    return loss


METHODS = (
    Method("Riem Lin LA", fit, settings=PUBLISHED, needs="laplace-torch", cite=CITE),
    Method("Riem Lin LA, weak metric", fit, settings=WEAK, above=WEAKER, needs="laplace-torch", cite=CITE),
)
