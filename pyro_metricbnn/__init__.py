"""Post-hoc Bayesian neural networks for Pyro: walk the low-loss fiber around a MAP estimate.

Here is what the first week needs; the rest, and what to subclass, is in the namespaces, one a stage of the flow.
"""

from typing import Any

from . import comparison, diagnostics, energy, latent, model, plots, predictions, ranks, refiners, walk
from .comparison import compare
from .diagnostics import calibration, health
from .energy import BatchedPotential
from .inference import MetricBNN
from .latent import AutoencoderMap, AutoMetric, KernelMap, LatentMap, MetricPosterior
from .model import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    NoisyCategorical,
    Poisson,
    bayesianize,
)
from .predictions import predict, to_arviz
from .ranks import Ranks, join_ranks
from .refiners import Adam, Descent, Langevin, Steer
from .temperature import choose_temperature
from .walk import DriftRefineKernel, Trajectories, find_map

NAMESPACES = (ranks, model, energy, refiners, walk, latent, predictions, diagnostics, plots, comparison)
__version__ = "0.2.0"
__all__ = [
    "Adam",
    "AutoMetric",
    "AutoencoderMap",
    "BatchedPotential",
    "Bernoulli",
    "Categorical",
    "Descent",
    "DriftRefineKernel",
    "Gaussian",
    "HeteroscedasticGaussian",
    "KernelMap",
    "Langevin",
    "LatentMap",
    "MetricBNN",
    "MetricPosterior",
    "NoisyCategorical",
    "Poisson",
    "Ranks",
    "Steer",
    "Trajectories",
    "bayesianize",
    "calibration",
    "choose_temperature",
    "compare",
    "find_map",
    "health",
    "join_ranks",
    "predict",
    "to_arviz",
]


def __dir__() -> list[str]:
    spaces = [namespace.__name__.removeprefix("pyro_metricbnn.") for namespace in NAMESPACES]
    return [*__all__, *spaces, "__version__"]


def __getattr__(name: str) -> Any:
    """What a namespace exports can be had from here too."""
    for namespace in NAMESPACES:
        if name in namespace.__all__:
            return getattr(namespace, name)
    raise AttributeError(f"pyro_metricbnn has no {name!r}: dir(pyro_metricbnn) lists what there is.")
