"""Posteriors of one model that are to be compared: what they are asked about, and their draws, all taken in one way.

In: a model, its data, test data, and several posteriors of any kind.  Out: a `Task`, and a `Contender` for each.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..diagnostics.gain import CAME, FOUND, as_it_came, at
from ..diagnostics.mixing import MIN_DRAWS
from ..model.network import BayesianNetwork
from ..model.structure import Layout, Model, find_layout
from ..predictions.pointwise import Draws
from ..predictions.prediction import Prediction, predict
from ..predictions.sources import Source, source_of
from ..runtime.arguments import check_count, check_type
from ..runtime.randomness import own_numbers
from ..walk.trajectories import Arguments, walk_of

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Task:
    """What all posteriors are asked about."""

    model: Model
    arguments: Arguments  # what it is conditioned on
    layout: Layout
    x: Any  # a network's inputs in the data; None for other models
    x_judged: Any  # inputs that predictions are judged at: those of the test data if there are any
    y_judged: Tensor | None  # what was observed there; None for models that are no networks
    has_test: bool  # whether that is data which the posteriors have not seen
    chunk_size: int | None  # at most so many rows of x at once

    @property
    def is_network(self) -> bool:
        """Whether the model was made by `bayesianize`: then functions are compared, and weights are not."""
        return isinstance(self.model, BayesianNetwork)

    @property
    def is_classifier(self) -> bool:
        """Whether it is a network of classes."""
        return isinstance(self.model, BayesianNetwork) and self.model.likelihood.observes == "classes"

    def predict(self, draws: Draws, x: Any) -> Prediction:
        """A network's predictions for draws (S, ...)."""
        return predict(self.model, draws, x, chunk_size=self.chunk_size)  # type: ignore[arg-type]


def set_task(
    model: Model, posteriors: Mapping[str, Source], arguments: Arguments, test: tuple[Any, Any], chunk_size: int | None
) -> Task:
    """The data, by default those of the first run that has them, and the test data; refused if the model cannot run."""
    (args, kwargs), (_, y_test), has_test = arguments, test, test[0] is not None
    if has_test != (y_test is not None):
        missing = "y_test" if has_test else "x_test"
        raise ValueError(f"{missing} is missing: predictions at x_test are judged by y_test. Pass both, or neither.")
    if has_test and not isinstance(model, BayesianNetwork):
        said = "x_test is for networks made models by bayesianize: its place in another model is not known"
        raise ValueError(f"{said}. Leave it out; the table has leave-one-out scores.")
    check_count("chunk_size", chunk_size, "it counts rows of x.", or_none=True)
    if not args and not kwargs:
        known = (source.arguments for source in posteriors.values())
        args, kwargs = next((each for each in known if any(each)), ((), {}))
    with own_numbers(_device_of(model)):  # a look at the model draws from it
        layout = find_layout(model, args, kwargs)
        if has_test:
            find_layout(model, test, {})
    x = y = None
    if isinstance(model, BayesianNetwork):
        if "obs" not in layout.observed:
            raise ValueError("y is missing: the model observes nothing. Pass compare(model, posteriors, x, y).")
        x, y = inspect.signature(model.forward).bind(*args, **kwargs).arguments["x"], layout.values["obs"]
    x_judged, y_judged = test if has_test else (x, y)
    return Task(model, (args, kwargs), layout, x, x_judged, y_judged, has_test=has_test, chunk_size=chunk_size)


def _device_of(model: Model) -> torch.device:
    """Where a network is; the CPU for a function."""
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
    return next((value.device for value in parameters), torch.device("cpu"))


