"""In: a model and its arguments, or the trace of one call.  Out: what its sites are, and of which shapes (`Layout`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from pyro import poutine
from pyro.distributions import Unit
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import constraints

from ..runtime.arguments import check_model, does_not_run
from ..runtime.out_of_memory import is_out_of_memory
from ..runtime.threads import in_turn

Model = Callable[..., Any]
Node = Mapping[str, Any]  # a site of a trace
Kind = Literal["latent", "observed", "deterministic", "factor", "plate"]
TAKEN = ("chain", "draw")  # names that ArviZ has for the axes of the draws


def kind_of(node: Node) -> Kind | None:
    """What a node of a trace is; None for what is no site."""
    if node["type"] != "sample":
        return None
    if site_is_subsample(node):
        return "plate"
    if node["infer"].get("_deterministic", False):
        return "deterministic"
    if isinstance(node["fn"], Unit):  # of pyro.factor, which observes nothing
        return "factor"
    return "observed" if node["is_observed"] else "latent"


def has_density(name: str, node: Node) -> bool:
    """Whether a site of a trace contributes to the energy: not a plate's indices, not a deterministic value."""
    return kind_of(node) in ("latent", "observed", "factor")


def sites_to_infer(trace: poutine.Trace, subsampled: str, nothing: str) -> dict[Kind, dict[str, Node]]:
    """The sites of a trace by what they are; refuses a subsample and no latent site, the caller says why."""
    nodes = trace.nodes.items()
    found = {kind: {name: node for name, node in nodes if kind_of(node) == kind} for kind in get_args(Kind)}
    for name, node in found["plate"].items():
        size, drawn = node["fn"].size, node["fn"].subsample_size
        if drawn is not None and drawn < size:
            raise ValueError(f"the plate {name!r} draws {drawn} of {size} rows anew at each call: {subsampled}")
    if not found["latent"]:
        raise ValueError(f"the model has no latent site (it observes {list(found['observed'])}): {nothing}")
    return found


@dataclass(frozen=True)
class Shape:
    """The axes of a site's value."""

    size: torch.Size
    dims: tuple[str, ...]  # a plate's name, or "<site>_dim_<axis>"
    num_batch: int  # so many of them count independent values; the others are the event's

    @property
    def batch(self) -> "Shape":
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


def find_layout(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Layout:
    """Run the model once to see its sites; a ValueError where it does not run on these arguments."""
    check_model(model)
    try:
        with torch.no_grad(), in_turn():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        advice = "Pass what it was conditioned on, observations included: the x and y of its run."
        raise does_not_run("the model does not run on what it was given", args, kwargs, error, advice) from error
    found = sites_to_infer(
        trace,
        "each draw would be judged on other data. Export with the model without its subsample_size.",
        "there are no draws of it.",
    )
    latent, observed, deterministic = (
        {name: _shape(name, node) for name, node in found[kind].items()}
        for kind in ("latent", "observed", "deterministic")
    )
    values = {name: _as_tensor(found["observed"][name]["value"]).expand(shape.size) for name, shape in observed.items()}
    plates = {_dim(name): node["fn"].size for name, node in found["plate"].items()}
    return Layout(latent, deterministic, observed, values, plates)


def _as_tensor(value: Any) -> Tensor:
    return value if torch.is_tensor(value) else torch.as_tensor(value, device="cpu")


def _dim(name: str) -> str:
    return f"{name}_plate" if name in TAKEN else name


def _shape(name: str, node: Node) -> Shape:
    size, event_dim = _as_tensor(node["value"]).shape, node["fn"].event_dim
    if kind_of(node) == "observed":  # many values of one distribution, or one of many
        size = torch.broadcast_shapes(size, node["fn"].shape())
    if kind_of(node) == "deterministic" and event_dim == len(size):
        event_dim = 0  # it says so by itself, but in a plate some axes are the plate's
    num_batch = len(size) - event_dim
    plates = {frame.dim: frame for frame in node["cond_indep_stack"] if frame.dim is not None}
    dims = []
    for axis, length in enumerate(size):
        frame = plates.get(axis - num_batch) if axis < num_batch else None
        dims.append(_dim(frame.name) if frame is not None and frame.size == length else f"{name}_dim_{axis}")
    return Shape(size, tuple(dims), num_batch)


def check_observed(name: str, fn: Any, value: Any, mask: Any = None) -> None:
    """Refuse observations that are none, or that their distribution cannot give. What is masked may be anything."""
    if torch.is_tensor(value) and not value.numel():
        raise ValueError(f"{name} has no data (shape {tuple(value.shape)}): pass at least one observation.")
    while hasattr(fn, "base_dist") and type(fn).__name__ in ("Independent", "ExpandedDistribution"):
        fn = fn.base_dist
    support: Any = getattr(type(fn), "support", None)
    try:
        moves = constraints.is_dependent(support) and not support.is_discrete  # as a Uniform's up to another site
        inside = fn.support.check(value)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):  # no support, or shapes that do not fit
        return
    if mask is not None or moves or not torch.is_tensor(inside) or bool(inside.all()) or bool(value.isnan().any()):
        return  # what is NaN is left to those who can say whose it is
    raise ValueError(
        f"{name} has {int((~inside).sum())} values outside the support of its {type(fn).__name__} ({fn.support}; they "
        f"go from {value.min()} to {value.max()}): check how they are coded. Classes and counts go from 0 on."
    )


def changing(name: str) -> str:
    """What to say of a model whose sites are not the same at each call."""
    return (
        f"the model's structure changes from call to call (see site {name!r}): all particles need the same sites "
        "with the same shapes. Sample every site always, and pick with torch.where what is used."
    )
