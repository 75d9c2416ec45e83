"""A latent space in which the walks are straight, the posterior on it, and that posterior as a Pyro guide.

In: `Trajectories`.  Out: a `LatentMap`, distributions of theta (D,), and `AutoMetric`.
To add here: a latent map, one class with `fit`, `ends` and `decode`.
"""

from .autoencoder_map import AutoencoderMap
from .guide import AutoMetric
from .latent_map import KernelMap, LatentMap
from .posterior import MetricPosterior, TrajectoryPosterior, gaussian_posterior

__all__ = [
    "AutoMetric",
    "AutoencoderMap",
    "KernelMap",
    "LatentMap",
    "MetricPosterior",
    "TrajectoryPosterior",
    "gaussian_posterior",
]
