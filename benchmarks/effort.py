"""What `effort` buys, and what minibatches cost: the tables behind the docs of the walk's defaults.

    python -m benchmarks effort --data DIR [--quick]

Snelson's regression with a gap (1-32-32-32-1) and Glass (two layers of 32): negative log-likelihood a
point, gradients and seconds of a walk of 20 particles from one trained network; for Glass also the total
variation of the mean predictive to a long walk, in units of that between two such walks. Writes
`effort.json` and `effort.md`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from tqdm import tqdm

from pyro_metricbnn import Adam, Categorical, DriftRefineKernel, Gaussian, Steer, Trajectories, bayesianize
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.refiners.refiner import Refiner

from .arguments import folder, parser, share
from .cold_start import networks, train_all
from .datasets import Problem, glass, snelson
from .networks import mlp, train
from .results import Cell, Results
from .tables import markdown

NOISE = 0.3
SEED = 0


def outputs(net: nn.Module, walk: Trajectories, x: Tensor) -> Tensor:
    """The network's output at x for each sample: (S, n, ...)."""
    return vmap(lambda weights: functional_call(net, weights, (x,)), chunk_size=100)(walk.samples())


def nll(likelihood: Likelihood, f: Tensor, y: Tensor) -> float:
    """Negative log predictive density a point, averaged over the samples before the logarithm."""
    log_prob = torch.stack([likelihood.distribution(draw).log_prob(y) for draw in f])
    return float(-(log_prob.logsumexp(0) - math.log(len(f))).mean())


def walked(
    net: nn.Module,
    likelihood: Likelihood,
    problem: Problem,
    refiner: Refiner,
    batch_size: int | None = None,
    num_steps: int = 100,
) -> tuple[Trajectories, float]:
    """A walk and its seconds."""
    begin = time.perf_counter()
    kernel = DriftRefineKernel(bayesianize(net, likelihood), refiner=refiner, num_steps=num_steps)
    walk = kernel.walk(problem.x, problem.y, batch_size=batch_size, progress=False)
    return walk, time.perf_counter() - begin


def gradients(walk: Trajectories, refiner: Refiner) -> int:
    """Gradients of the recorded part of a walk."""
    if isinstance(refiner, Adam):
        return walk.num_steps * (refiner.num_refinements + 1)
    return int(walk.gradients[-1])


@dataclass(frozen=True)
class Contest:
    """Both problems with a trained network each, and two long walks on the second.

    Args:
        data: Folder of the data sets.
        part: Of the full work.
    """

    data: Path | None
    part: float

    @cached_property
    def regression(self) -> tuple[nn.Module, Likelihood, Problem]:
        """Snelson's data with a gap."""
        pyro.set_rng_seed(SEED)
        problem = snelson(self.data)
        return train(mlp(1, 32, 32, 32, 1), problem.x, problem.y, NOISE, 5000), Gaussian(NOISE), problem

    @cached_property
    def classes(self) -> tuple[nn.Module, Likelihood, Problem]:
        """Glass."""
        pyro.set_rng_seed(SEED)
        problem = glass(self.data)
        (net,) = networks(problem, 1)
        net.load_state_dict({name: value[0] for name, value in train_all([net], problem).items()})
        return net, Categorical(), problem

    @cached_property
    def long_means(self) -> list[Tensor]:
        """The mean predictive of each long walk."""
        net, _, problem = self.classes
        pyro.set_rng_seed(SEED + 1)
        refiner = Steer(effort=4 * self.part, path=24 * self.part)
        long = [walked(*self.classes, refiner, num_steps=max(20, round(400 * self.part)))[0] for _ in range(2)]
        return [outputs(net, walk, problem.x_test).softmax(-1).mean(0) for walk in long]

    def measured(self, refiner: Refiner, batch_size: int | None) -> Cell:
        """A walk on each problem."""
        if isinstance(refiner, Steer):
            refiner = replace(refiner, effort=refiner.effort * self.part)
        num_steps = max(10, round(100 * self.part))
        net, likelihood, problem = self.classes
        between = _apart(*self.long_means)
        pyro.set_rng_seed(SEED + 2)
        walk, seconds = walked(*self.classes, refiner, batch_size, num_steps)
        f = outputs(net, walk, problem.x_test)
        distance = statistics.fmean(_apart(f.softmax(-1).mean(0), mean) for mean in self.long_means) / between
        cell: Cell = {f"{problem.name} NLL": nll(likelihood, f, problem.y_test), "TV": distance}
        cell |= {f"{problem.name} gradients": gradients(walk, refiner), f"{problem.name} s": seconds}
        net, likelihood, problem = self.regression
        pyro.set_rng_seed(SEED + 2)
        walk, seconds = walked(*self.regression, refiner, batch_size, num_steps)
        for part, x, y in (("train", problem.x, problem.y), ("gap", problem.x_test, problem.y_test)):
            cell[f"{problem.name} {part} NLL"] = nll(likelihood, outputs(net, walk, x), y)
        cell |= {f"{problem.name} gradients": gradients(walk, refiner), f"{problem.name} s": seconds}
        return {**cell, "seed": SEED}


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum(-1).mean())


ROWS: dict[str, tuple[Refiner, int | None]] = {
    **{f"effort {effort:g}": (Steer(effort=effort), None) for effort in (0.25, 1.0, 4.0)},
    "Adam": (Adam(), None),
    "Steer, batches of 32": (Steer(), 32),
    "Adam, batches of 32": (Adam(), 32),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    arguments = parser(__doc__ or "").parse_args(argv)
    out = folder(arguments) / "effort"
    results = Results(out / "effort.json", {"experiment": "effort", "share": share(arguments)}, retry=arguments.retry)
    contest = Contest(arguments.data, share(arguments))
    for label, how in tqdm(ROWS.items(), desc="effort", unit=" walks"):
        results.cell(label, partial(contest.measured, *how))
    figures = {label: cell for label, cell in results.cells.items() if "TV" in cell}
    names = [name for name in next(iter(figures.values()), {}) if name not in ("seed", "run")]
    rows = [[label, *(f"{cell[name]:.3g}" for name in names)] for label, cell in figures.items()]
    text = markdown(["", *names], rows)
    text += "".join(f"\n\n- {label}: {cell['error']}" for label, cell in results.cells.items() if "error" in cell)
    (out / "effort.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
