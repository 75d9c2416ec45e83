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
from ..model.sites import Model
from ..runtime.arguments import check_count, check_mapping, check_model
from .pointwise import TAKEN, Draws, Layout, Pointwise, Shape, find_layout
from .sources import PosteriorDraws, check_source, own_arguments, read_draws

Group = dict[str, tuple[tuple[str, ...], Tensor]]  # dims and values by variable
Coords = Mapping[str, Sequence[Any]]


# -------------------------------------------------------------------------------------- what is constant


def _constants(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any], layout: Layout) -> Group:
    """Arguments of the model that are numbers, and are not what it observes."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        named: dict[str, Any] = dict(signature.bind(*args, **kwargs).arguments)
        named.update(named.pop("kwargs", {}))
    except (TypeError, ValueError):  # of a callable without a signature
        named = {**{f"argument_{i}": value for i, value in enumerate(args)}, **kwargs}
    result: Group = {}
    rows: dict[int, list[str]] = {}
    for plate, num_rows in layout.plates.items():
        rows.setdefault(num_rows, []).append(plate)
    for name, value in ((n, v) for key, v in named.items() for n, v in _leaves(key, v)):
        if not any(_same(value, seen) for seen in layout.values.values()):
            variable = f"{name}_argument" if name in layout.plates else name
            plates = rows.get(len(value), []) if value.dim() else []
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


# ---------------------------------------------------------------------------------------------- groups


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
    if chunk_size is not None:
        check_count("chunk_size", chunk_size, "it counts draws.")
    if num_samples is not None:
        check_count("num_samples", num_samples, "it counts draws.")
    check_count("prior", prior, "prior counts draws from the prior: pass a number such as 500, or 0 for none.", least=0)
    if coords is not None:
        check_mapping("coords", coords, "labels")
    check_source(source, model)
    if not args and not kwargs:
        args, kwargs = own_arguments(source)
    layout = find_layout(model, args, kwargs)
    constants = _constants(model, args, kwargs, layout)
    _check_coords(coords or {}, _axes(layout, constants))
    draws = read_draws(source, layout, num_samples, (args, kwargs))
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
    layout, model = pointwise.layout, pointwise.model
    values = {name: draws.values[name] for name in layout.latent}
    lead = next(iter(values.values())).shape[:2]  # chains, draws
    flat = {name: value.flatten(0, 1) for name, value in values.items()}
    each: Draws = {}
    derived: Draws = {}
    if likelihood or any(predictive or not _is_prediction(model, name) for name in layout.deterministic):
        each, derived = pointwise.given_data(flat)
    posterior = {name: _variable(shape, values[name]) for name, shape in layout.latent.items()}
    for name, value in derived.items():
        if not _is_prediction(model, name):
            posterior[name] = _variable(layout.deterministic[name], value.unflatten(0, lead))
    groups = {"posterior": posterior}
    if predictive:
        new = pointwise.new_observations(flat)
        new.update({name: value for name, value in derived.items() if _is_prediction(model, name)})
        shapes = {**layout.observed, **layout.deterministic}
        groups["posterior_predictive"] = {n: _variable(shapes[n], value.unflatten(0, lead)) for n, value in new.items()}
    if likelihood:  # in float64, in which PSIS works
        items = layout.observed.items()
        groups["log_likelihood"] = {n: _variable(s.batch, each[n].double().unflatten(0, lead)) for n, s in items}
    groups["sample_stats"] = {name: (("chain", "draw"), value) for name, value in draws.stats.items()}
    return groups


def _prior_groups(pointwise: Pointwise, num_samples: int) -> dict[str, Group]:
    layout, found = pointwise.layout, pointwise.from_prior(num_samples)
    shapes = {**layout.latent, **layout.deterministic, **layout.observed}
    groups: dict[str, Group] = {"prior": {}, "prior_predictive": {}}
    for name, value in found.items():
        predicted = name in layout.observed or _is_prediction(pointwise.model, name)
        groups["prior_predictive" if predicted else "prior"][name] = _variable(shapes[name], value[None])
    return groups


def _variable(shape: Shape, value: Tensor) -> tuple[tuple[str, ...], Tensor]:
    return ("chain", "draw", *shape.dims), value


# ------------------------------------------------------------------------------------- ArviZ and xarray


def _assembled(groups: dict[str, Group], draws: PosteriorDraws, coords: Coords) -> Any:
    """The object of the ArviZ that is installed. Loaded here: importing it takes longer than importing Pyro."""
    import arviz
    import xarray

    lengths = {title: _lengths(group) for title, group in groups.items()}
    attributes = {"created_at": datetime.now(UTC).isoformat(), "inference_library": draws.library}
    datasets = {}
    for title, group in groups.items():
        labels: dict[str, Any] = {dim: coords.get(dim, range(n)) for dim, n in lengths[title].items()}
        if draws.chains is not None and "chain" in labels and not title.startswith("prior"):
            labels["chain"] = draws.chains
        variables = {name: (dims, _array(value)) for name, (dims, value) in group.items()}
        datasets[title] = xarray.Dataset(variables, {dim: list(of) for dim, of in labels.items()}, attributes)
    if "InferenceData" in vars(arviz):  # 1.x answers to the name too, with a warning
        return arviz.InferenceData(**datasets)
    return xarray.DataTree.from_dict(datasets)


def _lengths(group: Group) -> dict[str, int]:
    return {dim: n for dims, value in group.values() for dim, n in zip(dims, value.shape, strict=True)}


def _axes(layout: Layout, constants: Group) -> dict[str, int]:
    """All axes but those of the draws, with their lengths."""
    shapes = [*layout.latent.values(), *layout.deterministic.values(), *layout.observed.values()]
    axes = {dim: n for shape in shapes for dim, n in zip(shape.dims, shape.size, strict=True)}
    return {dim: n for dim, n in {**axes, **_lengths(constants)}.items() if dim not in TAKEN}


def _check_coords(coords: Coords, lengths: Mapping[str, int]) -> None:
    for dim, labels in coords.items():
        if dim not in lengths:
            raise ValueError(f"coords has {dim!r}, which is no axis of the model: it has {', '.join(lengths)}.")
        if len(labels) != lengths[dim]:
            raise ValueError(
                f"coords has {len(labels)} labels for {dim!r}, which has {lengths[dim]} rows: pass as many."
            )


def _array(value: Tensor) -> Any:
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
