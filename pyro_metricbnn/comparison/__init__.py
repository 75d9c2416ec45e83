"""Posteriors of one model beside each other: a table, and a report with pictures that opens offline.

In: a model, posteriors of any kind and data.  Out: `Comparison`.
To add here: a figure is a row of the table in `scores` with its number; a picture one more function in `pictures`.
"""

from .comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
