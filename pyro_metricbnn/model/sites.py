"""In: a model and its arguments.  Out: `Sites`, which takes named, constrained values to theta (..., D) and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import ComposeTransform, IndependentTransform

from ..runtime.arguments import WrongTypeError, check_mapping, check_tensor
from .structure import Model, changing, check_observed, kind_of, sites_to_infer


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
            batch, said = value.shape[: value.dim() - len(site.shape)], f"the value of site {site.name!r} has"
            if value.shape[len(batch) :] != site.shape:
                raise ValueError(f"{said} shape {tuple(value.shape)}, but the model's has {tuple(site.shape)}.")
            if parts and batch != parts[0].shape[:-1]:
                first = f"that of {self.sites[0].name!r} has {tuple(parts[0].shape[:-1])}"
                raise ValueError(f"{said} batch shape {tuple(batch)}, but {first}: all sites need the same.")
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
            said = f"the model has {self.dim} unconstrained coordinates: pass (..., {self.dim})"
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but {said}.")
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
            said = f"the value of site {name!r} is {str(value)[:60]!r}, which is no tensor of numbers: pass one."
            raise WrongTypeError(said) from error

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


class RefuseSite(Messenger):
    """Refuse a latent site that cannot be walked on, in words that name it."""

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if kind_of(msg) == "latent" and fn.support is constraints.sphere:
            raise ValueError(
                f"the latent site {msg['name']!r} lies on a sphere ({type(fn).__name__}), which has no map from "
                "unconstrained coordinates: reparametrise it, poutine.reparam(model, config={"
                f"{msg['name']!r}: pyro.infer.reparam.ProjectedNormalReparam()}})."
            )
        if kind_of(msg) == "latent" and (fn.has_enumerate_support or fn.support.is_discrete):
            raise ValueError(
                f"the latent site {msg['name']!r} is discrete ({type(fn).__name__}): it has no gradient to walk along. "
                "Sum it out (dist.MixtureSameFamily does, for mixtures), observe it, or use a continuous relaxation."
            )


def find_sites(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Sites, poutine.Trace]:
    """Run the model twice to see its latent sites, and refuse what cannot be walked on."""
    checked = InitMessenger(init_to_uniform)(RefuseSite()(model))  # Pyro's own error would advise enumeration
    trace, again = (poutine.trace(checked).get_trace(*args, **kwargs) for _ in range(2))
    found = sites_to_infer(
        trace,
        "the energy would be another function at each step. Take the subsample out and pass batch_size=.",
        "there is nothing to infer. Give its unknowns a prior with pyro.sample, or make a network a model with "
        "bayesianize.",
    )
    for name, node in found["observed"].items():
        check_observed(f"the observed site {name!r}", node["fn"], node["value"], node["mask"])
    sites: list[Site] = []
    for name, node in found["latent"].items():
        value, other = node["value"].detach(), again.nodes.get(name)
        if not value.is_floating_point():
            raise ValueError(f"the latent site {name!r} is {value.dtype}: only real sites can be walked on.")
        if other is None or other["value"].shape != value.shape:
            raise ValueError(changing(name))
        transform = biject_to(node["fn"].support)
        free = transform.inv(value)
        if not torch.equal(transform(free), biject_to(other["fn"].support)(free)):
            advice = "sample it on a fixed support and scale it with pyro.deterministic."
            raise ValueError(f"the support of site {name!r} depends on another site's value: {advice}")
        start = sites[-1].stop if sites else 0
        sites.append(Site(name, value.shape, free.shape, transform, start, start + free.numel()))
    new = [name for name, node in again.nodes.items() if kind_of(node) and name not in trace.nodes]
    if new:
        raise ValueError(changing(new[0]))
    first = trace.nodes[sites[0].name]["value"]
    return Sites(tuple(sites), first.device, first.dtype), trace


def check_structure(sites: Sites, trace: poutine.Trace) -> None:
    """Refuse a later call of the model that has other latent sites, or of other shapes."""
    shapes = {site.name: site.shape for site in sites.sites}
    found = {name: node["value"].shape for name, node in trace.nodes.items() if kind_of(node) == "latent"}
    for name in [*shapes, *found]:
        if shapes.get(name) != found.get(name):
            raise ValueError(changing(name))
