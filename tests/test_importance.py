"""Claims about k-hat."""

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal
from torch import Tensor

from pyro_metricbnn import MetricBNN, k_hat
from pyro_metricbnn.diagnostics.importance import pareto_k

from .runs import GROUPS, X, Y, hierarchical

DATA = torch.tensor([1.0, 2.0, 3.0])  # with a standard normal prior and unit noise the posterior is N(1.5, 0.5)


def conjugate(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(mean[..., 0], 1.0), obs=y)


def normal_guide(widening: float) -> Any:
    """The posterior of `conjugate` itself, or a narrower or wider one."""

    def guide(y: Tensor) -> None:
        center, scale = torch.tensor([1.5, 0.0]), torch.tensor([0.5, 1.0]) * widening
        pyro.sample("mean", dist.Normal(center, scale).to_event(1))

    return guide


def test_a_guide_that_is_the_posterior_has_a_small_k() -> None:
    assert k_hat(conjugate, normal_guide(1.0), DATA) < 0.5


def test_a_guide_that_is_a_little_wider_has_a_small_k() -> None:
    assert k_hat(conjugate, normal_guide(1.2), DATA) < 0.5


def test_a_guide_that_is_far_too_narrow_has_a_large_k() -> None:
    assert k_hat(conjugate, normal_guide(0.3), DATA) > 0.7


@pytest.mark.parametrize("guide", [AutoNormal, AutoDiagonalNormal])
def test_pyros_guides_have_one_on_constrained_sites_too(guide: Any) -> None:
    wide, narrow = (guide(hierarchical, init_scale=scale) for scale in (0.7, 1e-3))
    wide_k, narrow_k = (k_hat(hierarchical, one, GROUPS, num_samples=200) for one in (wide, narrow))
    assert wide_k < narrow_k


def test_the_density_of_a_constrained_site_counts_its_jacobian() -> None:
    def model() -> None:
        pyro.sample("scale", dist.LogNormal(torch.zeros(()), 0.5))

    def guide() -> None:
        pyro.sample("scale", dist.LogNormal(torch.zeros(()), 0.5))

    assert k_hat(model, guide) < 0.5


def test_the_latent_posterior_has_one(metric: MetricBNN) -> None:
    assert k_hat(metric.model, metric.guide, X, Y, num_samples=100) > 0.7  # a tube around curves: as documented


def test_chunks_give_the_same_k() -> None:
    figures = []
    for size in (7, 200):
        pyro.set_rng_seed(1)
        figures.append(k_hat(conjugate, normal_guide(0.5), DATA, num_samples=200, chunk_size=size))
    assert figures[0] == pytest.approx(figures[1], rel=1e-6)


@pytest.mark.parametrize("k", [0.3, 1.0])
def test_the_tail_index_of_known_ratios_is_found(k: float) -> None:
    ratios = torch.rand(20000, dtype=torch.float64) ** -k  # Pareto: the tail index is k
    assert pareto_k(ratios.log()) == pytest.approx(k, abs=0.12)


def test_equal_ratios_have_no_tail() -> None:
    assert pareto_k(torch.full((200,), 3.0)) == 0.0


def test_ratios_of_which_one_outweighs_all_have_an_infinite_k() -> None:
    assert pareto_k(torch.linspace(-1e6, 0, 200)) == float("inf")


def test_a_density_that_is_not_finite_makes_k_infinite() -> None:
    assert pareto_k(torch.tensor([0.0, float("nan"), 1.0])) == float("inf")


def test_a_guide_of_one_point_is_refused() -> None:
    with pytest.raises(ValueError, match="no density"):
        k_hat(conjugate, AutoDelta(conjugate), DATA)


def test_a_guide_that_lacks_a_site_is_refused() -> None:
    with pytest.raises(ValueError, match="site 'mean'"):
        k_hat(conjugate, lambda y: pyro.sample("other", dist.Normal(0.0, 1.0)), DATA)


@pytest.mark.parametrize("numbers", [{"num_samples": 50}, {"chunk_size": 0}])
def test_counts_that_are_too_small_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        k_hat(conjugate, normal_guide(1.0), DATA, **numbers)
