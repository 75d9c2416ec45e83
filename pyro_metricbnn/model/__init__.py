"""What is inferred: a network made a Pyro model, its priors and likelihood, and the sites of any Pyro model.

In: an nn.Module, or a Pyro model with its arguments.  Out: a model(x, y=None); `Sites`, theta (..., D) by name.
To add here: a likelihood or a prior, one class each.
"""

from .likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from .network import BayesianNetwork, bayesianize
from .noisy_labels import NoisyCategorical
from .priors import NormalPrior, Prior
from .sites import Site, Sites

__all__ = [
    "BayesianNetwork",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "NoisyCategorical",
    "NormalPrior",
    "Poisson",
    "Prior",
    "Site",
    "Sites",
    "bayesianize",
]
