"""Progress bars that name what takes long between two steps.

In: a bar's settings, and blocks of code.  Out: "walk: compiling" on the bar while such a block lasts.
"""

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
