"""Memory and time of a run as the network grows, from 10 weights to 10 million.

    python -m benchmarks.load            # D = 10 to 10 million: some minutes on one core, up to 4 GB
    python -m benchmarks.load --quick    # the two smallest

A network with one wide layer goes through the whole flow: search for the MAP, walk, latent map, draws. Each size runs
in a process of its own, which first runs a network of ten weights, so that what is imported on the way is not counted.
The peak of the resident memory above that is given in bytes; that of the search as a multiple of D numbers in single
precision, that of the walk and its map, without the record (N T D numbers at its precision), of N D. Linux only.

Writes load.json and load.md into --out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_metricbnn import BatchedPotential, DriftRefineKernel, Gaussian, MetricBNN, Steer, bayesianize, find_map
from pyro_metricbnn.walk import VERSION

from .networks import mlp
from .results import this_run
from .tables import markdown

SIZES = (10, 1_000, 100_000, 1_000_000, 10_000_000)
NUM_PARTICLES, NUM_STEPS, NUM_ROWS = 4, 10, 20
NUM_DRAWS = 100
FOUR = 4  # bytes of a number in single precision
PHASES = ("search", "walk", "draws")


def wide(dim: int) -> tuple[Any, Tensor, Tensor]:
    """A Pyro model of about `dim` weights in one wide layer, and data for it."""
    width = min(1000, max(3, int(math.sqrt(dim) / 3)))
    inputs = max(1, round((dim - 1) / width) - 2)
    priors = {"0.weight": inputs**-0.5, "0.bias": 1.0, "2": width**-0.5}
    x = torch.randn(NUM_ROWS, inputs)
    net = mlp(inputs, width, 1, activation=nn.Tanh)
    return bayesianize(net, Gaussian(0.5), prior_scale=priors), x, torch.sin(x[:, :1])


def resident(field: str) -> int:
    """Bytes that this process has in memory: VmRSS now, VmHWM at most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def inference(dim: int, num_draws: int, thin: int, storage_dtype: torch.dtype | None) -> dict[str, Any]:
    """One whole run in this process: peak bytes and seconds of the search, the walk with its map, and the draws."""
    model, x, y = wide(dim)
    kernel = DriftRefineKernel(model, refiner=Steer(path=0.3), num_steps=NUM_STEPS, compile=False)
    metric = MetricBNN(kernel, num_particles=NUM_PARTICLES)
    found: dict[str, Any] = {}

    def measured(phase: str, work: Callable[[], Any]) -> None:
        forget_peak()
        begin = time.perf_counter()
        work()
        found[phase] = {"seconds": time.perf_counter() - begin, "peak": resident("VmHWM")}

    def average() -> None:
        totals = [torch.zeros_like(value) for value in metric.map_params.values()]
        for draws in metric.stream(num_draws):
            for total, draw in zip(totals, draws.values(), strict=True):
                total += draw.sum(0)

    def search() -> None:
        potential = BatchedPotential(model, x, y).using(mode="trace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge: it is not what is measured
            start.update(find_map(potential, progress=False).params)

    def walk() -> None:
        metric.run(x, y, map_params=start, thin=thin, storage_dtype=storage_dtype, progress=False)

    start: dict[str, Tensor] = {}
    measured("search", search)
    measured("walk", walk)
    measured("draws", average)
    record = metric.trajectories.thetas
    return {"dim": record.shape[-1], "record": record.nbytes, "num_draws": num_draws, **found}


def measure(dim: int, num_draws: int = NUM_DRAWS, thin: int = 1, half: bool = False) -> dict[str, Any]:
    """A run of this size in this process, in bytes above what the library itself takes."""
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    inference(10, 1, 1, None)
    before = resident("VmRSS")
    found = inference(dim, num_draws, thin, torch.float16 if half else None)
    for phase in PHASES:
        found[phase]["peak"] -= before
    network = found["dim"] * FOUR
    found["search"]["constant"] = found["search"]["peak"] / network
    found["walk"]["constant"] = (found["walk"]["peak"] - found["record"]) / (NUM_PARTICLES * network)
    return found


def in_own_process(dim: int, *settings: str) -> dict[str, Any]:
    """`measure` in a new process, in which glibc gives back at once what is freed.

    By itself it keeps blocks of up to 32 MB for later use: at D = 1,000,000 up to a third of a gigabyte.
    """
    gives_back = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.load", "--only", str(dim), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=gives_back)
    if done.returncode:
        raise SystemExit(f"D = {dim} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    peaks = [f"{phase}: peak, MB" for phase in PHASES]
    header = [
        "D",
        "record, MB",
        *peaks,
        "search, in D",
        "walk without record, in N D",
        "search, s",
        "walk, s",
        "ms a draw",
    ]
    return markdown(header, [line(row) for row in rows]) + "\n"


def line(row: dict[str, Any]) -> list[str]:
    """One size. Of small ones the multiples say nothing: what malloc keeps is larger than the network."""
    says = row["dim"] >= 1_000_000
    return [
        f"{row['dim']:,}",
        *(f"{number / 1e6:,.1f}" for number in (row["record"], *(row[phase]["peak"] for phase in PHASES))),
        *(f"{row[phase]['constant']:.1f}" if says else "–" for phase in ("search", "walk")),
        *(f"{row[phase]['seconds']:.1f}" for phase in ("search", "walk")),
        f"{1000 * row['draws']['seconds'] / row['num_draws']:.2f}",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes")
    parser.add_argument("--only", type=int, default=None, help="one size, here: print its figures")
    parser.add_argument("--draws", type=int, default=NUM_DRAWS, help="draws that are averaged")
    parser.add_argument("--thin", type=int, default=1, help="record every so many steps")
    parser.add_argument("--half", action="store_true", help="record in half precision")
    arguments = parser.parse_args(argv)
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.draws, arguments.thin, arguments.half)))
        return
    settings = [f"--draws={arguments.draws}", f"--thin={arguments.thin}", *(["--half"] if arguments.half else [])]
    rows = []
    for dim in SIZES[:2] if arguments.quick else SIZES:
        rows.append(in_own_process(dim, *settings))
        print(rows[-1], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    versions = {**this_run(), "walk_version": VERSION, "threads": 1, "seed": 0}
    sizes = {"num_particles": NUM_PARTICLES, "num_steps": NUM_STEPS, "thin": arguments.thin, "half": arguments.half}
    (arguments.out / "load.json").write_text(json.dumps({**versions, **sizes, "rows": rows}, indent=1))
    (arguments.out / "load.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
