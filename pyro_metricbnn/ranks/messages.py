"""What the ranks of a walk say to each other, all of it by torch.distributed.

In: a mesh of ranks, particles x rows.  Out: `RankShare`: a generator for each particle, and numbers of all of them.

Small numbers go over a group of gloo's with a time-out of its own; tensors of D numbers over the mesh's groups.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..runtime.randomness import own_numbers, random_state, set_random_state
from .faults import named, refuse_different, said_of
from .share import Share, shared_out

Result = TypeVar("Result")


class RankShare(Share):
    """What is this rank's of `total` particles, and how it talks to the others."""

    is_several = True

    def __init__(self, mesh: Any, control: Any, roll: Any, total: int, gather: str, wait: timedelta) -> None:
        self.rank, self.size, self.gather = dist.get_rank(), dist.get_world_size(), gather
        self._layout: list[list[int]] = mesh.mesh.tolist()
        self.place, self.row = mesh.get_local_rank("particles"), mesh.get_local_rank("rows")
        self.num_places, self.num_rows = len(self._layout), len(self._layout[0])
        self._particles, self._rows = mesh.get_group("particles"), mesh.get_group("rows")
        self._control, self._roll, self._wait = control, roll, wait
        self.total, self.counts = total, [len(part) for part in shared_out(total, self.num_places)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Share, ()  # another process is by itself

    def _do(self, call: Callable[..., Result], *args: Any, **settings: Any) -> Result:
        return named(self._roll, self._wait, call, *args, **settings)

    # --------------------------------------------------------------------------- random numbers

    def seed(self, device: torch.device) -> int:
        """Give each particle a generator by its number, from a seed of the global one: that seed."""
        first = int(torch.randint(2**31, (), device="cpu"))  # of a seed the CPU's generator takes 32 bits
        self.generators = [torch.Generator(device).manual_seed(first + number) for number in self.own(self.total)]
        return first

    def restart(self, device: torch.device) -> None:
        self.generators = [torch.Generator(device) for _ in self.own(self.total)]

    def normal_like(self, values: Tensor) -> Tensor:
        numbers = torch.empty_like(values)
        for row, generator in zip(numbers, self.generators, strict=True):
            row.normal_(generator=generator)
        return numbers

    def each(self, make: Callable[[Tensor], Mapping[str, Tensor]], theta: Tensor) -> Mapping[str, Tensor]:
        parts = []
        for row, generator in zip(theta.split(1), self.generators, strict=True):
            seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
            with own_numbers(theta.device):
                torch.manual_seed(seed)
                parts.append(make(row))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    @contextmanager
    def own_part(self, num_draws: int, device: torch.device) -> Iterator[int]:
        if not self.is_apart:
            yield num_draws
            return
        if num_draws < self.num_places:
            raise ValueError(f"{num_draws} draws are fewer than the {self.num_places} ranks: take one for each.")
        first = int(torch.randint(2**31, (), device="cpu"))  # the same on all ranks, whose generators go on alike
        with own_numbers(device):
            torch.manual_seed(first + self.place)
            yield self._parts(num_draws)[self.place]

    def _parts(self, num_draws: int) -> list[int]:
        """Draws at each place: as many as its part of the particles, one at least."""
        ends = [part.stop for part in shared_out(self.total, self.num_places)]
        stops = [max(place + 1, round(num_draws * end / self.total)) for place, end in enumerate(ends)]
        stops = [min(stop, num_draws - self.num_places + place + 1) for place, stop in enumerate(stops)]
        return [stop - start for start, stop in zip([0, *stops[:-1]], stops, strict=True)]

    def all_draws(self, values: Tensor, num_draws: int) -> Tensor:
        return self.all_rows(values, self._parts(num_draws))

    def synchronise(self) -> None:
        set_random_state(self.from_first(random_state()))

    # --------------------------------------------------------------------------- a few numbers

    def gathered(self, values: Tensor) -> Tensor:
        """All send as many as the largest share has: torch's gloo wants equal lengths."""
        sent = values.new_zeros(max(self.counts), *values.shape[1:], device="cpu")
        sent[: len(values)] = values
        found = [torch.empty_like(sent) for _ in range(self.size)]
        self._do(dist.all_gather, found, sent, group=self._control)
        parts = [found[ranks[self.row]][:n] for ranks, n in zip(self._layout, self.counts, strict=True)]
        return torch.cat(parts).to(values.device)

    def labels(self, theta: Tensor) -> Tensor:
        rows = [hashlib.sha256(row.contiguous().numpy().tobytes()).digest()[:7] for row in theta.detach().cpu()]
        return torch.tensor([int.from_bytes(row, "big") for row in rows], device=theta.device)

    def all_labels(self, labels: Tensor) -> Tensor:
        return self.gathered(labels[: len(self.generators)]).unique()  # (n,) again and again

    def agreed(self, is_asked: bool, is_due: bool) -> tuple[bool, bool]:
        said = torch.tensor([is_asked, is_due and self.rank == 0], dtype=torch.int64, device="cpu")
        self._do(dist.all_reduce, said, dist.ReduceOp.MAX, group=self._control)
        return bool(said[0]), bool(said[1])

    def objects(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._do(dist.all_gather_object, found, value, group=self._control)
        return found

    def from_first(self, value: Any) -> Any:
        """A value of the first rank's."""
        box = [value]
        self._do(dist.broadcast_object_list, box, 0, group=self._control)
        return box[0]

    def by_first(self, work: Callable[[], Result]) -> Result:
        found, failed, own = None, "", None
        if self.rank == 0:
            try:
                found = work()
            except Exception as error:  # of any kind: the others wait for a word
                own, failed = error, said_of(error)
        found, failed = self.from_first((found, failed))
        if own is not None:
            raise own
        if failed:
            raise ValueError(failed)
        self.synchronise()
        return found

    def check_same(self, settings: Mapping[str, Any], same_rows: Mapping[str, Any]) -> None:
        """Refuse ranks with other settings than the first, or other data than the first with the same rows."""
        refuse_different(self.objects(settings), [0] * self.size)
        rows = {rank: column for ranks in self._layout for column, rank in enumerate(ranks)}
        refuse_different(self.objects(same_rows), [self._layout[0][rows[rank]] for rank in range(self.size)])

    def check_energy(self, energy: float, precision: float) -> None:
        """Refuse ranks whose models give one point different energies."""
        first, *rest = self.objects(energy)
        for rank, other in enumerate(rest, start=1):
            if not math.isclose(first, other, rel_tol=precision, abs_tol=1e-2):
                raise ValueError(
                    f"rank {rank} has another model than rank 0: the energies where the walk leaves from are "
                    f"{other:.6g} and {first:.6g}. Give all ranks the same prior, likelihood and fixed weights."
                )

    # --------------------------------------------------------------------------- of all coordinates

    def average(self, values: Tensor) -> Tensor:
        return self._summed(values.sum(0), self._particles) / self.total

    def deviation(self, points: Tensor) -> Tensor:
        count = self._summed(points.new_full((1,), len(points)), self._particles)
        squares = (points - self._summed(points.sum(0), self._particles) / count).square().sum(0)
        return (self._summed(squares, self._particles) / (count - 1)).sqrt()

    def over_rows(self, values: Tensor) -> Tensor:
        """The mean over the ranks that share the rows."""
        return self._summed(values, self._rows) / self.num_rows

    def total_over_rows(self, count: int) -> int:
        """The sum of a count over the ranks that share the rows."""
        counts = self.objects(count)
        return sum(counts[rank] for rank in self._layout[self.place])

    def _summed(self, values: Tensor, group: Any) -> Tensor:
        values = values.contiguous()
        self._do(dist.all_reduce, values, group=group)
        return values

    def tensors_from_first(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Tensors of the first rank's, on all."""
        shapes = self.from_first({name: (tuple(value.shape), value.dtype) for name, value in tensors.items()})
        found = {}
        for name, (shape, dtype) in shapes.items():
            here = tensors[name].cpu().contiguous() if self.rank == 0 else torch.empty(shape, dtype=dtype, device="cpu")
            self._do(dist.broadcast, here, 0, group=self._control)
            found[name] = here.to(device)
        return found

    def all_rows(self, values: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Tensors (n, ...) of all places as one (N, ...), of as many rows each as they have particles, or `counts`."""
        counts = self.counts if counts is None else counts
        whole = values.new_empty(sum(counts), *values.shape[1:])
        for place, part in enumerate(whole.split(list(counts))):
            if place == self.place:
                part.copy_(values)
            source = self._layout[place][self.row]
            self._do(dist.broadcast, _bytes(part), source, group=self._particles)
        return whole

    def rows_at_first(self, values: Tensor) -> Tensor:
        """The same, at the first place alone; the others keep their own."""
        if self.place:
            self._do(dist.send, _bytes(values.contiguous()), self._layout[0][self.row], group=self._particles)
            return values
        whole = values.new_empty(self.total, *values.shape[1:])
        for place, part in enumerate(whole.split(self.counts)):
            if place == 0:
                part.copy_(values)
                continue
            source = self._layout[place][self.row]
            self._do(dist.recv, _bytes(part), source, group=self._particles)
        return whole


def _bytes(values: Tensor) -> Tensor:
    """The memory of a contiguous tensor, for kinds of numbers that a backend does not know."""
    return values.reshape(-1).view(torch.uint8)
