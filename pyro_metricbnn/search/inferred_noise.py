"""Models that are no bayesianized network, and infer their noise: how that is seen, and where a walk leaves from.

In: a potential.  Out: which coordinates (D,) are the noise's own; points (S, D) that are not the joint maximum.

With many weights a model can fit every row, and then has no noise: its joint maximum is no place to leave from.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from tqdm.auto import tqdm

from ..energy.handlers import Unvalidated
from ..energy.potential import BatchedPotential
from ..energy.prior_units import PriorUnits, prior_units, smallness
from ..model.network import BayesianNetwork
from ..model.structure import kind_of
from ..runtime.progress import progress_bar
from .descent import Evaluate, adam, lbfgs_from_all
from .map_search import given_point

NUM_STEPS, RATE = 300, 0.05  # of Adam, in prior deviations: longer ones fit the noise, too
NOISE_STEPS = 30
FIRST_NOISE = 0.5  # of what the prior's median leaves: held at that, the fit is worth its weights to the prior


def points_with_noise(
    potential: BatchedPotential, init: Mapping[str, Tensor] | None, num_starts: int, progress: bool
) -> Tensor | None:
    """Points (S, D) that were fitted for a short time, with the noise that they leave; None where none is inferred."""
    noise = _noise(potential)
    if noise is None:
        return None
    units, own = prior_units(potential), noise.own
    z = _starts(potential, units, init, num_starts)
    with progress_bar(desc="fit", disable=not progress, leave=False, unit=" steps") as bar:

        def fit_noise(z: Tensor) -> Tensor:
            if not bool(own.any()):
                return z
            return torch.stack(
                [end.z for end in lbfgs_from_all(_over(potential, units, own, bar), z, NOISE_STEPS, bar)]
            )

        if init is None:
            middle = fit_noise(torch.where(own, z, 0.0))
            z = torch.where(own, middle + math.log(FIRST_NOISE) * noise.per_log_scale / units.scale, z)
        ends = adam(_over(potential, units, ~own, bar), z, NUM_STEPS, bar, RATE)
        if not math.isfinite(ends[0].energy):
            return None  # the search for the maximum says what is wrong
        return units.theta(fit_noise(torch.stack([end.z for end in ends]))).detach()


@dataclass(frozen=True)
class _Noise:
    own: Tensor  # (D,), which coordinates say how large the noise is and nothing else
    per_log_scale: Tensor  # (D,), what to add to these for a scale that is e times as large


def _noise(potential: BatchedPotential) -> _Noise | None:
    """None where no noise is inferred. One that depends on the inputs, as a second output, has no coordinates."""
    if isinstance(potential.model, BayesianNetwork) or potential.is_noisy or smallness(potential.dim) > 0.5:
        return None
    values = {name: potential.prototype.nodes[name]["value"].detach() for name in potential.sites.names}
    theta = potential.flatten(values).requires_grad_()
    with torch.enable_grad(), Unvalidated():
        model = poutine.condition(potential.model, data=potential.sites.constrain(theta)[0])
        trace = poutine.trace(model).get_trace(*potential.args, **potential.kwargs)
        seen = (node for name, node in trace.nodes.items() if kind_of(node) == "observed" and name not in values)
        parts = [_location_and_scale(node["fn"]) for node in seen]
        if not parts:
            return None
        of_center, of_scale = (
            _slope([one for one in each if one is not None], theta) for each in zip(*parts, strict=True)
        )
    if not bool(of_scale.any()):
        return None
    own = (of_scale != 0) & (of_center == 0)
    for site in potential.sites.sites:
        own[site.start : site.stop] = own[site.start : site.stop].all()
    along = torch.where(own, of_scale, 0.0)
    return _Noise(own, along / along.square().sum().clamp_min(1e-12))


def _location_and_scale(fn: Any) -> tuple[Tensor | None, Tensor | None]:
    """What a distribution of numbers is around, squared, and the logarithm of its width; None where it has none."""
    while hasattr(fn, "base_dist") and "loc" not in vars(fn):
        fn = fn.base_dist
    own = vars(fn)
    matrix = own.get("scale_tril", own.get("_unbroadcasted_scale_tril"))
    scale = matrix.diagonal(dim1=-1, dim2=-2) if torch.is_tensor(matrix) else own.get("scale")
    location = own.get("loc")
    return (
        location.square().mean() if torch.is_tensor(location) else None,
        scale.abs().log().mean() if torch.is_tensor(scale) else None,
    )


def _slope(values: Iterable[Tensor], theta: Tensor) -> Tensor:
    """Of their sum, by theta (D,)."""
    total = sum(values, theta.new_zeros(()))
    if not total.requires_grad:
        return torch.zeros_like(theta)
    (slope,) = torch.autograd.grad(total, theta, allow_unused=True, retain_graph=True)
    return torch.zeros_like(theta) if slope is None else slope


def _starts(
    potential: BatchedPotential, units: PriorUnits, init: Mapping[str, Tensor] | None, num_starts: int
) -> Tensor:
    """In prior deviations (S, D): what was given, or points around the prior's median."""
    if init is not None:
        return units.z(given_point(potential, {**potential.unflatten(units.center), **init}))[None]
    return torch.empty(num_starts, potential.dim, device=units.scale.device, dtype=units.scale.dtype).uniform_(-1, 1)


def _over(potential: BatchedPotential, units: PriorUnits, free: Tensor, bar: tqdm) -> Evaluate:
    """The energy by z, with a gradient in the free coordinates alone."""

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = potential.value_and_grad(units.theta(z))
        bar.update()
        return value, torch.where(free, grad * units.scale, 0.0)

    return evaluate
