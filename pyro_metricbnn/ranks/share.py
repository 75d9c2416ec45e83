"""What is this process's of a walk, and what it needs of the others.

In: numbers of its particles.  Out: numbers of all; by itself these are the same, and nothing is sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Share:
    """By itself: all particles, all rows, and numbers of the global generator."""

    rank, size = 0, 1  # among all processes
    place, num_places = 0, 1  # along the particles of the mesh
    row, num_rows = 0, 1  # along its rows
    gather = "all"
    is_several = False  # whether torch.distributed is there; one rank counts, too
    generators: Sequence[torch.Generator] = ()  # one a particle

    @property
    def is_apart(self) -> bool:
        """Whether walks stay on the ranks that walked them."""
        return self.gather == "none" and self.num_places > 1

    def own(self, total: int) -> range:
        """The numbers of this rank's particles."""
        return shared_out(total, self.num_places)[self.place]

    def normal_like(self, values: Tensor) -> Tensor:
        """Normal numbers for its particles (n, ...)."""
        return torch.randn_like(values)

    def each(self, make: Callable[[Tensor], Mapping[str, Tensor]], theta: Tensor) -> Mapping[str, Tensor]:
        """What `make` gives for its particles (n, D), (n, ...) by name, where that draws random numbers."""
        return make(theta)

    def gathered(self, values: Tensor) -> Tensor:
        """A few numbers of its particles (n, ...) -> those of all (N, ...), in their order."""
        return values

    def average(self, values: Tensor) -> Tensor:
        """The mean over all particles of (n, D): (D,)."""
        return values.mean(0)

    def deviation(self, points: Tensor) -> Tensor:
        """The standard deviation of the points (n, D) of all ranks: (D,)."""
        return points.std(0)

    def labels(self, theta: Tensor) -> Tensor:
        """Numbers (n,) for its particles (n, D): the same for equal ones, on whatever rank."""
        return theta.unique(dim=0, return_inverse=True)[1]

    def all_labels(self, labels: Tensor) -> Tensor:
        """Those labels that any rank has, each once."""
        return labels.unique()

    def agreed(self, is_asked: bool, is_due: bool) -> tuple[bool, bool]:
        """Whether any rank was asked to stop, and whether it is time to write, by the first rank's clock."""
        return is_asked, is_due

    def objects(self, value: Any) -> list[Any]:
        """A plain value of each rank."""
        return [value]

    def restart(self, device: torch.device) -> None:
        """Make a generator for each particle, to be set to where a checkpoint says."""

    @contextmanager
    def own_part(self, num_draws: int, device: torch.device) -> Iterator[int]:
        """How many of all draws are this rank's, where walks are apart; in here it has numbers of its own."""
        yield num_draws

    def all_draws(self, values: Tensor, num_draws: int) -> Tensor:
        """Of the draws of all ranks what this one has (n, ...) of its own."""
        return values

    def by_first(self, work: Callable[[], Result]) -> Result:
        """What `work` gives on the first rank, on all; they go on with its random numbers."""
        return work()

    def synchronise(self) -> None:
        """Set the global generators of all ranks to where the first rank's are."""


ALONE = Share()


def shared_out(total: int, num_places: int) -> list[range]:
    """The numbers up to `total` at each of so many places, in order and as even as can be."""
    each, more = divmod(total, num_places)
    stops = [each * (i + 1) + min(i + 1, more) for i in range(num_places)]
    return [range(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]
