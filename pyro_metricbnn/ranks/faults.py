"""When ranks do not go together: one that does not answer is named, different ones are refused, Ctrl-C reaches all.

In: a call to torch.distributed, or what each rank was given.  Out: its result, or an error in words.
"""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist

from ..runtime.arguments import first_line

Result = TypeVar("Result")
ROLL_CALL = timedelta(seconds=60)  # at most, after the time-out, until it is known who is missing
TWICE = 5.0  # seconds: torchrun passes on a Ctrl-C that the terminal has sent to its processes already
ADVICE = {
    "random state": "Seed all alike before anything is drawn: join_ranks(seed=0), or pyro.set_rng_seed(0).",
    "initial_params (or the trained weights)": "Train on one rank and read its file on all: other processors round in "
    "another way.",
    "data": "Give each rank the same data; where each has a part of the rows, pass ranks=Ranks(rows=...).",
    "versions": "Install the same ones everywhere.",
}


def named(roll: Any, wait: timedelta, call: Callable[..., Result], *args: Any, **settings: Any) -> Result:
    """call(*args, **settings), or an error that says who did not take part; `roll` is a group to ask that, alone."""
    try:
        return call(*args, **settings)
    except RuntimeError as error:
        said = _missing(str(error), roll, wait)
        raise RuntimeError(
            f"rank {dist.get_rank()} waited for other ranks and gave up: {said} ({first_line(error)}). All ranks have "
            f"to make the same calls, and to come to each within {wait.total_seconds():g} s (Ranks(timeout=)); "
            "Ranks(together=False) is for a rank that walks by itself. With checkpoint= the walk goes on when all are "
            "started again, as torchrun --max-restarts does."
        ) from error


def _missing(text: str, roll: Any, wait: timedelta) -> str:
    """Who is missing, in what torch says of a roll call; the error may be of one already."""
    if "monitoredBarrier" not in text:
        try:
            dist.monitored_barrier(roll, timeout=min(wait, ROLL_CALL), wait_all_ranks=True)
            return "all ranks answer again: one was too slow, or the network failed"
        except (RuntimeError, ValueError) as error:
            text = str(error)
    if found := re.search(r"Ranks? ([\d, ]+?) failed to pass", text):
        ranks = re.findall(r"\d+", found[1])
        return f"no answer from rank {', '.join(ranks)}, which hangs or has ended"
    if "from rank 0" in text:
        return "no answer from rank 0, which hangs or has ended, or says itself who is missing"
    return "the connection to one of them is closed, because it has ended; torchrun says which"


def refuse_different(settings: Sequence[Mapping[str, Any]], like: Sequence[int]) -> None:
    """Refuse ranks whose settings differ from those of the ranks that they should be `like`."""
    for rank, (mine, other) in enumerate(zip(settings, like, strict=True)):
        for name, value in mine.items():
            theirs = settings[other].get(name)
            if repr(value) != repr(theirs):
                raise ValueError(
                    f"rank {rank} differs from rank {other} in {name}: {str(value)[:80]} for {str(theirs)[:80]}. They "
                    f"walk together, so all have to be given the same. {ADVICE.get(name, 'Call run alike on each.')}"
                )


def said_of(error: Exception) -> str:
    """An error of the first rank, for the others; an empty text would be none."""
    return str(error) if isinstance(error, ValueError) and str(error) else f"{type(error).__name__} on rank 0: {error}"


class Interruption:
    """Whether Ctrl-C was pressed."""

    is_asked = False


@contextmanager
def held_back(is_several: bool) -> Iterator[Interruption]:
    """Ctrl-C is noted, for all ranks to end after the same point; one by itself, and a second one, goes through.

    A rank that left in the midst of a point would leave the others waiting for it.
    """
    noted, first = Interruption(), [0.0]
    if not is_several or threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        if noted.is_asked and time.monotonic() - first[0] > TWICE:
            raise KeyboardInterrupt
        first[0] = first[0] or time.monotonic()
        noted.is_asked = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
