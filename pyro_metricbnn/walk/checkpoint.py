"""A walk in a file: what a killed one needs to go on to the same bits.

In: the state of a walk, every so often.  Out: a file, and from it the same ground and state in another process.

No decision of the walk depends on when it is written, and writing draws no random number.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ..energy.potential import BatchedPotential
from ..files.lock import locked
from ..files.storage import Content, FilePath, read, writable, write
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles
from ..runtime.arguments import check_number
from ..runtime.randomness import random_state, set_random_state
from .options import WalkOptions
from .record import Recorder
from .trajectories import read_modes

MOST_STEPS = 1e7  # between two recorded points: more than any walk takes
SAME_ENERGY = 1e-4  # in parts of it: the rounding of another machine is less, another prior or noise far more


@dataclass
class WalkState:
    """Where a walk is."""

    particles: Particles
    record: Recorder
    step: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class Moment:
    """What a step uses up, as it was before it: a walk that is interrupted in a step goes on from there."""

    step: int
    random: dict[str, Any]
    place: dict[str, Any]  # in the data
    batch: BatchedPotential  # on the batch that was the last then

    @classmethod
    def before(cls, step: int, potential: BatchedPotential) -> Moment:
        """Now."""
        return cls(step, random_state(), potential.state(), potential.fixed())


class Checkpoint:
    """The file of one walk, written every so many seconds; 0 is at each step."""

    def __init__(self, path: FilePath, every: float) -> None:
        check_number("checkpoint_every", every, "it counts seconds; 0 is each step.", or_zero=True, or_inf=True)
        self.path, self.every = writable(path), every
        self.settings: dict[str, Any] = {}
        self._written, self._step = -math.inf, -1  # when, and at which step
        self._moment: Moment | None = None

    @classmethod
    @contextmanager
    def opened(cls, options: WalkOptions) -> Iterator[Checkpoint | None]:
        """The checkpoint of a walk, for this process alone while it is open; None where there is none."""
        if options.checkpoint is None:
            yield None
            return
        checkpoint = cls(options.checkpoint, options.checkpoint_every)
        with locked(checkpoint.path):
            yield checkpoint

    def find(self, settings: Mapping[str, Any]) -> Content | None:
        """What is in the file, if it is of a walk with these settings; None without a file."""
        self.settings = dict(settings)
        if not self.path.exists():
            return None
        content = read(self.path, "checkpoint", "cpu")
        saved = content.value("settings", dict)
        differ = [name for name in settings if repr(saved.get(name, "missing")) != repr(settings[name])]
        if differ:
            said = "; ".join(f"{name} was {_said(saved.get(name))}, now {_said(settings[name])}" for name in differ)
            raise ValueError(
                f"{self.path} is the checkpoint of another walk: {said}. Go on with what it was begun with, take "
                "another path, or delete the file to walk anew."
            )
        self._written, self._step = time.monotonic(), content.value("step", int)
        return content

    def write(self, ground: Ground, state: WalkState, *, now: bool = False) -> None:
        """To be called before each step: writes the state if it is time to, or `now`, unless the file has it.

        A write that fails is said, and tried again at the next turn: a full disk does not cost the walk.
        """
        if self._moment is None or self._moment.step != state.step:
            self._moment = Moment.before(state.step, ground.potential)
        early = not now and time.monotonic() - self._written < self.every
        if early or state.step == self._step:
            return
        try:
            write(self.path, "checkpoint", {"settings": self.settings, **_content(ground, state, self._moment)})
            self._step = state.step
        except (OSError, RuntimeError, MemoryError) as error:
            then = "This was the last try" if now else "The walk goes on, and it will be tried again"
            warnings.warn(f"the state of the walk is only in memory: {error}. {then}.", stacklevel=4)
        self._written = time.monotonic()


def _content(ground: Ground, state: WalkState, moment: Moment) -> dict[str, Any]:
    return {
        "ground": {"theta_star": ground.theta_star, "scale": ground.scale, **ground.measured},
        "energy": energy_at_the_map(ground.theta_star, moment.batch),
        "particles": {**vars(state.particles), "own": dict(state.particles.own)},
        "step": state.step,
        "record": state.record.state(),
        "potential": moment.place,
        "random": moment.random,
    }


def described(refiner: Refiner, potential: BatchedPotential, initial_params: Any) -> dict[str, Any]:
    """What has to be the same for a walk to go on, beside the kernel's numbers."""
    start = initial_params if initial_params is not None else getattr(potential.model, "trained_params", None)
    sites = potential.sites
    knobs = ", ".join(f"{name}={value!r}" for name, value in vars(refiner).items())
    return {
        "refiner": f"{type(refiner).__name__}({knobs})",
        "sites": [(site.name, tuple(site.shape)) for site in sites.sites],
        "precision": str(sites.dtype),
        "device": sites.device.type,
        "data": fingerprint(potential.source),
        "initial_params (or the trained weights)": fingerprint(start),
    }


