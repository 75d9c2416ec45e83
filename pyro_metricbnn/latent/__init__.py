"""A latent space in which the walks are straight, the posterior on it, and that posterior as a Pyro guide.

In: `Trajectories`.  Out: a `LatentMap`, distributions of theta (D,), and `AutoMetric`.
To add here: a latent map, one class with `fit`, which sets what LatentMap names, and `decode`.
"""

from .autoencoder_map import AutoencoderMap
from .guide import AutoMetric
from .kernel_map import KernelMap
from .latent_map import LatentMap
from .posterior import MetricPosterior, TrajectoryPosterior, TubePosterior

__all__ = [
    "AutoMetric",
    "AutoencoderMap",
    "KernelMap",
    "LatentMap",
    "MetricPosterior",
    "TrajectoryPosterior",
    "TubePosterior",
]
