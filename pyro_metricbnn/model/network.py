"""Put a prior on a network's weights: nn.Module x prior x likelihood -> Pyro model.

In: a module and a likelihood.  Out: a model(x, y=None) with a latent site for each parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from ..runtime.arguments import WrongTypeError
from .likelihoods import Likelihood

Prior = float | Mapping[str, float] | Callable[[str, torch.Size], Any]

RESERVED = ("obs", "f", "scale", "data")  # names of the sites and the plate that are not weights


class BayesianNetwork(nn.Module):
    """A Pyro model of a network: each chosen parameter is a latent site of the same name.

    Made by `bayesianize`. The module inside is a copy in evaluation mode: BatchNorm uses its running
    statistics and Dropout is off, in the walk as well as in predictions.
    """

    def __init__(
        self, net: nn.Module, likelihood: Likelihood, prior_scale: Prior, where: str | Sequence[str] | None
    ) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.likelihood = likelihood
        self.names = _choose(self.net, where)
        self._priors = _priors(prior_scale, {name: self.net.get_parameter(name) for name in self.names})

    @property
    def trained_params(self) -> dict[str, Tensor]:
        """The module's present weights by site: the start of the MAP search."""
        return {name: self.net.get_parameter(name).detach() for name in self.names}

    def train(self, mode: bool = True) -> BayesianNetwork:
        """Keep the module in evaluation mode: its weights are latent sites, not parameters."""
        return super().train(False)

    def prior(self, name: str) -> Any:
        """The prior of one site, on the parameter's device and with its dtype."""
        value = self.net.get_parameter(name)
        prior = self._priors[name]
        if isinstance(prior, float):
            prior = dist.Normal(value.new_zeros(()), value.new_full((), prior))
        return _fill(prior, value.shape, name)

    def forward(self, x: Any, y: Tensor | None = None) -> Tensor:
        weights = {name: pyro.sample(name, self.prior(name)) for name in self.names}
        weights = {name: value.to(self.net.get_parameter(name)) for name, value in weights.items()}
        f = functional_call(self.net, weights, x if isinstance(x, tuple) else (x,))
        if not f.dim():
            raise ValueError("the network's output is one number: it needs a row for each input.")
        parameters = self.likelihood.parameters(f)
        with pyro.plate("data", f.shape[0], dim=-1):
            pyro.deterministic("f", f, event_dim=f.dim() - 1)
            obs = None if y is None else self.likelihood.targets(f, y)
            pyro.sample("obs", self.likelihood.distribution(f, **parameters), obs=obs)
        return f


def bayesianize(
    net: nn.Module,
    likelihood: Likelihood,
    *,
    prior_scale: Prior = 1.0,
    where: str | Sequence[str] | None = None,
) -> BayesianNetwork:
    """Make a trained network a Pyro model `model(x, y=None)`.

    Sites are named after the module's parameters; `obs` is the observation and the deterministic
    site `f` the network's output. The module itself is not changed.

    Args:
        net: Any module, trained or not; its present weights are where the MAP search starts.
        likelihood: What the output means: `Gaussian(scale)`, `Categorical()`, ...
        prior_scale: The prior's standard deviation: a number, numbers by parameter prefix (`""` for
            the rest), or a function from (name, shape) to a distribution. A network that was trained with a weight
            decay of w on the mean negative log-likelihood of n rows has the prior (w * n) ** -0.5.
        where: Prefixes of the parameters to make Bayesian (`"fc"`, `["head", "norm"]`); the others
            stay as they are. None takes them all.

    Example:
        >>> model = bayesianize(nn.Linear(2, 3), Categorical())
        >>> model.names
        ('weight', 'bias')
        >>> model(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """
    if not isinstance(net, nn.Module):
        raise WrongTypeError(f"net must be an nn.Module, got {type(net).__name__}: its parameters become the sites.")
    _check_values(net)
    if not isinstance(likelihood, Likelihood):
        raise WrongTypeError(
            f"likelihood must say what the output means, got {likelihood!r}. "
            "Pass Gaussian(scale), HeteroscedasticGaussian(), Categorical(), Bernoulli() or Poisson()."
        )
    return BayesianNetwork(net, likelihood, prior_scale, where)


def _check_values(net: nn.Module) -> None:
    """Refuse parameters without values, before a copy is made of them."""
    for name, value in net.named_parameters():
        if is_lazy(value):
            raise ValueError(f"the parameter {name!r} has no shape yet: call the network once on its inputs first.")
        if value.device.type == "meta":
            raise ValueError(
                f"the parameter {name!r} is on the meta device, where tensors have no values: load the trained weights "
                "to a real device first."
            )


