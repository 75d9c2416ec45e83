"""One thread at a time in what belongs to the whole process.

In: a block of code.  Out: the same, with no other thread of this library in such a block.

Pyro's stack of handlers, its parameters and its validation switch are one for all threads, and so are torch's tracer
and the weights that a module has while it is called with others. What only computes, as the recorded graph of an energy,
needs no turn: walks in two threads do run at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def in_turn() -> Iterator[None]:
    """Wait until no other thread is in its turn."""
    with _lock:
        yield


def _renew() -> None:
    """A thread that held the lock when the process was forked is not there in the child to give it back."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew)
