"""Claims about ordinary Pyro models with the defaults, against long runs of NUTS (benchmarks/pyro_models.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyro
import pytest
import torch
from torch import Tensor

from benchmarks.pyro_models import CASES, NUM_DRAWS, Case, compare, read_reference, run, supports
from pyro_metricbnn import BatchedPotential, find_map

Moments = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """What a run with the defaults gave."""

    case: Case
    walk: dict[str, Tensor]
    draws: dict[str, Tensor]
    reference: Moments


@pytest.fixture(scope="module", params=[pytest.param(case, marks=pytest.mark.slow, id=case.name) for case in CASES])
def outcome(request: pytest.FixtureRequest) -> Outcome:
    case: Case = request.param
    metric, _ = run(case, seed=0)
    return Outcome(case, metric.get_samples(), metric.draw(NUM_DRAWS), read_reference()[case.name])


@pytest.mark.parametrize("kind", ["walk", "draws"])
def test_samples_are_in_the_support_of_every_site(outcome: Outcome, kind: str) -> None:
    for name, support in supports(outcome.case).items():
        assert support.check(getattr(outcome, kind)[name]).all(), name


def test_draws_have_the_shapes_of_the_models_sites(outcome: Outcome) -> None:
    nodes = pyro.poutine.trace(outcome.case.model).get_trace(*outcome.case.args).nodes
    for name, draws in outcome.draws.items():
        assert draws.shape == (NUM_DRAWS, *nodes[name]["value"].shape)


def test_means_of_draws_are_within_half_a_posterior_deviation(outcome: Outcome) -> None:
    worst = compare(outcome.draws, outcome.reference)
    assert abs(worst.mean) <= 0.5, worst


def test_deviations_of_draws_are_within_a_quarter(outcome: Outcome) -> None:
    worst = compare(outcome.draws, outcome.reference)
    assert 0.75 <= worst.deviation <= 1.25, worst


# ----------------------------------------------------------------------- the reference, where it is known


def conjugate() -> dict[str, torch.distributions.Distribution]:
    """Posteriors in closed form, from the priors that the models state."""
    data = {case.name: case.args[0] for case in CASES}
    y, counts, shares = data["normal_mean"], data["gamma_poisson"], data["dirichlet_multinomial"]
    variance = 1 / (1 / 10.0**2 + len(y) / 2.0**2)
    return {
        "normal_mean": torch.distributions.Normal(variance * y.sum() / 2.0**2, variance**0.5),
        "gamma_poisson": torch.distributions.Gamma(2.0 + counts.sum(), 0.5 + len(counts)),
        "beta_binomial": torch.distributions.Beta(1.0 + data["beta_binomial"], 21.0 - data["beta_binomial"]),
        "dirichlet_multinomial": torch.distributions.Dirichlet(1.0 + shares),
    }


@pytest.mark.parametrize("name", ["normal_mean", "gamma_poisson", "beta_binomial", "dirichlet_multinomial"])
def test_the_reference_agrees_with_conjugate_posteriors(name: str) -> None:
    exact = conjugate()[name]
    (moments,) = read_reference()[name].values()
    deviation = exact.variance.sqrt()
    assert ((moments["mean"] - exact.mean).abs() <= 0.1 * deviation).all()
    assert ((moments["deviation"] / deviation - 1).abs() <= 0.1).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_out_of_one_neck_the_search_does_not_fall_into_the_next(seed: int) -> None:
    """Two scales in a row: of this model walks would take millions of gradients from either neck."""
    (case,) = (case for case in CASES if case.name == "nested_plates")
    pyro.set_rng_seed(seed)
    with pytest.warns(UserWarning, match="falls into a funnel"):
        estimate = find_map(BatchedPotential(case.model, *case.args), progress=False)
    assert set(estimate.unbounded) == {"school_scale", "class_scale"}
