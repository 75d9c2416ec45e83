"""This checkout against another one, in one process and in turns: gradients per second, and the time of a default walk.

    git worktree add ../before COMMIT
    python -m benchmarks.checkouts ../before --data DIR    # 5 minutes on two cores

Both are loaded beside each other, so that what disturbs the machine disturbs both. Prints the median ratio of their
seconds, this one's over the other's, with the middle half of the ratios of all turns.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import torch
from torch import Tensor

from .datasets import glass
from .networks import mlp

NAME = "pyro_metricbnn"


def loaded(folder: Path) -> ModuleType:
    """The package of a checkout, out of the way of other ones."""
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        package = importlib.import_module(NAME)
        for path in sorted((folder / NAME).rglob("*.py")):  # all of it: later imports would find the other one
            importlib.import_module(".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"))
    finally:
        sys.path.remove(str(folder))
    return package


def gradients(potential: Any, theta: Tensor, calls: int) -> None:
    """So many of them."""
    for _ in range(calls):
        potential.value_and_grad(theta)


def in_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> str:
    """The ratio of the first one's seconds to the second one's; who begins changes from turn to turn."""
    ratios = []
    for turn in range(rounds):
        seconds = {}
        for name in sorted(contenders, reverse=bool(turn % 2)):
            begin = time.perf_counter()
            contenders[name]()
            seconds[name] = time.perf_counter() - begin
        this, other = (seconds[name] for name in contenders)
        ratios.append(this / other)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f}, {rounds} turns)"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of another checkout")
    parser.add_argument("--data", type=Path, help="folder of the data sets; without it, made data")
    arguments = parser.parse_args()
    problem = glass(arguments.data)
    pyro.set_rng_seed(0)
    x, y = problem.x, problem.y
    net = mlp(x.shape[1], 32, 32, int(y.max()) + 1)
    here = Path(__file__).resolve().parents[1]
    packages = {"this": loaded(here), "other": loaded(arguments.other.resolve())}
    for mode, calls in (("trace", 100), ("compile", 300)):
        theta = 0.1 * torch.randn(20, sum(p.numel() for p in net.parameters()))
        runs = {}
        for name, package in packages.items():
            model = package.bayesianize(net, package.Categorical())
            potential = package.BatchedPotential(model, x, y).using(mode=mode)
            for _ in range(5):
                potential.value_and_grad(theta)
            runs[name] = partial(gradients, potential, theta, calls)
        print(f"a gradient, {mode}: {in_turns(runs, 60)}", flush=True)
    walks = {}
    for name, package in packages.items():

        def walk(package: ModuleType = package) -> None:
            pyro.set_rng_seed(1)
            package.MetricBNN(package.bayesianize(net, package.Categorical())).run(x, y, progress=False)

        walk()
        walks[name] = walk
    print(f"a default run: {in_turns(walks, 12)}", flush=True)


if __name__ == "__main__":
    main()
