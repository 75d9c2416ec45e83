"""The potential energy of a Pyro model and its gradient, for all particles at once, from all data or from batches.

In: a model and its data.  Out: U (N,) and grad U (N, D) at theta (N, D); curvature; the prior's units.
To add here: a gradient estimator, or a way to run the energy; nothing above knows how a gradient is computed.
"""

from .minibatches import Minibatches, MinibatchPotential
from .potential import BatchedPotential, GradientEstimator
from .prior_units import PriorUnits, prior_units

__all__ = [
    "BatchedPotential",
    "GradientEstimator",
    "MinibatchPotential",
    "Minibatches",
    "PriorUnits",
    "prior_units",
]
