"""One thread at a time in what belongs to the whole process; and what a forked process has to do first.

In: a block of code.  Out: the same, with no other thread of this library in such a block.

Pyro's stack of handlers, its parameters and its validation switch are one for all threads, and so are torch's tracer
and the weights that a module has while it is called with others. What only computes, as the recorded graph of an
energy, needs no turn: walks in two threads do run at once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.RLock()
_threads_at_fork = 1  # of torch


@contextmanager
def in_turn() -> Iterator[None]:
    """Wait until no other thread is in its turn."""
    settle_after_fork()
    with _lock:
        yield


def settle_after_fork() -> None:
    """In a forked process: torch with one thread, unless the process has chosen a number by itself.

    The threads of GNU's OpenMP do not come along. Where the parent has used them (to train a network is enough), the
    first product of two matrices in the child would wait for them without end.
    """
    global _threads_at_fork
    if _threads_at_fork > 1 and torch.get_num_threads() == _threads_at_fork:
        torch.set_num_threads(1)
    _threads_at_fork = 1


def _forked() -> None:
    """Also a new lock: a thread that held it is not there to give it back."""
    global _lock, _threads_at_fork
    _lock = threading.RLock()
    _threads_at_fork = torch.get_num_threads() if sys.platform == "linux" else 1


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)
