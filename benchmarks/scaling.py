"""How a walk gets faster with ranks: fixed work and fixed work a rank, and the bytes that they send.

    python -m benchmarks scaling --steps 180 --turns 3      # a walk of a minute on one core
    python -m benchmarks scaling --ranks 1 2 --kinds fixed --hidden 3155 --particles 4 --steps 4 --rows 20  # memory

Bytes are those that a rank hands to torch.distributed from one recorded point to the next. Each rank has one thread.
"busy" are the seconds that the busiest rank had of its core: on a machine with other work, or with fewer cores than
ranks, they are what says how the work is shared out.

Writes scaling.json and scaling.md into --out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from pyro_metricbnn import DriftRefineKernel, Gaussian, Ranks, Steer, bayesianize, join_ranks

from .results import Cell, Results
from .tables import markdown

TEXTS = ("run", "walk_version")  # of a cell
ROOT = Path(__file__).parent.parent


def member(folder: Path, hidden: int, num_particles: int, num_steps: int, num_rows: int) -> None:
    """One rank: a walk of a network with two hidden layers, timed from its second point on."""
    from pyro_metricbnn.ranks.messages import RankShare
    from pyro_metricbnn.walk import loop

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = join_ranks(seed=0)
    x = torch.randn(num_rows, 8)
    net = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    model: Any = bayesianize(net, Gaussian(0.3))
    y = net(x).detach()
    # A step and a path that are fixed make the same work on any number of ranks.
    refiner = Steer(path=num_steps * 0.2, step_size=0.02 * sum(p.numel() for p in net.parameters()) ** 0.5)
    times, sent, step, plain = [], [0], loop._record_step, RankShare._do
    at: list[int] = []
    busy: list[float] = []

    def timed(*args: Any) -> None:
        times.append(time.perf_counter())
        busy.append(time.process_time())
        at.append(sent[0])
        step(*args)

    def counted(self: RankShare, call: Any, *args: Any, **how: Any) -> Any:
        sent[0] += sum(value.numel() * value.element_size() for value in args if torch.is_tensor(value))
        return plain(self, call, *args, **how)

    with mock.patch.object(loop, "_record_step", timed), mock.patch.object(RankShare, "_do", counted):
        kernel = DriftRefineKernel(model, refiner=refiner, num_steps=num_steps, compile=False)
        settings: dict[str, Any] = {"num_particles": num_particles, "ranks": Ranks(gather="none")}
        walk = kernel.walk(x, y, map_params=model.trained_params, progress=False, **settings)
    seconds = times[-1] - times[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    gradients = int(walk.gradients[-2] - walk.gradients[0])
    found = {"seconds": seconds, "bytes": (at[-1] - at[1]) / (len(at) - 2), "peak": peak, "gradients": gradients}
    found["busy"] = busy[-1] - busy[1]  # seconds of its core: on a machine with other work the others say little
    found |= {"record": walk.thetas.nbytes / 1e6, "dim": walk.sites.dim, "particles": num_particles}
    (folder / f"{rank}.json").write_text(json.dumps(found))


def measured(size: int, *numbers: int) -> dict[str, float]:
    """What so many ranks found: the slowest one's seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command += ["-m", "benchmarks.scaling", "--member", folder, *map(str, numbers)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]
    return {name: max(one[name] for one in found) for name in found[0]}


def main(argv: list[str]) -> None:
    """Measure what is not in the file yet, print the tables and write them."""
    if argv[:1] == ["--member"]:
        member(Path(argv[1]), *map(int, argv[2:]))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--hidden", type=int, default=90, help="units of both hidden layers")
    parser.add_argument("--particles", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--kinds", nargs="+", default=["fixed", "growing"], choices=["fixed", "growing"])
    parser.add_argument("--turns", type=int, default=1, help="each number of ranks so many times, in turns")
    parser.add_argument("--out", type=Path, default=Path("results/scaling"), help="folder of the results")
    options = parser.parse_args(argv)
    numbers = {"hidden": options.hidden, "particles": options.particles, "steps": options.steps, "rows": options.rows}
    results = Results(options.out / "scaling.json", {**numbers, "cores": os.cpu_count()})
    cells: dict[tuple[str, int], list[Cell]] = {}
    for turn in range(options.turns):
        for kind in options.kinds:
            for size in options.ranks:
                many = options.particles * (size if kind == "growing" else 1)
                work = partial(measured, size, options.hidden, many, options.steps, options.rows)
                cell = results.cell(f"{kind}|{size}|{turn}", work)
                print(kind, size, turn, cell, flush=True)
                cells.setdefault((kind, size), []).append(cell)
    text = "\n".join(table(kind, {size: cells[kind, size] for size in options.ranks}) for kind in options.kinds)
    (options.out / "scaling.md").write_text(text)
    print(text)


def table(kind: str, of_size: Mapping[int, list[Cell]]) -> str:
    """One kind of work: medians over the turns; a speed-up is of particles a second, to the fewest ranks."""
    header = ["ranks", "particles", "D", "s", "busy s", "speed-up", "speed-up by busy s", "bytes a point"]
    header += ["record a rank, MB", "peak, MB"]
    first, rows = min(of_size), []
    for size, cells in of_size.items():
        if errors := [cell["error"] for cell in cells if "error" in cell]:
            raise SystemExit(f"{kind}, {size} ranks: {errors[0]}")

        def speed(name: str, size: int = size) -> float:
            return statistics.median(cell["particles"] / cell[name] for cell in of_size[size])

        one = {name: statistics.median(cell[name] for cell in cells) for name in cells[0] if name not in TEXTS}
        wall, busy = (speed(name) / speed(name, first) for name in ("seconds", "busy"))
        sizes = [str(size), f"{one['particles']:.0f}", f"{one['dim']:,.0f}"]
        times = [f"{one['seconds']:.1f}", f"{one['busy']:.1f}", f"{wall:.2f}", f"{busy:.2f}"]
        rows.append([*sizes, *times, f"{one['bytes']:.0f}", f"{one['record']:.1f}", f"{one['peak']:.0f}"])
    return f"{'Fixed work' if kind == 'fixed' else 'Fixed work a rank'}:\n\n{markdown(header, rows)}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
