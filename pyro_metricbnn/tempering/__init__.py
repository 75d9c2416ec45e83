"""Which temperature to walk at, and with which scale of the prior: short walks at all of them at once.

They are judged on rows that they have not seen.

In: a kernel, what its walk is called with, and perhaps validation rows.  Out: `TemperatureScores` or `PriorScores`.
To add here: another way to rows that were not seen, as a function that gives a `Trial` for each part of them; or
another number to choose, as a `Trial` whose particles have one value of it each.
"""

from .auto import choose, is_to_choose
from .choice import PriorScores, TemperatureScores
from .prior_scales import PriorTrial
from .temperatures import TemperatureTrial

__all__ = ["PriorScores", "PriorTrial", "TemperatureScores", "TemperatureTrial", "choose", "is_to_choose"]
