"""One thread at a time in what belongs to the whole process; and what a forked process has to do first.

Pyro's handlers, parameters and validation switch are one for all threads, and so are torch's tracer and the weights of
a module that is called with others. What only computes, as a traced energy does, needs no turn.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tqdm.auto import tqdm

_lock = threading.RLock()
_threads_of_parent: int | None = None  # of torch, in a forked process that has not used this library yet


@contextmanager
def in_turn() -> Iterator[None]:
    """Wait until no other thread is in its turn."""
    settle_after_fork()
    with _lock:
        yield


def settle_after_fork() -> None:
    """In a forked process: torch with one thread, unless the process has chosen a number by itself; bars with a lock.

    The threads of GNU's OpenMP do not come along: the first product of two matrices in the child would wait for them
    without end. So would the first progress bar, where another thread was at one in the moment of the fork.
    """
    global _threads_of_parent
    if _threads_of_parent is None:
        return
    if sys.platform == "linux" and torch.get_num_threads() == _threads_of_parent:
        torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())
    _threads_of_parent = None


def _forked() -> None:
    """Also a new lock of our own: a thread that held it is not there to give it back."""
    global _lock, _threads_of_parent
    _lock, _threads_of_parent = threading.RLock(), torch.get_num_threads()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)
