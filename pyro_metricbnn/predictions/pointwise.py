"""What a Pyro model says of each draw: log-likelihoods of single observations, deterministic values, new observations.

In: a model, its arguments and draws by site (S, ...).  Out: tensors by site (S, ...), for all draws at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from ..energy.handlers import Unvalidated
from ..model.structure import Layout, Model, Shape
from ..runtime.each_draw import for_each
from ..runtime.out_of_memory import with_less_at_once

Draws = dict[str, Tensor]
NUMBERS_AT_ONCE = 2**26  # of one chunk, by the guess below: a quarter of a gigabyte in float32
NUMBERS_A_SITE = 32  # that a model holds on the way to one number of a site: hidden units, for a network


class NewObservations(Messenger):
    """Draw the observed sites anew, one value for each that was observed. Pyro's `uncondition` draws deterministic
    sites too, and one value where a distribution without a plate had many observations.
    """

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        self.shapes = shapes

    def _pyro_sample(self, msg: Any) -> None:
        if shape := self.shapes.get(msg["name"]):
            msg["is_observed"], msg["value"], msg["done"] = False, None, False
            if msg["fn"].batch_shape != shape.batch.size:
                msg["fn"] = msg["fn"].expand(shape.batch.size)


@dataclass(frozen=True)
class Pointwise:
    """A model at its data, asked about many draws."""

    model: Model
    args: tuple[Any, ...]  # the model's, observations included
    kwargs: Mapping[str, Any]
    layout: Layout
    chunk_size: int | None = None  # at most so many draws at once; None for what memory should hold

    def given_data(self, draws: Draws) -> tuple[Draws, Draws]:
        """The log-likelihood of each observation (S, *batch shape), and the deterministic sites (S, ...)."""
        observed, deterministic = self.layout.observed, self.layout.deterministic

        def of(values: Draws) -> Draws:
            trace = self._trace(self.model, values)
            trace.compute_log_prob(lambda name, _: name in observed)
            each = {name: trace.nodes[name]["log_prob"].expand(shape.batch.size) for name, shape in observed.items()}
            return {**each, **{name: trace.nodes[name]["value"] for name in deterministic}}

        found = self._each(of, draws)
        return {n: found[n] for n in observed}, {n: found[n] for n in deterministic}

    def new_observations(self, draws: Draws) -> Draws:
        """One new value of all that is observed for each draw: (S, ...)."""
        return self._each(lambda values: self._anew(values, self.layout.observed), draws)

    def from_prior(self, num_samples: int) -> Draws:
        """All sites, drawn from the prior: (S, ...)."""
        names = (*self.layout.latent, *self.layout.deterministic, *self.layout.observed)
        return self._each(lambda _: self._anew({}, names), {"number": torch.arange(num_samples, device="cpu")})

    def _anew(self, values: Draws, names: Iterable[str]) -> Draws:
        trace = self._trace(NewObservations(self.layout.observed)(self.model), values)
        return {name: trace.nodes[name]["value"] for name in names}

    def _trace(self, model: Model, values: Draws) -> Any:
        return poutine.trace(poutine.condition(model, data=values)).get_trace(*self.args, **self.kwargs)

    def _each(self, function: Callable[[Draws], Draws], draws: Draws) -> Draws:
        """The function of all draws, on the CPU, from chunks that memory should hold."""
        shapes = (self.layout.latent | self.layout.deterministic | self.layout.observed).values()
        guess = min(max(1, NUMBERS_AT_ONCE // max(1, NUMBERS_A_SITE * sum(s.size.numel() for s in shapes))), 1000)

        def run(size: int) -> Draws:
            with torch.no_grad(), Unvalidated():
                return for_each(lambda one: {n: v.cpu() for n, v in function(one).items()}, draws, chunk_size=size)

        num_draws = len(next(iter(draws.values())))
        return with_less_at_once(run, min(self.chunk_size or guess, num_draws), "draws", "to_arviz", draws=True)
