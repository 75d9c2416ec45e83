"""The table that compares posteriors: its columns, what each says and which end of it is good, and all figures.

In: the `Evidence` about each posterior.  Out: `Score`s, a column with a figure for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..diagnostics.agreement import agreement
from ..diagnostics.calibration import ClassCalibration, RealCalibration
from ..predictions.pointwise import Draws
from ..predictions.prediction import Prediction
from .contenders import Task
from .evidence import LEVELS, Evidence

NAN = float("nan")
Good = Literal["low", "high"] | float | None
Row = dict[str, float]  # figures by key


@dataclass(frozen=True)
class Column:
    """One figure of the table."""

    key: str  # its name in the data frame
    title: str  # its name in the report
    good: Good  # which end of it is good; a number where that number is
    digits: int  # after the point
    meaning: str  # a sentence that says what it is
    error: str | None = None  # the key of the column with its standard error, which the report puts beside it


@dataclass(frozen=True)
class Heading:
    """What columns stand under, what is to be known of all of them, and who is not in the race for the best of them."""

    title: str
    note: str = ""
    outside: str | None = None


@dataclass(frozen=True)
class Score:
    """A column, the heading that it stands under, and the figure of each posterior by name; NaN where it has none."""

    column: Column
    heading: Heading
    figures: Mapping[str, float]

    def text(self, name: str) -> str:
        """The figure as it is printed."""
        figure = self.figures[name]
        return "–" if math.isnan(figure) else f"{figure:.{self.column.digits}f}".replace("-", "−")

    @property
    def best(self) -> set[str]:
        """The posteriors that print the best figure; none where all print the same."""
        good = self.column.good
        known = {n: f for n, f in self.figures.items() if n != self.heading.outside and not math.isnan(f)}
        if good is None or len({self.text(name) for name in known}) < 2:
            return set()
        signs = {"low": 1.0, "high": -1.0}
        far = {n: signs[good] * f if isinstance(good, str) else abs(f - good) for n, f in known.items()}
        winner = min(far, key=far.__getitem__)
        return {name for name in known if self.text(name) == self.text(winner)}


_ELPD = "Log predictive density of each observation given all the others, summed; ± its standard error."
_BEHIND = "Difference of elpd; within two standard errors of 0 it cannot be told from the best."
_ROWS: tuple[tuple[str, str, Good, int, str], ...] = (
    # predictions
    ("nll", "NLL", "low", 3, "Negative log predictive density of an observation: how surprised the posterior was."),
    ("rmse", "RMSE", "low", 3, "Root mean square error of the mean prediction, in units of y."),
    ("crps", "CRPS", "low", 3, "Continuous ranked probability score, in units of y: error and width in one."),
    ("coverage_90", "coverage", 0.9, 3, "Share of the observations in the central 90 % interval: 0.9 is honest."),
    ("width_90", "width", None, 3, "Mean width of that interval, in units of y: at equal coverage, narrow is good."),
    ("accuracy", "accuracy", "high", 3, "How often the likeliest class was right."),
    ("brier", "Brier score", "low", 3, "Squared error of the probabilities, summed over the classes."),
    ("ece", "ECE", "low", 3, "Expected calibration error: how far confidence is from accuracy, on average."),
    # leave-one-out
    ("elpd_loo", "elpd", "high", 2, _ELPD),
    ("elpd_se", "SE of elpd", None, 2, "Standard error of elpd."),
    ("elpd_diff", "behind the best", None, 2, _BEHIND),
    ("elpd_diff_se", "SE of the difference", None, 2, "Standard error of the difference."),
    ("num_bad_k", "Pareto k > 0.7", None, 0, "Observations whose leave-one-out figure cannot be trusted."),
    # agreement
    ("wasserstein", "distance of predictions", "low", 3, "Wasserstein distance of new observations, in units of y."),
    ("wasserstein_f", "distance of functions", "low", 3, "Wasserstein distance of the network's outputs."),
    ("top_1", "same class", "high", 3, "How often the likeliest classes are the same."),
    ("total_variation", "total variation", "low", 3, "Half the summed difference of the class probabilities."),
    ("mean_error", "worst mean", "low", 2, "Largest distance of a coordinate's mean, in reference deviations."),
    ("std_ratio", "worst deviation", 1.0, 2, "A coordinate's deviation over the reference's: the farthest from 1."),
    # mixing
    ("r_hat", "worst R-hat", 1.0, 2, "Where the chains agree least: below 1.05 is good."),
    ("ess", "least ESS", "high", 0, "The smallest effective sample size: 400 is comfortable."),
    # cost
    ("draws", "draws", None, 0, "Draws that the figures come from; the chains' own figures come from all of theirs."),
    ("seconds", "seconds", "low", 1, "As the caller measured them."),
)
_ERRORS = {"elpd_loo": "elpd_se", "elpd_diff": "elpd_diff_se"}
COLUMNS = {row[0]: Column(*row, error=_ERRORS.get(row[0])) for row in _ROWS}


def score(
    task: Task, evidence: Sequence[Evidence], reference: str | None, seconds: Mapping[str, float]
) -> tuple[Score, ...]:
    """All columns that any posterior has a figure for, in the order of the table."""
    names = [one.contender.name for one in evidence]
    heading = Heading("Predictions of the test data")
    if not task.has_test:
        note = "The posteriors have seen them: for honest figures pass test data."
        heading = Heading("Predictions of the data themselves", note)
    part = "test" if task.has_test else "train"
    scores = [
        replace(one, column=replace(one.column, key=f"{part}_{one.column.key}"))
        for one in _columns(heading, names, [predictive_figures(one) for one in evidence])
    ]
    heading = Heading("Leave-one-out", "By Pareto-smoothed importance sampling, from exact log-likelihoods.")
    scores += _columns(heading, names, leave_one_out_figures(evidence))
    if reference is not None:
        of = evidence[names.index(reference)]
        note = (
            f"For {reference} itself, of the two halves of its draws: nearer than those are, nothing can be told apart."
        )
        heading = Heading(f"Agreement with {reference}", note, outside=reference)
        scores += _columns(heading, names, [agreement_figures(one, of) for one in evidence])
    what = "function values at the data's inputs" if task.is_network else "all coordinates"
    note = f"Of {what}. The chains of a MetricBNN are its walks; a guide has none."
    mixing = [{"r_hat": one.r_hat, "ess": one.ess} for one in evidence]
    scores += _columns(Heading("Mixing of the chains", note), names, mixing)
    known = [float(seconds.get(name, NAN)) for name in names]
    costs = [{"draws": float(e.contender.num_draws), "seconds": s} for e, s in zip(evidence, known, strict=True)]
    return (*scores, *_columns(Heading("Cost"), names, costs))


def _columns(heading: Heading, names: Sequence[str], rows: Sequence[Row]) -> list[Score]:
    by_key = {key: {name: row[key] for name, row in zip(names, rows, strict=True)} for key in rows[0]}
    known = {key: each for key, each in by_key.items() if not all(map(math.isnan, each.values()))}
    return [Score(COLUMNS[key], heading, each) for key, each in known.items()]


def predictive_figures(evidence: Evidence) -> Row:
    """How good a network's predictions are; nothing for other models."""
    found, place = evidence.calibration, LEVELS.index(0.9)
    if isinstance(found, ClassCalibration):
        return {"nll": found.nll, "accuracy": found.accuracy, "brier": found.brier, "ece": found.ece}
    if isinstance(found, RealCalibration):
        interval = {"coverage_90": found.coverage[place], "width_90": found.width[place]}
        return {"nll": found.nll, "rmse": found.rmse, "crps": found.crps, **interval}
    return {}