def _choose(net: nn.Module, where: str | Sequence[str] | None) -> tuple[str, ...]:
    """The parameters named by the prefixes, in the module's order; a tied weight counts once."""
    names = [name for name, _ in net.named_parameters()]
    if not names:
        raise ValueError(f"{type(net).__name__} has no parameters: there is nothing to be uncertain about.")
    if where is not None:
        prefixes = [where] if isinstance(where, str) else where
        if not isinstance(prefixes, Sequence) or not prefixes or not all(isinstance(p, str) for p in prefixes):
            raise WrongTypeError(
                f"where must be a prefix of parameter names or several, got {where!r}; None takes all."
            )
        tied = {n: first for n, first in _first_names(net).items() if n not in names}
        chosen = {tied.get(name, name) for prefix in prefixes for name in _matching([*names, *tied], prefix)}
        names = [name for name in names if name in chosen]
    for name in names:
        value = net.get_parameter(name)
        if name in RESERVED:
            raise ValueError(
                f"the parameter {name!r} has a name that the model needs for itself (one of {RESERVED}). "
                "Rename it, or wrap the module in nn.Sequential, which puts a prefix before it."
            )
        if not value.is_floating_point():
            raise ValueError(f"the parameter {name!r} is {value.dtype}: only real parameters can have a prior.")
        if not bool(value.isfinite().all()):
            raise ValueError(
                f"the parameter {name!r} has values that are not finite: the walk has nowhere to start. "
                "Train the network again with a smaller step, or load a sound checkpoint."
            )
    return tuple(names)


def _first_names(net: nn.Module) -> dict[str, str]:
    """All names of the parameters, those of tied ones too -> the name that stands for each."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(p), name) for name, p in net.named_parameters(remove_duplicate=False)}


def _matching(names: Sequence[str], prefix: str) -> list[str]:
    """Names below a module path; failing that, names that begin with the letters of the prefix."""
    path = prefix.rstrip(".")
    below = [name for name in names if name == path or name.startswith(path + ".") or not path]
    below = below or [name for name in names if name.startswith(prefix)]
    if not below:
        raise ValueError(f"no parameter is named {prefix!r} or below it. The module has {', '.join(names)}.")
    return below


def _priors(prior_scale: Prior, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """A positive number or a distribution for each parameter."""
    if isinstance(prior_scale, torch.distributions.Distribution):
        raise ValueError(f"prior_scale is a distribution: pass lambda name, shape: {prior_scale!r} to use it for all.")
    if callable(prior_scale):
        priors = {name: prior_scale(name, value.shape) for name, value in parameters.items()}
        return {name: _fill(prior, parameters[name].shape, name) for name, prior in priors.items()}
    if isinstance(prior_scale, Mapping):
        if not all(isinstance(prefix, str) for prefix in prior_scale):
            raise WrongTypeError(f"prior_scale must have prefixes of parameter names as keys, got {list(prior_scale)}.")
        scales: dict[str, Any] = dict.fromkeys(parameters)
        for prefix in sorted(prior_scale, key=len):  # the longest prefix has the last word
            for name in _matching(list(parameters), prefix):
                scales[name] = prior_scale[prefix]
        missing = [name for name, scale in scales.items() if scale is None]
        if missing:
            raise ValueError(
                f"prior_scale has no scale for {', '.join(missing)}. Add their prefixes, or '' for all the rest."
            )
    else:
        scales = dict.fromkeys(parameters, prior_scale)
    for name, scale in scales.items():
        try:
            number = float(scale)
        except (TypeError, ValueError):
            number = 0.0
        if not 0 < number < float("inf"):
            raise ValueError(f"the prior scale of {name!r} must be positive and finite, got {scale}.")
    return {name: float(scale) for name, scale in scales.items()}


def _fill(prior: Any, shape: torch.Size, name: str) -> Any:
    """Make a distribution one event of the parameter's shape."""
    try:
        missing = len(shape) - len(prior.event_shape)
        filled = prior.expand(shape[:missing]).to_event(missing) if missing else prior
        if filled.event_shape == shape and not filled.batch_shape:
            return filled
    except (AttributeError, RuntimeError, ValueError):
        pass
    raise ValueError(
        f"the prior of {name!r} does not fit its shape {tuple(shape)}: got {prior!r}. "
        "Return a Pyro distribution whose batch and event shapes broadcast to it."
    )
