"""Run out of memory once, and go on with half as much at a time.

In: a function of how many to take at once.  Out: its result, and where that was too many a warning.
"""

import gc
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from .randomness import random_state, set_random_state

Result = TypeVar("Result")
SAID = ("out of memory", "can't allocate memory", "not enough memory")  # by the allocators of torch


class NotEnoughMemory(MemoryError):
    """Half as many at a time were too many as well."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is Python's, a GPU's or the CPU allocator's word for it, and a smaller chunk has not been tried."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return not isinstance(error, NotEnoughMemory)
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAID)


def with_less_at_once(
    run: Callable[[int], Result], size: int, counted: str, taker: str, *, draws: bool = False
) -> Result:
    """run(size); where memory is short, all of it again with half the size: to the bit as if that had been passed.

    The warning says what `size` counts ("particles") and which `taker` has a chunk_size ("DriftRefineKernel").
    `draws` says that the work draws random numbers: the second attempt begins with the same ones.
    """
    before, is_second = random_state() if draws else None, False
    while True:
        try:
            return run(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if is_second or size < 2:
                fewer = f"Pass {size // 2} or less" if size > 1 else "Fewer cannot be: take less data (batch_size=)"
                said = f"out of memory with chunk_size={size}, which counts {counted} at once"
                raise NotEnoughMemory(f"{said}. {fewer}, or free memory elsewhere.") from error
        # Out here nothing refers to the failed attempt, so that what it had made can go.
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        half = (size + 1) // 2
        warnings.warn(
            f"memory was short with {size} {counted} at once: they are taken {half} at a time from here on, which may "
            f"round the last bits in another way. Pass chunk_size={half} to {taker} next time.",
            stacklevel=2,
        )
        if before is not None:
            set_random_state(before)
        size, is_second = half, True
