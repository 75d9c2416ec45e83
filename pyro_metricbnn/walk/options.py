"""What a user says of a walk beside the model's arguments: keyword arguments, and a refiner or its name.

In: keyword arguments.  Out: `WalkOptions`, checked, and the keyword arguments that are the model's; a `Refiner`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..energy.potential import BatchedPotential
from ..energy.prior_units import LARGE
from ..files.storage import FilePath
from ..model.network import BayesianNetwork
from ..model.structure import Model
from ..ranks.joining import Ranks
from ..refiners.anneal import Anneal
from ..refiners.langevin import Langevin
from ..refiners.pull_back import Adam, Descent
from ..refiners.refiner import Refiner
from ..refiners.steer import Steer
from ..runtime.arguments import WrongTypeError, check_count, check_mapping, check_type, real_device
from ..search.map_search import MAX_ITERATIONS
from ..search.starts import Start


@dataclass(frozen=True, kw_only=True, eq=False)
class WalkOptions:
    """Options of one walk.

    Args:
        num_particles: N, how many walks there are.
        potential: The energy to walk on, in place of arguments: one with another gradient estimator, say.
        initial_params: Constrained values to start the MAP search from.
        map_params: Your own MAP, constrained, by site: left from as it is, without a search.
        starts: Networks of the same kind that you have trained, or values by site: particles leave from all of them as
            they are, without a search.
        num_networks: Where a network's noise is inferred, so many in all are left from, those beside yours trained here
            in a few seconds; None for 8 of a small network, else 1. Where labels may be wrong, all 8 are trained here,
            because yours has learned the wrong ones; 1 keeps to it.
        max_iterations: Of the search for the MAP.
        batch_size: Take minibatches of this many rows of the arguments.
        thin: Record only every so many steps.
        storage_dtype: Precision of the record, for large D (torch.float16 halves it).
        storage_device: Where the record is kept, for large D ("cpu").
        checkpoint: A file to write the state of the walk to and, if it is there, to go on from. It stays when the walk
            is over: delete it, or take another path, to walk anew. It is for one process at a time.
        checkpoint_every: Seconds between two writes; 0 to write at each step.
        progress: Show progress bars.
        ranks: How the walk is shared out where `torch.distributed` is initialised; None for particles over all ranks.
            The checkpoint is then one file a rank, its number behind the name.
    """

    num_particles: int = 20
    potential: BatchedPotential | None = None
    initial_params: Mapping[str, Tensor] | None = None
    map_params: Mapping[str, Tensor] | None = None
    starts: Sequence[Start] | None = None
    num_networks: int | None = None
    max_iterations: int = MAX_ITERATIONS
    batch_size: int | None = None
    thin: int = 1
    storage_dtype: torch.dtype | None = None
    storage_device: torch.device | str | None = None
    checkpoint: FilePath | None = None
    checkpoint_every: float = 60.0
    progress: bool = True
    ranks: Ranks | None = None

    @classmethod
    def split(cls, settings: Mapping[str, Any], model: Model | None = None) -> tuple[WalkOptions, dict[str, Any]]:
        """The options among keyword arguments, and the others, which are the model's."""
        names = {one.name for one in fields(cls)}
        if both := [name for name in settings if name in names and name in _arguments(model)]:
            raise ValueError(
                f"{both[0]} is an argument of the model and an option of the walk: which of them is meant cannot be "
                "told. Pass the model's by position, or give it another name in the model."
            )
        options = cls(**{name: value for name, value in settings.items() if name in names})
        return options, {name: value for name, value in settings.items() if name not in names}

    def __post_init__(self) -> None:
        check_count("num_particles", self.num_particles, "without a particle nothing walks. The default is 20.")
        check_count("max_iterations", self.max_iterations, "the search takes some.")
        check_count("num_networks", self.num_networks, "yours is one of them.", or_none=True)
        check_count("thin", self.thin, "it counts steps.")
        kind = self.storage_dtype
        check_type("storage_dtype", kind, torch.dtype, "a torch.dtype, such as torch.float16", or_none=True)
        if kind is not None and not kind.is_floating_point:
            raise ValueError(f"storage_dtype is {kind}, which cuts off fractions: pass a real one, as torch.float16.")
        if self.storage_device is not None:
            real_device("storage_device", self.storage_device)
        wanted = "a BatchedPotential of the kernel's model"
        check_type("potential", self.potential, BatchedPotential, wanted, or_none=True)
        check_type("ranks", self.ranks, Ranks, "how to share out, as Ranks(gather='first')", or_none=True)
        given = [name for name in ("initial_params", "map_params", "starts") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} say two things: initial_params are where a search for the MAP starts, "
                "map_params the MAP itself, without a search, starts several points to leave from. Pass one of them."
            )
        if self.starts is not None:
            check_type("starts", self.starts, (list, tuple), "a list of networks, or of values by site")
            if not self.starts:
                raise ValueError("starts is empty: pass at least one trained network, or leave it out.")
            for start in self.starts:
                check_type("a start", start, (nn.Module, Mapping), "a network, or a dict of values by site")
        for name in ("initial_params", "map_params"):
            if getattr(self, name) is not None:
                check_mapping(name, getattr(self, name), "constrained values")


