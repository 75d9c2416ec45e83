"""Where a walk leaves from: a look at what it was given, the search for the MAP, or trained networks as they are.

In: a potential.  Out: `MapEstimate`, theta_star (D,), other modes, and how the search ended; or points (S, D).
To change here: where a search starts, what it says of several modes, what is noticed before long work.
"""

from .map_search import MapEstimate, find_map

__all__ = ["MapEstimate", "find_map"]
