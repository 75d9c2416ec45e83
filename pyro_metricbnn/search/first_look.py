"""A look at what a walk was given, before long work starts: mistakes that run, and end in a wrong answer.

In: a potential, with its model and data.  Out: nothing, warnings that say what to do, or a ValueError.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ..energy.potential import BatchedPotential
from ..model.likelihoods import SIGMOID, Likelihood
from ..model.network import BayesianNetwork
from ..model.structure import kind_of
from ..runtime.progress import warn
from ..runtime.threads import in_turn

MOST_ROWS = 2000  # that are looked at
LARGE_UNITS = 50.0  # times those that weights of about 1 are for: inputs and targets of about 1
MANY_WEIGHTS = 100  # for each row
NO_SKILL = 0.98  # of a constant's error


def first_look(potential: BatchedPotential, *, searches: bool) -> None:
    """Refuse what cannot be right, and say what is probably not meant; `searches` is whether the MAP is looked for."""
    _refuse_sequential(potential)
    model = potential.model
    if not isinstance(model, BayesianNetwork):
        _say_unobserved(potential)
        return
    x, y = data_of(model, potential.args, potential.kwargs)
    with torch.no_grad(), in_turn():
        f = model.net(*x) if isinstance(x, tuple) else model.net(x)
    wrong = model.likelihood.misread(f)
    if not wrong and model.likelihood.observes == "classes" and isinstance([*model.net.modules()][-1], nn.Sigmoid):
        wrong = SIGMOID.format(type(model.likelihood).__name__)
    if wrong:
        raise ValueError(wrong)
    for text in (
        *_unlike_one("x", x[0] if isinstance(x, tuple) else x),
        *(_unlike_one("y", y) if model.likelihood.has_normal_noise else ()),
        *_few_rows(potential),
        *(_untrained(model.likelihood, f, y) if searches else ()),
    ):
        warn(text)


def data_of(model: BayesianNetwork, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Tensor]:
    """Inputs and observations of a network's arguments, at most MOST_ROWS of them."""
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    x, y = given["x"], given["y"]
    if isinstance(x, tuple) or not torch.is_tensor(x) or not x.dim() or len(x) != len(y):
        return x, y  # several inputs need not have a row for each observation
    return x[:MOST_ROWS], y[:MOST_ROWS]


def _refuse_sequential(potential: BatchedPotential) -> None:
    for name, node in potential.prototype.nodes.items():
        if kind_of(node) != "latent":
            continue
        for frame in (frame for frame in node["cond_indep_stack"] if frame.dim is None):
            raise ValueError(
                f"the latent site {name!r} is in the sequential plate {frame.name!r} (a for loop over it), which "
                "Pyro's guides do not support: write `with pyro.plate(...)` and all of its values as one site."
            )


def _say_unobserved(potential: BatchedPotential) -> None:
    """A model that was given data and observes nothing: what was meant to be observed is inferred."""
    kinds = {kind_of(node) for node in potential.prototype.nodes.values()}
    if potential._data and not kinds & {"observed", "factor"}:
        warn(
            "the model was given data and observes none of it: what comes out is its prior. Give the site of the "
            'observations obs=, as pyro.sample("obs", ..., obs=y).'
        )


def _unlike_one(name: str, value: Any) -> list[str]:
    """What to say of numbers that are far from a size of about 1."""
    if not torch.is_tensor(value) or not value.is_floating_point() or not value.dim() or len(value) < 2:
        return []
    columns = value.detach().double().flatten(1) if value.dim() == 2 else value.detach().double().reshape(-1, 1)
    size = torch.maximum(columns.mean(0).abs(), columns.std(0)).nan_to_num()
    worst, at = size.max(0)
    small = name == "y" and float(columns.std(0).max()) < 1 / LARGE_UNITS
    if float(worst) <= LARGE_UNITS and not small:
        return []
    where = f"column {int(at)} of {name}" if len(size) > 1 else name
    mean, deviation = float(columns[:, at].mean()), float(columns[:, at].std())
    back = ", and scale predictions back" if name == "y" else ""
    return [
        f"{where} has a mean of {mean:.3g} and a deviation of {deviation:.3g}: priors of a network are for numbers of "
        f"about 1, and the walk takes long where they are not. Train and walk on ({name} - {name}.mean(0)) / "
        f"{name}.std(0){back}; or choose prior_scale= for these units."
    ]


def _few_rows(potential: BatchedPotential) -> list[str]:
    rows, dim = potential.num_observations, potential.dim
    if dim <= MANY_WEIGHTS * rows:
        return []
    return [
        f"there are {rows} rows for {dim:,} weights: the posterior is mostly the prior, and so are its predictions. "
        "Make fewer weights Bayesian (where=, as the last layer), take a smaller network, or a prior that you believe."
    ]


def _untrained(likelihood: Likelihood, f: Tensor, y: Tensor) -> list[str]:
    error = likelihood.error_of(f, likelihood.targets(f, y))
    if error is None or error < NO_SKILL:
        return []
    return [
        f"the network as it came predicts no better than a constant ({error:.2f} of its error): it looks untrained, or "
        "trained on other units of x and y. It is trained now, by a short search for the MAP; a network that you have "
        "trained with your own recipe is the better start."
    ]
