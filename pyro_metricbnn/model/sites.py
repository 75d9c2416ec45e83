"""The latent sites of a Pyro model as one flat vector without constraints.

In: a model and its arguments.  Out: `Sites`, which takes named, constrained values to theta (..., D)
and back, and a trace that shows what the model observes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Unit
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.transforms import ComposeTransform, IndependentTransform

from ..runtime.arguments import WrongTypeError, check_mapping, check_tensor

Model = Callable[..., Any]


@dataclass(frozen=True)
class Site:
    """One latent site and its place in theta."""

    name: str
    shape: torch.Size  # of a constrained value
    unconstrained_shape: torch.Size
    transform: Any  # from unconstrained to constrained
    start: int
    stop: int


@dataclass(frozen=True)
class Sites:
    """All latent sites, in the order in which the model samples them."""

    sites: tuple[Site, ...]
    device: torch.device
    dtype: torch.dtype

    @property
    def dim(self) -> int:
        return self.sites[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Constrained values (..., *site shape) by name -> theta (..., D)."""
        self._check_names(values)
        parts: list[Tensor] = []
        for site in self.sites:
            value = self._as_tensor(site.name, values[site.name])
            batch = value.shape[: value.dim() - len(site.shape)]
            if value.shape[len(batch) :] != site.shape:
                raise ValueError(
                    f"the value of site {site.name!r} has shape {tuple(value.shape)}, "
                    f"but the model's has {tuple(site.shape)}."
                )
            if parts and batch != parts[0].shape[:-1]:
                raise ValueError(
                    f"the value of site {site.name!r} has batch shape {tuple(batch)}, but that of "
                    f"{self.sites[0].name!r} has {tuple(parts[0].shape[:-1])}: all sites need the same."
                )
            parts.append(site.transform.inv(value).reshape((*batch, site.stop - site.start)))
        return torch.cat(parts, dim=-1)

    def unconstrained(self, theta: Tensor) -> dict[str, Tensor]:
        """theta (..., D) -> unconstrained values (..., *unconstrained shape) by name."""
        batch = theta.shape[:-1]
        parts = theta.split([site.stop - site.start for site in self.sites], dim=-1)  # one cat in the gradient
        return {
            site.name: part.reshape((*batch, *site.unconstrained_shape))
            for site, part in zip(self.sites, parts, strict=True)
        }

    def flatten_unconstrained(self, values: Mapping[str, Tensor]) -> Tensor:
        """Unconstrained values by name, without batch dimensions -> theta (D,)."""
        self._check_names(values)
        return torch.cat([values[site.name].reshape(-1) for site in self.sites])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """theta (..., D) -> constrained values (..., *site shape) by name."""
        check_tensor("theta", theta)
        if theta.shape[-1:] != (self.dim,):
            raise ValueError(
                f"theta has shape {tuple(theta.shape)}, but the model has {self.dim} unconstrained "
                f"coordinates: pass (..., {self.dim})."
            )
        values = self.unconstrained(theta)
        return {site.name: site.transform(values[site.name]) for site in self.sites}

    def constrain(self, theta: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """One theta (D,) -> constrained values and the log determinant of the map's Jacobian."""
        free = self.unconstrained(theta)
        values = {site.name: site.transform(free[site.name]) for site in self.sites}
        jacobian = theta.new_zeros(())
        for site in self.sites:
            if not _is_identity(site.transform):
                inverse = site.transform.inv  # as Pyro writes it, so that the values agree to the last bits
                jacobian = jacobian - inverse.log_abs_det_jacobian(values[site.name], free[site.name]).sum()
        return values, jacobian

    def at(self, index: int) -> str:
        """The name of the site that coordinate `index` of theta belongs to."""
        return next(site.name for site in self.sites if index < site.stop)

    def _as_tensor(self, name: str, value: Any) -> Tensor:
        if torch.is_tensor(value):
            check_tensor(f"the value of site {name!r}", value)
        try:
            return torch.as_tensor(value, dtype=self.dtype, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise WrongTypeError(
                f"the value of site {name!r} is {str(value)[:60]!r}, which is no tensor of numbers: pass one."
            ) from error

    def _check_names(self, values: Mapping[str, Tensor]) -> None:
        check_mapping("values", values, "the values of sites")
        missing, unknown = set(self.names) - set(values), set(values) - set(self.names)
        if missing or unknown:
            said = [f"{what} {sorted(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
            raise ValueError(f"values must name the model's latent sites {list(self.names)}: {', '.join(said)}.")


def _is_identity(transform: Any) -> bool:
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    return isinstance(transform, ComposeTransform) and not transform.parts


def find_sites(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Sites, poutine.Trace]:
    """Run the model twice to see its latent sites, and refuse what cannot be walked on.

    Raises:
        ValueError: The model has no latent site, a discrete one, a subsampled plate, no observations
            in an observed site, or a structure that changes from call to call.
    """
    checked = InitMessenger(init_to_uniform)(RefuseDiscrete()(model))  # Pyro's own error would advise enumeration
    trace, again = (poutine.trace(checked).get_trace(*args, **kwargs) for _ in range(2))
    sites: list[Site] = []
    start = 0
    for name, node in trace.nodes.items():
        if node["type"] != "sample":
            continue
        _check_node(name, node)
        if node["is_observed"] or site_is_subsample(node):
            continue
        value, support = node["value"].detach(), node["fn"].support
        _check_same(name, node, again.nodes.get(name))
        transform = biject_to(support)
        free_shape = transform.inv(value).shape
        stop = start + math.prod(free_shape)
        sites.append(Site(name, value.shape, free_shape, transform, start, stop))
        start = stop
    if not sites:
        observed = [n for n, node in trace.nodes.items() if node["type"] == "sample" and node["is_observed"]]
        raise ValueError(
            f"the model has no latent site (it observes {observed}): there is nothing to infer. "
            "Give its unknowns a prior with pyro.sample, or make a network a model with bayesianize."
        )
    unknown = {n for n, node in again.nodes.items() if node["type"] == "sample"} - set(trace.nodes)
    if unknown:
        raise ValueError(changing(sorted(unknown)[0]))
    first = trace.nodes[sites[0].name]["value"]
    return Sites(tuple(sites), first.device, first.dtype), trace


def has_density(name: str, node: Mapping[str, Any]) -> bool:
    """Whether a site of a trace contributes to the energy: not a plate's indices, not a deterministic value."""
    deterministic = node["type"] == "sample" and node["infer"].get("_deterministic", False)
    return node["type"] == "sample" and not site_is_subsample(node) and not deterministic


def _check_node(name: str, node: Mapping[str, Any]) -> None:
    """Refuse a site on which no gradient walk can work."""
    fn = node["fn"]
    if site_is_subsample(node):
        if fn.subsample_size is not None and fn.subsample_size < fn.size:
            raise ValueError(
                f"the plate {name!r} draws {fn.subsample_size} of {fn.size} rows anew at each call: the energy "
                "would be another function at each step. Take the subsample out and pass batch_size=."
            )
        return
    if node["is_observed"]:
        if torch.is_tensor(node["value"]) and node["value"].numel() == 0 and not isinstance(fn, Unit):
            raise ValueError(
                f"the observed site {name!r} has no data (shape {tuple(node['value'].shape)}): "
                "there is nothing to condition on. Pass at least one observation."
            )
        if node["mask"] is None:
            check_observed(f"the observed site {name!r}", fn, node["value"])
        return
    if not node["value"].is_floating_point():
        raise ValueError(f"the latent site {name!r} is {node['value'].dtype}: only real sites can be walked on.")


def check_observed(name: str, fn: Any, value: Any) -> None:
    """Refuse an observation that its distribution cannot give; what is NaN is left to those who can say whose it is."""
    while hasattr(fn, "base_dist") and type(fn).__name__ in ("Independent", "ExpandedDistribution"):
        fn = fn.base_dist
    if _moves_with_its_parameters(fn):
        return
    try:
        inside = fn.support.check(value)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):  # no support, or shapes that do not fit
        return
    if not torch.is_tensor(inside) or bool(inside.all()) or bool(value.isnan().any()):
        return
    raise ValueError(
        f"{name} has {int((~inside).sum())} values outside the support of its {type(fn).__name__} "
        f"({fn.support}; they go from {value.min()} to {value.max()}): the model gives them no density. Check how they "
        "are coded: classes count from 0, a Bernoulli has 0 and 1, counts are not negative."
    )


def _moves_with_its_parameters(fn: Any) -> bool:
    """Whether the support may be another for other values of the latent sites, as that of a Uniform up to one."""
    support: Any = getattr(type(fn), "support", None)
    try:
        return bool(constraints.is_dependent(support)) and not support.is_discrete
    except NotImplementedError:  # it does not say whether it is discrete
        return True


class RefuseDiscrete(Messenger):
    """Refuse a latent site that has no gradient."""

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if fn.has_enumerate_support or fn.support.is_discrete:
            raise ValueError(
                f"the latent site {msg['name']!r} is discrete ({type(fn).__name__}): it has no gradient to walk along. "
                "Sum it out (dist.MixtureSameFamily does, for mixtures), observe it, or use a continuous relaxation."
            )


def _check_same(name: str, node: Mapping[str, Any], other: Mapping[str, Any] | None) -> None:
    """Refuse a site whose presence, shape or support depends on the values of other sites."""
    if other is None or other["value"].shape != node["value"].shape:
        raise ValueError(changing(name))
    if not _equal(node["fn"].support, other["fn"].support):
        raise ValueError(
            f"the support of site {name!r} depends on another site's value: its transform would have to change "
            "along the walk. Sample it on a fixed support and scale it with pyro.deterministic."
        )


def check_structure(sites: Sites, trace: poutine.Trace) -> None:
    """Refuse a later call of the model that has other latent sites, or of other shapes."""
    shapes = {site.name: site.shape for site in sites.sites}
    found = {
        name: node["value"].shape
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)
    }
    for name in [*shapes, *found]:
        if shapes.get(name) != found.get(name):
            raise ValueError(changing(name))


def changing(name: str) -> str:
    """What to say of a model whose sites are not the same at each call."""
    return (
        f"the model's structure changes from call to call (see site {name!r}): all particles need the same sites "
        "with the same shapes. Sample every site always, and pick with torch.where what is used."
    )


def _equal(one: Any, two: Any) -> bool:
    """Whether two supports are the same, bounds included."""
    if torch.is_tensor(one) or torch.is_tensor(two):
        return torch.equal(torch.as_tensor(one), torch.as_tensor(two))
    if isinstance(one, constraints.Constraint):
        return type(one) is type(two) and _equal(vars(one), vars(two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_equal, one, two))
    return bool(one == two)
