"""What a caller sees of work that goes on: progress bars that name what takes long, and warnings.

In: a bar's settings, and blocks of code.  Out: "walk: compiling" on the bar while such a block lasts.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm.auto import tqdm

_running: ContextVar[tqdm | None] = ContextVar("_running", default=None)  # each thread has its own


@contextmanager
def progress_bar(**settings: Any) -> Iterator[tqdm]:
    """A bar of tqdm that the stages inside are named on.

    Example:
        >>> with progress_bar(desc="walk", disable=True) as bar, stage("compiling"):
        ...     bar.update()
    """
    with tqdm(**settings) as bar:
        before = _running.set(bar)
        try:
            yield bar
        finally:
            _running.reset(before)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name what is done now on the bar that runs, if one does and is shown; what it said before comes back."""
    bar = _running.get()
    if bar is None or bar.disable:
        yield
        return
    before = bar.desc.removesuffix(": ")
    bar.set_description_str(f"{before}: {name}")
    try:
        yield
    finally:
        bar.set_description_str(before)


def warn(text: str) -> None:
    """Warn at the line of the caller's that led here, however deep in this library it is found."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0]:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
