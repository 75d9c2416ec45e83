"""Long Hamiltonian Monte Carlo chains: the posterior that approximations are measured against.

    python -m benchmarks.reference --data DIR --out DIR [--sets glass ...] [--chains 8] [--iterations 1000]

All chains move at once on the compiled energy; each leaves a network of its own, trained from its own start. The
leapfrog steps' length is found in the warm-up, a trajectory is a quarter of the prior's period. Writes the function
values at the test inputs of split 0, (chains, iterations, n, classes), and prints their R-hat.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import pyro
import torch
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor
from torch.func import functional_call, vmap
from tqdm import tqdm

from pyro_metricbnn import BatchedPotential, Categorical, bayesianize
from pyro_metricbnn.refiners.dynamics import ValueAndGrad

from .cold_start import networks, train_all
from .datasets import UCI, Problem, uci

PATH = math.pi / 2  # in the prior's deviations
WANTED = 0.8  # acceptance
NUM_STARTS = 50  # trajectories in which the step grows from a small one
MOST_STEPS = 1000  # of the leapfrog a trajectory


def leapfrog(
    value_and_grad: ValueAndGrad, theta: Tensor, momentum: Tensor, grad: Tensor, eps: Tensor
) -> tuple[Tensor, ...]:
    """One step of all chains: theta, momentum, energy and gradient after it."""
    momentum = momentum - eps / 2 * grad
    theta = theta + eps * momentum
    energy, grad = value_and_grad(theta)
    return theta, momentum - eps / 2 * grad, energy, grad


def hmc(
    potential: BatchedPotential,
    theta: Tensor,
    warmup: int,
    iterations: int,
    label: str | None = None,
    path: float = PATH,
    num_starts: int = NUM_STARTS,
    most_steps: int = MOST_STEPS,
) -> Tensor:
    """Chains from theta (C, D): their points (iterations, C, D); with a label their progress is shown."""
    step = potential.inside(leapfrog)
    energy, grad = potential.value_and_grad(theta)
    log_eps, kept = math.log(1e-3), []
    bar = tqdm(range(warmup + iterations), desc=label, mininterval=10, disable=label is None)
    for i in bar:
        eps = math.exp(log_eps) * float(0.8 + 0.4 * torch.rand(()))
        length = path if i >= num_starts else path / 10
        momentum = torch.randn_like(theta)
        state = (theta, momentum, energy, grad)
        for _ in range(min(most_steps, max(1, round(length / eps)))):
            new_theta, new_momentum, new_energy, new_grad = step(
                state[0], state[1], state[3], torch.as_tensor(eps, dtype=theta.dtype)
            )
            state = (new_theta, new_momentum, new_energy, new_grad)
        before = energy + momentum.pow(2).sum(-1) / 2
        after = state[2] + state[1].pow(2).sum(-1) / 2
        accept = (before - after).exp().nan_to_num().clamp_max(1)
        taken = torch.rand_like(accept) < accept
        theta, grad = (torch.where(taken[:, None], a, b) for a, b in ((state[0], theta), (state[3], grad)))
        energy = torch.where(taken, state[2], energy)
        if i < warmup:
            log_eps += (float(accept.mean()) - WANTED) / (1 + i / 20) ** 0.6
        else:
            kept.append(theta)
        bar.set_postfix(eps=f"{eps:.1e}", accept=f"{accept.mean():.2f}", energy=f"{energy.mean():.0f}", refresh=False)
    return torch.stack(kept)


def chains(problem: Problem, num_chains: int, warmup: int, iterations: int) -> Tensor:
    """Function values at the test inputs: (chains, iterations, n, classes)."""
    nets = networks(problem, num_chains)
    params = train_all(nets, problem)
    model = bayesianize(nets[0], Categorical())
    potential = BatchedPotential(model, problem.x, problem.y).using(mode="compile", expected_calls=10**6)
    theta = potential.flatten({name: value.detach() for name, value in params.items()})
    draws = hmc(potential, theta, warmup, iterations, problem.name)
    weights = potential.unflatten(draws.flatten(0, 1))
    with torch.no_grad():
        f = vmap(lambda w: functional_call(nets[0], w, (problem.x_test,)), chunk_size=100)(weights)
    return f.reshape(iterations, num_chains, *f.shape[1:]).transpose(0, 1)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chains and write their function values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the function values")
    parser.add_argument("--sets", nargs="+", default=UCI, choices=UCI)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--iterations", type=int, default=1000)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets:
        pyro.set_rng_seed(1000)
        begin = time.perf_counter()
        f = chains(uci(arguments.data, name, 0), arguments.chains, arguments.warmup, arguments.iterations)
        torch.save(f, arguments.out / f"{name}.pt")
        r_hat = split_gelman_rubin(f - f.mean(-1, keepdim=True), chain_dim=0, sample_dim=1)
        seconds = time.perf_counter() - begin
        print(f"{name}: R-hat median {r_hat.median():.3f}, largest {r_hat.max():.3f}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
