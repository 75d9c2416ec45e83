"""Claims about what a walk may not depend on: the order of particles, and the order of hidden units."""

from dataclasses import replace

import pyro
import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import Adam, BatchedPotential, Descent, Gaussian, Steer, bayesianize
from pyro_metricbnn.refiners.refiner import Refiner
from pyro_metricbnn.refiners.state import Ground, Particles

X = torch.linspace(-2, 2, 30, dtype=torch.float64)[:, None]
Y = torch.sin(2 * X)
REFINERS = [Steer(path=2.0, decoherence=float("inf")), Descent(alpha=0.1, mean_loss=True), Adam(num_refinements=5)]
NUM_UNITS, NUM_PARTICLES, NUM_STEPS = 20, 5, 4


def network(seed: int = 0) -> nn.Sequential:
    pyro.set_rng_seed(seed)
    return nn.Sequential(
        nn.Linear(1, NUM_UNITS), nn.Tanh(), nn.Linear(NUM_UNITS, NUM_UNITS), nn.Tanh(), nn.Linear(NUM_UNITS, 1)
    ).double()


def permuted(net: nn.Sequential, order: Tensor) -> nn.Sequential:
    """The same function: the first layer's units in another order."""
    weights = net.state_dict()
    moved = {name: weights[name][order] for name in ("0.weight", "0.bias")}
    other = network()
    other.load_state_dict({**weights, **moved, "2.weight": weights["2.weight"][:, order]})
    return other


def ground_of(net: nn.Module) -> Ground:
    potential = BatchedPotential(bayesianize(net, Gaussian(0.3)), X, Y)
    theta = potential.flatten({name: value.detach() for name, value in net.named_parameters()})
    ground = Ground(potential, theta, torch.ones_like(theta), NUM_STEPS, NUM_PARTICLES)
    ground.measured["curvature"] = 1000.0  # found from random starts, which would differ
    return ground


def walked(ground: Ground, refiner: Refiner, particles: Particles) -> Tensor:
    """The points (N, T, D) of a walk without noise."""
    ground, particles = refiner.approach(ground, particles)
    points = []
    for _ in range(NUM_STEPS):
        particles, _ = refiner.advance(ground, particles)
        points.append(particles.theta)
    return torch.stack(points, dim=1)


@pytest.mark.parametrize("refiner", REFINERS)
def test_particles_in_another_order_walk_the_same_paths(refiner: Refiner) -> None:
    ground = ground_of(network())
    particles = refiner.start(ground, ground.theta_star.expand(NUM_PARTICLES, -1))
    order = torch.tensor([3, 0, 4, 1, 2])
    others = replace(particles, drift=particles.drift[order])
    paths, other_paths = (walked(ground, refiner, group) for group in (particles, others))
    torch.testing.assert_close(other_paths, paths[order], rtol=1e-9, atol=1e-10)
    assert not torch.allclose(other_paths, paths)


@pytest.mark.parametrize("refiner", REFINERS)
def test_hidden_units_in_another_order_walk_the_same_paths_in_that_order(refiner: Refiner) -> None:
    net = network()
    order = torch.randperm(NUM_UNITS)
    ground, other_ground = ground_of(net), ground_of(permuted(net, order))
    by_name = ground.potential.unflatten(torch.arange(ground.potential.dim, dtype=torch.float64))
    moved = {**by_name, "0.weight": by_name["0.weight"][order], "0.bias": by_name["0.bias"][order]}
    moved["2.weight"] = by_name["2.weight"][:, order]
    index = other_ground.potential.flatten(moved).long()  # where each coordinate of the other comes from
    assert torch.equal(other_ground.theta_star, ground.theta_star[index])
    stars = [one.theta_star.expand(NUM_PARTICLES, -1) for one in (ground, other_ground)]
    particles = refiner.start(ground, stars[0])
    others = replace(refiner.start(other_ground, stars[1]), drift=particles.drift[:, index])
    paths, other_paths = walked(ground, refiner, particles), walked(other_ground, refiner, others)
    torch.testing.assert_close(other_paths, paths[..., index], rtol=1e-8, atol=1e-9)
