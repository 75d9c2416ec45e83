"""Whether to believe it: the walk's health, mixing, importance ratios, calibration, agreement, detection.

In: a run, samples or predictions.  Out: figures, each with its words, and warnings that say what to do.
To add here: a figure, in the file of what it looks at.
"""

from .agreement import ClassAgreement, RealAgreement, agreement, total_variation, wasserstein
from .calibration import ClassCalibration, RealCalibration, Reliability, calibration, reliability
from .detection import Detection, Selective, detection, risk_coverage, selective
from .gain import Gain, gain
from .health import Health, health
from .importance import k_hat, pareto_k
from .mixing import FunctionMixing, ess, function_mixing, r_hat

__all__ = [
    "ClassAgreement",
    "ClassCalibration",
    "Detection",
    "FunctionMixing",
    "Gain",
    "Health",
    "RealAgreement",
    "RealCalibration",
    "Reliability",
    "Selective",
    "agreement",
    "calibration",
    "detection",
    "ess",
    "function_mixing",
    "gain",
    "health",
    "k_hat",
    "pareto_k",
    "r_hat",
    "reliability",
    "risk_coverage",
    "selective",
    "total_variation",
    "wasserstein",
]
