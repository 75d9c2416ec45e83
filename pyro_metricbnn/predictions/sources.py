"""Whatever has posterior draws -> draws by site, (chains, draws, ...).

In: a MetricBNN, Pyro's MCMC, a guide, Trajectories or samples.  Out: its `Source`, which `to_arviz` and `compare` ask.
To add a kind of posterior, write a subclass of `Source` under `@source_of.register(ItsClass)`, in any file.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.infer import HMC, MCMC
from torch import Tensor

from ..latent.guide import AutoMetric
from ..model.structure import Layout, Model
from ..runtime.arguments import WrongTypeError, as_tensor
from ..runtime.threads import in_turn
from ..walk.trajectories import Arguments, Trajectories, walk_of
from .pointwise import Draws

DEFAULT_SAMPLES = 1000  # of a guide
NO_DRAWS = "has no posterior draws: pass a MetricBNN or an MCMC after run, a guide, Trajectories, or samples by site."


@dataclass(frozen=True, kw_only=True)
class PosteriorDraws:
    """Draws by latent site (chains, draws, ...), what the sampler says of them (chains, draws), what is wrong."""

    values: Draws
    stats: Draws = field(default_factory=dict)
    chains: Sequence[int] | None = None
    library: str = "pyro"
    warnings: tuple[str, ...] = ()
    are_independent: bool = False  # as a guide's are: any split of them is into chains


@dataclass(frozen=True)
class Source(ABC):
    """One kind of posterior. It has to have `read`; the others are for where it differs from samples."""

    given: Any
    draws_anew: ClassVar[bool] = False  # gives as many draws as it is asked for
    is_ordered: ClassVar[bool] = False  # even a single chain is in the order in which it was drawn
    is_walked: ClassVar[bool] = False  # `health` and the pictures of walks take what was given
    said: ClassVar[str] = "{name}: {chains}{num_draws} draws"  # what it is, in a few words

    @property
    def name(self) -> str:
        """What it is called in a list of posteriors."""
        return getattr(self.given, "__name__", type(self.given).__name__)

    @property
    def arguments(self) -> Arguments:
        """What the model was called with, if that is known."""
        return (), {}

    def check(self, model: Model) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse, before the model runs, what has no draws of it."""

    @abstractmethod
    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        """Draws (S, ...) or (chains, S, ...) by site; num_samples is None for as many as there are."""

    def draws(self, layout: Layout, arguments: Arguments, num_samples: int | None = None) -> PosteriorDraws:
        """Draws (chains, S, ...) of each latent site of a model of this layout, which runs on these arguments."""
        if num_samples is not None and not self.draws_anew:
            raise ValueError(f"num_samples is for guides: {self.name} has its own number of draws. Leave it out.")
        found = self.read(layout, arguments, num_samples)
        return replace(found, values=_by_chain(found.values, layout))

    def chains(self, values: Draws) -> Draws | None:
        """Of its draws (chains, S, ...), those for which R-hat has a meaning."""
        return values if self.is_ordered or len(next(iter(values.values()))) > 1 else None

    def description(self, num_chains: int, num_draws: int) -> str:
        """What it is, with its numbers."""
        chains = f"{num_chains} chain{'s' if num_chains > 1 else ''} of "
        chains = chains if self.is_ordered or num_chains > 1 else ""
        walk = walk_of(self.given) if self.is_walked else None
        return self.said.format(name=self.name, chains=chains, num_chains=num_chains, num_draws=num_draws, walk=walk)


@singledispatch
def source_of(given: Any) -> Source:
    """The source of what was given, by its class.

    Example:
        >>> source_of(walk).name
        'walk'
    """
    if hasattr(type(given), "trajectories"):  # a MetricBNN, which is further down the flow
        return Run(given)
    if callable(given):
        return Guide(given)
    raise WrongTypeError(f"the source is of type {type(given).__name__}, which {NO_DRAWS}")


@source_of.register(Mapping)
class Samples(Source):
    """Samples by site."""

    name = "samples"

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        return PosteriorDraws(values=dict(self.given))


class Guide(Source):
    """A callable that samples the latent sites."""

    draws_anew, said = True, "a guide, {name}: independent draws"

    def check(self, model: Model) -> None:
        if self.given is model:
            raise ValueError(f"the source is the model itself, which {NO_DRAWS}")

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        (args, kwargs), number = arguments, num_samples or DEFAULT_SAMPLES
        with torch.no_grad(), in_turn():
            traces = [poutine.trace(self.given).get_trace(*args, **kwargs) for _ in range(number)]
        names = [name for name in layout.latent if name in traces[0].nodes]
        values = {n: torch.stack([t.nodes[n]["value"] for t in traces]) for n in names}
        return PosteriorDraws(values=values, are_independent=True)


@source_of.register(AutoMetric)
class MetricGuide(Guide):
    """Our own guide, which draws all at once."""

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        values = self.given.sample_posterior(num_samples or DEFAULT_SAMPLES)
        return PosteriorDraws(values=values, library="pyro_metricbnn", are_independent=True)


