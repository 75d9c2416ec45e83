"""What a walk will take, before it is walked: memory from the shapes, time from one gradient.

In: the ground, the options and the refiner of a walk.  Out: a word where it takes minutes, a MemoryError where it
cannot fit.
"""

import math
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from tqdm.auto import tqdm

from ..refiners.refiner import Refiner
from ..refiners.state import Ground
from ..runtime.out_of_memory import NotEnoughMemory
from .options import WalkOptions

WORKING = 15  # numbers for each of N x D that a walk holds beside its record
MOST_OF_IT = 0.9  # of the memory that is free
LONG = 180.0  # seconds
MANY_ROWS = 20_000


def check_memory(dim: int, num_steps: int, dtype: torch.dtype, device: torch.device, options: WalkOptions) -> None:
    """Refuse a walk whose record and particles do not fit, with what would."""
    stored = torch.device(options.storage_device) if options.storage_device is not None else device
    free, free_to_store = free_memory(device), free_memory(stored)

    def fits(options: WalkOptions) -> bool:
        record, work = needed(dim, num_steps, dtype, options)
        if stored == device:
            return record + work <= MOST_OF_IT * free
        return work <= MOST_OF_IT * free and record <= MOST_OF_IT * free_to_store

    if fits(options):
        return
    record, work = needed(dim, num_steps, dtype, options)
    ways = [f"storage_dtype={half}" for half in (torch.float16,) if fits(replace(options, storage_dtype=half, thin=1))]
    thins = [thin for thin in (2, 4, 5, 10, 20, 50, 100) if thin < num_steps and fits(replace(options, thin=thin))]
    ways += [f"thin={thins[0]}"] if thins else []
    fewer = [n for n in range(options.num_particles - 1, 3, -1) if fits(replace(options, num_particles=n))]
    ways += [f"num_particles={fewer[0]}"] if fewer else []
    ways += ["where= in bayesianize, for a part of the weights"]
    raise NotEnoughMemory(
        f"the record of {options.num_particles} walks of {num_steps // options.thin} points in {dim:,} coordinates "
        f"takes {record / 1e9:.1f} GB, walking them {work / 1e9:.1f} GB, and {min(free, free_to_store) / 1e9:.1f} GB "
        f"are free. It would fit with {', or '.join(ways)}."
    )


def needed(dim: int, num_steps: int, dtype: torch.dtype, options: WalkOptions) -> tuple[int, int]:
    """Bytes of the record, and of what walks."""
    points = options.num_particles * (num_steps // options.thin + 1)
    return points * dim * (
        options.storage_dtype or dtype
    ).itemsize, WORKING * options.num_particles * dim * dtype.itemsize


def free_memory(device: torch.device) -> float:
    """Bytes that are free there, as far as the system says; infinite where it does not."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    free = math.inf
    with suppress(OSError, ValueError, AttributeError):
        free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError, IndexError):  # Linux counts what its caches would give back
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return free


def announce(ground: Ground, refiner: Refiner, options: WalkOptions) -> None:
    """Say how long the walk will take, where that is minutes: from a timed gradient that is not compiled."""
    if not options.progress or ground.share.num_rows > 1:  # other ranks do not take part in what is timed here
        return
    calls = refiner.num_gradients(ground)
    theta = ground.theta_star.expand(len(ground.share.own(ground.num_particles)), -1).contiguous()
    mode = ground.potential.execution.mode
    plain = ground.potential.fixed().using(mode="trace" if mode in ("auto", "compile") else mode)
    plain.value_and_grad(theta)  # traces, which the walk needs anyway
    begin = time.perf_counter()
    plain.value_and_grad(theta)
    seconds = calls * (time.perf_counter() - begin)
    if seconds < LONG:
        return
    rows = ground.potential.num_rows
    fewer = f" {rows:,} rows: batch_size=256 takes some at a time." if rows >= MANY_ROWS else ""
    text = (
        f"The walk takes about {calls:,} gradients of {ground.num_particles} particles: {seconds / 60:.0f} minutes, "
        f"less where compiled.{fewer} To shorten it: effort=0.25, num_particles=10, or where= for some weights."
    )
    tqdm.write(text, file=sys.stderr)
