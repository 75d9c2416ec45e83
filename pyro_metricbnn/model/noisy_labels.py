"""Class labels of which some are wrong: what a network says of the right ones, mixed with labels at random.

In: logits f (n, ..., C) and the rate of random labels.  Out: the distribution of the labels that are observed.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..runtime.arguments import WrongTypeError, check_number
from .likelihoods import Categorical, Likelihood

SITE = "label_noise"
PRIOR = (1.0, 4.0)  # of the rate, a Beta's
NUM_UPDATES = 50  # of the rate that fits outputs best
WHY = "it is the part of the labels that are random. Pass None, or a distribution, to infer it."


@dataclass(frozen=True)
class NoisyCategorical(Categorical):
    """Class labels 0 to C - 1 from C logits, a part of them drawn at random from all C classes instead.

    An observed label is y with probability (1 - rate) * softmax(f)[y] + rate / C. So of C classes a part
    rate * (C - 1) / C of the labels is wrong: a rate of .4 turns a fifth of two classes' labels over. A prediction is
    of the observed label; `prediction.clean` is that of the label behind it, softmax(f).

    A walk leaves from small networks that are trained here with this density, because yours has learned the wrong
    labels too. From a large network, a part of one, or in minibatches it leaves as with `Categorical`; if that network
    knows its labels by heart, the rate comes out too low: stop its training early, or train it with this density.

    Args:
        rate: The part of random labels, one for all rows. None infers it: a latent site `label_noise` with the prior
            Beta(1, 4), which is highest at 0 and has a mean of .2 and 95 % of it below .53. A number from 0 to below 1
            says it; another distribution within 0 to 1 is another prior.

    Example:
        >>> NoisyCategorical(0.3).distribution(torch.tensor([[100.0, 0.0, 0.0]])).probs
        tensor([[0.8000, 0.1000, 0.1000]])
        >>> BatchedPotential(bayesianize(nn.Linear(2, 3), NoisyCategorical()), x, (x[:, 0] > 0).long()).sites.names
        ('weight', 'bias', 'label_noise')
    """

    rate: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.rate, Distribution):
            _check_prior(self.rate)
        elif self.rate is not None:
            if torch.is_tensor(self.rate) and self.rate.numel() != 1:
                raise ValueError(f"rate must be one number, got shape {tuple(self.rate.shape)}: {WHY}")
            check_number("rate", self.rate, WHY, or_zero=True)
            if float(self.rate) >= 1:
                raise ValueError(f"rate must be below 1, got {self.rate}: {WHY}")

    @property
    def is_clean(self) -> bool:
        """Whether no label is random."""
        return not self.infers_rate and float(self.rate) == 0

    @property
    def infers_rate(self) -> bool:
        """Whether the data say how many labels are random."""
        return self.rate is None or isinstance(self.rate, Distribution)

    @property
    def leaves_from(self) -> Literal["maximum", "trained", "anew"]:
        # A network that cross-entropy has trained on wrong labels knows them by heart, the joint maximum does so too,
        # and a walk forgets them slowly. On scikit-learn's breast cancer with 30 % of random labels (two splits) the
        # rate comes to .13 from there and to .28 from networks that the mixture trains, one or eight of them; the test
        # NLL is .51 and .49 (Categorical .54). On clean labels both are the same. Anneal, which is for unknown noise of
        # numbers, does not arrive: on wine's clean labels it has a rate of .26 and an NLL of .23, Steer .02 and .07.
        return "maximum" if self.is_clean else "anew"

    @property
    def clean(self) -> Likelihood:
        return Categorical()

    def parameters(self, f: Tensor) -> dict[str, Tensor]:
        if not self.infers_rate:
            return {}
        prior = dist.Beta(*map(f.new_tensor, PRIOR)) if self.rate is None else self.rate
        return {SITE: pyro.sample(SITE, prior)}

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        return dist.Categorical(logits=self._log_probs(f, **parameters))

    def class_probs(self, f: Tensor, **parameters: Tensor) -> Tensor:
        return self._log_probs(f, **parameters).exp()

    def _log_probs(self, f: Tensor, **parameters: Tensor) -> Tensor:
        """Of all observed labels (n, ..., C): log((1 - rate) * softmax(f) + rate / C)."""
        clean = f.log_softmax(-1)
        if self.is_clean:
            return clean  # without the logarithm of 0
        if self.infers_rate and SITE not in parameters:
            raise ValueError(f"the rate is inferred, and {SITE!r} is missing: pass all sites that draw or MCMC give.")
        rate = parameters[SITE].to(f) if self.infers_rate else f.new_full((), float(self.rate))
        return torch.logaddexp(clean + (-rate).log1p(), rate.log() - math.log(f.shape[-1]))

    def fitted(self, f: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The rate that fits best, found by how likely each label is to be a random one (EM)."""
        if not self.infers_rate:
            return {}
        chosen = f.softmax(-1).gather(-1, y[..., None]).flatten()
        low, high = (0.0, 1.0) if self.rate is None else _bounds(self.rate)
        some, others = PRIOR  # as if so many more had been seen: the rate is then between 0 and 1
        rate = chosen.new_full((), 0.5)
        for _ in range(NUM_UPDATES):
            random = rate / f.shape[-1]
            is_random = random / (random + (1 - rate) * chosen)
            rate = (is_random.sum() + some) / (len(chosen) + some + others)
        edge = 0.01 * (high - low)
        return {SITE: rate.clamp(low + edge, high - edge)}


def _bounds(prior: Any) -> tuple[float, float]:
    """Where the values of a distribution lie; NaN where it does not say."""
    support = None
    with suppress(NotImplementedError):
        support = prior.support
    return float(getattr(support, "lower_bound", math.nan)), float(getattr(support, "upper_bound", math.nan))


def _check_prior(prior: Any) -> None:
    """Refuse a distribution that is not of one number from 0 to 1."""
    if prior.batch_shape or prior.event_shape:
        shape = tuple(prior.batch_shape + prior.event_shape)
        raise ValueError(f"rate is a {type(prior).__name__} of shape {shape}: there is one rate for all labels.")
    low, high = _bounds(prior)
    if not (low >= 0 and high <= 1):
        said = f"rate is a {type(prior).__name__}, whose values are not all from 0 to 1"
        raise WrongTypeError(f"{said}: {WHY} dist.Beta(1.0, 4.0) is the prior of None.")
