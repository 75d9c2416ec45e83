"""Draws of a Pyro model -> ArviZ, of either generation.

In: whatever has draws, the model and its data.  Out: `InferenceData` of ArviZ 0.x or the `DataTree` of 1.x.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from ..model.network import BayesianNetwork
from ..model.structure import TAKEN, Layout, Model, Shape, find_layout
from ..runtime.arguments import check_count, check_type
from .pointwise import Draws, Pointwise
from .sources import PosteriorDraws, Source, source_of

Group = dict[str, tuple[tuple[str, ...], Tensor]]  # dims and values by variable
Coords = Mapping[str, Sequence[Any]]
NUM_CHAINS, MIN_DRAWS = 4, 4  # that independent draws are split into, and of each: R-hat needs two chains of four


def _constants(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any], layout: Layout) -> Group:
    """Arguments of the model that are numbers, and are not what it observes."""
    signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    named: dict[str, Any] = dict(signature.bind(*args, **kwargs).arguments)
    named.update(named.pop("kwargs", {}))
    result: Group = {}
    for name, value in (leaf for key, argument in named.items() for leaf in _leaves(key, argument)):
        flat = value.reshape(-1)
        if not any(torch.equal(flat, seen.reshape(-1).to(value)) for seen in layout.values.values()):
            variable = f"{name}_argument" if name in layout.plates else name
            plates = [plate for plate, rows in layout.plates.items() if value.dim() and rows == len(value)]
            dims = [f"{variable}_dim_{axis}" for axis in range(value.dim())]
            result[variable] = ((plates[0], *dims[1:]) if len(plates) == 1 else tuple(dims), value)
    return result


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The numbers and tensors of an argument, by name."""
    if isinstance(value, (tuple, list)) and any(torch.is_tensor(item) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}_{number}", item)
    elif torch.is_tensor(value) or isinstance(value, (bool, int, float)):
        yield name, value if torch.is_tensor(value) else torch.as_tensor(value, device="cpu")


def to_arviz(
    source: Any,
    model: Model,
    *args: Any,
    num_samples: int | None = None,
    log_likelihood: bool = True,
    posterior_predictive: bool = True,
    prior: int = 0,
    coords: Coords | None = None,
    chunk_size: int | None = None,
    **kwargs: Any,
) -> Any:
    """Draws of any Pyro model in the form that ArviZ takes: `InferenceData` with ArviZ 0.x, `DataTree` with 1.x.

    `posterior` has the latent sites and, as in PyMC, the deterministic ones; `posterior_predictive` a network's output
    `f` too; `log_likelihood` that of each single observation, exact; `constant_data` the model's other arguments.
    Axes are named after their plates, others `<site>_dim_<axis>`.

    Args:
        source: A `MetricBNN` or `MCMC` after `run`, a guide, `Trajectories`, or samples ([chains,] draws, ...) by site.
        model: The Pyro model.
        *args: The model's arguments, observations included; by default those of the run.
        num_samples: Draws from a guide, 1000 by default, or from a `MetricBNN`'s latent posterior, not its walk. They
            are independent and come as four chains, for R-hat; as fewer where these would be unequal or too short.
        log_likelihood: Whether to have that group.
        posterior_predictive: Whether to have that group; it draws from the global generator.
        prior: How many draws to put into `prior` and `prior_predictive`.
        coords: Labels of the rows of a plate, or of another axis, by its name.
        chunk_size: At most this many draws at once, for when memory is short.
        **kwargs: The model's keyword arguments.

    Example:
        >>> to_arviz(walk, model, x, y)["posterior"]["weight"].dims
        ('chain', 'draw', 'weight_dim_0', 'weight_dim_1')
    """
    posterior = _checked(source, model, num_samples, prior, coords, chunk_size)
    if not args and not kwargs:
        args, kwargs = posterior.arguments
    layout = find_layout(model, args, kwargs)
    constants = _constants(model, args, kwargs, layout)
    _check_coords(coords or {}, layout, constants)
    draws = _in_chains(posterior.draws(layout, (args, kwargs), num_samples))
    pointwise = Pointwise(model, args, kwargs, layout, chunk_size)
    groups = _posterior_groups(pointwise, draws, log_likelihood, posterior_predictive)
    if prior:
        groups |= _groups(pointwise, "prior", pointwise.from_prior(prior), (1, prior))
    groups["observed_data"] = {name: (layout.observed[name].dims, value) for name, value in layout.values.items()}
    groups["constant_data"] = constants
    return _assembled({name: group for name, group in groups.items() if group}, draws, coords or {})