def named(posteriors: Mapping[str, Any] | Sequence[Any], model: Model) -> dict[str, Source]:
    """Posteriors by name; those of a list are named after what they are, and numbered where that is the same."""
    advice = 'pass for example {"MetricBNN": metric, "NUTS": mcmc}'
    check_type("posteriors", posteriors, (Mapping, list, tuple), "a dict of them by name, or a list", advice)
    if not posteriors:
        raise ValueError("there is no posterior to compare: pass at least one, as {'MetricBNN': metric}.")
    if isinstance(posteriors, Mapping):
        names, given = list(posteriors), list(posteriors.values())
        if any(not isinstance(name, str) or not name.strip() for name in names):
            raise ValueError(f"the names of posteriors must be texts that are not empty, got {names}.")
        if all(map(torch.is_tensor, given)):
            raise ValueError(
                f"posteriors has tensors by name ({', '.join(names)}): samples by site are one posterior. Give it a "
                "name, as {'samples': samples}."
            )
        sources = [_about(name, source_of, one) for name, one in posteriors.items()]
    else:
        sources = [_about(type(one).__name__, source_of, one) for one in posteriors]
        kinds = [source.name for source in sources]
        numbers = [f" {kinds[: i + 1].count(kind)}" if kinds.count(kind) > 1 else "" for i, kind in enumerate(kinds)]
        names = [kind + number for kind, number in zip(kinds, numbers, strict=True)]
    by_name = dict(zip(names, sources, strict=True))
    for name, source in by_name.items():
        _about(name, source.check, model)
    return by_name


def stages_of(task: Task, posteriors: Mapping[str, Source], wanted: bool | None) -> dict[str, Source]:
    """What the walks began with, each as one draw: the network as it came, and the MAP of the first run."""
    if not (task.has_test if wanted is None else wanted):
        return {}
    runs = [walk_of(source.given) for source in posteriors.values() if source.is_walked]
    if not runs or not isinstance(task.model, BayesianNetwork):
        return {}
    found = {CAME: as_it_came(task.model, runs[0]), FOUND: at(runs[0], runs[0].theta_star)}
    return {name: source_of(samples) for name, samples in found.items() if name not in posteriors}


def _about(name: str, ask: Callable[..., Answer], *args: Any) -> Answer:
    """ask(*args); an error says which posterior it is about."""
    try:
        return ask(*args)
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ValueError(f"the posterior {name!r} cannot be compared: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the posteriors, with its draws."""

    name: str  # what the table calls it
    source: Source
    description: str  # what it is, in a few words
    draws: Draws  # (S, ...) by latent site
    chains: Draws | None  # (N, T, ...), where R-hat has a meaning: all the draws of a sampler, in their order
    warnings: tuple[str, ...]  # of its sampler

    @property
    def num_draws(self) -> int:
        """S."""
        return len(next(iter(self.draws.values())))


def draw_all(task: Task, posteriors: Mapping[str, Source], num_samples: int) -> list[Contender]:
    """Each posterior with draws: as many as wanted, or all that there are if they are fewer."""
    with own_numbers(_device_of(task.model)):  # one draw of each tells whether it is of another model
        for name, source in posteriors.items():
            _about(name, source.draws, task.layout, task.arguments, 1 if source.draws_anew else None)
    return [_about(name, _contender, task, name, source, num_samples) for name, source in posteriors.items()]


def _contender(task: Task, name: str, source: Source, num_samples: int) -> Contender:
    found = source.draws(task.layout, task.arguments, num_samples if source.draws_anew else None)
    values = {site: value.detach() for site, value in found.values.items()}
    if broken := [site for site, value in values.items() if not bool(value.isfinite().all())]:
        raise ValueError(f"its draws of the site {broken[0]!r} are not finite. Leave those draws out.")
    num_chains, num_draws = next(iter(values.values())).shape[:2]
    draws, total = {site: value.flatten(0, 1) for site, value in values.items()}, num_chains * num_draws
    if total > num_samples:  # evenly, so that each chain has its part
        kept = torch.linspace(0, total - 1, num_samples, device="cpu").round().long()
        draws = {site: value[kept.to(value.device)] for site, value in draws.items()}
    said, warnings = source.description(num_chains, num_draws), found.warnings
    chains = source.chains(values)
    num_chains, num_draws = next(iter(chains.values())).shape[:2] if chains else (0, 0)
    chains = chains if num_chains and num_draws >= MIN_DRAWS else None
    return Contender(name=name, source=source, description=said, draws=draws, chains=chains, warnings=warnings)
