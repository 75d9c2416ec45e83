"""Draws of theta -> predictions, for all draws at once.

In: a Pyro model, samples by site (S, ...) and new inputs.  Out: `Prediction`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..energy.handlers import Unvalidated
from ..model.likelihoods import Likelihood
from ..model.network import BayesianNetwork
from ..model.numbers import as_tensors
from ..model.structure import check_observed
from ..runtime.arguments import (
    WrongTypeError,
    check_count,
    check_device,
    check_mapping,
    check_number,
    check_part,
    does_not_run,
    other_precision,
)
from ..runtime.each_draw import for_each
from ..runtime.out_of_memory import is_out_of_memory, with_less_at_once
from ..runtime.threads import in_turn

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a posterior predicts at n inputs."""

    f: Tensor  # the network's output for each draw: (S, n, ...)
    likelihood: Likelihood  # what the output means
    parameters: Mapping[str, Tensor]  # the likelihood's own latent ones by draw: (S, ...)

    def __repr__(self) -> str:
        said = repr(self.likelihood) if len(repr(self.likelihood)) <= 60 else f"{type(self.likelihood).__name__}(...)"
        return f"Prediction({self.num_samples} draws at {self.f.shape[1]} inputs, {said})"

    def _each(self, function: Callable[..., Any]) -> Any:
        """function(f, **parameters) under each draw, for all draws at once: (S, ...)."""
        with Unvalidated():
            return for_each(lambda draw: function(draw[0], **draw[1]), (self.f, dict(self.parameters)))

    @property
    def num_samples(self) -> int:
        """S."""
        return len(self.f)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the observations under each draw: (S, n, ...)."""
        return self._each(self.likelihood.moments)

    @property
    def expected(self) -> Tensor:
        """The mean of the observations under each draw: (S, n, ...); for classes their probabilities (S, n, C)."""
        return self._moments[0]

    @property
    def mean(self) -> Tensor:
        """The mean of the observations; class probabilities for classes."""
        return self.expected.mean(0)

    @property
    def noise_std(self) -> Tensor:
        """The part of the deviation that the data would have even if the weights were known."""
        return self._moments[1].mean(0).sqrt()

    @property
    def model_std(self) -> Tensor:
        """The part of the deviation that comes from not knowing the weights."""
        return self.expected.std(0, correction=0)

    @property
    def std(self) -> Tensor:
        """The deviation of the observations: noise and model together."""
        return (self.noise_std**2 + self.model_std**2).sqrt()

    @property
    def probs(self) -> Tensor:
        """Mean class probabilities: (n, C); of a Bernoulli (n, ...), the probability of a one."""
        if self.likelihood.observes != "classes":
            raise ValueError(f"probs are for classes; this likelihood is {type(self.likelihood).__name__}.")
        return self.mean

    @property
    def class_probs(self) -> Tensor:
        """Mean probabilities of all classes of each observation: (n, C); a Bernoulli has two."""
        return self._class_probs().mean(0).flatten(0, -2)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities (n,): all the uncertainty there is."""
        return torch.special.entr(self._class_probs().flatten(2).mean(0)).sum(-1)

    @property
    def mutual_information(self) -> Tensor:
        """How much of the entropy comes from not knowing the weights (n,)."""
        return self.entropy - torch.special.entr(self._class_probs().flatten(2)).sum(-1).mean(0)

    def _class_probs(self) -> Tensor:
        """Under each draw: (S, n, ..., C)."""
        return self._each(self.likelihood.class_probs)

    @property
    def clean(self) -> "Prediction":
        """The same of labels without noise, where the likelihood says that some of those observed are wrong."""
        return replace(self, likelihood=self.likelihood.clean, parameters={})

    def scaled(self, factor: float) -> "Prediction":
        """Less sure by a factor above 1, surer by one below: logits of each draw divided by it, or noise times it.

        `fit_scale` finds the factor on rows that were held out.
        """
        check_number("factor", factor, "1 changes nothing.")
        likelihood, f, parameters = self.likelihood.scaled(factor, self.f, self.parameters)
        return Prediction(f=f, likelihood=likelihood, parameters=parameters)

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of new observations, from one observation a draw."""
        check_part("q", q, "it is the probability below the quantile; of several call it for each.")
        return self.sample().to(self.f.dtype).quantile(q, dim=0)

    def sample(self) -> Tensor:
        """One new observation a draw: (S, n, ...)."""
        return self._each(lambda f, **own: self.likelihood.distribution(f, **own).sample())

    def points(self, num_points: int = 2000) -> Tensor:
        """At least so many equally likely observations (P, n, ...), as many of each draw.

        Under normal noise they are quantiles, the same at each call; under other noise they are random.
        """
        check_count("num_points", num_points, "it counts observations.")
        each = math.ceil(num_points / self.num_samples)  # K
        if not self.likelihood.has_normal_noise:
            return torch.cat([self.sample().to(self.f.dtype) for _ in range(each)])
        mean, variance = self._moments
        # Draw s has the levels (k + shift_s) / K; shifts by the golden ratio spread those of all draws together evenly.
        shift = (torch.arange(self.num_samples, device=mean.device, dtype=torch.float64) + 0.5) * GOLDEN % 1
        levels = (torch.arange(each, device=mean.device)[:, None] + shift) / each  # (K, S)
        normal = torch.special.ndtri(levels).to(mean).reshape(each, -1, *[1] * (mean.dim() - 1))
        return (mean + variance.sqrt() * normal).flatten(0, 1)

    def log_prob(self, y: Any) -> Tensor:
        """Log predictive density of each observation (n,), averaged over draws before the logarithm."""
        y = self.likelihood.targets(self.f[0], as_tensors("y", y, self.f))
        first = {name: value[0] for name, value in self.parameters.items()}
        check_observed("y", self.likelihood.distribution(self.f[0], **first), y)
        each = self._each(lambda f, **own: self.likelihood.distribution(f, **own).log_prob(y))
        return each.logsumexp(0) - math.log(self.num_samples)


def predict(
    model: BayesianNetwork, samples: Mapping[str, Tensor], x: Any, *, chunk_size: int | None = None
) -> Prediction:
    """The predictions of a bayesianized network for samples by site: the network's output for all draws at once.

    Args:
        model: A model made by `bayesianize`.
        samples: (S, ...) a site, as `get_samples`, `draw` and Pyro's `MCMC.get_samples` give them.
        x: New inputs, or a tuple of a network's several inputs.
        chunk_size: At most this many rows of x at once; where memory is short then too, half of it, and that is said.

    Example:
        >>> predict(model, walk.samples(), x).mean.shape
        torch.Size([20, 1])
    """
    check_network("predict", model, "use pyro.infer.Predictive")
    check_count("chunk_size", chunk_size, "it counts rows of x.", or_none=True)
    with in_turn():  # while another thread predicts, the module has that one's weights
        weights = _weights(model, samples)
    x, _ = model.taken(x)
    inputs = x if isinstance(x, tuple) else (x,)
    num_rows = _num_rows(inputs, next(iter(weights.values())).device)
    run = partial(_outputs, model.net, weights, inputs, num_rows)
    f = with_less_at_once(run, min(chunk_size or num_rows, num_rows), "rows of x", "predict")
    wrong = sum(int((~value.isfinite()).sum()) for value in inputs if torch.is_tensor(value))
    if wrong and not bool(f.isfinite().all()):  # a network may know what to do with them
        raise ValueError(f"x has {wrong} entries that are not finite, and so has the output: drop or impute the rows.")
    parameters = {name: value for name, value in samples.items() if name not in weights}
    return Prediction(f=f, likelihood=model.likelihood, parameters=parameters)


def check_network(taker: str, model: Any, otherwise: str) -> None:
    """Refuse a model that is no network, with what to do for others."""
    if not isinstance(model, BayesianNetwork):
        raise WrongTypeError(f"{taker} is for networks made models by bayesianize; for others {otherwise}.")


def _weights(model: BayesianNetwork, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The draws of the network's weights, (S, ...) each, in its precision."""
    check_mapping("samples", samples, "draws (S, ...)")
    weights, num_draws = {}, 0
    for name in model.names:
        if name not in samples:
            raise ValueError(f"the samples lack the site {name!r}: pass what get_samples, draw or MCMC give, whole.")
        value, own = samples[name], model.net.get_parameter(name)
        check_device(f"the samples of {name!r}", value, own.device, "the network is")
        num_draws = num_draws or len(value) if value.dim() else 0
        if not num_draws or value.shape != (num_draws, *own.shape):
            wanted = ", ".join(map(str, [num_draws or "draws", *own.shape]))
            said = f"the samples of {name!r} have shape {tuple(value.shape)}, but must be ({wanted})"
            raise ValueError(f"{said}, at least one draw, as many of each site. Pass what draw gives.")
        if wrong := int((~value.isfinite()).sum()):
            raise ValueError(f"the samples of {name!r} have {wrong} entries that are not finite: leave the draws out.")
        weights[name] = value.to(own.dtype)
    return weights


