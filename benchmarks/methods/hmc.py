"""Hamiltonian Monte Carlo (Neal, 2011) from the MAP; a trajectory is a quarter of the prior's period.

"HMC" moves eight chains at once on the compiled energy, by the code of the reference. "HMC (Pyro)" is one chain of
Pyro's kernel on the same energy. Its leapfrog step costs four times what the gradient does: 0.48 ms on Glass, against
0.05 ms a step and chain of the eight. The step that is accepted four times of five is 0.004 long there, so a trajectory
takes 400.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import HMC, MCMC
from torch import Tensor

from .. import reference
from ..differentiable import differentiable
from ..task import Task
from .method import FromDraws, Method, Predictor

PATH = math.pi / 2  # in the prior's deviations
NUM_CHAINS = 8
NUM_WARMUP = 100
NUM_DRAWS = 50  # of each of the eight chains; twice as many of Pyro's one
MOST_STEPS = 500  # of the leapfrog a trajectory
JITTER = 0.2  # of a trajectory's length, either way


class JitteredHMC(HMC):
    """Pyro's HMC with trajectories of random length, and not more leapfrog steps than `MOST_STEPS` on average.

    Of one length, they come back to where they began in every direction whose period divides it: of 1,000 draws of a
    Gaussian in three dimensions, 23 were effective. Without the limit, the first steps tried make them endless.
    """

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of the next trajectory, drawn anew."""
        factor = 1 + JITTER * (2 * float(torch.rand(())) - 1)
        return max(1, round(factor * min(MOST_STEPS, super().num_steps)))


def energy_of_one(task: Task, num_calls: int) -> Callable[[dict[str, Tensor]], Tensor]:
    """The energy as Pyro's kernels want it: of a dictionary with one theta (D,)."""
    energy = differentiable(task.potential(num_calls), task.theta_star[None])
    return lambda values: energy(values["theta"][None])[0]


def run(task: Task, kernel: Any, num_warmup: int, num_draws: int) -> Tensor:
    """The points of one chain of Pyro's from the MAP: (num_draws, D)."""
    start = {"theta": task.theta_star.clone()}
    mcmc = MCMC(kernel, num_draws, num_warmup, initial_params=start, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples()["theta"]


def pyro_chain(task: Task, num_warmup: int, num_draws: int) -> Tensor:
    """The points of one chain of Pyro's HMC: (num_draws, D)."""
    energy = energy_of_one(task, (num_warmup + num_draws) * MOST_STEPS)
    kernel = JitteredHMC(
        potential_fn=energy, step_size=1e-2, trajectory_length=PATH * task.prior_scale, adapt_mass_matrix=False
    )
    return run(task, kernel, num_warmup, num_draws)


def chains(task: Task, num_chains: int, num_warmup: int, num_draws: int) -> Tensor:
    """The points of chains that move at once: (num_draws * num_chains, D)."""
    path = PATH * task.prior_scale
    potential = task.potential((num_warmup // 2 + num_draws) * MOST_STEPS)
    start = task.theta_star.expand(num_chains, -1).clone()
    points = reference.hmc(
        potential, start, num_warmup, num_draws, path=path, num_starts=num_warmup // 2, most_steps=MOST_STEPS
    )
    return points.flatten(0, 1)


def predictor(task: Task, draws: Tensor) -> Predictor:
    """What points (S, D) predict."""
    weights = task.potential(1).unflatten(draws)
    return FromDraws(lambda x: task.prediction(task.outputs(weights, x)), weights)


def fit(task: Task) -> Predictor:
    """The points of eight chains."""
    return predictor(task, chains(task, NUM_CHAINS, task.count(NUM_WARMUP, 10), task.count(NUM_DRAWS, 5)))


def fit_pyro(task: Task) -> Predictor:
    """The points of Pyro's chain."""
    return predictor(task, pyro_chain(task, task.count(NUM_WARMUP, 5), task.count(2 * NUM_DRAWS, 5)))


CITE = "Neal, MCMC using Hamiltonian dynamics, 2011"
METHODS = (Method("HMC", fit, cite=CITE), Method("HMC (Pyro)", fit_pyro, cite=CITE))
