"""Claims about rewritten products and the sum of normal priors: the same energy, in fewer and quicker operations."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import vmap

from pyro_metricbnn import BatchedPotential, Gaussian, HeteroscedasticGaussian, bayesianize
from pyro_metricbnn.graphs.tracing import traced
from tests.energies import assert_equal
from tests.models import noise


def targets(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def products(graph: fx.GraphModule) -> list[torch.Size]:
    return [node.meta["val"].shape for node in graph.graph.nodes if "bmm" in str(node.target)]


def product(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    return (x @ weight,)


@pytest.mark.parametrize("columns", [1, 3, 15, 16, 40])
def test_a_product_of_any_width_keeps_its_value_and_layout(columns: int) -> None:
    weights, x = noise(4, 7, columns), noise(30, 7, seed=1)
    (ours,) = traced(vmap(product, (0, None)), weights, x)(weights, x)
    assert ours.is_contiguous()
    assert_equal(ours, x @ weights)


def test_no_product_with_few_columns_is_left() -> None:
    weights, x = noise(4, 7, 3), noise(30, 7, seed=1)
    assert products(traced(vmap(product, (0, None)), weights, x)) == [torch.Size((4, 3, 30))]


def test_a_product_with_fewer_rows_than_columns_is_left_alone() -> None:
    weights, x = noise(4, 7, 3), noise(2, 7, seed=1)
    assert products(traced(vmap(product, (0, None)), weights, x)) == [torch.Size((4, 2, 3))]


def layer(weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor]:
    return (x @ weight + bias,)


def test_a_bias_is_added_in_the_product() -> None:
    inputs = noise(4, 7, 40), noise(4, 40, seed=2), noise(30, 7, seed=1)
    graph = traced(vmap(layer, (0, 0, None)), *inputs)
    assert "aten.baddbmm.default" in targets(graph)
    assert_equal(graph(*inputs)[0], inputs[2] @ inputs[0] + inputs[1][:, None])


def test_a_product_that_is_needed_again_keeps_its_own_operation() -> None:
    def both(weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ weight, x @ weight + bias

    inputs = noise(4, 7, 40), noise(4, 40, seed=2), noise(30, 7, seed=1)
    assert "aten.baddbmm.default" not in targets(traced(vmap(both, (0, 0, None)), *inputs))


def test_a_product_that_is_broadcast_to_a_larger_term_is_left_alone() -> None:
    def wide(weight: Tensor, x: Tensor) -> tuple[Tensor]:
        return (x @ weight + torch.ones(2, 1, 1, dtype=x.dtype),)

    inputs = noise(4, 7, 40), noise(30, 7, seed=1)
    graph = traced(vmap(wide, (0, None)), *inputs)
    assert_equal(graph(*inputs)[0], inputs[1] @ inputs[0][:, None] + torch.ones(1, 2, 1, 1))


# ------------------------------------------------------------------------------- normal priors in one sum


def laplace(name: str, shape: torch.Size) -> Any:
    return dist.Laplace(torch.zeros((), dtype=torch.float64), 1.0)


PRIORS = {"number": 0.7, "by_prefix": {"0": 0.3, "2": 2.0}, "none_normal": laplace}


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Gaussian(), HeteroscedasticGaussian()], ids=str)
@pytest.mark.parametrize("where", [None, "2"])
def test_the_energy_of_a_network_is_the_sum_of_its_sites(
    where: str | None, likelihood: Any, prior: str, temperature: float
) -> None:
    outputs = 2 if isinstance(likelihood, HeteroscedasticGaussian) else 1
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    scale = PRIORS[prior] if where is None or prior != "by_prefix" else 2.0
    model = bayesianize(net, likelihood, prior_scale=scale, where=where)  # type: ignore[arg-type]
    x, y = noise(9, 3), noise(9, 1, seed=1)
    potential = BatchedPotential(model, x, y).at(temperature)
    theta = noise(1, potential.dim)
    values = potential.unflatten(theta[0])
    densities = [model.prior(name).log_prob(values[name]) for name in model.names]
    parameters = {name: value for name, value in values.items() if name not in model.names}
    jacobian = 0.0
    if parameters:
        densities.append(dist.LogNormal(-1.0, 1.5).log_prob(parameters["scale"]))
        jacobian = float(parameters["scale"].log())
    weights = {name: values[name] for name in model.names}
    f = torch.func.functional_call(model.net, weights, (x,))
    densities.append(likelihood.distribution(f, **parameters).log_prob(y).sum())
    energy = -sum(densities) / temperature - jacobian
    torch.testing.assert_close(potential.value(theta)[0], energy)


def test_the_normal_priors_of_a_deep_network_cost_no_more_operations_than_those_of_a_shallow_one() -> None:
    def priors_alone(depth: int) -> int:
        layers = [nn.Linear(4, 4) for _ in range(depth)]
        counts = []
        for prior in (1.0, lambda name, shape: dist.Normal(torch.zeros(()), 1.0)):
            model = bayesianize(nn.Sequential(*layers), Gaussian(1.0), prior_scale=prior)
            potential = BatchedPotential(model, torch.zeros(5, 4), torch.zeros(5, 4)).using(mode="trace")
            potential.value_and_grad(torch.zeros(2, potential.dim))
            (graph,) = potential._graphs.values()
            counts.append(len(targets(graph)))
        return counts[1] - counts[0]

    assert priors_alone(6) > 3 * priors_alone(1) > 0


# ------------------------------------------------------------------------------- matrices with few columns


def two_outputs(weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor]:
    mean, scale = (x @ weight + bias).chunk(2, -1)
    return ((mean * scale).sum(),)


def test_two_outputs_are_rows_that_nothing_lays_out_as_columns() -> None:
    inputs = noise(4, 7, 2), noise(4, 2, seed=2), noise(30, 7, seed=1)
    graph = traced(vmap(two_outputs, (0, 0, None)), *inputs)
    assert products(graph) == [torch.Size((4, 2, 30))]
    assert "aten.clone.default" not in targets(graph)
    expected = torch.stack([two_outputs(w, b, inputs[2])[0] for w, b in zip(*inputs[:2], strict=True)])
    assert_equal(graph(*inputs)[0], expected)


def test_a_view_of_another_shape_gets_the_layout_that_it_relies_on() -> None:
    def flat(weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor]:
        return (torch.tanh(x @ weight + bias).view(-1),)

    inputs = noise(4, 7, 2), noise(4, 2, seed=2), noise(30, 7, seed=1)
    graph = traced(vmap(flat, (0, 0, None)), *inputs)
    assert_equal(graph(*inputs)[0], torch.tanh(inputs[2] @ inputs[0] + inputs[1][:, None]).flatten(1))
