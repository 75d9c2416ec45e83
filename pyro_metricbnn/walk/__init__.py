"""From a model to the record of its walks: what they will take, the loop, checkpoints, the kernel.

In: a Pyro model and its data.  Out: `Trajectories`, thetas (N, T + 1, D); or a chain in Pyro's own MCMC.
To change here: what is refused before a walk, what is recorded of it, how it goes on after it was killed.
"""

from ..search import MapEstimate, find_map
from .kernel import DriftRefineKernel
from .options import WalkOptions
from .trajectories import Trajectories

VERSION = 5
"""Of what a walk gives by default: whoever changes that, beyond chance, counts on. Results of benchmarks carry it."""

__all__ = ["VERSION", "DriftRefineKernel", "MapEstimate", "Trajectories", "WalkOptions", "find_map"]
