"""What a Pyro model says of each draw: log-likelihoods of single observations, deterministic values, new observations.

In: a model, its arguments and draws by site (S, ...).  Out: tensors by site (S, ...), for all draws at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.func import vmap

from ..energy.handlers import Unvalidated
from ..model.sites import Model
from ..runtime.arguments import check_model, first_line
from ..runtime.out_of_memory import is_out_of_memory, with_less_at_once
from ..runtime.threads import in_turn

Draws = dict[str, Tensor]
NUMBERS_AT_ONCE = 2**26  # of one chunk, by the guess below: a quarter of a gigabyte in float32
NUMBERS_A_SITE = 32  # that a model holds on the way to one number of a site: hidden units, for a network
TAKEN = ("chain", "draw")  # names that ArviZ has for the axes of the draws


@dataclass(frozen=True)
class Shape:
    """The axes of a site's value."""

    size: torch.Size
    dims: tuple[str, ...]  # a plate's name, or "<site>_dim_<axis>"
    num_batch: int  # so many of them count independent values; the others are the event's

    @property
    def batch(self) -> Shape:
        """The axes of its log density."""
        return Shape(self.size[: self.num_batch], self.dims[: self.num_batch], self.num_batch)


@dataclass(frozen=True)
class Layout:
    """The sites of a model by what they are, in the model's order."""

    latent: dict[str, Shape]
    deterministic: dict[str, Shape]
    observed: dict[str, Shape]
    values: dict[str, Tensor]  # of the observed sites
    plates: dict[str, int]  # rows of each

    @property
    def chunk_size(self) -> int:
        """How many draws fit in memory at once, guessed from the sizes of the sites."""
        shapes = [*self.latent.values(), *self.deterministic.values(), *self.observed.values()]
        numbers = NUMBERS_A_SITE * sum(math.prod(shape.size) for shape in shapes)
        return min(max(1, NUMBERS_AT_ONCE // max(1, numbers)), 1000)


def find_layout(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Layout:
    """Run the model once to see its sites.

    Raises:
        ValueError: The model does not run on the arguments, has no latent site, or draws a subsample at each call.
    """
    check_model(model)
    try:
        with torch.no_grad(), in_turn():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        given = f"{len(args)} arguments and {sorted(kwargs)}" if args or kwargs else "no arguments"
        raise ValueError(
            f"the model does not run on what it was given ({given}): {first_line(error)}. Pass what it was "
            "conditioned on, observations included: the x and y of its run."
        ) from error
    layout = Layout({}, {}, {}, {}, {})
    for name, node in trace.nodes.items():
        if node["type"] != "sample" or isinstance(node["fn"], Unit):  # pyro.factor observes nothing
            continue
        if site_is_subsample(node):
            layout.plates[_dim(name)] = _num_rows(name, node)
        else:
            _place(layout, name, node)
    if not layout.latent:
        raise ValueError(
            f"the model has no latent site (it observes {list(layout.observed)}): there are no draws of it."
        )
    return layout


def _place(layout: Layout, name: str, node: Mapping[str, Any]) -> None:
    """A site, put where it belongs."""
    fn, value = node["fn"], node["value"]
    if node["infer"].get("_deterministic", False):
        # pyro.deterministic says by itself that all axes are the event's; in a plate some are the plate's.
        event_dim = 0 if fn.event_dim == value.dim() else fn.event_dim
        layout.deterministic[name] = _shape(name, value.shape, event_dim, node)
    elif node["is_observed"]:
        value = value if torch.is_tensor(value) else torch.as_tensor(value, device="cpu")
        size = torch.broadcast_shapes(value.shape, fn.shape())
        layout.observed[name] = _shape(name, size, fn.event_dim, node)
        layout.values[name] = value.expand(size)
    else:
        layout.latent[name] = _shape(name, value.shape, fn.event_dim, node)


def _num_rows(name: str, node: Mapping[str, Any]) -> int:
    fn = node["fn"]
    if fn.subsample_size is not None and fn.subsample_size < fn.size:
        raise ValueError(
            f"the plate {name!r} draws {fn.subsample_size} of {fn.size} rows anew at each call: each draw would be "
            "judged on other data. Export with the model without its subsample_size."
        )
    return fn.size


def _dim(name: str) -> str:
    return f"{name}_plate" if name in TAKEN else name


def _shape(name: str, size: torch.Size, event_dim: int, node: Mapping[str, Any]) -> Shape:
    num_batch = len(size) - event_dim
    plates = {frame.dim: frame for frame in node["cond_indep_stack"] if frame.dim is not None}
    dims = []
    for axis, length in enumerate(size):
        frame = plates.get(axis - num_batch) if axis < num_batch else None
        dims.append(_dim(frame.name) if frame is not None and frame.size == length else f"{name}_dim_{axis}")
    return Shape(size, tuple(dims), num_batch)


class NewObservations(Messenger):
    """Draw the observed sites anew, one value for each that was observed.

    Pyro's own `uncondition` draws deterministic sites too, which multiplies their axes in a plate, and gives one value
    where a distribution without a plate had many observations.
    """

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        self.shapes = shapes

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] not in self.shapes:
            return
        size, fn = self.shapes[msg["name"]].batch.size, msg["fn"]
        msg["is_observed"], msg["value"], msg["done"] = False, None, False
        if fn.batch_shape != size:
            msg["fn"] = fn.expand(size)


@dataclass(frozen=True)
class Pointwise:
    """A model at its data, asked about many draws.

    Args:
        model: The Pyro model.
        args: Its arguments, observations included.
        kwargs: Its keyword arguments.
        layout: Its sites.
        chunk_size: At most so many draws at once; None for what memory should hold.
    """

    model: Model
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    layout: Layout
    chunk_size: int | None = None

    def given_data(self, draws: Draws) -> tuple[Draws, Draws]:
        """The log-likelihood of each observation (S, *batch shape), and the deterministic sites (S, ...)."""

        def of(values: Draws) -> Draws:
            trace = self._trace(poutine.condition(self.model, data=values))
            trace.compute_log_prob(lambda name, _: name in self.layout.observed)
            observed = self.layout.observed.items()
            each = {name: trace.nodes[name]["log_prob"].expand(shape.batch.size) for name, shape in observed}
            return {**each, **{name: trace.nodes[name]["value"] for name in self.layout.deterministic}}

        found = self._each(of, draws)
        return {n: found[n] for n in self.layout.observed}, {n: found[n] for n in self.layout.deterministic}

    def new_observations(self, draws: Draws) -> Draws:
        """One new value of all that is observed for each draw: (S, ...).

        One draw after another for what torch cannot draw under vmap: multivariate normals, Student's t, Dirichlet, ...
        """

        def of(values: Draws) -> Draws:
            trace = self._trace(poutine.condition(NewObservations(self.layout.observed)(self.model), data=values))
            return {name: trace.nodes[name]["value"] for name in self.layout.observed}

        return self._each(of, draws)

    def from_prior(self, num_samples: int) -> Draws:
        """All sites, drawn from the prior: (S, ...)."""

        def of(_: Draws) -> Draws:
            trace = self._trace(NewObservations(self.layout.observed)(self.model))
            names = (*self.layout.latent, *self.layout.deterministic, *self.layout.observed)
            return {name: trace.nodes[name]["value"] for name in names}

        return self._each(of, {"number": torch.arange(num_samples, device="cpu")})

    def _trace(self, model: Model) -> Any:
        return poutine.trace(model).get_trace(*self.args, **self.kwargs)

    def _each(self, function: Callable[[Draws], Draws], draws: Draws) -> Draws:
        """The function of all draws, on the CPU, from chunks that memory holds."""
        num_draws = len(next(iter(draws.values())))
        size = max(1, min(self.chunk_size or self.layout.chunk_size, num_draws))
        run = partial(_in_chunks, function, draws, num_draws)
        return with_less_at_once(run, size, "draws", "to_arviz", draws=True)


def _in_chunks(function: Callable[[Draws], Draws], draws: Draws, num_draws: int, size: int) -> Draws:
    """So many draws at once; one after another where vmap cannot."""
    batched = vmap(function, randomness="different")
    parts: list[Draws] = []
    with torch.no_grad(), Unvalidated():
        for start in range(0, num_draws, size):
            chunk = {name: value[start : start + size] for name, value in draws.items()}
            try:
                found = batched(chunk)
            except Exception as error:  # of vmap or of the model: if of the model, the loop raises it in its own words
                if is_out_of_memory(error):
                    raise
                batched = _one_by_one(function)
                found = batched(chunk)
            parts.append({name: value.cpu() for name, value in found.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _one_by_one(function: Callable[[Draws], Draws]) -> Callable[[Draws], Draws]:
    def run(chunk: Draws) -> Draws:
        num_draws = len(next(iter(chunk.values())))
        rows = [function({name: value[s] for name, value in chunk.items()}) for s in range(num_draws)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    return run