def _checked(source: Any, model: Any, num_samples: Any, prior: Any, coords: Any, chunk_size: Any) -> Source:
    """The source, after a look at what was passed along with it."""
    check_count("chunk_size", chunk_size, "it counts draws.", or_none=True)
    check_count("num_samples", num_samples, "it counts draws.", or_none=True)
    check_count("prior", prior, "prior counts draws from the prior: pass a number such as 500, or 0 for none.", least=0)
    check_type("coords", coords, Mapping, "a dict of labels by name", or_none=True)
    posterior = source_of(source)
    posterior.check(model)
    return posterior


def _in_chains(draws: PosteriorDraws) -> PosteriorDraws:
    """Independent draws as several chains of equal length."""
    if not draws.are_independent:
        return draws
    number = next(iter(draws.values.values())).shape[1]
    chains = max(c for c in range(1, NUM_CHAINS + 1) if c == 1 or (number % c == 0 and number >= MIN_DRAWS * c))
    return replace(draws, values={name: v.unflatten(1, (chains, -1)).squeeze(0) for name, v in draws.values.items()})


def _posterior_groups(
    pointwise: Pointwise, draws: PosteriorDraws, likelihood: bool, predictive: bool
) -> dict[str, Group]:
    layout, lead = pointwise.layout, next(iter(draws.values.values())).shape[:2]  # chains, draws
    flat = {name: value.flatten(0, 1) for name, value in draws.values.items()}
    wanted = set(layout.deterministic) - (set() if predictive else _predicted(pointwise))
    each, derived = pointwise.given_data(flat) if likelihood or wanted else ({}, {})
    new = pointwise.new_observations(flat) if predictive else {}
    kept = {name: value for name, value in derived.items() if name in wanted}
    groups = _groups(pointwise, "posterior", {**flat, **new, **kept}, lead)
    if likelihood:  # in float64, in which PSIS works
        dims = {name: ("chain", "draw", *layout.observed[name].batch.dims) for name in each}
        groups["log_likelihood"] = {n: (dims[n], value.double().unflatten(0, lead)) for n, value in each.items()}
    groups["sample_stats"] = {name: (("chain", "draw"), value) for name, value in draws.stats.items()}
    return groups


def _groups(pointwise: Pointwise, title: str, values: Draws, lead: Sequence[int]) -> dict[str, Group]:
    """Draws (S, ...) by site as the group of this title, and what is predicted as one of its own."""
    shapes, predicted = _shapes(pointwise.layout), _predicted(pointwise)
    groups: dict[str, Group] = {title: {}, f"{title}_predictive": {}}
    for name, value in values.items():
        group = groups[f"{title}_predictive" if name in predicted else title]
        group[name] = ("chain", "draw", *shapes[name].dims), value.unflatten(0, lead)
    return groups


def _predicted(pointwise: Pointwise) -> set[str]:
    """What is observed, and a network's output: it has a row for each of the data."""
    return {*pointwise.layout.observed, *(["f"] if isinstance(pointwise.model, BayesianNetwork) else [])}


def _shapes(layout: Layout) -> dict[str, Shape]:
    return {**layout.latent, **layout.deterministic, **layout.observed}


def _assembled(groups: dict[str, Group], draws: PosteriorDraws, coords: Coords) -> Any:
    """The object of the ArviZ that is installed. Loaded here: importing it takes longer than importing Pyro."""
    import arviz
    import xarray

    attributes = {"created_at": datetime.now(UTC).isoformat(), "inference_library": draws.library}
    datasets = {}
    for title, group in groups.items():
        labels: dict[str, Any] = {dim: coords.get(dim, range(n)) for dim, n in _lengths(group).items()}
        if draws.chains is not None and "chain" in labels and not title.startswith("prior"):
            labels["chain"] = draws.chains
        variables = {name: (dims, _array(value)) for name, (dims, value) in group.items()}
        datasets[title] = xarray.Dataset(variables, {dim: list(of) for dim, of in labels.items()}, attributes)
    if "InferenceData" in vars(arviz):  # 1.x answers to the name too, with a warning
        return arviz.InferenceData(**datasets)
    return xarray.DataTree.from_dict(datasets)


def _lengths(group: Group) -> dict[str, int]:
    return {dim: n for dims, value in group.values() for dim, n in zip(dims, value.shape, strict=True)}


def _check_coords(coords: Coords, layout: Layout, constants: Group) -> None:
    """Refuse labels of what is no axis, or of another length; the axes of the draws have their own."""
    axes = {dim: n for shape in _shapes(layout).values() for dim, n in zip(shape.dims, shape.size, strict=True)}
    lengths = {dim: n for dim, n in {**axes, **_lengths(constants)}.items() if dim not in TAKEN}
    for dim, labels in coords.items():
        if dim not in lengths:
            raise ValueError(f"coords has {dim!r}, which is no axis of the model: it has {', '.join(lengths)}.")
        if len(labels) != lengths[dim]:
            raise ValueError(f"coords has {len(labels)} labels for {dim!r} of {lengths[dim]} rows: pass as many.")


def _array(value: Tensor) -> Any:
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()  # NumPy has no bfloat16
