"""Which temperature to walk at: short walks at all of them at once, judged on rows that they have not seen.

In: a kernel, what its walk is called with, and perhaps validation rows.  Out: `TemperatureScores`.
To add here: another way to rows that were not seen, as a function that gives a `Trial` for each part of them.
"""

from .auto import choose, is_to_choose
from .choice import TemperatureScores

__all__ = ["TemperatureScores", "choose", "is_to_choose"]
