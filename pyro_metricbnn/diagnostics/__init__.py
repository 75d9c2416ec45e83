"""Whether to believe it: the walk's health, mixing of functions, importance ratios, calibration, agreement.

In: a run, samples or predictions.  Out: figures, each with its words, and warnings that say what to do.
To add here: a figure, in the file of what it looks at.
"""

from .agreement import ClassAgreement, RealAgreement, agreement, total_variation, wasserstein
from .calibration import ClassCalibration, RealCalibration, Reliability, calibration, reliability
from .health import Health, health
from .importance import k_hat, pareto_k
from .mixing import FunctionMixing, ess, function_mixing, r_hat

__all__ = [
    "ClassAgreement",
    "ClassCalibration",
    "FunctionMixing",
    "Health",
    "RealAgreement",
    "RealCalibration",
    "Reliability",
    "agreement",
    "calibration",
    "ess",
    "function_mixing",
    "health",
    "k_hat",
    "pareto_k",
    "r_hat",
    "reliability",
    "total_variation",
    "wasserstein",
]
