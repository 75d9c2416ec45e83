"""A default walk from one trained network against a deep ensemble of 20, both from a cold start.

    python -m benchmarks cold_start --data DIR [--rounds 5] [--out results]

Each contender runs in a process of its own, in turns: the walk with its MAP search, tracing and, if it
chooses to, compiling; the ensemble with 1,500 full-batch Adam steps of one vmapped loop. Writes cold_start.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from pyro_metricbnn import Categorical, DriftRefineKernel, bayesianize

from .datasets import Problem, glass
from .networks import mlp
from .results import this_run

NUM_PARTICLES = 20
NUM_TRAINING_STEPS = 1500


def networks(problem: Problem, count: int) -> list[nn.Module]:
    """Networks of two layers of 32 units."""
    return [mlp(problem.x.shape[1], 32, 32, int(problem.y.max()) + 1) for _ in range(count)]


def train_all(nets: list[nn.Module], problem: Problem) -> dict[str, Tensor]:
    """All networks at once: the energy of a standard-normal prior, by Adam."""
    params, _ = stack_module_state(nets)
    params = {name: value.detach() for name, value in params.items()}

    def energy(weights: dict[str, Tensor]) -> Tensor:
        f = functional_call(nets[0], weights, (problem.x,))
        prior = torch.stack([weight.pow(2).sum() for weight in weights.values()]).sum() / 2
        return cross_entropy(f, problem.y, reduction="sum") + prior

    gradient = vmap(grad(energy))
    optimizer = torch.optim.Adam(params.values(), lr=1e-2)
    for _ in range(NUM_TRAINING_STEPS):
        for name, value in gradient(params).items():
            params[name].grad = value
        optimizer.step()
    return params


def seconds_of(contender: str, folder: Path | None) -> float:
    """The time of one contender in this process."""
    pyro.set_rng_seed(0)
    problem = glass(folder)
    if contender == "ensemble":
        nets = networks(problem, NUM_PARTICLES)
        begin = time.perf_counter()
        train_all(nets, problem)
        return time.perf_counter() - begin
    (net,) = networks(problem, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(NUM_TRAINING_STEPS):  # the user's own training, by plain autograd: nothing is warmed up by it
        optimizer.zero_grad()
        prior = torch.stack([weight.pow(2).sum() for weight in net.parameters()]).sum() / 2
        (cross_entropy(net(problem.x), problem.y, reduction="sum") + prior).backward()
        optimizer.step()
    begin = time.perf_counter()
    kernel = DriftRefineKernel(bayesianize(net, Categorical()))
    kernel.walk(problem.x, problem.y, num_particles=NUM_PARTICLES, progress=False)
    return time.perf_counter() - begin


def in_own_process(contender: str, folder: Path | None) -> float:
    """The time of one contender in a new process."""
    command = [sys.executable, "-m", "benchmarks.cold_start", "--only", contender]
    command += ["--data", str(folder)] if folder else []
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def compare(folder: Path | None, rounds: int) -> dict[str, list[float]]:
    """Times of both contenders, in turns."""
    times: dict[str, list[float]] = {"walk": [], "ensemble": []}
    for _ in tqdm(range(rounds), desc="cold start", unit=" rounds"):
        for contender, seen in times.items():
            seen.append(in_own_process(contender, folder))
    return times


def main(argv: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the result")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each")
    parser.add_argument("--only", choices=["walk", "ensemble"], default=None, help="run one, here, and print its time")
    arguments = parser.parse_args(argv)
    if arguments.only:
        print(seconds_of(arguments.only, arguments.data))
        return
    times = compare(arguments.data, arguments.rounds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cold_start.json").write_text(json.dumps({**this_run(), "seed": 0, "seconds": times}, indent=1))
    walk, ensemble = (statistics.median(times[name]) for name in ("walk", "ensemble"))
    print(f"{glass(arguments.data).name}: walk {walk:.2f} s, ensemble {ensemble:.2f} s, ratio {walk / ensemble:.2f}")
    print({name: [round(t, 2) for t in seen] for name, seen in times.items()})


if __name__ == "__main__":
    main()
