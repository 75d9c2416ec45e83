"""What keeps a drifting particle on the low-loss fiber.

In: particles at one recorded point.  Out: the particles at the next, and the energy error made.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from .state import Ground, Particles

NUM_POINTS = 100  # recorded, by default


class Refiner(ABC):
    """A frozen set of knobs that takes particles from one recorded point of the walk to the next."""

    has_step_size: ClassVar[bool] = False  # whether particles carry one
    draws_by_particle: ClassVar[bool] = False  # whether all its random numbers come from `ground.share`; with several
    # ranks those of torch's generator, which are others on each rank, change with their number

    def __str__(self) -> str:
        """In short: the knobs that are not at their defaults."""
        knobs = vars(self).items()
        changed = [f"{name}={value!r}" for name, value in knobs if value != getattr(type(self), name, None)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def on(self, potential: BatchedPotential) -> "Refiner":
        """What walks on this energy: itself, or another one where it is not for that."""
        return self

    def padding(self, dim: int) -> int:
        """How many coordinates to add to the drift in a model of `dim`."""
        return 0

    def own(self, theta: Tensor) -> dict[str, Tensor]:
        """State of the refiner's own at the start of a walk, (N, ...) by name: `Particles.own` carries it on.

        It is frozen, saved and restored with its particle; names, shapes and types stay as they are here.
        """
        return {}

    def own_on(self, ground: Ground, theta: Tensor) -> dict[str, Tensor]:
        """`own`, for a refiner whose state depends on the model too, as a step for each site does."""
        return self.own(theta)

    def heat(self, ground: Ground, particles: Particles) -> tuple[tuple[str, float, float], ...]:
        """Where a temperature is measured, by site: what it was, and the part of it that batches have made."""
        return ()

    def units(self, ground: Ground) -> Tensor:
        """What a drift of length 1 means in each coordinate (D,)."""
        return ground.scale

    @property
    def num_points(self) -> int:
        """T where nothing else is said."""
        return NUM_POINTS

    @abstractmethod
    def reach(self, ground: Ground) -> float:
        """How far the drift alone would go from one recorded point to the next."""

    def approach_length(self, ground: Ground) -> float:
        """How far the drift goes before the record begins."""
        return 0.0

    @abstractmethod
    def num_gradients(self, ground: Ground) -> int:
        """About how many gradients a whole walk takes."""

    def start(self, ground: Ground, theta: Tensor) -> Particles:
        """Particles at theta (N, D), each with a drift uniform on the sphere."""
        num_particles, dim = theta.shape
        drift = ground.share.normal_like(theta.new_empty(num_particles, dim + self.padding(dim)))
        own = ground.share.each(partial(self.own_on, ground), theta)
        energy, grad = ground.potential.value_and_grad(theta)
        alive = torch.ones_like(energy, dtype=torch.bool)
        drift = drift / drift.norm(dim=-1, keepdim=True)
        return Particles(theta=theta, drift=drift, energy=energy, grad=grad, alive=alive, own=own)

    def approach(self, ground: Ground, particles: Particles) -> tuple[Ground, Particles]:
        """Go to where the record begins, by default the MAP; the ground comes back with what was learned of it."""
        return ground, particles

    @abstractmethod
    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        """One recorded step: the new particles, and the energy error (N,) that it made.

        Where their `path` does not say how far they have gone, it was as far as `reach` says.
        """

    def relax(self, ground: Ground, theta: Tensor, num_refinements: int, step_size: float = 0.0) -> Tensor:
        """Take points (N, D) that lie near the fiber onto it, by so many gradients each.

        `step_size` is what a walk there had come to; 0 where it is not known.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `relax`, which refines single points.")
