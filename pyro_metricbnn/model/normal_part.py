"""The normal priors of a network's weights, all in one sum: site by site they are a third of the operations.

In: a model and its sites.  Out: what those sites contribute to U at theta (D,).
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from .network import BayesianNetwork
from .sites import Sites
from .structure import Model


@dataclass(frozen=True)
class NormalPart:
    """Independent normal densities around zero of some sites; of a model without a network, of none."""

    names: frozenset[str]
    precision: Tensor | None  # (D,), 0 in the coordinates of all other sites
    constant: float  # of the densities

    @classmethod
    def of(cls, model: Model, sites: Sites) -> Self:
        scales = model.normal_scales if isinstance(model, BayesianNetwork) else {}
        if not scales:
            return cls(frozenset(), None, 0.0)
        precision, constant = torch.zeros(sites.dim, device=sites.device, dtype=sites.dtype), 0.0
        for site in sites.sites:
            if site.name in scales:
                precision[site.start : site.stop] = scales[site.name] ** -2
                constant += (site.stop - site.start) * math.log(scales[site.name] * math.sqrt(2 * math.pi))
        return cls(frozenset(scales), precision, constant)

    def __call__(self, theta: Tensor) -> Tensor:
        """Minus their log densities at one theta (D,)."""
        if self.precision is None:
            return theta.new_zeros(())
        return (theta * (theta * self.precision)).sum() / 2 + self.constant
