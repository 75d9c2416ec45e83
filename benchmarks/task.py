"""A problem with its trained network: what every method is given.

In: a `Problem`, a likelihood and the hidden layers.  Out: `Task`, whose network holds the MAP of a normal prior.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from pyro_metricbnn import BatchedPotential, Categorical, HeteroscedasticGaussian, bayesianize
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.model.network import BayesianNetwork
from pyro_metricbnn.predictions.prediction import Prediction

from .datasets import Problem
from .networks import mlp

TRAINING_STEPS = 1500
LEARNING_RATE = 1e-2
PAPER_DECAY = 0.01  # of the squared weights' half, on the mean loss


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem, and the network that all methods start from.

    Args:
        problem: Training, validation and test rows.
        net: The network with its trained weights.
        likelihood: What its output means.
        hidden: Units of the hidden layers.
        activation: Between them.
        prior_scale: Deviation of the normal prior of each weight.
        num_training_steps: Full-batch Adam steps that a network takes; a method that trains others takes as many.
        seconds: What training the network took.
        share: The part of the full work that a method does: 1 in the tables, less for a quick look.
        kind: What the paper would call it, of `MetricBNN.paper`: its settings differ; None for "uci" or "regression".
    """

    problem: Problem
    net: nn.Module
    likelihood: Likelihood
    hidden: tuple[int, ...]
    activation: type[nn.Module] = nn.ReLU
    prior_scale: float = 1.0
    num_training_steps: int = TRAINING_STEPS
    seconds: float = 0.0
    share: float = 1.0
    kind: str | None = None

    def count(self, full: int, least: int = 2) -> int:
        """So many steps, draws or members of the full number as the share of the work asks for."""
        return max(least, round(full * self.share))

    @property
    def noise_variance(self) -> float:
        """Of the observations, 1 for classes: energies are that much steeper, so rates of descent take it as unit."""
        scale = getattr(self.likelihood, "scale", 1.0)
        return float(scale) ** 2

    def with_noise_output(self, part: float) -> Task:
        """The same with networks of a second output, the noise's, that are trained for that part of the steps."""
        likelihood = HeteroscedasticGaussian()
        net = _network(self.problem, likelihood, self.hidden, self.activation)
        num_steps = round(part * self.num_training_steps)
        return replace(self, likelihood=likelihood, net=net, num_training_steps=num_steps)

    @cached_property
    def model(self) -> BayesianNetwork:
        """The network as a Pyro model."""
        return bayesianize(self.net, self.likelihood, prior_scale=self.prior_scale)

    @cached_property
    def theta_star(self) -> Tensor:
        """The trained weights, flat (D,), in the order of `potential()`."""
        # Finding the sites draws from the prior: with the generator left alone, a method's draws do not depend on
        # whether another one has asked for this before.
        with torch.random.fork_rng(devices=[]):
            return self.potential(1).flatten({name: value.detach() for name, value in self.net.named_parameters()})

    def potential(self, num_calls: int) -> BatchedPotential:
        """The energy of many networks at once, traced, or compiled where so many calls are worth it."""
        return BatchedPotential(self.model, self.problem.x, self.problem.y).using(expected_calls=num_calls)

    def new_networks(self, count: int) -> list[nn.Module]:
        """Untrained networks of the same kind."""
        return [_network(self.problem, self.likelihood, self.hidden, self.activation) for _ in range(count)]

    def outputs(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The network's output for weights (S, ...) by name: (S, n, C)."""
        with torch.no_grad():
            return vmap(lambda w: functional_call(self.net, w, (x,)), chunk_size=200)(dict(weights))

    def prediction(self, f: Tensor) -> Prediction:
        """Outputs (S, n, C) as a prediction under the task's likelihood."""
        return Prediction(f=f, likelihood=self.likelihood, parameters={})


def trained(
    problem: Problem,
    likelihood: Likelihood,
    hidden: tuple[int, ...] = (32, 32),
    *,
    activation: type[nn.Module] = nn.ReLU,
    prior_scale: float = 1.0,
    num_training_steps: int = TRAINING_STEPS,
    share: float = 1.0,
    as_paper: bool = False,
    kind: str | None = None,
) -> Task:
    """The task of a problem: one network, trained to the MAP, or as the paper trains its own."""
    net = _network(problem, likelihood, hidden, activation)
    untrained = Task(
        problem=problem,
        net=net,
        likelihood=likelihood,
        hidden=hidden,
        activation=activation,
        prior_scale=prior_scale,
        num_training_steps=num_training_steps,
        share=share,
        kind=kind,
    )
    begin = time.perf_counter()
    if as_paper:
        train_as_paper(untrained)
    else:
        (weights,) = train_together(untrained, [net])
        net.load_state_dict(weights)
    seconds = time.perf_counter() - begin
    values = {name: getattr(untrained, name) for name in untrained.__dataclass_fields__}
    return Task(**{**values, "net": net, "seconds": seconds})


def paper_prior_scale(problem: Problem) -> float:
    """Deviation of the prior that the paper's decay of the weights stands for: N(0, 100 / n) for n training rows."""
    return (PAPER_DECAY * len(problem.x)) ** -0.5


def train_together(task: Task, nets: list[nn.Module]) -> list[dict[str, Tensor]]:
    """The trained weights of networks that all descend at once, by Adam on the energy, with a falling rate."""
    num_steps = task.count(task.num_training_steps)
    potential = task.potential(num_steps)
    named = [dict(net.named_parameters()) for net in nets]
    theta = potential.flatten({name: torch.stack([one[name].detach() for one in named]) for name in named[0]})
    optimizer = torch.optim.Adam([theta], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        theta.grad = potential.grad(theta)
        optimizer.step()
        schedule.step()
    weights = potential.unflatten(theta)
    return [{name: value[i] for name, value in weights.items()} for i in range(len(nets))]


def train_as_paper(task: Task) -> None:
    """Train the task's network in place as the paper does on UCI data: Adam at 1e-3, batches of 32, 1,000 epochs."""
    x, y = task.problem.x, task.problem.y
    optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-3, weight_decay=PAPER_DECAY)
    for _ in range(task.count(1000)):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            cross_entropy(task.net(x[rows]), y[rows]).backward()
            optimizer.step()


def _network(
    problem: Problem, likelihood: Likelihood, hidden: tuple[int, ...], activation: type[nn.Module]
) -> nn.Module:
    if isinstance(likelihood, Categorical):
        num_outputs = int(problem.y.max()) + 1
    else:
        num_outputs = 2 if isinstance(likelihood, HeteroscedasticGaussian) else 1
    return mlp(problem.x.shape[1], *hidden, num_outputs, activation=activation)
