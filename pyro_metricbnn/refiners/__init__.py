"""What keeps a drifting particle on the low-loss fiber, from one recorded point to the next.

In: `Particles` on a `Ground`.  Out: the particles at the next point, and the energy error made.
To add here: a refiner, one frozen class with `reach`, `num_gradients` and `advance`; state of its own goes in `own`.
"""

from .anneal import Anneal
from .langevin import Langevin
from .pull_back import Adam, Descent
from .refiner import Refiner
from .state import Ground, Particles
from .steer import Steer

__all__ = ["Adam", "Anneal", "Descent", "Ground", "Langevin", "Particles", "Refiner", "Steer"]
