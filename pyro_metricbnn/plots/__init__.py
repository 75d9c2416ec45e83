"""Pictures of predictions, walks and latent spaces: `from pyro_metricbnn import plots`.

In: what `MetricBNN` found, or a part of it; `ax` is where to draw, None for a new figure, `legend` whether to draw one.
Out: the axes, labelled. No style is changed, no window opened, and no random number of yours used up.
Needs matplotlib: pip install 'pyro_metricbnn[plots]'. To add here: a picture, in the file of what it shows.
"""

from .detection import plot_detection, plot_risk_coverage
from .predictions import plot_band, plot_decision, plot_reliability
from .walks import Plane, plot_energy, plot_losses, plot_segments, plot_walks

__all__ = [
    "Plane",
    "plot_band",
    "plot_decision",
    "plot_detection",
    "plot_energy",
    "plot_losses",
    "plot_reliability",
    "plot_risk_coverage",
    "plot_segments",
    "plot_walks",
]
