"""Priors of a network.  In: a parameter's name and value.  Out: a Pyro distribution of its shape, device and dtype."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from ..runtime.arguments import WrongTypeError, check_number, check_type


class Prior(ABC):
    """The prior of a network's parameters: a new one is one more class with `distribution`.

    Example:
        >>> class FanIn(Prior):
        ...     def distribution(self, name, value):
        ...         return dist.Normal(value.new_zeros(()), value[0].numel() ** -0.5)
        >>> bayesianize(nn.Linear(4, 1), Gaussian(1.0), prior_scale=FanIn()).prior("weight").variance
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    @abstractmethod
    def distribution(self, name: str, value: Tensor) -> Any:
        """The Pyro distribution of the parameter `name`; of `value` count shape, device and dtype.

        Its batch and event shapes broadcast to the parameter's: one number's distribution is that of each. It is
        called whenever the model runs, so that what it draws by pyro.sample is a latent site of the model too.
        """

    def of(self, name: str, value: Tensor) -> Any:
        """The same as one event of the parameter's shape."""
        prior, shape = self.distribution(name, value), value.shape
        with suppress(AttributeError, RuntimeError, ValueError):
            missing = len(shape) - len(prior.event_shape)
            filled = prior.expand(shape[:missing]).to_event(missing) if missing else prior
            if filled.event_shape == shape and not filled.batch_shape:
                return filled
        need = "return a Pyro distribution whose batch and event shapes broadcast to it."
        raise ValueError(f"the prior of {name!r} does not fit its shape {tuple(shape)}, got {prior!r}: {need}")


@dataclass(frozen=True)
class NormalPrior(Prior):
    """Normal around zero, with one standard deviation."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale, "it is the prior's standard deviation.")

    def distribution(self, name: str, value: Tensor) -> Any:
        return dist.Normal(value.new_zeros(()), value.new_full((), float(self.scale)))


@dataclass(frozen=True)
class GivenPrior(Prior):
    """A distribution that stays what it is: what a user's function has returned, which is called once."""

    given: Any

    def distribution(self, name: str, value: Tensor) -> Any:
        return self.given


PriorScale = float | Prior | Mapping[str, float | Prior] | Callable[[str, torch.Size], Any] | Literal["auto"]


def priors_of(prior_scale: PriorScale, parameters: Mapping[str, Tensor]) -> dict[str, Prior]:
    """The prior of each parameter by name, checked to fit it."""
    if isinstance(prior_scale, torch.distributions.Distribution):
        raise ValueError(f"prior_scale is a distribution: pass lambda name, shape: {prior_scale!r} to use it for all.")
    given: dict[str, Any]
    if is_auto(prior_scale):
        given = dict.fromkeys(parameters, 1.0)
    elif isinstance(prior_scale, Mapping):
        given = _by_prefix(prior_scale, parameters)
    elif callable(prior_scale) and not isinstance(prior_scale, Prior):
        given = {name: GivenPrior(prior_scale(name, value.shape)) for name, value in parameters.items()}
    else:
        given = dict.fromkeys(parameters, prior_scale)
    for name, prior in given.items():
        if not isinstance(prior, Prior):
            check_number(f"the prior scale of {name!r}", prior, "it is a standard deviation.")
            given[name] = NormalPrior(float(prior))
        given[name].of(name, parameters[name])
    return given


def is_auto(prior_scale: PriorScale) -> bool:
    """Whether a run is to choose the scale; refuses other words, and the word for a part of the parameters."""
    if isinstance(prior_scale, Mapping) and any(isinstance(one, str) for one in prior_scale.values()):
        raise WrongTypeError(
            "prior_scale has a word for some prefixes, but one scale is chosen for all parameters: pass "
            'prior_scale="auto", or numbers for the prefixes.'
        )
    if not isinstance(prior_scale, str):
        return False
    if prior_scale != "auto":
        raise WrongTypeError(f"prior_scale must be a number, a prior, or 'auto', got {prior_scale!r}.")
    return True


def _by_prefix(prior_scale: Mapping[str, float | Prior], names: Iterable[str]) -> dict[str, Any]:
    for prefix in prior_scale:
        check_type("a key of prior_scale", prefix, str, "one of the prefixes of parameter names")
    given: dict[str, Any] = dict.fromkeys(names)
    for prefix in sorted(prior_scale, key=len):  # the longest prefix has the last word
        given.update(dict.fromkeys(below(given, prefix), prior_scale[prefix]))
    missing = [name for name, prior in given.items() if prior is None]
    if missing:
        raise ValueError(f"prior_scale has no scale for {', '.join(missing)}: add prefixes, or '' for all the rest.")
    return given


def below(names: Iterable[str], prefix: str) -> list[str]:
    """Names below a module path; failing that, names that begin with the letters of the prefix."""
    path = prefix.rstrip(".")
    found = [name for name in names if name == path or name.startswith(path + ".") or not path]
    found = found or [name for name in names if name.startswith(prefix)]
    if not found:
        raise ValueError(f"no parameter is named {prefix!r} or below it. The module has {', '.join(names)}.")
    return found
