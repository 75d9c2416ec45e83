"""Claims about the units of a last layer on minibatches: its posterior comes out as wide as it is, everywhere."""

from __future__ import annotations

import functools
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, DriftRefineKernel, Gaussian, HeteroscedasticGaussian, Langevin, bayesianize
from pyro_metricbnn.energy import whitening
from pyro_metricbnn.energy.minibatches import Minibatches, MinibatchPotential
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.refiners import langevin

NUM_ROWS, NOISE, BATCH = 2000, 0.5, 100
WIDTHS = torch.logspace(0.5, -1.5, 8)  # of the features: precisions from 1 to 10,000
_generator = torch.Generator().manual_seed(0)
_mixed = torch.linalg.qr(torch.randn(8, 8, generator=_generator))[0]
X = (torch.randn(NUM_ROWS, 8, generator=_generator) * WIDTHS) @ _mixed
LABELS = (X.sum(-1) + torch.randn(NUM_ROWS, generator=_generator) > 0).long()
Y = X @ torch.ones(8, 1) + NOISE * torch.randn(NUM_ROWS, 1, generator=_generator)


def precision() -> Tensor:
    """Of the exact posterior of the weights and the bias."""
    inputs = torch.cat([X, torch.ones(NUM_ROWS, 1)], 1).double()
    return inputs.T @ inputs / NOISE**2 + torch.eye(9)


def root(net: nn.Module, likelihood: Likelihood = Gaussian(NOISE)) -> Tensor | None:  # noqa: B008
    model = bayesianize(net, likelihood)
    potential = MinibatchPotential(model, Minibatches((X, Y), BATCH), NUM_ROWS)
    theta = potential.flatten(
        {
            name: node["value"].detach()
            for name, node in potential.prototype.nodes.items()
            if name in potential.sites.names
        }
    )
    found = whitening.whitening(potential, theta, torch.ones(len(theta)))
    return None if found is None else found[0]


@functools.cache
def walked() -> Any:
    pyro.set_rng_seed(1)
    model = bayesianize(nn.Linear(8, 1), Gaussian(NOISE))
    return DriftRefineKernel(model, refiner=Langevin()).walk(X, Y, batch_size=BATCH, progress=False)


def test_the_root_is_that_of_the_inverse_precision_of_a_linear_network() -> None:
    found = root(nn.Linear(8, 1))
    assert found is not None
    torch.testing.assert_close(
        found.double() @ precision() @ found.double(), torch.eye(9).double(), atol=0.02, rtol=0.02
    )


def test_a_walk_has_the_deviations_of_the_posterior_in_every_direction() -> None:
    values, vectors = torch.linalg.eigh(precision())
    points = walked().thetas[:, 1:].flatten(0, 1).double() @ vectors
    ratios = points.std(0) * values.sqrt()
    assert float(ratios.min()) > 0.85
    assert float(ratios.max()) < 1.2


def test_the_recorded_ground_has_the_root() -> None:
    assert walked().ground.measured["root"].shape == (9, 9)


def test_the_root_at_points_is_that_of_the_mean_of_their_hessians() -> None:
    potential = MinibatchPotential(
        bayesianize(nn.Linear(8, 2), Categorical()), Minibatches((X, LABELS), BATCH), NUM_ROWS
    )
    points = torch.randn(NUM_ROWS // BATCH, potential.dim)
    scale = torch.ones(potential.dim)
    found = whitening.whitening_at(potential, points, scale)[0].double()
    each = [batch_hessian(potential, point) for point in points]
    torch.testing.assert_close(found @ torch.stack(each).mean(0) @ found, torch.eye(18).double(), atol=0.3, rtol=0.1)


def batch_hessian(potential: MinibatchPotential, point: Tensor) -> Tensor:
    """Of all rows, as if they were the batch's: of two classes, where p (1 - p) says how sure a row is."""
    values = potential.unflatten(point)
    weight, bias = values["weight"].double(), values["bias"].double()
    inputs = torch.cat([X, torch.ones(NUM_ROWS, 1)], 1).double()
    p = (X.double() @ weight.T + bias).softmax(-1)[:, 0]
    one = (inputs * (p * (1 - p))[:, None]).T @ inputs  # of either class, and minus it between them
    order = [*range(8), 16, *range(8, 16), 17]  # weights of the first class, its bias, those of the second
    whole = torch.kron(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double(), one) + torch.eye(18).double()
    back = [order.index(i) for i in range(18)]
    return whole[back][:, back]


def test_half_of_the_approach_on_the_units_are_those_of_where_the_particles_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def noted(*given: Any) -> Any:
        seen.append((given[1], whitening.whitening_at(*given)))
        return seen[-1][1]

    monkeypatch.setattr(langevin, "whitening_at", noted)
    kernel = DriftRefineKernel(bayesianize(nn.Linear(8, 1), Gaussian(NOISE)), refiner=Langevin(effort=0.1))
    walk = kernel.walk(X, Y, num_particles=5, batch_size=BATCH, progress=False)
    ((points, (root, _)),) = seen
    assert points.unique(dim=0).shape == (5, 9)
    assert walk.ground is not None
    assert bool((walk.ground.measured["root"] == root).all())


@pytest.mark.parametrize(
    "net", [nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)), nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))]
)
def test_a_network_that_is_not_linear_in_its_weights_is_left_alone(net: nn.Module) -> None:
    assert root(net) is None


def test_a_layer_whose_hessian_would_take_long_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whitening, "MOST_WEIGHTS", 8)
    assert root(nn.Linear(8, 1)) is None


@pytest.mark.parametrize(("outputs", "likelihood"), [(1, Gaussian()), (2, HeteroscedasticGaussian())])
def test_a_layer_whose_noise_is_inferred_is_left_alone(outputs: int, likelihood: Likelihood) -> None:
    assert root(nn.Linear(8, outputs), likelihood) is None
