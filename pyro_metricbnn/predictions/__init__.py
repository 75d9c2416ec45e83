"""What draws say of new inputs and of each observation, whatever the draws come from.

In: a model, and a MetricBNN, an MCMC, a guide, a walk or samples.  Out: `Prediction`, log-likelihoods, ArviZ's data.
To add here: a kind of posterior, one `Source` with `read` under `@source_of.register(ItsClass)`, in any file.
"""

from .arviz_export import to_arviz
from .prediction import Prediction, predict
from .scaling import fit_scale
from .sources import PosteriorDraws, Source, source_of

__all__ = ["PosteriorDraws", "Prediction", "Source", "fit_scale", "predict", "source_of", "to_arviz"]
