"""Claims about the posterior as a Pyro autoguide."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from torch import nn

from pyro_metricbnn import AutoMetric, MetricBNN, TrajectoryPosterior

from .runs import GROUPS, X


def test_stock_predictive_takes_the_guide(metric: MetricBNN) -> None:
    drawn = Predictive(metric.model, guide=metric.guide, num_samples=6)(X[:9])
    assert drawn["obs"].shape == drawn["f"].shape == (6, 9, 1)


def test_the_elbo_is_finite(groups: MetricBNN) -> None:
    assert torch.isfinite(torch.tensor(Trace_ELBO().loss(groups.model, groups.guide, GROUPS)))


def test_a_guides_trace_replays_in_the_model(groups: MetricBNN) -> None:
    guide_trace = poutine.trace(groups.guide).get_trace(GROUPS)
    model_trace = poutine.trace(poutine.replay(groups.model, guide_trace)).get_trace(GROUPS)
    assert torch.equal(model_trace.nodes["effect"]["value"], guide_trace.nodes["effect"]["value"])
    assert [frame.name for frame in guide_trace.nodes["effect"]["cond_indep_stack"]] == ["groups"]


def test_median_and_quantiles_need_no_data(groups: MetricBNN) -> None:
    quantiles = groups.guide.quantiles([0.1, 0.5, 0.9])
    assert quantiles["effect"].shape == (3, 6)
    assert (quantiles["spread"].diff(dim=0) > 0).all()
    assert torch.equal(groups.guide.median()["spread"], quantiles["spread"][1])


def test_pickling_a_guide_leaves_the_live_one_whole(groups: MetricBNN) -> None:
    copy = pickle.loads(pickle.dumps(groups.guide))
    assert groups.guide.model is not None
    groups.guide(GROUPS)
    assert copy.sample_posterior(3)["effect"].shape == (3, 6)


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (
            lambda guide: guide.double(),
            "from torch.float32 to torch.float64.*run on data and a network in torch.float64",
        ),
        (lambda guide: guide.half(), "to torch.float16"),
        (lambda guide: guide.to(torch.bfloat16), "to torch.bfloat16"),
        (lambda guide: nn.ModuleList([guide]).double(), "to torch.float64"),
        (lambda guide: guide.to("meta"), r"from cpu to meta.*MetricBNN.load\(path, model, device='meta'\)"),
        (lambda guide: guide.state_dict(), r"the posterior lost: metric.save\(path\) keeps it"),
        (lambda guide: Predictive(guide.model, guide=guide, num_samples=2).state_dict(), "metric.save"),
    ],
)
def test_a_guide_says_what_it_cannot_do_as_a_module(groups: MetricBNN, move: Callable[..., Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        move(groups.guide)
    assert groups.guide.sample_posterior(2)["effect"].dtype == torch.float32


def test_a_guide_may_go_where_it_is(groups: MetricBNN) -> None:
    guide = groups.guide
    assert guide.float().to("cpu").to(GROUPS).eval().requires_grad_(False) is guide
    assert guide.share_memory() is guide
    guide.train()


def test_a_copy_of_a_guide_draws_the_same(groups: MetricBNN) -> None:
    draws = []
    for guide in (groups.guide, copy.deepcopy(groups.guide)):
        torch.manual_seed(3)
        draws.append(guide.sample_posterior(4)["effect"])
    assert torch.equal(*draws)


@pytest.mark.filterwarnings("ignore")  # what traces is deprecated
def test_a_traced_guide_draws_anew(groups: MetricBNN) -> None:
    traced = torch.jit.trace_module(groups.guide, {"call": (GROUPS,)}, check_trace=False)
    one, two = traced.call(GROUPS), traced.call(GROUPS)
    assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_sites_come_out_constrained_and_in_their_plates(groups: MetricBNN) -> None:
    trace = poutine.trace(groups.guide).get_trace(GROUPS)
    assert trace.nodes["spread"]["value"] > 0
    torch.testing.assert_close(trace.nodes["share"]["value"].sum(), torch.tensor(1.0))
    assert trace.nodes["effect"]["value"].shape == (6,)


def test_every_call_of_the_guide_draws_anew(groups: MetricBNN) -> None:
    one, two = groups.guide(GROUPS), groups.guide(GROUPS)
    assert not torch.equal(one["effect"], two["effect"])


def test_the_same_seed_gives_the_same_draws(groups: MetricBNN) -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(groups.guide.sample_posterior(4)["effect"])
    assert torch.equal(*draws)


def test_the_guides_density_is_the_posteriors_with_the_jacobians(groups: MetricBNN) -> None:
    trace = poutine.trace(groups.guide).get_trace(GROUPS)
    trace.compute_log_prob()
    (latent,) = [
        node for node in trace.nodes.values() if node["type"] == "sample" and node["infer"].get("is_auxiliary")
    ]
    torch.testing.assert_close(latent["log_prob"], groups.posterior.log_prob(latent["value"]))


def test_a_mean_field_elbo_is_finite_too(groups: MetricBNN) -> None:
    assert torch.isfinite(torch.tensor(TraceMeanField_ELBO().loss(groups.model, groups.guide, GROUPS)))


def test_quantiles_are_those_of_many_draws(groups: MetricBNN) -> None:
    drawn = groups.draw(20_000)["mean"].quantile(torch.tensor([0.1, 0.9]))
    torch.testing.assert_close(groups.guide.quantiles([0.1, 0.9])["mean"], drawn, atol=0.06, rtol=0)


def test_the_guide_works_under_predictive_in_parallel_and_in_turn(groups: MetricBNN) -> None:
    for parallel in (False, True):
        drawn = Predictive(groups.model, guide=groups.guide, num_samples=5, parallel=parallel)(GROUPS)
        assert drawn["effect"].reshape(5, 6).shape == (5, 6)


def test_the_guide_leaves_the_param_store_empty(groups: MetricBNN) -> None:
    groups.guide(GROUPS)
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("kind", ["walk", "gaussian"])
def test_the_simpler_posteriors_make_guides_too(groups: MetricBNN, kind: str) -> None:
    walk = groups.trajectories
    points = walk.thetas[:, 1:].flatten(0, 1)
    normal = dist.Normal(points.mean(0), points.std(0)).to_event(1)
    posterior = TrajectoryPosterior(walk, tube_scale=1e-3) if kind == "walk" else normal
    guide = AutoMetric(groups.model, posterior, walk.sites, (GROUPS,), {})
    assert guide.sample_posterior(4)["effect"].shape == (4, 6)
    assert (guide.quantiles([0.1, 0.9])["spread"].diff(dim=0) > 0).all()
    assert torch.isfinite(torch.tensor(Trace_ELBO().loss(groups.model, guide, GROUPS)))
