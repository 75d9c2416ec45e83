"""The figures of the table that compares posteriors.

In: the `Evidence` about each posterior.  Out: `Score`s, a column with a figure for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..diagnostics.agreement import agreement
from ..diagnostics.calibration import ClassCalibration, RealCalibration
from ..predictions.pointwise import Draws
from ..predictions.prediction import Prediction
from .columns import COLUMNS, Heading, Score
from .evidence import LEVELS, Evidence
from .task import Task

NAN = float("nan")
Row = dict[str, float]  # figures by key


def score(
    task: Task, evidence: Sequence[Evidence], reference: str | None, seconds: Mapping[str, float]
) -> tuple[Score, ...]:
    """All columns that any posterior has a figure for, in the order of the table."""
    part = "test" if task.has_test else "train"
    names = [one.contender.name for one in evidence]
    scores = [
        replace(one, column=replace(one.column, key=f"{part}_{one.column.key}"))
        for one in _columns(_about_predictions(task), names, [predictive_figures(one) for one in evidence])
    ]
    heading = Heading("Leave-one-out", "By Pareto-smoothed importance sampling, from exact log-likelihoods.")
    scores += _columns(heading, names, leave_one_out_figures(evidence))
    if reference is not None:
        of = evidence[names.index(reference)]
        scores += [
            replace(one, outside=reference)
            for one in _columns(_about_agreement(reference), names, [agreement_figures(one, of) for one in evidence])
        ]
    rows: list[Row] = [{"r_hat": one.r_hat, "ess": one.ess} for one in evidence]
    scores += _columns(_about_mixing(task), names, rows)
    rows = [{"draws": float(one.contender.num_draws)} for one in evidence]
    if seconds:
        rows = [{**row, "seconds": float(seconds.get(name, NAN))} for name, row in zip(names, rows, strict=True)]
    return (*scores, *_columns(Heading("Cost"), names, rows))


def _about_predictions(task: Task) -> Heading:
    if task.has_test:
        return Heading("Predictions of the test data")
    return Heading(
        "Predictions of the data themselves", "The posteriors have seen them: for honest figures pass test data."
    )


def _about_agreement(reference: str) -> Heading:
    note = f"For {reference} itself, of the two halves of its draws: nearer than those are, nothing can be told apart."
    return Heading(f"Agreement with {reference}", note)


def _about_mixing(task: Task) -> Heading:
    what = "function values at the data's inputs" if task.is_network else "all coordinates"
    return Heading("Mixing of the chains", f"Of {what}. The chains of a MetricBNN are its walks; a guide has none.")


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


# -------------------------------------------------------------------------------------- leave-one-out


def leave_one_out_figures(evidence: Sequence[Evidence]) -> list[Row]:
    """Each posterior's elpd, and how far it is behind the best, observation by observation."""
    seen = torch.stack([one.elpd for one in evidence]).ne(0).any(0)  # a mask makes it 0 for all
    each = [one.elpd[seen] for one in evidence]
    totals = [float(elpd.sum()) if len(elpd) else NAN for elpd in each]
    known = [place for place, total in enumerate(totals) if not math.isnan(total)]
    best = each[max(known, key=totals.__getitem__)] if known else NAN
    rows = []
    for one, elpd, total in zip(evidence, each, totals, strict=True):
        gap = elpd - best
        rows.append(
            {
                "elpd_loo": total,
                "elpd_se": _standard_error(elpd),
                "elpd_diff": float(gap.sum()) if len(gap) else NAN,
                "elpd_diff_se": _standard_error(gap),
                "num_bad_k": one.num_bad_k,
            }
        )
    return rows


def _standard_error(each: Tensor) -> float:
    """Of the sum of independent figures (n,)."""
    return math.sqrt(len(each)) * float(each.std()) if len(each) > 1 else NAN


# ------------------------------------------------------------------------------------------ agreement


def agreement_figures(one: Evidence, reference: Evidence) -> Row:
    """How near a posterior is to the reference; the reference itself, how near its two halves are to each other.

    Nearer than those halves nothing can be told apart.
    """
    if one.prediction is not None and reference.prediction is not None:
        is_reference = one is reference
        pair = _prediction_halves(one.prediction) if is_reference else (one.prediction, reference.prediction)
        return dict(vars(agreement(*pair)))
    draws, of = _halves(one.contender.draws) if one is reference else (one.contender.draws, reference.contender.draws)
    return moments_apart(draws, of)


def _prediction_halves(prediction: Prediction) -> tuple[Prediction, Prediction]:
    first, second = _halves({**prediction.parameters, "f": prediction.f})
    return _with_draws(prediction, first), _with_draws(prediction, second)


def _with_draws(prediction: Prediction, draws: Draws) -> Prediction:
    return replace(prediction, f=draws["f"], parameters={name: draws[name] for name in prediction.parameters})


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
