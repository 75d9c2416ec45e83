"""Claims about R-hat and effective sample size of functions."""

import arviz
import pytest
import torch
from pyro.infer import MCMC
from torch import Tensor, nn

from pyro_metricbnn import Categorical, DriftRefineKernel, Gaussian, MetricBNN, Steer, bayesianize
from pyro_metricbnn.diagnostics import ess, function_mixing, r_hat
from pyro_metricbnn.diagnostics.mixing import rank_normalized
from pyro_metricbnn.model.network import BayesianNetwork

from .runs import X, Y, regression


def network_samples(num_chains: int = 3, num_draws: int = 20, num_outputs: int = 1) -> dict[str, Tensor]:
    """Independent normal weights of a network 1-4-num_outputs, by chain."""
    shapes = {"0.weight": (4, 1), "0.bias": (4,), "2.weight": (num_outputs, 4), "2.bias": (num_outputs,)}
    return {name: torch.randn(num_chains, num_draws, *shape) for name, shape in shapes.items()}


def network(num_outputs: int = 1, likelihood: Gaussian | Categorical | None = None) -> BayesianNetwork:
    return bayesianize(
        nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, num_outputs)), likelihood or Gaussian(1.0)
    )


# -------------------------------------------------------------------------------------- the figures


def test_r_hat_of_independent_draws_is_near_one() -> None:
    assert float(r_hat(torch.randn(4, 500, 10)).max()) < 1.02


def test_effective_size_of_independent_draws_is_their_number() -> None:
    assert float(ess(torch.randn(4, 500, 10)).median()) == pytest.approx(2000, rel=0.15)


def test_r_hat_of_shifted_chains_is_large() -> None:
    assert float(r_hat(torch.randn(4, 100) + 3 * torch.arange(4)[:, None])) > 1.5


def test_r_hat_sees_chains_of_different_spreads() -> None:
    assert float(r_hat(torch.randn(2, 500) * torch.tensor([[1.0], [10.0]]))) > 1.2


def test_r_hat_does_not_mind_heavy_tails() -> None:
    assert float(r_hat(torch.distributions.Cauchy(0.0, 1.0).sample((4, 500)))) < 1.02


def test_r_hat_of_chains_that_each_stand_still_is_infinite() -> None:
    assert float(r_hat(torch.tensor([1.0, 2.0])[:, None].expand(2, 10))) == float("inf")


def test_a_value_that_never_changes_counts_as_mixed() -> None:
    still = torch.ones(3, 10, 2)
    assert r_hat(still).tolist() == [1.0, 1.0]
    assert ess(still).tolist() == [30.0, 30.0]


def test_effective_size_of_slow_chains_is_small() -> None:
    walks = torch.randn(4, 400).cumsum(-1)
    assert float(ess(walks)) < 40


def test_effective_sizes_stay_in_bounds_where_draws_alternate() -> None:
    alternating = torch.randn(4, 100) * 0.01 + torch.tensor([1.0, -1.0]).repeat(50)
    assert 0 < float(ess(alternating)) <= 400 * 2.7


@pytest.mark.parametrize("slow", [False, True])
def test_r_hat_is_arvizs(slow: bool) -> None:
    values = torch.randn(4, 101, dtype=torch.float64)
    values = values.cumsum(1) if slow else values
    assert float(r_hat(values)) == pytest.approx(float(arviz.rhat(values.numpy())), rel=1e-6)


def test_effective_size_is_near_arvizs() -> None:
    values = torch.randn(4, 200, dtype=torch.float64)
    for t in range(1, 200):
        values[:, t] = 0.7 * values[:, t - 1] + values[:, t]
    assert float(ess(values)) == pytest.approx(float(arviz.ess(values.numpy())), rel=0.1)


def test_ties_share_a_rank() -> None:
    scores = rank_normalized(torch.tensor([[[1.0], [2.0], [2.0], [3.0]]], dtype=torch.float64))
    torch.testing.assert_close(scores.flatten()[1:3], torch.zeros(2, dtype=torch.float64))


# ------------------------------------------------------------------------------------ of functions


def test_exchanging_hidden_units_in_one_chain_changes_nothing() -> None:
    samples, order = network_samples(), torch.tensor([2, 0, 3, 1])
    other = {name: value.clone() for name, value in samples.items()}
    for name, dim in (("0.weight", 1), ("0.bias", 1), ("2.weight", 2)):
        other[name][0] = other[name][0].index_select(dim, order)
    one, two = (function_mixing(network(), these, X) for these in (samples, other))
    torch.testing.assert_close(one.r_hat, two.r_hat, atol=1e-3, rtol=1e-3)
    assert float((r_hat(samples["0.weight"]) - r_hat(other["0.weight"])).abs().max()) > 1e-3


def test_a_shift_of_all_logits_by_draw_changes_nothing() -> None:
    samples = network_samples(num_outputs=3)
    shifted = {**samples, "2.bias": samples["2.bias"] + 10 * torch.arange(3)[:, None, None]}
    one, two = (function_mixing(network(3, Categorical()), these, X) for these in (samples, shifted))
    torch.testing.assert_close(one.r_hat, two.r_hat, atol=1e-3, rtol=1e-3)


def test_chunks_of_rows_mix_the_same() -> None:
    samples = network_samples()
    one, two = (function_mixing(network(), samples, X, chunk_size=size) for size in (None, 7))
    torch.testing.assert_close(one.ess, two.ess, rtol=1e-3, atol=1e-3)


def test_a_walk_and_an_mcmc_run_both_have_a_figure_for_each_output(metric: MetricBNN) -> None:
    kernel = DriftRefineKernel(regression(), refiner=Steer(path=1), num_steps=8)
    mcmc = MCMC(kernel, num_samples=8, warmup_steps=1, disable_progbar=True)
    mcmc.run(X, Y)
    for run in (metric, mcmc):
        mixing = function_mixing(regression(), run.get_samples(group_by_chain=True), X)
        assert mixing.r_hat.shape == mixing.ess.shape == (40, 1)
        assert mixing.worst_r_hat >= mixing.median_r_hat
        assert mixing.worst_ess <= mixing.median_ess


def test_it_prints_the_worst_and_the_median() -> None:
    said = str(function_mixing(network(), network_samples(), X))
    assert "R-hat of 40 function values: median 1." in said
    assert "worst" in said


def test_samples_without_chains_are_refused() -> None:
    flat = {name: value[0] for name, value in network_samples().items()}
    with pytest.raises(ValueError, match="group_by_chain=True"):
        function_mixing(network(), flat, X)


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4 draws"):
        function_mixing(network(), network_samples(num_draws=3), X)


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="1 of the values are not finite"):
        r_hat(torch.tensor([[0.0, 1.0, float("nan"), 2.0]]))


def test_models_without_a_network_are_refused(groups: MetricBNN) -> None:
    with pytest.raises(ValueError, match="bayesianize"):
        function_mixing(groups.model, groups.get_samples(group_by_chain=True), X)  # type: ignore[arg-type]


def test_samples_that_lack_a_site_are_refused() -> None:
    samples = network_samples()
    del samples["2.bias"]
    with pytest.raises(ValueError, match=r"lack the site '2\.bias'"):
        function_mixing(network(), samples, X)
