"""Draws of a Pyro model -> ArviZ, of either generation.

In: an MCMC run, a guide, samples or a walk, with the model and its data.  Out: `InferenceData` of ArviZ 0.x or the
`DataTree` of 1.x, with the same groups, variables, dims and coords whatever the draws come from.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from ..model.network import BayesianNetwork
from ..model.structure import TAKEN, Layout, Model, Shape, find_layout
from ..runtime.arguments import check_count, check_mapping, check_model
from .pointwise import Draws, Pointwise
from .sources import PosteriorDraws, source_of

Group = dict[str, tuple[tuple[str, ...], Tensor]]  # dims and values by variable
Coords = Mapping[str, Sequence[Any]]


def _constants(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any], layout: Layout) -> Group:
    """Arguments of the model that are numbers, and are not what it observes."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        named: dict[str, Any] = dict(signature.bind(*args, **kwargs).arguments)
        named.update(named.pop("kwargs", {}))
    except (TypeError, ValueError):  # of a callable without a signature
        named = {**{f"argument_{i}": value for i, value in enumerate(args)}, **kwargs}
    result: Group = {}
    for name, value in (leaf for key, argument in named.items() for leaf in _leaves(key, argument)):
        if not any(_same(value, seen) for seen in layout.values.values()):
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


def _same(value: Tensor, observed: Tensor) -> bool:
    return value.numel() == observed.numel() and torch.equal(value.reshape(-1), observed.reshape(-1).to(value))


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
    """Draws of any Pyro model in the form that ArviZ takes.

    The groups: `posterior` has the latent sites and, as in PyMC, the deterministic ones; `posterior_predictive` one new
    value of each observed site a draw, and a network's output `f`; `log_likelihood` that of each single observation,
    exact; `observed_data`; `constant_data`, the model's other arguments; `sample_stats` what the sampler recorded.
    Axes are named after their plates, others `<site>_dim_<axis>`.

    Args:
        source: A `MetricBNN` or Pyro's `MCMC` after `run`, a guide, `Trajectories`, or samples by site, (draws, ...) or
            (chains, draws, ...).
        model: The Pyro model.
        *args: The model's arguments, observations included; by default those of the run.
        num_samples: Draws from a guide, 1000 by default; of a `MetricBNN`, from its latent posterior instead of the
            walk's own points.
        log_likelihood: Whether to have that group.
        posterior_predictive: Whether to have that group; it draws from the global generator.
        prior: How many draws to put into `prior` and `prior_predictive`.
        coords: Labels of the rows of a plate, or of another axis, by its name.
        chunk_size: At most this many draws at once, for when memory is short.
        **kwargs: The model's keyword arguments.

    Returns:
        `arviz.InferenceData` with ArviZ 0.x, `xarray.DataTree` with 1.x.

    Example:
        >>> data = to_arviz(walk, model, x, y)
        >>> data["posterior"]["weight"].dims
        ('chain', 'draw', 'weight_dim_0', 'weight_dim_1')
        >>> data["log_likelihood"]["obs"].dims
        ('chain', 'draw', 'data')
    """
    check_model(model)
    for name, count in (("chunk_size", chunk_size), ("num_samples", num_samples)):
        if count is not None:
            check_count(name, count, "it counts draws.")
    check_count("prior", prior, "prior counts draws from the prior: pass a number such as 500, or 0 for none.", least=0)
    if coords is not None:
        check_mapping("coords", coords, "labels")
    posterior = source_of(source)
    posterior.check(model)
    if not args and not kwargs:
        args, kwargs = posterior.arguments
    layout = find_layout(model, args, kwargs)
    constants = _constants(model, args, kwargs, layout)
    _check_coords(coords or {}, layout, constants)
    draws = posterior.draws(layout, (args, kwargs), num_samples)
    pointwise = Pointwise(model, args, kwargs, layout, chunk_size)
    groups = _posterior_groups(pointwise, draws, log_likelihood, posterior_predictive)
    if prior:
        groups.update(_prior_groups(pointwise, prior))
    groups["observed_data"] = {name: (layout.observed[name].dims, value) for name, value in layout.values.items()}
    groups["constant_data"] = constants
    return _assembled({name: group for name, group in groups.items() if group}, draws, coords or {})


def _is_prediction(model: Model, name: str) -> bool:
    """Whether a deterministic site is a prediction: a network's output has a row for each of the data."""
    return isinstance(model, BayesianNetwork) and name == "f"


def _posterior_groups(
    pointwise: Pointwise, draws: PosteriorDraws, likelihood: bool, predictive: bool
) -> dict[str, Group]:
    layout, shapes = pointwise.layout, _shapes(pointwise.layout)
    outputs = [name for name in layout.deterministic if _is_prediction(pointwise.model, name)]
    lead = next(iter(draws.values.values())).shape[:2]  # chains, draws
    flat = {name: value.flatten(0, 1) for name, value in draws.values.items()}

    def group(values: Draws) -> Group:
        return {name: _variable(shapes[name], value.unflatten(0, lead)) for name, value in values.items()}

    needed = likelihood or len(layout.deterministic) > (0 if predictive else len(outputs))
    each, derived = pointwise.given_data(flat) if needed else ({}, {})
    groups = {"posterior": group({**flat, **{n: value for n, value in derived.items() if n not in outputs}})}
    if predictive:
        groups["posterior_predictive"] = group({**pointwise.new_observations(flat), **{n: derived[n] for n in outputs}})
    if likelihood:  # in float64, in which PSIS works
        each = {name: value.double().unflatten(0, lead) for name, value in each.items()}
        groups["log_likelihood"] = {name: _variable(shapes[name].batch, value) for name, value in each.items()}
    groups["sample_stats"] = {name: (("chain", "draw"), value) for name, value in draws.stats.items()}
    return groups


def _prior_groups(pointwise: Pointwise, num_samples: int) -> dict[str, Group]:
    layout, shapes = pointwise.layout, _shapes(pointwise.layout)
    groups: dict[str, Group] = {"prior": {}, "prior_predictive": {}}
    for name, value in pointwise.from_prior(num_samples).items():
        predicted = name in layout.observed or _is_prediction(pointwise.model, name)
        groups["prior_predictive" if predicted else "prior"][name] = _variable(shapes[name], value[None])
    return groups


def _shapes(layout: Layout) -> dict[str, Shape]:
    return {**layout.latent, **layout.deterministic, **layout.observed}


def _variable(shape: Shape, value: Tensor) -> tuple[tuple[str, ...], Tensor]:
    return ("chain", "draw", *shape.dims), value


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
            raise ValueError(
                f"coords has {len(labels)} labels for {dim!r}, which has {lengths[dim]} rows: pass as many."
            )


def _array(value: Tensor) -> Any:
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()  # NumPy has no bfloat16
