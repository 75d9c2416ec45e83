"""Claims about telling inputs from elsewhere, and about leaving out what is not known."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_metricbnn import Bernoulli, Categorical, Gaussian
from pyro_metricbnn.diagnostics import detection, risk_coverage, selective
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.predictions.prediction import Prediction

SCORES = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


def prediction_of(f: Tensor, likelihood: Likelihood) -> Prediction:
    return Prediction(f=f, likelihood=likelihood, parameters={})


def with_ties(number: int, shift: float = 0.0) -> Tensor:
    return ((torch.randn(number) + shift) * 3).round()


# ---------------------------------------------------------------------------------------- detection


@pytest.mark.parametrize("sizes", [(400, 300), (30, 900), (7, 1)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_figures_are_scikit_learns(sizes: tuple[int, int], tied: bool) -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    inside, outside = (with_ties(n, i) if tied else torch.randn(n) + i for i, n in enumerate(sizes))
    labels, scores = torch.tensor([0] * sizes[0] + [1] * sizes[1]).numpy(), torch.cat([inside, outside]).numpy()
    false, true, _ = theirs.roc_curve(labels, scores, drop_intermediate=False)
    found = detection(inside, outside)
    assert found.auroc == pytest.approx(theirs.roc_auc_score(labels, scores), abs=1e-12)
    assert found.aupr == pytest.approx(theirs.average_precision_score(labels, scores), abs=1e-12)
    assert found.fpr_95 == false[true >= 0.95].min()
    assert found.false_positives.tolist() == false[1:].tolist()  # theirs begins at a threshold above all scores
    assert found.true_positives.tolist() == true[1:].tolist()


def test_the_figures_are_torchmetrics() -> None:
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    inside, outside = torch.rand(200).round(decimals=1), (torch.rand(100) * 0.8 + 0.2).round(decimals=1)
    labels, scores = torch.tensor([0] * 200 + [1] * 100), torch.cat([inside, outside])
    found = detection(inside, outside)
    assert found.auroc == pytest.approx(float(theirs.binary_auroc(scores, labels)), abs=1e-5)
    assert found.aupr == pytest.approx(float(theirs.binary_average_precision(scores, labels)), abs=1e-5)


def test_scores_that_do_not_overlap_are_told_apart_without_an_error() -> None:
    found = detection(torch.rand(50), torch.rand(20) + 1)
    assert (found.auroc, found.aupr, found.fpr_95) == (1.0, 1.0, 0.0)


def test_one_score_for_all_is_useless() -> None:
    found = detection(torch.zeros(30), torch.zeros(10))
    assert (found.auroc, found.aupr, found.fpr_95) == (0.5, 0.25, 1.0)


def test_a_score_that_is_wrong_way_round_has_no_area() -> None:
    assert detection(torch.rand(50) + 1, torch.rand(20)).auroc == 0.0


def test_infinite_scores_are_ranked() -> None:
    assert detection(torch.tensor([0.0, -torch.inf]), torch.tensor([torch.inf, 1.0])).auroc == 1.0


@given(SCORES, SCORES)
@settings(max_examples=60, deadline=None)
def test_the_area_is_the_part_of_pairs_in_the_right_order(inside: list[int], outside: list[int]) -> None:
    pairs = [(a < b) + (a == b) / 2 for a, b in itertools.product(inside, outside)]
    found = detection(torch.tensor(inside), torch.tensor(outside)).auroc
    assert found == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


@given(SCORES, SCORES)
@settings(max_examples=60, deadline=None)
def test_a_rising_function_of_the_scores_changes_no_figure(inside: list[int], outside: list[int]) -> None:
    low, high = torch.tensor(inside), torch.tensor(outside)
    one, two = detection(low, high), detection(low.double().exp() - 9, high.double().exp() - 9)
    assert (one.auroc, one.aupr, one.fpr_95) == (two.auroc, two.aupr, two.fpr_95)


@pytest.mark.parametrize("score", [None, "confidence", "entropy", "mutual_information", "std", "model_std"])
def test_classes_that_draws_disagree_on_are_found_by_every_score(score: str | None) -> None:
    sure, torn = torch.tensor([9.0, 0.0]).repeat(4, 25, 1), 9 * torch.eye(2).repeat(2, 1)[:, None].repeat(1, 25, 1)
    inside, outside = (prediction_of(f + 0.1 * torch.randn(4, 25, 2), Categorical()) for f in (sure, torn))
    assert detection(inside, outside, score=score).auroc == 1.0


def test_a_function_of_the_prediction_is_a_score_too() -> None:
    inside, outside = (prediction_of(torch.randn(8, 20, 1) * scale, Gaussian(0.5)) for scale in (0.1, 2.0))
    found = detection(inside, outside, score=lambda prediction: prediction.model_std.squeeze(-1))
    assert found.auroc == detection(inside, outside).auroc == 1.0


def test_several_outputs_of_an_input_have_one_score() -> None:
    inside, outside = (prediction_of(torch.randn(8, 20, 3) * scale, Bernoulli()) for scale in (9.0, 0.1))
    assert detection(inside, outside).false_positives[-1] == 1.0
    assert detection(inside, outside, score="confidence").auroc > 0.9


def test_detection_prints_one_line() -> None:
    assert str(detection(torch.zeros(3), torch.ones(2))) == "AUROC 1.000, AUPR 1.000, FPR at 95 % TPR 0.000"


# ------------------------------------------------------------------------------- selective prediction


def test_risk_and_area_are_those_computed_by_hand() -> None:
    curve = risk_coverage(torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(curve.risk, torch.tensor([1, 1 / 2, 1 / 3, 1 / 2], dtype=torch.float64))
    torch.testing.assert_close(curve.oracle, torch.tensor([0, 0, 1 / 3, 1 / 2], dtype=torch.float64))
    assert curve.aurc == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.excess == pytest.approx((1 + 1 / 2) / 4)


def test_a_score_that_orders_the_losses_has_no_excess() -> None:
    losses = torch.rand(100)
    assert risk_coverage(losses.exp(), losses).excess == pytest.approx(0.0, abs=1e-12)


def test_a_useless_score_has_the_same_risk_at_every_coverage() -> None:
    losses = torch.rand(100)
    torch.testing.assert_close(risk_coverage(torch.zeros(100), losses).risk, losses.double().mean().expand(100))


def test_ties_count_as_the_mean_over_their_orders() -> None:
    scores, losses = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 3.0, 5.0, 2.0])
    orders = [torch.tensor([0, *order, 4]) for order in itertools.permutations([1, 2, 3])]
    each = torch.stack([risk_coverage(torch.arange(5), losses[order]).risk for order in orders])
    torch.testing.assert_close(risk_coverage(scores, losses).risk, each.mean(0))


@given(SCORES, st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_no_order_is_better_than_the_oracles(scores: list[int], seed: int) -> None:
    losses = torch.rand(len(scores), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    curve = risk_coverage(torch.tensor(scores), losses)
    assert bool((curve.risk >= curve.oracle - 1e-12).all())
    assert float(curve.risk[-1]) == pytest.approx(float(losses.mean()))


@pytest.mark.parametrize(("coverage", "answered"), [(0.07, 7), (0.29, 29), (0.295, 30), (1, 100), (1e-6, 1)])
def test_the_risk_at_a_coverage_is_that_of_as_many_inputs_or_one_more(coverage: float, answered: int) -> None:
    curve = risk_coverage(torch.arange(100), torch.arange(100))
    assert curve.risk_at(coverage) == float(curve.risk[answered - 1])


def test_the_risk_of_all_classes_is_the_error_rate() -> None:
    f, y = torch.randn(5, 60, 3), torch.randint(3, (60,))
    wrong = (prediction_of(f, Categorical()).probs.argmax(-1) != y).double()
    assert selective(prediction_of(f, Categorical()), y).risk_at(1.0) == pytest.approx(float(wrong.mean()))


def test_the_risk_of_all_numbers_is_the_mean_squared_error() -> None:
    f, y = torch.randn(5, 60, 2), torch.randn(60, 2)
    error = float((f.mean(0) - y).square().mean())
    assert selective(prediction_of(f, Gaussian(0.5)), y).risk_at(1.0) == pytest.approx(error, rel=1e-5)


def test_leaving_out_what_is_not_known_lowers_the_error_of_calibrated_probabilities() -> None:
    logits = 3 * torch.randn(4000, 3)
    curve = selective(
        prediction_of(logits[None], Categorical()), torch.distributions.Categorical(logits=logits).sample()
    )
    assert curve.risk_at(0.5) < curve.risk_at(0.8) < curve.risk_at(1.0)
    assert 0 < curve.excess < curve.aurc


def test_selective_prints_one_line() -> None:
    curve = risk_coverage(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert str(curve) == "AURC 0.25, 0 above the best order; risk 0.5 of all"