def _arguments(model: Model | None) -> Collection[str]:
    """The names of a model's arguments, if it has a signature."""
    function: Any = model.forward if isinstance(model, nn.Module) else model
    with suppress(TypeError, ValueError):
        return inspect.signature(function).parameters
    return ()


def asked_of_mcmc(warmup_steps: int) -> int | None:
    """Warm-up and samples that Pyro's MCMC will ask for; None where another caller does not say.

    Pyro tells a kernel the warm-up alone. How many samples follow stands in the function that calls `setup`.
    """
    num_samples = sys._getframe(2).f_locals.get("num_samples")
    return warmup_steps + num_samples if isinstance(num_samples, int) else None


# Three layers of 64 units on Snelson's data, noise inferred: Anneal ended at a training NLL of 10.6 and an infinite
# noise, Steer at .20; noise given, .26 to .45 and .13.
MOST_ANNEALED = 2000  # weights; from there on the error that a step may make is a constant of all of them together
LONGEST_GIVEN = 2000  # gradients with a noise that is given: with 4,000, validation rows of Boston, concrete and energy
# (a split) have an NLL of 2.459, 2.974, .447, so of 2.457, 2.983, .455
LONG_APPROACH = 0.75  # with a noise at each input, where energies fall for longer: rows held out of splits 10 to 19 of
# UCI's energy, wine, yacht, concrete and Boston have an NLL of .17, .73, -.52, 2.61, 2.31, with half of .23, .75, -.50,
# 2.58, 2.29. One noise for all inputs: yacht is worse by 1.6 (three splits, single rows), the others about the same

NAMES: dict[str, type[Refiner]] = {
    "steer": Steer,
    "anneal": Anneal,
    "langevin": Langevin,
    "descent": Descent,
    "adam": Adam,
}


def refiner_for(model: Model) -> Refiner:
    """The default on full data: `Anneal` for networks of up to MOST_ANNEALED weights and normal noise, else `Steer`.

    With unknown noise the maximum is a network that fits every row, and the way from there to the posterior is long.
    Where the noise is given, both come to the same NLL, Anneal in fewer gradients; up to LARGE weights Steer knows the
    posterior's units. Where a network fits classes, the way from the MAP is worth recording: on small clean sets it
    predicts better.
    """
    if not isinstance(model, BayesianNetwork):
        return Steer()
    likelihood, dim = model.likelihood, sum(value.numel() for value in model.trained_params.values())
    if dim > MOST_ANNEALED:
        return Steer()
    if likelihood.infers_noise:
        return Anneal(approach_part=LONG_APPROACH) if likelihood.noise_by_input else Anneal()
    return Anneal(longest=LONGEST_GIVEN) if likelihood.has_normal_noise and dim >= LARGE else Steer()


def refiner_on(potential: BatchedPotential, refiner: Refiner, is_default: bool) -> Refiner:
    """What walks on this energy: the refiner, or `Langevin` on batches where nobody chose another."""
    if is_default and potential.is_noisy:
        return Langevin(effort=getattr(refiner, "effort", 1.0))
    return refiner.on(potential)


def named_refiner(refiner: Refiner | str, effort: float | None = None) -> Refiner:
    """A refiner from its lower-case name, or itself, with this effort."""
    found: object = refiner
    if isinstance(found, str) and found in NAMES:
        found = NAMES[found]()
    if not isinstance(found, Refiner):
        kind = ValueError if isinstance(refiner, str) else WrongTypeError
        raise kind(f"refiner must be a Refiner or one of {', '.join(map(repr, NAMES))}, got {refiner!r}.")
    if effort is None:
        return found
    if not isinstance(found, (Steer, Anneal, Langevin)):
        raise ValueError(
            f"effort is a knob of Steer, Anneal and Langevin: {type(found).__name__} has num_refinements and its step "
            "instead. Set those, or leave refiner out."
        )
    return replace(found, effort=effort)
