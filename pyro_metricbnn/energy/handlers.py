"""Pyro effect handlers that the batched energy runs the model under."""

import copy
import math
from contextlib import ExitStack
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.utils import broadcast_all

from ..model.sites import Sites
from ..model.structure import changing, kind_of
from ..runtime.threads import in_turn


class ScaleObservations(Messenger):
    """Multiply the log density of what is observed of a batch of `size` rows."""

    def __init__(self, factor: float, size: int) -> None:
        super().__init__()
        self.factor, self.size = factor, size

    def _pyro_sample(self, msg: Any) -> None:
        frames = msg["cond_indep_stack"]
        if not msg["is_observed"] or any(frame.full_size not in (None, frame.size) for frame in frames):
            return  # a plate(size=, subsample=) has scaled it already
        rows = msg["value"].shape[:1] if torch.is_tensor(msg["value"]) else ()
        if self.size in (*rows, *(frame.size for frame in frames)):
            msg["scale"] = msg["scale"] * self.factor


class LastSite(Messenger):
    """Remember the site that the model came to last, for error texts; refuse one without a value, which is new."""

    name: str | None = None
    changed: str | None = None  # a site that has another shape now

    def __init__(self, sites: Sites) -> None:
        super().__init__()
        self._shapes = {site.name: site.shape for site in sites.sites}

    def __enter__(self) -> Self:
        self.name = self.changed = None
        return super().__enter__()

    def _pyro_sample(self, msg: Any) -> None:
        self.name = name = msg["name"]
        if kind_of(msg) == "latent":
            raise ValueError(changing(str(name)))
        if name in self._shapes and msg["fn"].shape() != self._shapes[name]:
            self.changed = name


class Unvalidated(Messenger):
    """Validation off, also in distributions that were made with it on: it branches on values.

    The switch is Pyro's, one for all threads: two blocks that overlap would put back what the other had set.
    """

    def __enter__(self) -> Self:
        self._block = ExitStack()
        self._block.enter_context(in_turn())
        self._block.enter_context(pyro.validation_enabled(False))
        return super().__enter__()

    def __exit__(self, *exception: Any) -> Any:
        with self._block:
            return super().__exit__(*exception)

    def _pyro_sample(self, msg: Any) -> None:
        msg["fn"] = _without_validation(msg["fn"])


def _without_validation(value: Any) -> Any:
    """A shallow copy of a distribution, and of those inside it, that checks nothing."""
    if isinstance(value, (list, tuple)) and any(isinstance(item, Distribution) for item in value):
        return type(value)(map(_without_validation, value))
    if not isinstance(value, Distribution):
        return value
    bare = copy.copy(value)
    bare.__dict__.update({name: _without_validation(inner) for name, inner in vars(value).items()})
    bare.__dict__["_validate_args"] = False
    if type(bare) is dist.Multinomial:
        bare.__class__ = _Multinomial
    return bare


class _Multinomial(dist.Multinomial):
    """Counts without the assignment to a mask in torch's own density: vmap of torch 2.10 cannot do it."""

    def log_prob(self, value: Tensor) -> Tensor:
        logits, counts = broadcast_all(self.logits, value)
        logits = logits.masked_fill((counts == 0) & (logits == -math.inf), 0.0)  # what cannot be was not seen
        arrangements = torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)
        return arrangements + (logits * counts).sum(-1)
