"""The table that compares posteriors: its columns, what each says and which end of it is good, and all figures.

In: the `Evidence` about each posterior.  Out: `Score`s, a column with a figure for each.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..diagnostics.agreement import agreement
from ..diagnostics.calibration import ClassCalibration, RealCalibration
from ..predictions.pointwise import Draws
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
_ROWS: tuple[tuple[Any, ...], ...] = (  # the fields of a Column
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
    ("elpd_loo", "elpd", "high", 2, _ELPD, "elpd_se"),
    ("elpd_se", "SE of elpd", None, 2, "Standard error of elpd."),
    ("elpd_diff", "behind the best", None, 2, _BEHIND, "elpd_diff_se"),
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
COLUMNS = {row[0]: Column(*row) for row in _ROWS}


def score(
    task: Task, evidence: Sequence[Evidence], reference: str | None, seconds: Mapping[str, float]
) -> tuple[Score, ...]:
    """All columns that any posterior has a figure for, in the order of the table."""
    names = [one.contender.name for one in evidence]
    heading, part = Heading("Predictions of the test data"), "test_"
    if not task.has_test:
        note = "The posteriors have seen them: for honest figures pass test data."
        heading, part = Heading("Predictions of the data themselves", note), "train_"
    scores = _columns(heading, names, map(predictive_figures, evidence), part)
    heading = Heading("Leave-one-out", "By Pareto-smoothed importance sampling, from exact log-likelihoods.")
    scores += _columns(heading, names, leave_one_out_figures(evidence))
    if reference is not None:
        of, told = evidence[names.index(reference)], "nearer than those are, nothing can be told apart."
        note = f"For {reference} itself, of the two halves of its draws: {told}"
        heading = Heading(f"Agreement with {reference}", note, outside=reference)
        scores += _columns(heading, names, (agreement_figures(one, of) for one in evidence))
    what = "function values at the data's inputs" if task.is_network else "all coordinates"
    note = f"Of {what}. The chains of a MetricBNN are its walks; a guide has none."
    heading = Heading("Mixing of the chains", note)
    scores += _columns(heading, names, ({"r_hat": one.r_hat, "ess": one.ess} for one in evidence))
    draws = [float(one.contender.num_draws) for one in evidence]
    costs = [{"draws": d, "seconds": float(seconds.get(n, NAN))} for n, d in zip(names, draws, strict=True)]
    return (*scores, *_columns(Heading("Cost"), names, costs))


def _columns(heading: Heading, names: Sequence[str], rows: Iterable[Row], prefix: str = "") -> list[Score]:
    by_name = dict(zip(names, rows, strict=True))
    by_key = {key: {name: row[key] for name, row in by_name.items()} for key in by_name[names[0]]}
    known = {key: each for key, each in by_key.items() if not all(map(math.isnan, each.values()))}
    return [Score(replace(COLUMNS[key], key=prefix + key), heading, each) for key, each in known.items()]


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
    prediction, of = one.prediction, reference.prediction
    if prediction is None or of is None:
        pair = [one.contender.draws, reference.contender.draws]
        return moments_apart(*(_halves(pair[0]) if one is reference else pair))
    if one is not reference:
        return vars(agreement(prediction, of))
    halves = _halves({**prediction.parameters, "f": prediction.f})
    return vars(agreement(*(replace(prediction, f=half.pop("f"), parameters=half) for half in halves)))


def _halves(draws: Draws) -> list[Draws]:
    """The first and the last half of the draws: of several chains, different ones. One draw is both."""
    total = len(next(iter(draws.values())))
    half = max(1, total // 2)
    return [{name: v[part] for name, v in draws.items()} for part in (slice(half), slice(total - half, total))]


def moments_apart(draws: Draws, reference: Draws) -> Row:
    """The worst mean and the worst deviation of all coordinates, in units of the reference's deviations."""
    pair = [[value.double().cpu().reshape(len(value), -1) for value in one.values()] for one in (draws, reference)]
    flat, flat_of = (torch.cat(values, dim=1) for values in pair)  # (S, D)
    deviation_of = flat_of.std(0, correction=0)
    moves = deviation_of > 0
    if not bool(moves.any()):
        return {"mean_error": NAN, "std_ratio": NAN}
    errors = ((flat.mean(0) - flat_of.mean(0)).abs() / deviation_of)[moves]
    ratios = (flat.std(0, correction=0) / deviation_of)[moves]
    return {"mean_error": float(errors.max()), "std_ratio": float(ratios[ratios.log().abs().argmax()])}
