"""Claims about the memory that a traced graph keeps: the same bits, no memory that a caller holds, threads apart."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from pyro_metricbnn import BatchedPotential, Categorical, HeteroscedasticGaussian, bayesianize
from pyro_metricbnn.graphs import workspace
from pyro_metricbnn.graphs.tracing import traced
from pyro_metricbnn.graphs.workspace import Workspace, in_workspace
from tests.models import noise

ROWS, WIDTH = 400, 20


def loss(theta: Tensor, x: Tensor) -> Tensor:
    """Of two layers whose values are used again, kept as a view, and written by a copy."""
    first, second = theta[: 3 * WIDTH].reshape(3, WIDTH), theta[3 * WIDTH :].reshape(WIDTH, WIDTH)
    hidden = torch.tanh(x @ first)
    again = torch.relu(hidden @ second) + hidden
    return (again.t().contiguous().sum(0) - hidden[:, 0]).pow(2).sum() + again.mean()


def energies() -> tuple[Any, tuple[Tensor, Tensor]]:
    inputs = noise(4, 3 * WIDTH + WIDTH**2), noise(ROWS, 3, seed=1)
    return traced(vmap(grad_and_value(loss), (0, None)), *inputs), inputs


def test_a_graph_in_kept_memory_gives_the_same_bits_at_every_call() -> None:
    graph, (theta, x) = energies()
    kept = in_workspace(graph)
    assert len(kept.places) >= 2
    for point in (theta, 2 * theta, theta):
        assert all(map(torch.equal, kept(point, x), graph(point, x)))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus])
@pytest.mark.parametrize("likelihood", [HeteroscedasticGaussian(), Categorical()])
def test_a_network_in_kept_memory_has_the_energy_that_vmap_gives(activation: Any, likelihood: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 30), activation(), nn.LayerNorm(30), nn.Linear(30, 2)).double()
    x = noise(ROWS, 3)
    y = x[:, :1] if isinstance(likelihood, HeteroscedasticGaussian) else (x[:, 0] > 0).long()
    potential = BatchedPotential(bayesianize(net, likelihood), x, y)
    theta = noise(4, potential.dim, seed=2)
    for ours, plain in zip(
        potential.using(mode="trace").value_and_grad(theta),
        potential.using(mode="vmap").value_and_grad(theta),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


def test_a_result_is_not_written_over_by_the_next_call() -> None:
    graph, (theta, x) = energies()
    kept = in_workspace(graph)
    first = kept(theta, x)
    copies = [value.clone() for value in first]
    kept(3 * theta, x)
    assert all(map(torch.equal, first, copies))


def test_a_large_result_that_is_given_back_is_new_memory() -> None:
    graph = traced(lambda x: (torch.tanh(x).exp(),), noise(100, 200))
    kept = in_workspace(graph)
    first, second = kept(noise(100, 200))[0], kept(noise(100, 200, seed=1))[0]
    assert first.data_ptr() != second.data_ptr()


def test_a_step_that_a_later_one_needs_keeps_its_place() -> None:
    def late(x: Tensor) -> tuple[Tensor]:
        early = torch.exp(x)
        other = torch.tanh(torch.sin(torch.cos(early)))
        return ((early - other).sum(0),)

    x = noise(100, 200)
    assert torch.equal(in_workspace(traced(late, x))(x)[0], late(x)[0])


def test_each_thread_has_memory_of_its_own() -> None:
    graph, (theta, x) = energies()
    kept = in_workspace(graph)
    points = [theta * (1 + i) for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda point: kept(point, x), points))
    assert all(torch.equal(ours[0], graph(point, x)[0]) for ours, point in zip(found, points, strict=True))


def test_what_would_keep_too_much_memory_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_KEPT", 10)
    graph, inputs = energies()
    kept = in_workspace(graph)
    assert not kept.places
    assert all(map(torch.equal, kept(*inputs), graph(*inputs)))


def test_kept_memory_is_not_pickled() -> None:
    graph, inputs = energies()
    kept = in_workspace(graph)
    before = kept(*inputs)
    there: Workspace = pickle.loads(pickle.dumps(kept))
    assert len(pickle.dumps(kept)) < 4 * sum(of.shape.numel() * of.dtype.itemsize for of in kept.places)
    assert all(map(torch.equal, there(*inputs), before))


class Compared(nn.Module):
    """Rows, or tokens of a row, less the first of them: one tensor is read twice, whole and in part."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of = of

    def forward(self, h: Tensor) -> Tensor:
        if self.of == "rows":
            return h - h[:1]
        tokens = h.unflatten(-1, (6, 5))
        return (tokens - tokens[:, 1:2].expand_as(tokens)).flatten(1)


@pytest.mark.parametrize("of", ["rows", "tokens"])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU, nn.ELU])
def test_what_is_still_read_through_a_view_is_not_written_over(activation: Any, of: str) -> None:
    net = nn.Sequential(nn.Linear(3, 30), activation(), Compared(of), nn.Linear(30, 2)).double()
    x = noise(ROWS, 3)
    potential = BatchedPotential(bayesianize(net, Categorical()), x, (x[:, 0] > 0).long())
    theta = noise(4, potential.dim, seed=2)
    for ours, plain in zip(
        potential.using(mode="trace").value_and_grad(theta),
        potential.using(mode="vmap").value_and_grad(theta),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)
