"""The state of all random generators, in plain values: take it, set it again, leave it as it was."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from pyro.util import get_rng_state, set_rng_state


def own_numbers(device: torch.device) -> AbstractContextManager[None]:
    """In here random draws leave the caller's generators as they were."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def random_state(own: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Of torch on the CPU and on the GPUs in use, of Python and NumPy (a dataset may draw from them), and of `own`."""
    state = get_rng_state()
    name, keys, *rest = state["numpy"]
    return {
        **state,
        "numpy": (name, keys.tolist(), *rest),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "own": [generator.get_state() for generator in own],
    }


def set_random_state(state: dict[str, Any], own: Sequence[torch.Generator] = ()) -> None:
    """Go on from there; a ValueError where this is not such a state."""
    try:
        if not 0 <= state["numpy"][2] <= len(state["numpy"][1]):  # NumPy would read beyond its numbers
            raise ValueError(f"NumPy's place is {state['numpy'][2]}")
        set_rng_state(state)
        for device, of_device in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(of_device, device)
        for generator, of_generator in zip(own, state["own"], strict=True):
            generator.set_state(of_generator)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the state of the random generators makes no sense ({error}): start anew.") from error