def _num_rows(inputs: tuple[Any, ...], device: torch.device) -> int:
    """n, of inputs that a network can take."""
    for value in inputs:
        if isinstance(value, (Tensor, str, int, float, type(None))) or type(value).__module__ == "numpy":
            check_device("x", value, device, "the network is")
    rows = [value for value in inputs if torch.is_tensor(value) and value.dim()]
    if empty := [tuple(value.shape) for value in rows if not len(value)]:
        raise ValueError(f"x has shape {empty[0]}: there is no row to predict at. Pass at least one.")
    return len(rows[0]) if rows else 1


def _outputs(net: torch.nn.Module, weights: dict[str, Tensor], inputs: tuple, num_rows: int, size: int) -> Tensor:
    """The network's output for all draws (S, n, ...), from so many rows of its inputs at once."""
    parts = [inputs]
    if size < num_rows:
        chunks = [slice(start, start + size) for start in range(0, num_rows, size)]
        parts = [tuple(value[rows] if torch.is_tensor(value) else value for value in inputs) for rows in chunks]
    try:
        with torch.no_grad(), in_turn():  # a functional call lends the module other weights
            outputs = [for_each(lambda w, part=part: functional_call(net, w, part), weights) for part in parts]  # type: ignore[misc]
    except (TypeError, RuntimeError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        own = next(iter(weights.values())).dtype
        reals = (value.dtype for value in inputs if torch.is_tensor(value) and value.is_floating_point())
        other = next((dtype for dtype in reals if dtype != own), None)
        advice = other_precision("x", other, own) if other else "Pass inputs such as it was trained on."
        raise does_not_run("the network does not run on x", inputs, {}, error, advice) from error
    return torch.cat(outputs, dim=1)