def fingerprint(tree: Any) -> str:
    """SHA-256 of the tensors, numbers and strings of a tree; of another object only its type counts."""
    leaves, spec = tree_flatten(tree)
    digest = hashlib.sha256(repr(spec).encode())
    for leaf in leaves:
        if torch.is_tensor(leaf):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            plain = isinstance(leaf, (bool, int, float, str, type(None)))
            digest.update(repr(leaf if plain else type(leaf)).encode())
    return f"sha256 {digest.hexdigest()[:16]}"


def _said(setting: Any) -> str:
    """A setting, short enough for a sentence."""
    text = str(setting)
    return text if len(text) <= 60 else text[:60] + "…"


def energy_at_the_map(theta_star: Tensor, batch: BatchedPotential) -> float:
    """U at theta_star, on one batch: a model with another prior, noise or fixed weights has another."""
    return float(batch.value(theta_star[None]))


def saved_ground(content: Content, potential: BatchedPotential, num_steps: int, num_particles: int) -> Ground:
    """The ground that the walk was on, with what had been measured of it."""
    part, sites = content.part("ground"), potential.sites
    names = ("theta_star", "scale", *(("posterior_scale",) if "posterior_scale" in part else ()))
    found: dict[str, Any] = {name: part.tensor(name, sites.dim, dtype=sites.dtype).to(sites.device) for name in names}
    measured = {name: found[name] for name in names[2:]} | {"modes": read_modes(part)}
    measured |= {name: part.value(name, float) for name in ("curvature", "reach") if name in part}
    return Ground(potential, found["theta_star"], found["scale"], num_steps, num_particles, measured)


def saved_state(content: Content, ground: Ground, refiner: Refiner, options: WalkOptions) -> WalkState:
    """Where the walk was; the minibatches and all generators are set to go on from there."""
    step = content.value("step", int)
    if not 0 <= step <= ground.num_steps:
        raise content.wrong("step", f"from 0 to {ground.num_steps}")
    particles = _saved_particles(content.part("particles"), ground, refiner)
    record = Recorder(ground, refiner, particles.energy, options)
    record.restore(content.part("record"), step // options.thin)
    ground.potential.restore(content.part("potential"))
    _check_energy(content, ground)
    set_random_state(content.value("random", dict))
    return WalkState(particles, record, step, resumed=True)


def _check_energy(content: Content, ground: Ground) -> None:
    was, now = content.value("energy", float), energy_at_the_map(ground.theta_star, ground.potential.fixed())
    if math.isclose(was, now, rel_tol=SAME_ENERGY, abs_tol=1e-2):
        return
    loaders = (
        "Or the loader gave another batch: persistent workers that draw random numbers cannot be set back, so pass "
        "persistent_workers=False from the start. "
    )
    raise ValueError(
        f"{content.path} is the checkpoint of another model: the energy at the MAP was {was:.6g} and is {now:.6g}. "
        f"Its prior, its likelihood or what is fixed in it has changed. {loaders if ground.potential.is_noisy else ''}"
        "Go on with the model that the walk was begun with, take another path, or delete the file to walk anew."
    )


def _saved_particles(part: Content, ground: Ground, refiner: Refiner) -> Particles:
    num_particles, dim, like = ground.num_particles, len(ground.scale), ground.scale
    shapes = Particles.shapes(num_particles, dim, refiner.padding(dim))
    tensors = {name: part.tensor(name, *shape, dtype=dtype or like.dtype) for name, (shape, dtype) in shapes.items()}
    own, first = part.part("own"), refiner.own(like.expand(num_particles, -1))
    carried = {name: own.tensor(name, *value.shape, dtype=value.dtype) for name, value in first.items()}
    step_size, path = part.value("step_size", float), part.value("path", float)
    if refiner.has_step_size and not 0 < refiner.reach(ground) < MOST_STEPS * step_size < math.inf:
        raise part.wrong("step_size", "a length that a walk can go by")
    return Particles(
        **{name: value.to(like.device) for name, value in tensors.items()},
        own={name: value.to(like.device) for name, value in carried.items()},
        step_size=step_size,
        path=path,
        num_gradients=part.value("num_gradients", int),
    )