def leave_one_out_figures(evidence: Sequence[Evidence]) -> list[Row]:
    """Each posterior's elpd, and how far it is behind the best, observation by observation."""
    seen = torch.stack([one.elpd for one in evidence]).ne(0).any(0)  # a mask makes it 0 for all
    each = [one.elpd[seen] for one in evidence]
    totals = [float(elpd.sum()) if len(elpd) else NAN for elpd in each]
    known = [place for place, total in enumerate(totals) if not math.isnan(total)]
    best = each[max(known, key=totals.__getitem__)] if known else NAN
    return [
        {
            "elpd_loo": total,
            "elpd_se": _standard_error(elpd),
            "elpd_diff": float((elpd - best).sum()) if len(elpd) else NAN,
            "elpd_diff_se": _standard_error(elpd - best),
            "num_bad_k": one.num_bad_k,
        }
        for one, elpd, total in zip(evidence, each, totals, strict=True)
    ]


def _standard_error(each: Tensor) -> float:
    """Of the sum of independent figures (n,)."""
    return math.sqrt(len(each)) * float(each.std()) if len(each) > 1 else NAN


def agreement_figures(one: Evidence, reference: Evidence) -> Row:
    """How near a posterior is to the reference; the reference itself, how near its two halves are to each other."""
    if one.prediction is not None and reference.prediction is not None:
        pair = (one.prediction, reference.prediction) if one is not reference else _prediction_halves(one.prediction)
        return dict(vars(agreement(*pair)))
    draws, of = _halves(one.contender.draws) if one is reference else (one.contender.draws, reference.contender.draws)
    return moments_apart(draws, of)


def _prediction_halves(prediction: Prediction) -> tuple[Prediction, Prediction]:
    halves = _halves({**prediction.parameters, "f": prediction.f})
    first, second = (replace(prediction, f=half.pop("f"), parameters=half) for half in halves)
    return first, second


def _halves(draws: Draws) -> tuple[Draws, Draws]:
    """The first and the last half of the draws: of several chains, different ones. One draw is both."""
    total = len(next(iter(draws.values())))
    half = max(1, total // 2)
    return {name: v[:half] for name, v in draws.items()}, {name: v[total - half :] for name, v in draws.items()}


def moments_apart(draws: Draws, reference: Draws) -> Row:
    """The worst mean and the worst deviation of all coordinates, in units of the reference's deviations."""
    (mean, deviation), (mean_of, deviation_of) = (_moments(one) for one in (draws, reference))
    moves = deviation_of > 0
    if not bool(moves.any()):
        return {"mean_error": NAN, "std_ratio": NAN}
    ratio = (deviation / deviation_of)[moves]
    return {
        "mean_error": float(((mean - mean_of).abs() / deviation_of)[moves].max()),
        "std_ratio": float(ratio[ratio.log().abs().argmax()]),
    }


def _moments(draws: Draws) -> tuple[Tensor, Tensor]:
    """Mean and deviation of all coordinates, (D,) each."""
    flat = torch.cat([value.double().cpu().reshape(len(value), -1) for value in draws.values()], dim=1)
    return flat.mean(0), flat.std(0, correction=0)
