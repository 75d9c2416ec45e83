"""A walk that several ranks share: the energy of rows that are spread over them, where all leave from, one record.

In: what a walk by itself has, and the `Share` of this rank.  Out: the same of all ranks together.
"""

import copy
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data.distributed import DistributedSampler

from ..energy.handlers import ScaleObservations
from ..energy.inspection import NOT_DEFINITE
from ..energy.minibatches import Minibatches, MinibatchPotential
from ..energy.potential import BatchedPotential
from ..files.storage import writable
from ..graphs.execution import BatchedFunction
from ..model.sites import find_sites
from ..model.structure import Model
from ..ranks.faults import said_of
from ..ranks.joining import share_of
from ..ranks.messages import RankShare
from ..ranks.share import Share
from ..refiners.refiner import Refiner
from ..refiners.state import Ground
from ..runtime.randomness import own_numbers
from .checkpoint import SAME_ENERGY, energy_at_the_map, fingerprint
from .options import WalkOptions
from .trajectories import AXES, Trajectories

ROWS_DIFFER = ("data",)  # what ranks with other rows may have different
DRAWN = ("initial_params (or the trained weights)",)  # differ where the seeds did, which is then what to say


def joined(options: WalkOptions) -> tuple[Share, WalkOptions]:
    """The share of this process, and its own options: bars on the first rank, a checkpoint of its own on each."""
    share, path = share_of(options.ranks, options.num_particles), options.checkpoint
    if path is not None:
        alone = writable(path)
        of_rank = Path(f"{path}.rank{share.rank}")
        path, other = (of_rank, alone) if share.is_several else (alone, of_rank)
        if other.exists() and not path.exists():
            kinds = ("a process by itself", "several ranks")
            was, now = kinds[not share.is_several], kinds[share.is_several]
            raise ValueError(
                f"{other} is a checkpoint of {was}, and this walk is one of {now}: start it as it was begun, take "
                "another path, or delete the file to walk anew."
            )
    if not share.is_several:
        return share, options
    return share, replace(options, progress=options.progress and share.rank == 0, checkpoint=path)


def held(share: Share, options: WalkOptions) -> WalkOptions:
    """The options with as many particles as this rank will have in its record."""
    has_all = share.gather == "all" or (share.gather == "first" and share.place == 0)
    return options if has_all else replace(options, num_particles=len(share.own(options.num_particles)))


def checked(share: Share, settings: dict[str, Any], has_checkpoint: bool) -> dict[str, Any]:
    """What a walk is described by, with how it is shared out; ranks that were given different things are refused."""
    if not isinstance(share, RankShare):
        return settings
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Pyro {pyro.__version__}"
    rows = {name: settings[name] for name in ROWS_DIFFER}
    common = {name: value for name, value in settings.items() if name not in (*ROWS_DIFFER, *DRAWN)}
    common = {"versions": versions, **common, "checkpoint=": has_checkpoint, "Ranks(gather=)": share.gather}
    common |= {"random state": fingerprint(torch.get_rng_state()), **{name: settings[name] for name in DRAWN}}
    share.check_same(common, rows)
    return {**settings, "ranks": f"{share.num_places} for the particles, {share.num_rows} for the rows"}


# ------------------------------------------------------------------------------- rows


def over_rows(potential: BatchedPotential, share: Share) -> BatchedPotential:
    """The energy of the rows of all ranks that share them: each has its own in `potential`."""
    if not isinstance(share, RankShare) or share.num_rows == 1:
        return potential
    _refuse_local_sites(potential)
    other: Any = copy.copy(potential)
    other.share, other._graphs = share, {}
    if isinstance(potential, MinibatchPotential):
        other.__class__ = _BatchesOfRanks
        batches = potential.batches
        if isinstance(batches, Minibatches) or not isinstance(getattr(batches, "sampler", None), DistributedSampler):
            other.num_data = potential.num_data * share.num_rows  # this rank's part stands for as many as all have
    else:
        other.__class__ = _RowsOfRanks
        other._own_rows = len(other._data[0]) if other._data and other._data[0].dim() else 0
        other._all_rows = share.total_over_rows(potential.num_rows)
        other._all_observations = share.total_over_rows(potential.num_observations)
    other._bind(potential.execution)
    return other


