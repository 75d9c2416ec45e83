"""A drift that is fixed, and gradients that pull the particle back after each step: the paper's refiner, and Adam.

In: particles at one recorded point.  Out: the particles at the next, a drift and M gradients later.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..runtime.arguments import check_count, check_number
from .refiner import Refiner
from .state import Ground, Particles


@dataclass(frozen=True, kw_only=True)
class _PullBack(Refiner):
    """A fixed drift of length alpha, then refinements that pull the particle back to the fiber."""

    draws_by_particle: ClassVar[bool] = True
    alpha: float | None = None
    num_refinements: int = 10  # M

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, "it is the length of a drift step.", or_none=True)
        check_count("num_refinements", self.num_refinements, "it counts gradients.", least=0)

    def units(self, ground: Ground) -> Tensor:
        return ground.scale if self.alpha is None else torch.ones_like(ground.scale)

    def reach(self, ground: Ground) -> float:
        return self.alpha if self.alpha is not None else math.sqrt(len(ground.scale)) / ground.num_steps

    def num_gradients(self, ground: Ground) -> int:
        return ground.num_steps * (self.num_refinements + 1)

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        length = self.reach(ground)
        theta = self.refine(ground, particles.theta + length * self.units(ground) * particles.drift)
        energy, grad = ground.potential.value_and_grad(theta)
        num_gradients = particles.num_gradients + self.num_refinements + 1
        moved = replace(particles, theta=theta, energy=energy, grad=grad, num_gradients=num_gradients)
        return replace(moved, path=particles.path + length), energy - particles.energy

    def relax(self, ground: Ground, theta: Tensor, num_refinements: int, step_size: float = 0.0) -> Tensor:
        return replace(self, num_refinements=num_refinements).refine(ground, theta)

    @abstractmethod
    def refine(self, ground: Ground, theta: Tensor) -> Tensor:
        """Lower the energy of theta (N, D) by M steps."""


@dataclass(frozen=True, kw_only=True)
class Descent(_PullBack):
    """The paper's refinement: M steps of gradient descent, theta <- theta - eta grad L.

    Fragile: eta has to stay below 2 over the sharpest curvature, which grows along the walk.

    Args:
        alpha: Length of a drift step (paper: 0.1); None for the prior's typical radius over T.
        num_refinements: M (paper: 10).
        eta: The step of the descent (paper: 1e-3).
        mean_loss: Whether L is the energy over the number of observations, as training code has it, or the energy.

    Example:
        >>> DriftRefineKernel(model, refiner=Descent(alpha=0.1)).refiner.num_refinements
        10
    """

    eta: float = 1e-3
    mean_loss: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eta", self.eta, "it is the step of the descent; the paper takes 1e-3.")

    def refine(self, ground: Ground, theta: Tensor) -> Tensor:
        eta = self.eta / ground.potential.num_observations if self.mean_loss else self.eta
        for _ in range(self.num_refinements):
            theta = theta - eta * ground.potential.grad(theta)
        return theta


@dataclass(frozen=True, kw_only=True)
class Adam(_PullBack):
    """M steps of Adam, started anew after each drift; stable where plain descent is not.

    Args:
        alpha: Length of a drift step; None for the prior's typical radius over T.
        num_refinements: M.
        lr: Adam's rate, in prior deviations.

    Example:
        >>> DriftRefineKernel(model, refiner="adam").refiner.num_refinements
        20
    """

    num_refinements: int = 20
    lr: float = 3e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("lr", self.lr, "it is Adam's rate, in prior deviations.")

    def refine(self, ground: Ground, theta: Tensor) -> Tensor:
        z = torch.zeros_like(theta).requires_grad_()
        optimizer = torch.optim.Adam([z], lr=self.lr)
        for _ in range(self.num_refinements):
            z.grad = ground.potential.grad(theta + ground.scale * z.detach()) * ground.scale
            optimizer.step()
        return theta + ground.scale * z.detach()
