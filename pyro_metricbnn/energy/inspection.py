"""A model looked at before it is walked on, and torch's errors in words that its author can use.

In: a model and its arguments, or an error.  Out: the model's sites; or a ValueError that says what, why, what to do.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from ..graphs.execution import BRANCHES
from ..model.network import BayesianNetwork
from ..model.sites import Sites, find_sites
from ..model.structure import Model, changing, has_density
from ..runtime.arguments import (
    WrongTypeError,
    check_device,
    check_model,
    check_tensor,
    does_not_run,
    first_line,
    other_precision,
)
from ..runtime.out_of_memory import is_out_of_memory
from .handlers import LastSite

NOT_DEFINITE = (
    "A matrix of the model cannot be decomposed in this precision: add more to its diagonal, as kernel + 1e-4 * "
    "torch.eye(n), or work in float64 (data.double(), and torch.set_default_dtype(torch.float64) in the model)."
)
MANY_NUMBERS = 100_000  # of the data of a model that is no network


def taken_by(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the model takes them: a network's arrays and frames as tensors."""
    if not isinstance(model, BayesianNetwork) or len(args) > 2 or kwargs.keys() - {"x", "y"}:
        return args, dict(kwargs)
    given = {**dict(zip(("x", "y"), args, strict=False)), **kwargs}
    taken = dict(zip(("x", "y"), model.taken(given.get("x"), given.get("y")), strict=True))
    return tuple(taken[name] for name in ("x", "y")[: len(args)]), {name: taken[name] for name in kwargs}


def inspect_model(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Sites, poutine.Trace]:
    """The model's sites, after a look whether the energy is finite where particles may be."""
    check_model(model)
    given = {f"argument {key!r}": v for key, v in [*enumerate(args), *kwargs.items()] if torch.is_tensor(v)}
    for name, value in given.items():
        check_tensor(name, value)
    y = args[1] if len(args) > 1 else kwargs.get("y")
    if isinstance(model, BayesianNetwork) and (args or kwargs) and y is None:
        raise ValueError("y is missing: without observations the network's output would be inferred too. Pass x and y.")
    try:
        sites, trace = find_sites(model, args, kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about NaN and inf, which are looked for below
            trace.compute_log_prob(has_density)
    except ZeroDivisionError as error:  # Pyro's word for a plate without rows
        said = "a plate of the model has no rows: there is no data to condition on. Pass at least one observation."
        raise ValueError(said) from error
    except NotImplementedError as error:  # of dist.ImproperUniform
        raise ValueError(
            "a site of the model has a prior that cannot be drawn from, or has no transform to an unconstrained space "
            f"({str(error).strip() or 'an improper one?'}): the walk needs both. Give the site a wide, proper one."
        ) from error
    except ValueError as error:
        if cause := not_finite(given):
            said = f"the model refuses its data: {cause}. Drop or impute those rows. ({first_line(error)})"
            raise ValueError(said) from error
        if "PositiveDefinite" in str(error):
            raise ValueError(f"{first_line(error)}. {NOT_DEFINITE}") from error
        raise
    except (RuntimeError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        raise does_not_run(
            "the model does not run on its arguments", args, kwargs, error, _advice(model, given, error)
        ) from error
    wrong = [n for n, node in trace.nodes.items() if has_density(n, node) and not bool(node["log_prob_sum"].isfinite())]
    if wrong and (cause := not_finite(given)):
        raise ValueError(f"the log density of site {wrong[0]!r} is not finite: {cause}. Drop or impute those rows.")
    return sites, trace


def _advice(model: Model, given: Mapping[str, Tensor], error: Exception) -> str:
    """What to do about a model that does not run on what it was given."""
    if isinstance(error, torch.linalg.LinAlgError):
        return NOT_DEFINITE
    if isinstance(model, nn.Module) and not isinstance(model, (BayesianNetwork, PyroModule)):
        return (
            "A network is no Pyro model yet: make it one, bayesianize(net, Gaussian(0.3)) or with another likelihood, "
            "and pass that."
        )
    if isinstance(model, BayesianNetwork):
        own = model.net.get_parameter(model.names[0]).dtype
        reals = [(name, value.dtype) for name, value in given.items() if value.is_floating_point()]
        if wrong := [(name, kind) for name, kind in reals if kind != own]:
            name, kind = wrong[0]
            return other_precision(name, kind, own)
    return "Pass what it takes: tensors of its shapes and precision, on its device, observations included."


def not_finite(given: Mapping[str, Tensor]) -> str:
    """Which input has NaN or inf, in words; empty if none has."""
    for name, value in given.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            return f"{name} has {int((~value.isfinite()).sum())} entries that are not finite"
    return ""


def explained(function: Callable[..., tuple[Tensor, ...]], watch: LastSite) -> Callable[..., tuple[Tensor, ...]]:
    """The function with torch's errors in the words of the model."""

    def run(*inputs: Any) -> tuple[Tensor, ...]:
        try:
            return function(*inputs)
        except RuntimeError as error:
            explain(error, watch)

    return run


def explain(error: RuntimeError, watch: LastSite) -> NoReturn:
    """Turn torch's word for what vmap cannot do into what the model's author can do."""
    place = f"at or after site {watch.name!r}"
    if watch.changed is not None:
        said = changing(watch.changed)
    elif any(words in str(error) for words in BRANCHES):
        said = (
            f"the model branches on the value of a tensor {place} (an `if`, `.item()` or a loop over values): all "
            "particles have to take one path. Use torch.where, or run them one after another: pass mode='loop' to "
            "MetricBNN, to DriftRefineKernel or to BatchedPotential(...).using."
        )
    elif "randomness" in str(error):
        said = (
            f"the model draws random numbers {place} that are no latent sites of it: by torch itself, or at a site "
            "that poutine.block hides. Sample them with pyro.sample and do not hide them, or condition on them."
        )
    else:
        raise error
    raise ValueError(said) from error


def check_theta(theta: Tensor, sites: Sites) -> None:
    """Refuse what is no theta (N, D) of the model."""
    check_device("theta", theta, sites.device, "the model is")
    if torch._C._functorch.is_functorch_wrapped_tensor(theta):
        raise ValueError(
            "theta is inside a transform of torch.func (vmap, grad, ...), where the energy would take it for a "
            "constant. Call value_and_grad(theta), theta (N, D), outside of it, or in a torch.autograd.Function."
        )
    if not theta.is_floating_point():
        raise WrongTypeError(f"theta is {theta.dtype}: an energy has a gradient only in real numbers. Pass floats.")
    if theta.dim() != 2 or theta.shape[-1] != sites.dim or not len(theta):
        said = "one row a particle, one column an unconstrained coordinate."
        raise ValueError(f"theta has shape {tuple(theta.shape)}, but must be (N, {sites.dim}): {said}")


def has_frozen_part(model: Model, data: tuple[Tensor, ...]) -> bool:
    """Whether something may be computed of the data alone: tracing, which would tell, takes its time."""
    if isinstance(model, BayesianNetwork):
        return len(model.names) < len(list(model.net.parameters()))
    return sum(leaf.numel() for leaf in data) >= MANY_NUMBERS
