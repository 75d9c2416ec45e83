"""Post-hoc Bayesian neural networks for Pyro: walk the low-loss fiber around a MAP estimate."""

from .bayesianize import bayesianize
from .kernel import DriftRefineKernel
from .likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from .map_estimate import find_map
from .potential import BatchedPotential
from .refiners import Adam, Descent, Steer
from .trajectories import Trajectories

__all__ = [
    "Adam",
    "BatchedPotential",
    "Bernoulli",
    "Categorical",
    "Descent",
    "DriftRefineKernel",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Poisson",
    "Steer",
    "Trajectories",
    "bayesianize",
    "find_map",
]
__version__ = "0.1.0"
