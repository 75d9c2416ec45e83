"""What draws say of new inputs and of each observation, whatever the draws come from.

In: a model, and a MetricBNN, an MCMC, a guide, a walk or samples.  Out: `Prediction`, log-likelihoods, ArviZ's data.
To add here: a kind of posterior, one `Source` that says how its draws are read.
"""

from .arviz_export import to_arviz
from .prediction import Prediction, predict

__all__ = ["Prediction", "predict", "to_arviz"]
