"""A walk in a file: what a killed one needs to go on to the same bits.

In: the state of a walk, every so often.  Out: a file, and from it the same ground and state in another process.

No decision of the walk depends on when it is written, and writing draws no random number.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ..energy.potential import BatchedPotential
from ..files.lock import locked
from ..files.storage import Content, FilePath, read, writable, write
from ..ranks.share import ALONE, Share
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles
from ..runtime.arguments import check_number
from ..runtime.progress import warn
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
    def before(cls, step: int, potential: BatchedPotential, own: Sequence[torch.Generator]) -> Moment:
        """Now."""
        return cls(step, random_state(own), potential.state(), potential.fixed())


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

    def find(self, settings: Mapping[str, Any], share: Share = ALONE) -> Content | None:
        """What is in the file, if it is of a walk with these settings; None without a file.

        Several ranks go on from the last step that all of them have: one that was killed in writing has the one before.
        """
        self.settings = dict(settings)
        files = [path for path in (self.path, *([self._before] if share.is_several else [])) if path.exists()]
        found, failed = dict[int, Content](), ""
        try:
            found = {content.value("step", int): content for content in map(self._read, files[::-1])}
        except ValueError as error:
            if not share.is_several:
                raise
            failed = str(error)  # said by all ranks: those without a file would wait for this one
        steps, failures = zip(*share.objects((sorted(found), failed)), strict=True)
        if failed := next(filter(None, failures), ""):
            raise ValueError(failed)
        common = set(steps[0]).intersection(*steps)
        if not common:
            if any(len(of_rank) > 1 for of_rank in steps):
                said = "; ".join(f"rank {rank} has {of_rank}" for rank, of_rank in enumerate(steps))
                raise ValueError(
                    f"the checkpoints of the ranks have no step in common ({said}), so the walk cannot go on: put the "
                    f"missing files back beside {self.path}, or delete all of them to walk anew."
                )
            return None
        self._written, self._step = time.monotonic(), max(common)
        content = found[self._step]
        if content.path == self._before:  # or the next write would lose the step that all have
            os.replace(self._before, self.path)
        return content

    @property
    def _before(self) -> Path:
        """Where a rank keeps the file before the last: another rank may not have written its last one."""
        return self.path.with_name(f"{self.path.name}.before")

    def _read(self, path: Path) -> Content:
        """A file, if it is of a walk with the same settings."""
        settings, content = self.settings, read(path, "checkpoint", "cpu")
        saved = content.value("settings", dict)
        differ = [name for name in settings if repr(saved.get(name, "missing")) != repr(settings[name])]
        if differ:
            said = "; ".join(f"{name} was {_said(saved.get(name))}, now {_said(settings[name])}" for name in differ)
            raise ValueError(
                f"{path} is the checkpoint of another walk: {said}. Go on with what it was begun with, take "
                "another path, or delete the file to walk anew."
            )
        return content

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._written >= self.every

    def write(self, ground: Ground, state: WalkState, *, is_due: bool = True, is_last: bool = False) -> None:
        """To be called before each step: writes the state if it is due, unless the file has it.

        A write that fails is said, and tried again at the next turn: a full disk does not cost the walk.
        """
        if self._moment is None or self._moment.step != state.step:
            self._moment = Moment.before(state.step, ground.potential, ground.share.generators)
        if not is_due:
            return
        # Ranks that share rows find the energy together, those whose file has this step, too: another's may not.
        content = _content(ground, state, self._moment) if ground.share.is_several or state.step != self._step else {}
        if state.step == self._step:
            return
        try:
            if ground.share.is_several and self.path.exists():
                os.replace(self.path, self._before)
            write(self.path, "checkpoint", {"settings": self.settings, **content})
            self._step = state.step
        except (OSError, RuntimeError, MemoryError) as error:
            then = "This was the last try" if is_last else "The walk goes on, and it will be tried again"
            warn(f"the state of the walk is only in memory: {error}. {then}.")
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


def saved_ground(
    content: Content, potential: BatchedPotential, num_steps: int, num_particles: int, share: Share = ALONE
) -> Ground:
    """The ground that the walk was on, with what had been measured of it."""
    part, sites = content.part("ground"), potential.sites
    names = ("theta_star", "scale", *(name for name in ("posterior_scale", "pulls") if name in part))
    found: dict[str, Any] = {name: part.tensor(name, sites.dim, dtype=sites.dtype).to(sites.device) for name in names}
    measured = {name: found[name] for name in names[2:]} | {"modes": read_modes(part)}
    measured |= {name: part.value(name, float) for name in ("curvature", "reach") if name in part}
    if "root" in part:
        measured["root"] = part.tensor("root", sites.dim, sites.dim, dtype=sites.dtype).to(sites.device)
    return Ground(potential, found["theta_star"], found["scale"], num_steps, num_particles, measured, share=share)


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
    set_random_state(content.value("random", dict), ground.share.generators)
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
    num_particles, dim, like = len(ground.share.own(ground.num_particles)), len(ground.scale), ground.scale
    shapes = Particles.shapes(num_particles, dim, refiner.padding(dim))
    tensors = {name: part.tensor(name, *shape, dtype=dtype or like.dtype) for name, (shape, dtype) in shapes.items()}
    own, first = part.part("own"), refiner.own_on(ground, like.expand(num_particles, -1))
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
