"""How far a guide is from the posterior, by the tail of its importance ratios (Yao et al. 2018).

In: a model, a guide and the model's arguments.  Out: k-hat, the shape of a Pareto tail of the largest ratios p / q.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.ops.stats import fit_generalized_pareto
from torch import Tensor
from torch.func import vmap

from ..energy.potential import BatchedPotential
from ..model.structure import Model
from ..runtime.arguments import check_count, check_type
from ..runtime.threads import in_turn

MIN_SAMPLES = 100
ROUNDING = 1e-3  # of energies in float32: smaller differences of ratios have a tail of no meaning
MIN_TAIL = 10  # ratios that count at all, below which there is nothing to fit


def k_hat(model: Model, guide: Any, *args: Any, num_samples: int = 1000, chunk_size: int = 100, **kwargs: Any) -> float:
    """Pareto k of the ratios of the posterior to a guide: below 0.5 the guide is close, above 0.7 it is not.

    It judges the whole joint density: a guide of many dimensions, or a tube around curves (`AutoMetric`), can predict
    well and have a large k. It sees only where the guide draws: a mode that the guide misses does not show.

    Args:
        model: A Pyro model.
        guide: Any guide with a density: `AutoMetric`, Pyro's own or one written by hand.
        *args: The model's arguments, observations included.
        num_samples: Draws from the guide.
        chunk_size: At most this many at once.
        **kwargs: The model's keyword arguments.

    Returns:
        k; 0 where the largest ratios are all the same; inf where so few count that no tail can be fitted, or where
        the guide draws what the model has no density for.

    Example:
        >>> guide = pyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1e-3)
        >>> k_hat(model, guide, x, y, num_samples=200) > 0.7
        True
    """
    check_count("num_samples", num_samples, "k is of the tail alone.", least=MIN_SAMPLES)
    check_count("chunk_size", chunk_size, "it counts draws.")
    check_type("guide", guide, Callable, "a Pyro guide (a callable)", "pass metric.guide")
    potential = BatchedPotential(model, *args, **kwargs)
    sizes = [min(chunk_size, num_samples - start) for start in range(0, num_samples, chunk_size)]
    with torch.no_grad():
        return pareto_k(torch.cat([_log_ratios(potential, guide, size) for size in sizes]))


def pareto_k(log_ratios: Tensor) -> float:
    """k of the largest of S log ratios (S,), as many of them as Vehtari et al. (2024) take."""
    log_ratios = log_ratios.detach().double().cpu()
    if not bool((log_ratios < float("inf")).all()) or bool((log_ratios == -float("inf")).all()):
        return float("inf")
    ratios = (log_ratios - log_ratios.max()).sort().values.exp()
    num_tail = math.ceil(min(0.2 * len(ratios), 3 * math.sqrt(len(ratios))))
    cutoff = ratios[-num_tail - 1]
    if float(cutoff) > 1 - ROUNDING:
        return 0.0
    excesses = ratios[ratios > cutoff] - cutoff
    if len(excesses) < MIN_TAIL:
        return float("inf")
    with torch.device("cpu"):  # Pyro's fit makes tensors on the default device
        k, _ = fit_generalized_pareto(excesses)
    return k if math.isfinite(k) else float("inf")


def _log_ratios(potential: BatchedPotential, guide: Any, num_samples: int) -> Tensor:
    """log p(theta, data) - log q(theta) of draws from the guide (S,)."""
    if isinstance(guide, AutoContinuous):
        args, kwargs = potential.args, potential.kwargs
        if guide.prototype_trace is None:
            guide(*args, **kwargs)
        posterior = guide.get_posterior(*args, **kwargs)
        theta = posterior.sample(torch.Size((num_samples,)))
        log_q = posterior.log_prob(theta)
        if theta.shape[-1] != potential.dim:
            count = theta.shape[-1]
            raise ValueError(f"the guide has {count} coordinates, the model {potential.dim}: it is of another model.")
    else:
        theta, log_q = _traced(potential, guide, num_samples)
    if bool((theta == theta[:1]).all()) and num_samples > 1:
        said = f"{type(guide).__name__} draws one point again and again: it has no density to compare"
        raise ValueError(f"{said}. Take one with a spread (of AutoLaplaceApproximation, its laplace_approximation()).")
    return -potential.value(theta).double() - log_q.double()


def _traced(potential: BatchedPotential, guide: Any, num_samples: int) -> tuple[Tensor, Tensor]:
    """Draws of a guide one by one: theta (S, D), and the log density of it, unconstrained, (S,)."""
    sites, traced = potential.sites, poutine.trace(guide)
    with in_turn():
        traces = [traced.get_trace(*potential.args, **potential.kwargs) for _ in range(num_samples)]
    if missing := [name for name in sites.names if name not in traces[0].nodes]:
        raise ValueError(f"the guide does not sample the site {missing[0]!r} of the model: it needs all of them.")
    theta = sites.flatten({name: torch.stack([t.nodes[name]["value"] for t in traces]) for name in sites.names})
    log_q = torch.stack([torch.as_tensor(trace.log_prob_sum()).to(theta) for trace in traces])
    return theta, log_q + vmap(lambda row: sites.constrain(row)[1])(theta)
