"""Whatever has posterior draws -> draws by site, (chains, draws, ...).

In: a MetricBNN, Pyro's MCMC, a guide, Trajectories or samples.  Out: `PosteriorDraws`, checked against the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pyro import poutine
from pyro.infer import HMC, MCMC

from ..latent.guide import AutoMetric
from ..model.sites import Model
from ..runtime.arguments import WrongTypeError, check_count, check_tensor
from ..runtime.threads import in_turn
from ..walk.trajectories import Trajectories
from .pointwise import Draws, Layout

DEFAULT_SAMPLES = 1000  # of a guide


@dataclass(frozen=True, kw_only=True)
class PosteriorDraws:
    """Draws by latent site (chains, draws, ...), and what the sampler says of them (chains, draws)."""

    values: Draws
    stats: Draws = field(default_factory=dict)
    chains: Sequence[int] | None = None
    library: str = "pyro"


def check_source(source: Any, model: Model) -> None:
    """Refuse what has no posterior draws, before the model runs."""
    if isinstance(source, MCMC):
        if source._samples is None:
            raise ValueError("the MCMC has no samples yet: call mcmc.run(*args) first.")
    elif _is_metric(source):
        _ = source.trajectories  # says so where nothing has been walked
    elif source is model or not (callable(source) or isinstance(source, (Trajectories, Mapping))):
        what = "the model itself" if source is model else f"of type {type(source).__name__}"
        kind = ValueError if source is model else WrongTypeError
        raise kind(
            f"the source is {what}, which has no posterior draws: pass a MetricBNN or an MCMC after run, a "
            "guide, Trajectories, or samples by site."
        )


def _is_metric(source: Any) -> bool:
    """Whether this is a MetricBNN, which is further down the flow."""
    return hasattr(type(source), "trajectories")


def own_arguments(source: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a run was given; none of other sources."""
    if isinstance(source, MCMC):
        return source._args, source._kwargs
    if not _is_metric(source):
        return (), {}
    ground = source.kernel._ground
    if ground is not None and ground.potential.is_noisy:
        raise ValueError(
            "the run took its data in batches, so no call of the model saw them all: pass the model's arguments, with "
            "all the data that this is to be about."
        )
    return source.kernel.example_arguments


def _from_guide(guide: Any, layout: Layout, num_samples: int, arguments: Any) -> PosteriorDraws:
    check_count("num_samples", num_samples, "it counts draws.")
    if isinstance(guide, AutoMetric):
        return PosteriorDraws(values=guide.sample_posterior(num_samples), library="pyro_metricbnn")
    args, kwargs = arguments
    with torch.no_grad(), in_turn():
        traces = [poutine.trace(guide).get_trace(*args, **kwargs) for _ in range(num_samples)]
    names = [name for name in layout.latent if name in traces[0].nodes]
    return PosteriorDraws(values={n: torch.stack([t.nodes[n]["value"] for t in traces]) for n in names})


def _from_mcmc(mcmc: MCMC) -> PosteriorDraws:
    values = mcmc.get_samples(group_by_chain=True)
    stats: Draws = {}
    if isinstance(mcmc.kernel, HMC):  # NUTS too; other kernels may count divergences without saying which draws
        diverging = torch.zeros(next(iter(values.values())).shape[:2], dtype=torch.bool, device="cpu")
        for chain, found in enumerate(mcmc._diagnostics):
            diverging[chain, found["divergences"]] = True
        stats["diverging"] = diverging
    return PosteriorDraws(values=values, stats=stats)


def _from_walk(walk: Trajectories, refiner: Any) -> PosteriorDraws:
    """The walk's own points: a chain for each particle that did not freeze."""
    good = walk.is_good.all(-1)
    if not bool(good.any()):
        raise ValueError(
            "every particle came to an energy that is not finite, so there is no whole chain. Take a smaller step "
            "(eta for Descent, error for Steer), or export draws of the latent posterior with num_samples=."
        )
    energy = walk.energies[good, 1:]
    stats = {
        "energy": energy,
        "lp": -energy,
        "energy_error": walk.energy_errors[good],
        "drift_survived": walk.drift_survived[good],
    }
    if bool((walk.step_sizes > 0).all()):
        stats["step_size"] = walk.step_sizes.expand_as(energy)
        stats["refinement_steps"] = walk.gradients.diff(prepend=walk.gradients.new_zeros(1)).expand_as(energy)
    elif hasattr(refiner, "num_refinements"):
        stats["refinement_steps"] = torch.full_like(energy, refiner.num_refinements, dtype=torch.long)
    chains = good.nonzero().flatten().tolist()
    return PosteriorDraws(
        values=walk.samples(group_by_chain=True), stats=stats, chains=chains, library="pyro_metricbnn"
    )


def _by_chain(samples: Mapping[str, Any], layout: Layout) -> Draws:
    """Samples (S, ...) or (chains, S, ...) by site -> (chains, S, ...) of each latent site of the model."""
    known = {**layout.latent, **layout.deterministic, **layout.observed}
    unknown = [name for name in samples if name not in known]
    if unknown:
        raise ValueError(f"the samples have {unknown[0]!r}, which is no site of the model: it has {', '.join(known)}.")
    values = {}
    for name, shape in layout.latent.items():
        if name not in samples:
            raise ValueError(
                f"the draws lack the latent site {name!r}: pass them whole, as get_samples or draw give them. If "
                f"{name!r} is what the model observes, the observations are missing from its arguments; a discrete "
                "site that was summed out has to be drawn first, with pyro.infer.infer_discrete."
            )
        value = _as_tensor(name, samples[name])
        num_leading = value.dim() - len(shape.size)
        if num_leading not in (1, 2) or value.shape[num_leading:] != shape.size:
            raise ValueError(
                f"the samples of site {name!r} have shape {tuple(value.shape)}, but a value of the model's has "
                f"{tuple(shape.size)}: before that come the draws, or the chains and the draws."
            )
        values[name] = value if num_leading == 2 else value[None]
    leading = {name: tuple(value.shape[:2]) for name, value in values.items()}
    if len(set(leading.values())) > 1 or 0 in next(iter(leading.values())):
        raise ValueError(f"the sites must have the same number of chains and draws, at least one; got {leading}.")
    return values


def _as_tensor(name: str, value: Any) -> Any:
    """Draws as a tensor; NumPy's arrays and lists of numbers too."""
    if not torch.is_tensor(value):
        try:
            value = torch.as_tensor(value, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise WrongTypeError(
                f"the samples of site {name!r} are {str(value)[:60]!r}, which is no tensor of numbers: pass one."
            ) from error
    check_tensor(f"the samples of site {name!r}", value)
    return value


def read_draws(source: Any, layout: Layout, num_samples: int | None, arguments: Any) -> PosteriorDraws:
    """The draws of a source that `check_source` let pass, for a model of this layout."""
    if _is_metric(source) and num_samples is not None:
        source = source.guide
    if num_samples is not None and not callable(source):
        raise ValueError(
            f"num_samples is for guides: {type(source).__name__} has its own number of draws. Leave it out."
        )
    if _is_metric(source):
        found = _from_walk(source.trajectories, source.kernel.refiner)
    elif isinstance(source, Trajectories):
        found = _from_walk(source, None)
    elif isinstance(source, MCMC):
        found = _from_mcmc(source)
    elif isinstance(source, Mapping):
        found = PosteriorDraws(values=dict(source))
    else:
        found = _from_guide(source, layout, DEFAULT_SAMPLES if num_samples is None else num_samples, arguments)
    return replace(found, values=_by_chain(found.values, layout))
