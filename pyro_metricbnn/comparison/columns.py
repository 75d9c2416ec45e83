"""The columns of the table that compares posteriors: what each says, and which end of it is good.

In: the key of a figure.  Out: its `Column`; with a figure for each posterior, a `Score`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One figure of the table.

    Args:
        key: Its name in the data frame.
        title: Its name in the report.
        good: Which end of it is good; a number where that number is.
        digits: After the point.
        meaning: A sentence that says what it is.
        error: The key of the column with its standard error, which the report puts beside it.
    """

    key: str
    title: str
    good: Literal["low", "high"] | float | None
    digits: int
    meaning: str
    error: str | None = None


@dataclass(frozen=True)
class Heading:
    """What columns stand under, and what is to be known of all of them."""

    title: str
    note: str = ""


@dataclass(frozen=True)
class Score:
    """A column, the heading that it stands under, and the figure of each posterior by name.

    Args:
        column: What the figures are.
        heading: What it stands under.
        figures: By the posterior's name; NaN where it has none.
        outside: A posterior that is not in the race: the reference, where others are compared with it.
    """

    column: Column
    heading: Heading
    figures: Mapping[str, float]
    outside: str | None = None

    def text(self, name: str) -> str:
        """The figure as it is printed."""
        figure = self.figures[name]
        return "–" if math.isnan(figure) else f"{figure:.{self.column.digits}f}".replace("-", "−")

    @property
    def best(self) -> set[str]:
        """The posteriors that print the best figure; none where all print the same."""
        good = self.column.good
        known = {n: figure for n, figure in self.figures.items() if n != self.outside and not math.isnan(figure)}
        if good is None or len({self.text(name) for name in known}) < 2:
            return set()
        signs = {"low": 1.0, "high": -1.0}
        far = {n: signs[good] * f if isinstance(good, str) else abs(f - good) for n, f in known.items()}
        winner = min(far, key=far.__getitem__)
        return {name for name in known if self.text(name) == self.text(winner)}


_COLUMNS = (
    # predictions
    Column(
        "nll", "NLL", "low", 3, "Negative log predictive density of an observation: how surprised the posterior was."
    ),
    Column("rmse", "RMSE", "low", 3, "Root mean square error of the mean prediction, in units of y."),
    Column("crps", "CRPS", "low", 3, "Continuous ranked probability score, in units of y: error and width in one."),
    Column("coverage_90", "coverage", 0.9, 3, "Share of the observations in the central 90 % interval: 0.9 is honest."),
    Column(
        "width_90", "width", None, 3, "Mean width of that interval, in units of y: at equal coverage, narrow is good."
    ),
    Column("accuracy", "accuracy", "high", 3, "How often the likeliest class was right."),
    Column("brier", "Brier score", "low", 3, "Squared error of the probabilities, summed over the classes."),
    Column("ece", "ECE", "low", 3, "Expected calibration error: how far confidence is from accuracy, on average."),
    # leave-one-out
    Column(
        "elpd_loo",
        "elpd",
        "high",
        2,
        "Log predictive density of each observation given all the others, summed; ± its standard error.",
        error="elpd_se",
    ),
    Column("elpd_se", "SE of elpd", None, 2, "Standard error of elpd."),
    Column(
        "elpd_diff",
        "behind the best",
        None,
        2,
        "Difference of elpd; within two standard errors of 0 it cannot be told from the best.",
        error="elpd_diff_se",
    ),
    Column("elpd_diff_se", "SE of the difference", None, 2, "Standard error of the difference."),
    Column("num_bad_k", "Pareto k > 0.7", None, 0, "Observations whose leave-one-out figure cannot be trusted."),
    # agreement
    Column(
        "wasserstein", "distance of predictions", "low", 3, "Wasserstein distance of new observations, in units of y."
    ),
    Column("wasserstein_f", "distance of functions", "low", 3, "Wasserstein distance of the network's outputs."),
    Column("top_1", "same class", "high", 3, "How often the likeliest classes are the same."),
    Column("total_variation", "total variation", "low", 3, "Half the summed difference of the class probabilities."),
    Column("mean_error", "worst mean", "low", 2, "Largest distance of a coordinate's mean, in reference deviations."),
    Column(
        "std_ratio", "worst deviation", 1.0, 2, "A coordinate's deviation over the reference's: the farthest from 1."
    ),
    # mixing
    Column("r_hat", "worst R-hat", 1.0, 2, "Where the chains agree least: below 1.05 is good."),
    Column("ess", "least ESS", "high", 0, "The smallest effective sample size: 400 is comfortable."),
    # cost
    Column(
        "draws", "draws", None, 0, "Draws that the figures come from; the chains' own figures come from all of theirs."
    ),
    Column("seconds", "seconds", "low", 1, "As the caller measured them."),
)
COLUMNS = {column.key: column for column in _COLUMNS}
