"""What was found of each temperature, or of each scale of the prior, and which one is taken.

In: the negative log predictive density of each held-out row, by value.  Out: `TemperatureScores`, `PriorScores`.
"""

import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from torch import Tensor
from tqdm.auto import tqdm

WORTH, WORTH_MORE = 0.002, 0.01  # nats a row: to be told apart; to look further in that direction


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What "auto" took, and why; printed, it is one line."""

    grid: ClassVar[tuple[float, ...]]
    name: ClassVar[str]
    argument: ClassVar[str]  # that was "auto"
    further: ClassVar[tuple[float, float]]  # what the lowest and the highest value are times, beyond the grid

    taken: float
    way: str  # to rows that were not seen; or why there was none
    nll: Mapping[float, float] = field(default_factory=dict)  # a held-out row, by value
    standard_errors: Mapping[float, float] = field(default_factory=dict)  # of its difference to the lowest
    seconds: float = 0.0

    @classmethod
    def of(cls, rows: Mapping[float, Tensor], way: str, seconds: float, num_folds: int = 1) -> Self:
        """From scores of the same rows (n,) by value: the nearest to 1 of those that could be the best.

        These are the ones whose scores are above the lowest by no more than a standard error of that difference, or by
        so little that it is not worth the way.
        """
        nll = {one: mean_nll(each) for one, each in rows.items()}
        lowest = rows[min(nll, key=lambda one: nll[one])]
        errors = {one: _standard_error(each - lowest, num_folds) for one, each in rows.items()}
        level = min(nll.values())
        if not math.isfinite(level):
            return cls.not_chosen(
                f"no {cls.name} gives the held-out rows a finite density. Look at them and at the model"
            )
        able = [one for one in nll if math.isfinite(nll[one]) and nll[one] - level <= max(errors[one], WORTH)]
        order = sorted(rows)
        return cls(
            taken=min(able, key=lambda one: abs(math.log(one))),
            way=way,
            nll={one: nll[one] for one in order},
            standard_errors={one: errors[one] for one in order},
            seconds=seconds,
        )

    @classmethod
    def not_chosen(cls, why: str) -> Self:
        """1, where no way to rows that were not seen is open."""
        return cls(taken=1.0, way=why)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to say where nothing was chosen."""
        return () if self.nll else (f'{self.argument}="auto" takes 1: {self.way}.',)

    def __str__(self) -> str:
        if not self.nll:
            return f"{self.name} 1, not chosen: {self.way}"
        taken, level = self.taken, min(self.nll.values())
        said = f"{self.name} {taken:.3g}, chosen in {self.seconds:.1f} s by {self.way}: NLL {self.nll[taken]:.3f} a row"
        against = [
            one for one in dict.fromkeys([1.0, min(self.nll), max(self.nll)]) if one in self.nll and one != taken
        ]
        others = (f"{one:.3g} {self.nll[one] - level:+.3f} ± {self.standard_errors[one]:.3f}" for one in against)
        return f"{said}; above the lowest: {', '.join(others)}"

    def say(self, progress: bool) -> None:
        """To the caller of `run`: what was chosen, with `progress`; that nothing was, always."""
        for text in self.warnings:
            warnings.warn(text, stacklevel=7)
        if progress and self.nll:
            tqdm.write(f"{self}", file=sys.stderr)

    def next_values(self) -> tuple[float, ...]:
        """Where to look next: beyond the end of the grid, if it was taken and the last step to it was worth a lot."""
        if not self.nll or self.taken not in (min(self.nll), max(self.nll)):
            return ()
        order = sorted(self.nll, key=lambda one: abs(math.log(one / self.taken)))
        if len(order) > 1 and self.nll[order[1]] - self.nll[order[0]] <= WORTH_MORE:
            return ()
        further = self.further[self.taken > 1]
        return (self.taken * further, self.taken * further**2)


class TemperatureScores(Scores):
    """What `temperature="auto"` took, and why; printed, it is one line."""

    grid = (0.001, 0.01, 0.1, 1.0, 4.0, 16.0, 64.0)  # below 1 in wider steps: nearer to the MAP, less changes
    name = argument = "temperature"
    further = (0.1, 4.0)

    @property
    def temperature(self) -> float:
        """That was taken."""
        return self.taken


class PriorScores(Scores):
    """What `prior_scale="auto"` took, and why; printed, it is one line."""

    grid = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 3.0, 10.0)
    name, argument = "prior scale", "prior_scale"
    further = (0.5, 3.0)

    @property
    def scale(self) -> float:
        """The standard deviation that was taken."""
        return self.taken


def mean_nll(rows: Tensor) -> float:
    """Of the rows; inf if it is not a number."""
    score = float(rows.mean())
    return score if math.isfinite(score) else math.inf


def _standard_error(differences: Tensor, num_folds: int) -> float:
    """Of their mean, over rows or over folds, whichever is larger; inf where they are too few, or not finite, to tell.

    Rows of one fold share a network and its few walks, whose luck rows alone do not show.
    """
    parts = [differences, differences.reshape(num_folds, -1).mean(1)] if num_folds > 1 else [differences]
    error = max(float(part.std()) / math.sqrt(len(part)) if len(part) > 1 else math.inf for part in parts)
    return error if math.isfinite(error) else math.inf
