"""Post-hoc Bayesian neural networks for Pyro: walk the low-loss fiber around a MAP estimate."""

from .agreement import agreement
from .arviz_export import to_arviz
from .autoencoder_map import AutoencoderMap
from .bayesianize import bayesianize
from .calibration import calibration
from .comparison import compare
from .diagnostics import health
from .guide import AutoMetric
from .importance import k_hat
from .inference import MetricBNN
from .kernel import DriftRefineKernel
from .latent_map import KernelMap
from .likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from .map_estimate import find_map
from .mixing import function_mixing
from .posterior import MetricPosterior, TrajectoryPosterior, gaussian_posterior
from .potential import BatchedPotential
from .predictive import predict
from .pulling_back import Adam, Descent
from .steering import Steer
from .temperature import choose_temperature
from .trajectories import Trajectories

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
    "MetricBNN",
    "MetricPosterior",
    "Poisson",
    "Steer",
    "Trajectories",
    "TrajectoryPosterior",
    "agreement",
    "bayesianize",
    "calibration",
    "choose_temperature",
    "compare",
    "find_map",
    "function_mixing",
    "gaussian_posterior",
    "health",
    "k_hat",
    "predict",
    "to_arviz",
]
__version__ = "0.1.0"
