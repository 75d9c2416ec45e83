"""Posteriors of one model that are to be compared: named, checked and drawn from, all in the same way.

In: a `Task`, and several of: a `MetricBNN`, an MCMC, a guide, Trajectories, samples.  Out: a `Contender` for each.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import MCMC

from ..diagnostics.mixing import MIN_DRAWS
from ..inference import MetricBNN
from ..model.sites import Model
from ..plots.canvas import own_numbers
from ..predictions.pointwise import Draws
from ..predictions.sources import check_source, read_draws
from ..runtime.arguments import WrongTypeError
from ..walk.trajectories import Trajectories
from .task import Task, device_of


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the posteriors, with its draws.

    Args:
        name: What the table calls it.
        source: What was given.
        description: What it is, in a few words.
        draws: (S, ...) by latent site.
        chains: (N, T, ...) by latent site, where R-hat has a meaning: all the draws of a sampler, in their order.
        num_divergent: Draws of HMC whose step went wrong.
    """

    name: str
    source: Any
    description: str
    draws: Draws
    chains: Draws | None
    num_divergent: int = 0

    @property
    def num_draws(self) -> int:
        """S."""
        return len(next(iter(self.draws.values())))


# ------------------------------------------------------------------------------------------- the names


def named(posteriors: Mapping[str, Any] | Sequence[Any], model: Model) -> dict[str, Any]:
    """Posteriors by name; those of a list are named after what they are, and numbered where that is the same.

    Raises:
        ValueError: There is none, a name is no text, or one of them has no draws.
    """
    if not isinstance(posteriors, (Mapping, list, tuple)):
        raise WrongTypeError(
            f"posteriors must be a dict of them by name, or a list, got {type(posteriors).__name__}: pass for example "
            '{"MetricBNN": metric, "NUTS": mcmc}.'
        )
    if not posteriors:
        raise ValueError("there is no posterior to compare: pass at least one, as {'MetricBNN': metric}.")
    if isinstance(posteriors, Mapping):
        result = dict(posteriors)
        if any(not isinstance(name, str) or not name.strip() for name in result):
            raise ValueError(f"the names of posteriors must be texts that are not empty, got {list(result)}.")
        if all(torch.is_tensor(value) for value in result.values()):
            raise ValueError(
                f"posteriors has tensors by name ({', '.join(result)}): samples by site are one posterior. Give "
                "it a name, as {'samples': samples}."
            )
    else:
        kinds = [_kind(source) for source in posteriors]
        seen: Counter[str] = Counter()
        result = {}
        for kind, source in zip(kinds, posteriors, strict=True):
            seen[kind] += 1
            result[f"{kind} {seen[kind]}" if kinds.count(kind) > 1 else kind] = source
    for name, source in result.items():
        with _Naming(name):
            check_source(source, model)
    return result


def _kind(source: Any) -> str:
    if isinstance(source, MCMC):
        return type(source.kernel).__name__
    if isinstance(source, Trajectories):
        return "walk"
    if isinstance(source, Mapping):
        return "samples"
    return source.__name__ if inspect.isfunction(source) else type(source).__name__


class _Naming:
    """Errors in here say which posterior they are about."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (ValueError, RuntimeError, KeyError, TypeError)):
            raise ValueError(f"the posterior {self.name!r} cannot be compared: {error}") from error


# ------------------------------------------------------------------------------------------- the draws


def check_sites(task: Task, posteriors: Mapping[str, Any]) -> None:
    """Refuse a posterior of another model, by one draw of each."""
    with own_numbers(device_of(task.model)):
        for name, source in posteriors.items():
            with _Naming(name):
                read_draws(source, task.layout, 1 if _draws_anew(source) else None, task.arguments)


def draw(task: Task, name: str, source: Any, num_samples: int) -> Contender:
    """A posterior with draws: as many as wanted, or all that there are if they are fewer."""
    with _Naming(name):
        found = read_draws(source, task.layout, num_samples if _draws_anew(source) else None, task.arguments)
        values = {site: value.detach() for site, value in found.values.items()}
        broken = [site for site, value in values.items() if not bool(value.isfinite().all())]
        if broken:
            raise ValueError(f"its draws of the site {broken[0]!r} are not finite. Leave those draws out.")
        flat = {site: value.flatten(0, 1) for site, value in values.items()}
        total = len(next(iter(flat.values())))
        if total > num_samples:  # evenly, so that each chain has its part
            kept = torch.linspace(0, total - 1, num_samples, device="cpu").round().long()
            flat = {site: value[kept.to(value.device)] for site, value in flat.items()}
        return Contender(
            name=name,
            source=source,
            description=_described(source, values, total),
            draws=flat,
            chains=_chains(source, values),
            num_divergent=int(found.stats["diverging"].sum()) if "diverging" in found.stats else 0,
        )


def _draws_anew(source: Any) -> bool:
    """Whether a source gives as many draws as it is asked for."""
    return isinstance(source, MetricBNN) or not isinstance(source, (MCMC, Trajectories, Mapping))


def _chains(source: Any, values: Draws) -> Draws | None:
    if isinstance(source, MetricBNN):
        values = source.get_samples(group_by_chain=True)
    elif not isinstance(source, (MCMC, Trajectories)) and len(next(iter(values.values()))) == 1:
        return None  # independent, or in an order that nobody knows
    num_chains, num_draws = next(iter(values.values())).shape[:2]
    return values if num_chains and num_draws >= MIN_DRAWS else None


def _described(source: Any, values: Draws, total: int) -> str:
    num_chains = len(next(iter(values.values())))
    if isinstance(source, MetricBNN):
        walk = source.trajectories
        return f"MetricBNN: draws of the latent posterior of {walk.num_particles} walks of {walk.num_steps} points"
    chains = f"{num_chains} chain{'s' if num_chains > 1 else ''} of {total // num_chains} draws"
    if isinstance(source, MCMC):
        return f"{type(source.kernel).__name__} in Pyro's MCMC: {chains}"
    if isinstance(source, Trajectories):
        return f"a walk's own points: {num_chains} walks of {total // num_chains}"
    if isinstance(source, Mapping):
        return f"samples: {chains if num_chains > 1 else f'{total} draws'}"
    return f"a guide, {_kind(source)}: independent draws"
