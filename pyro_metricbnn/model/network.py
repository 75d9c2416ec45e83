"""A network as a Pyro model: nn.Module x prior x likelihood.

In: a module and a likelihood.  Out: a model(x, y=None) with a latent site for each parameter.
"""

import copy
from collections.abc import Sequence
from typing import Any, Self

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from ..runtime.arguments import WrongTypeError, check_type
from .likelihoods import Likelihood
from .numbers import as_tensors
from .priors import NormalPrior, PriorScale, below, is_auto, priors_of

Where = str | Sequence[str] | None
RESERVED = ("obs", "f", "scale", "label_noise", "data")  # names of the sites and the plate that are not weights


class BayesianNetwork(nn.Module):
    """A Pyro model of a network, made by `bayesianize`: each chosen parameter is a latent site of the same name.

    The module inside is a copy in evaluation mode: BatchNorm uses its running statistics and Dropout is off.
    """

    def __init__(self, net: nn.Module, likelihood: Likelihood, prior_scale: PriorScale, where: Where) -> None:
        super().__init__()
        self.names = _choose(net, where)
        _check_values(net, self.names)
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.likelihood = likelihood
        self.prior_is_auto = is_auto(prior_scale)  # then runs of MetricBNN choose its scale
        self.chosen_prior_scale: float | None = None
        self._priors = priors_of(prior_scale, self.trained_params)

    @property
    def trained_params(self) -> dict[str, Tensor]:
        """The module's present weights by site: the start of the MAP search."""
        return {name: self.net.get_parameter(name).detach() for name in self.names}

    @property
    def fixed_part(self) -> dict[str, Tensor]:
        """What the module has beside them: parameters that are no sites, and buffers as BatchNorm's statistics."""
        own = {name: value for name, value in self.net.named_parameters() if name not in self.names}
        counts = "num_batches_tracked"  # which evaluation does not read
        return own | {name: value for name, value in self.net.named_buffers() if not name.endswith(counts)}

    def train(self, mode: bool = True) -> Self:
        """Keep the module in evaluation mode."""
        return super().train(False)

    def prior(self, name: str) -> Any:
        """The prior of one site, on the parameter's device and with its dtype."""
        return self._priors[name].of(name, self.net.get_parameter(name))

    @property
    def normal_scales(self) -> dict[str, float]:
        """The deviations of the sites whose prior is normal around zero."""
        return {name: prior.scale for name, prior in self._priors.items() if isinstance(prior, NormalPrior)}

    def take_prior_scale(self, scale: float) -> None:
        """Have N(0, scale^2) priors from now on: what a run has chosen for a model with prior_scale="auto"."""
        self._priors, self.chosen_prior_scale = priors_of(scale, self.trained_params), scale

    def taken(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """Inputs and observations as tensors: arrays, frames and series, too, can be passed wherever a tensor can."""
        like = self.net.get_parameter(self.names[0])
        return as_tensors("x", x, like), as_tensors("y", y, like)

    def forward(self, x: Any, y: Any = None) -> Tensor:
        x, y = self.taken(x, y)
        weights = {name: pyro.sample(name, self.prior(name)) for name in self.names}
        weights = {name: value.to(self.net.get_parameter(name)) for name, value in weights.items()}
        f = functional_call(self.net, weights, x if isinstance(x, tuple) else (x,))
        if not isinstance(f, Tensor):
            raise WrongTypeError(
                f"the network gives a {type(f).__name__}, and a likelihood reads one tensor: wrap it in a module that "
                "gives the output that the observations are of."
            )
        if not f.dim():
            raise ValueError("the network's output is one number: it needs a row for each input.")
        parameters = self.likelihood.parameters(f)
        with pyro.plate("data", f.shape[0], dim=-1):
            pyro.deterministic("f", f, event_dim=f.dim() - 1)
            obs = None if y is None else self.likelihood.targets(f, y)
            pyro.sample("obs", self.likelihood.distribution(f, **parameters), obs=obs)
        return f


def bayesianize(
    net: nn.Module, likelihood: Likelihood, *, prior_scale: PriorScale = 1.0, where: Where = None
) -> BayesianNetwork:
    """Make a trained network a Pyro model `model(x, y=None)`.

    Sites are named after the module's parameters; `obs` is the observation and the deterministic site `f` the network's
    output. The module itself is not changed.

    Args:
        net: Any module, trained or not; its present weights are where the MAP search starts.
        likelihood: What the output means: `Gaussian(scale)`, `Categorical()`, ...
        prior_scale: The prior's standard deviation: a number, numbers by parameter prefix (`""` for the rest), a
            function from (name, shape) to a distribution, or a `Prior`, for some prefixes or for all. A network that
            was trained with a weight decay of w on the mean negative log-likelihood of n rows has the prior
            (w * n) ** -0.5. "auto" lets `MetricBNN.run` choose one number for all, on its validation rows, else by
            cross-validation with small networks trained anew. Until then, and for other samplers, it is 1.
        where: Prefixes of the parameters to make Bayesian (`"fc"`, `["head", "norm"]`); the others
            stay as they are. None takes them all.

    Example:
        >>> model = bayesianize(nn.Linear(2, 3), Categorical())
        >>> model.names
        ('weight', 'bias')
        >>> model(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """
    check_type("net", net, nn.Module, "an nn.Module")
    if not isinstance(likelihood, Likelihood):
        numbers, classes = "Gaussian(scale), HeteroscedasticGaussian(), Poisson()", "Categorical(), NoisyCategorical()"
        known = f"{numbers}, {classes} or Bernoulli()"
        raise WrongTypeError(f"likelihood must say what the output means, got {likelihood!r}. Pass {known}.")
    return BayesianNetwork(net, likelihood, prior_scale, where)


def _choose(net: nn.Module, where: Where) -> tuple[str, ...]:
    """The parameters named by the prefixes, in the module's order; a tied weight counts once."""
    names = [name for name, _ in net.named_parameters()]
    if not names:
        raise ValueError(f"{type(net).__name__} has no parameters: there is nothing to be uncertain about.")
    if where is None:
        return tuple(names)
    prefixes = [where] if isinstance(where, str) else where
    if not isinstance(prefixes, Sequence) or not prefixes or not all(isinstance(p, str) for p in prefixes):
        raise WrongTypeError(f"where must be a prefix of parameter names or several, got {where!r}; None takes all.")
    first: dict[int, str] = {}  # name of each tied weight
    stands_for = {name: first.setdefault(id(p), name) for name, p in net.named_parameters(remove_duplicate=False)}
    chosen = {stands_for[name] for prefix in prefixes for name in below(stands_for, prefix)}
    return tuple(name for name in names if name in chosen)


def _check_values(net: nn.Module, names: Sequence[str]) -> None:
    """Refuse parameters without values, and those among the chosen that no walk can leave."""
    for name, value in net.named_parameters():
        if is_lazy(value):
            wrong = "has no shape yet: call the network once on its inputs first."
        elif value.device.type == "meta":
            wrong = "is on the meta device, where tensors have no values: load the trained weights to a real one first."
        elif name not in names:
            continue
        elif name in RESERVED:
            wrong = f"has a name that the model needs for itself (one of {RESERVED}): wrap the module in nn.Sequential."
        elif not value.is_floating_point():
            wrong = f"is {value.dtype}: only real parameters can have a prior. Leave it out with where=."
        elif value.dtype in (torch.float16, torch.bfloat16):
            wrong = f"is {value.dtype}, which is too coarse for a walk: pass net.float()."
        elif not bool(value.isfinite().all()):
            wrong = "has values that are not finite: train again with a smaller step, or load a sound checkpoint."
        else:
            continue
        raise ValueError(f"the parameter {name!r} {wrong}")
