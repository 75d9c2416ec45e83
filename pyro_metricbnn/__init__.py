"""Post-hoc Bayesian neural networks for Pyro: walk the low-loss fiber around a MAP estimate."""

from .comparison.comparison import compare
from .diagnostics.agreement import agreement
from .diagnostics.calibration import calibration
from .diagnostics.health import health
from .diagnostics.importance import k_hat
from .diagnostics.mixing import function_mixing
from .energy.potential import BatchedPotential
from .inference import MetricBNN
from .latent.autoencoder_map import AutoencoderMap
from .latent.guide import AutoMetric
from .latent.latent_map import KernelMap
from .latent.posterior import MetricPosterior, TrajectoryPosterior, gaussian_posterior
from .model.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from .model.network import bayesianize
from .predictions.arviz_export import to_arviz
from .predictions.prediction import predict
from .refiners.pull_back import Adam, Descent
from .refiners.steer import Steer
from .temperature import choose_temperature
from .walk.kernel import DriftRefineKernel
from .walk.map_search import find_map
from .walk.trajectories import Trajectories

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
