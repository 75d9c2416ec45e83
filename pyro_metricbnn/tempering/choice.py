"""What was found of each temperature, and which one is taken.

In: the negative log predictive density of each held-out row, by temperature.  Out: `TemperatureScores`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

WORTH, WORTH_MORE = 0.002, 0.01  # nats a row: to be told apart; to look further in that direction
GRID = (0.001, 0.01, 0.1, 1.0, 4.0, 16.0, 64.0)  # below 1 in wider steps: nearer and nearer to the MAP, less changes


@dataclass(frozen=True, kw_only=True)
class TemperatureScores:
    """What `temperature="auto"` took, and why; printed, it is one line."""

    temperature: float  # that was taken
    way: str  # to rows that were not seen; or why there was none
    nll: Mapping[float, float] = field(default_factory=dict)  # a held-out row, by temperature
    standard_errors: Mapping[float, float] = field(default_factory=dict)  # of its difference to the lowest
    seconds: float = 0.0

    @classmethod
    def of(cls, rows: Mapping[float, Tensor], way: str, seconds: float, num_folds: int = 1) -> Self:
        """From scores of the same rows (n,) by temperature: the nearest to 1 of those that could be the best.

        These are the ones whose scores are above the lowest by no more than a standard error of that difference, or by
        so little that it is not worth the way.
        """
        nll = {temperature: mean_nll(each) for temperature, each in rows.items()}
        lowest = rows[min(nll, key=lambda temperature: nll[temperature])]
        errors = {temperature: _standard_error(each - lowest, num_folds) for temperature, each in rows.items()}
        level = min(nll.values())
        if not math.isfinite(level):
            return cls.not_chosen(
                "no temperature gives the held-out rows a finite density. Look at them and at the model"
            )
        able = [one for one in nll if math.isfinite(nll[one]) and nll[one] - level <= max(errors[one], WORTH)]
        taken = min(able, key=lambda temperature: abs(math.log(temperature)))
        order = sorted(rows)
        return cls(
            temperature=taken,
            way=way,
            nll={temperature: nll[temperature] for temperature in order},
            standard_errors={temperature: errors[temperature] for temperature in order},
            seconds=seconds,
        )

    @classmethod
    def not_chosen(cls, why: str) -> Self:
        """1, where no way to rows that were not seen is open."""
        return cls(temperature=1.0, way=why)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to say where nothing was chosen."""
        return () if self.nll else (f'temperature="auto" takes 1: {self.way}.',)

    def __str__(self) -> str:
        if not self.nll:
            return f"temperature 1, not chosen: {self.way}"
        taken, level = self.temperature, min(self.nll.values())
        said = f"temperature {taken:.3g}, chosen in {self.seconds:.1f} s by {self.way}: NLL {self.nll[taken]:.3f} a row"
        against = [
            one for one in dict.fromkeys([1.0, min(self.nll), max(self.nll)]) if one in self.nll and one != taken
        ]
        others = (f"{one:.3g} {self.nll[one] - level:+.3f} ± {self.standard_errors[one]:.3f}" for one in against)
        return f"{said}; above the lowest: {', '.join(others)}"

    def next_temperatures(self) -> tuple[float, ...]:
        """Where to look next: beyond the end of the grid, if it was taken and the last step to it was worth a lot."""
        if not self.nll or self.temperature not in (min(self.nll), max(self.nll)):
            return ()
        order = sorted(self.nll, key=lambda one: abs(math.log(one / self.temperature)))
        if len(order) > 1 and self.nll[order[1]] - self.nll[order[0]] <= WORTH_MORE:
            return ()
        further = 4.0 if self.temperature > 1 else 0.1
        return (self.temperature * further, self.temperature * further**2)


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
