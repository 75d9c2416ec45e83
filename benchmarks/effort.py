"""What `effort` buys, and what minibatches cost: the tables behind the docs of the walk's defaults.

    python -m benchmarks.effort [--data DIR]

Snelson's regression with a gap (1-32-32-32-1) and Glass (two layers of 32): negative log-likelihood a
point, gradients and seconds of a walk of 20 particles from one trained network; for Glass also the total
variation of the mean predictive to a long walk, in units of that between two such walks.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pyro_metricbnn import Adam, Categorical, DriftRefineKernel, Gaussian, Steer, Trajectories, bayesianize
from pyro_metricbnn.likelihoods import Likelihood
from pyro_metricbnn.refiner import Refiner

from .cold_start import networks, train_all
from .datasets import Problem, glass, snelson
from .networks import mlp, train

NOISE = 0.3


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


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets")
    folder = parser.parse_args(argv).data
    pyro.set_rng_seed(0)
    gap, classes = snelson(folder), glass(folder)
    regression = train(mlp(1, 32, 32, 32, 1), gap.x, gap.y, NOISE, 5000)
    (classifier,) = networks(classes, 1)
    trained = {name: value[0] for name, value in train_all([classifier], classes).items()}
    classifier.load_state_dict(trained)
    long = [walked(classifier, Categorical(), classes, Steer(effort=4, path=24), num_steps=400)[0] for _ in range(2)]
    means = [outputs(classifier, walk, classes.x_test).softmax(-1).mean(0) for walk in long]
    yardstick = float((means[0] - means[1]).abs().sum(-1).mean())

    def row(label: str, refiner: Refiner, batch_size: int | None = None) -> None:
        walk, seconds = walked(classifier, Categorical(), classes, refiner, batch_size)
        f = outputs(classifier, walk, classes.x_test)
        distance = sum(float((f.softmax(-1).mean(0) - mean).abs().sum(-1).mean()) for mean in means) / 2 / yardstick
        cells = [nll(Categorical(), f, classes.y_test), distance, gradients(walk, refiner), seconds]
        walk, seconds = walked(regression, Gaussian(NOISE), gap, refiner, batch_size)
        for x, y in ((gap.x, gap.y), (gap.x_test, gap.y_test)):
            cells.append(nll(Gaussian(NOISE), outputs(regression, walk, x), y))
        cells += [gradients(walk, refiner), seconds]
        print(f"| {label} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |", flush=True)

    names = [f"{classes.name} NLL", "TV", "gradients", "s", f"{gap.name} train NLL", "gap NLL", "gradients", "s"]
    print("| | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for effort in (0.25, 1.0, 4.0):
        row(f"effort {effort:g}", Steer(effort=effort))
    row("Adam", Adam())
    row("Steer, batches of 32", Steer(), 32)
    row("Adam, batches of 32", Adam(), 32)


if __name__ == "__main__":
    main()