class _OverRanks(BatchedPotential):
    """Each rank takes its rows for all, scaled up to as many: the mean over the ranks is U, with the prior once."""

    share: RankShare

    def _call(self, function: BatchedFunction, theta: Tensor) -> tuple[Tensor, ...]:
        parts = super()._call(function, theta)
        flat = self.share.over_rows(torch.cat([part.reshape(len(theta), -1) for part in parts], dim=1))
        sizes = [part[0].numel() for part in parts]
        return tuple(one.reshape(part.shape) for one, part in zip(flat.split(sizes, 1), parts, strict=True))

    def inside(self, step: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        return partial(step, self.value_and_grad)  # no graph holds what other ranks say

    def _one_by_one(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        raise ValueError(f"rank {self.share.rank} cannot go on, and with it all that share its rows. {NOT_DEFINITE}")


class _RowsOfRanks(_OverRanks):
    """Of all rows of each rank."""

    _own_rows: int
    _all_rows: int
    _all_observations: int

    @property
    def num_observations(self) -> int:
        return self._all_observations

    @property
    def num_rows(self) -> int:
        return self._all_rows

    def _scaled(self, model: Model) -> Model:
        return ScaleObservations(float(self.share.num_rows), self._own_rows)(model)


class _BatchesOfRanks(_OverRanks, MinibatchPotential):
    """Of a batch of each rank's."""


def _refuse_local_sites(potential: BatchedPotential) -> None:
    """A latent value for each row would be one for the first rows of all ranks."""
    size = len(potential._data[0]) if potential._data and potential._data[0].dim() else 0
    if isinstance(potential, MinibatchPotential) or size < 2:
        return

    def fewer(leaf: Any) -> Any:
        return leaf[:-1] if torch.is_tensor(leaf) and leaf.dim() and len(leaf) == size else leaf

    args, kwargs = tree_map(fewer, (potential.args, dict(potential.kwargs)))
    try:
        with own_numbers(potential.sites.device):
            shapes = {site.name: site.shape for site in find_sites(potential.model, args, kwargs)[0].sites}
    except Exception:  # a model of so many rows alone has no site that follows their number
        return
    for site in potential.sites.sites:
        if shapes.get(site.name, site.shape) != site.shape:
            raise ValueError(
                f"the latent site {site.name!r} has a value for each row (shape {tuple(site.shape)}), and ranks have "
                "different rows: all would share these values. Let ranks share the particles, with all rows on each "
                "(Ranks(rows=1))."
            )


# ------------------------------------------------------------------------------- from start to end


def ground_for_all(share: Share, potential: BatchedPotential, refiner: Refiner, find: Callable[[], Ground]) -> Ground:
    """What `find` gives: searched for by the first ranks, and the same for all, with a generator for each particle."""
    if not isinstance(share, RankShare):
        return find()
    found, failed, own = None, "", None
    if share.place == 0 or potential.is_noisy:  # who takes batches has to stay at the same one as the others
        try:
            found = find()
        except Exception as error:  # of any kind: the others wait for a word
            if share.num_rows > 1:
                raise  # the ranks that share its rows are in the midst of it, too
            own, failed = error, said_of(error)
    if failed := share.from_first(failed):
        raise own or ValueError(failed)
    tensors = {} if found is None else {"theta_star": found.theta_star, "scale": found.scale}
    tensors |= {} if found is None else {name: v for name, v in found.measured.items() if torch.is_tensor(v)}
    tensors = share.tensors_from_first(tensors, potential.sites.device)
    plain = None if found is None else {name: v for name, v in found.measured.items() if not torch.is_tensor(v)}
    num_steps, measured = share.from_first(None if found is None else (found.num_steps, plain))
    share.synchronise()
    seed = share.seed(potential.sites.device)
    theta_star, scale = tensors.pop("theta_star"), tensors.pop("scale")
    on = potential if found is None else found.potential
    share.check_energy(energy_at_the_map(theta_star, on.fixed()), SAME_ENERGY)
    if not refiner.draws_by_particle:
        torch.manual_seed(seed + share.total + share.place)
    return Ground(on, theta_star, scale, num_steps, share.total, {**measured, **tensors}, share=share)


def gathered(walk: Trajectories, share: Share) -> Trajectories:
    """The record with the walks of all ranks, on those that are to have it."""
    if not isinstance(share, RankShare):
        return walk
    share.synchronise()
    walk = replace(walk, share=share, in_batches=walk.in_batches or share.num_rows > 1)
    if share.gather == "none" or share.num_places == 1:
        return walk
    take = share.all_rows if share.gather == "all" else share.rows_at_first
    arrays: dict[str, Any] = {name: take(getattr(walk, name)) for name, axes in AXES.items() if axes[0] == "N"}
    return replace(walk, **arrays)