@source_of.register(MCMC)
class Chains(Source):
    """A run of Pyro's MCMC."""

    is_ordered, said = True, "{name} in Pyro's MCMC: {chains}{num_draws} draws"

    @property
    def name(self) -> str:
        return type(self.given.kernel).__name__

    @property
    def arguments(self) -> Arguments:
        return self.given._args, self.given._kwargs  # Pyro has no public way to them

    def check(self, model: Model) -> None:
        if self.given.get_samples(group_by_chain=True) is None:
            raise ValueError("the MCMC has no samples yet: call mcmc.run(*args) first.")

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        values = self.given.get_samples(group_by_chain=True)
        if not isinstance(self.given.kernel, HMC):  # others may count divergences without saying which draws
            return PosteriorDraws(values=values)
        diverging = torch.zeros(next(iter(values.values())).shape[:2], dtype=torch.bool, device="cpu")
        # The public diagnostics() adds effective sample sizes: gigabytes for a network. Below four draws it fails.
        for chain, found in enumerate(self.given._diagnostics):
            diverging[chain, found["divergences"]] = True
        said = (
            f"{int(diverging.sum())} draws diverged: HMC's steps are too long for a part of the posterior. Raise "
            "target_accept_prob, or write the model so that its scales do not depend on each other."
        )
        warnings = (said,) if bool(diverging.any()) else ()
        return PosteriorDraws(values=values, stats={"diverging": diverging}, warnings=warnings)


class Run(Source):
    """A MetricBNN: the walk's own points, or as many draws of the latent posterior as it is asked for."""

    draws_anew, is_walked = True, True
    said = "MetricBNN: draws of the latent posterior of {walk.num_particles} walks of {walk.num_steps} points"

    @property
    def arguments(self) -> Arguments:
        walk = walk_of(self.given)
        if walk.in_batches:
            said = "the run took its data in batches, so no call of the model saw them all"
            raise ValueError(f"{said}: pass the model's arguments, with all the data that this is to be about.")
        return walk.arguments

    def check(self, model: Model) -> None:
        walk_of(self.given)  # says so where nothing has been walked

    def read(self, layout: Layout, arguments: Arguments, num_samples: int | None) -> PosteriorDraws:
        if num_samples is not None:
            return source_of(self.given.guide).read(layout, arguments, num_samples)
        walk = walk_of(self.given)
        good = walk.is_good.all(-1)
        if not bool(good.any()):
            raise ValueError(
                "every particle came to an energy that is not finite, so there is no whole chain. Take a smaller step "
                "(eta for Descent, error for Steer), or export draws of the latent posterior with num_samples=."
            )
        energy = walk.energies[good, 1:]
        stats = {"energy": energy, "lp": -energy, "energy_error": walk.energy_errors[good]}
        stats["drift_survived"] = walk.drift_survived[good]
        kernel = getattr(self.given, "kernel", None)  # a walk without its run has none
        refinements = getattr(kernel and kernel.refiner, "num_refinements", None)
        if bool((walk.step_sizes > 0).all()):
            stats["step_size"] = walk.step_sizes.expand_as(energy)
            stats["refinement_steps"] = walk.gradients.diff(prepend=walk.gradients.new_zeros(1)).expand_as(energy)
        elif refinements is not None:
            stats["refinement_steps"] = torch.full_like(energy, refinements, dtype=torch.long)
        values, chains = walk.samples(group_by_chain=True), good.nonzero().flatten().tolist()
        return PosteriorDraws(values=values, stats=stats, chains=chains, library="pyro_metricbnn")

    def chains(self, values: Draws) -> Draws:
        return walk_of(self.given).samples(group_by_chain=True)


@source_of.register(Trajectories)
class Walk(Run):
    """A walk without its run: a chain for each particle that did not freeze."""

    name, draws_anew, said = "walk", False, "a walk's own points: {num_chains} walks of {num_draws}"


def _by_chain(samples: Mapping[str, Any], layout: Layout) -> Draws:
    """Samples (S, ...) or (chains, S, ...) by site -> (chains, S, ...) of each latent site of the model."""
    known = {**layout.latent, **layout.deterministic, **layout.observed}
    if unknown := [name for name in samples if name not in known]:
        raise ValueError(f"the samples have {unknown[0]!r}, which is no site of the model: it has {', '.join(known)}.")
    if missing := [name for name in layout.latent if name not in samples]:
        raise ValueError(
            f"the draws lack the latent site {missing[0]!r}: pass them whole, as get_samples or draw give them. If it "
            "is what the model observes, the observations are missing from its arguments; a discrete site that was "
            "summed out has to be drawn first, with pyro.infer.infer_discrete."
        )
    values = {name: _grouped(name, samples[name], shape.size) for name, shape in layout.latent.items()}
    leading = {name: tuple(value.shape[:2]) for name, value in values.items()}
    if len(set(leading.values())) > 1 or 0 in next(iter(leading.values())):
        raise ValueError(f"the sites must have the same number of chains and draws, at least one; got {leading}.")
    return values


def _grouped(name: str, value: Any, size: torch.Size) -> Tensor:
    """Draws of one site, also as an array or a list, as a tensor (chains, S, *size)."""
    value = as_tensor(f"the samples of site {name!r}", value)
    num_leading = value.dim() - len(size)
    if num_leading not in (1, 2) or value.shape[num_leading:] != size:
        wanted = ", ".join(["[chains,] draws", *map(str, size)])
        raise ValueError(f"the samples of site {name!r} have shape {tuple(value.shape)}, but must be ({wanted}).")
    return value if num_leading == 2 else value[None]
