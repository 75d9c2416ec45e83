"""A walk in a table: a network by site and by function values, another model coordinate by coordinate.

In: a model and Trajectories.  Out: lines on the standard output.
"""

import inspect

from pyro.infer.mcmc import util
from torch import Tensor

from ..model.network import BayesianNetwork
from ..model.sites import Model
from ..predictions.prediction import predict
from ..runtime.arguments import check_part
from ..walk.trajectories import Trajectories
from .mixing import MIN_DRAWS, function_mixing, some_rows


def print_summary(model: Model, walk: Trajectories, prob: float = 0.9) -> None:
    """Print it; `prob` is the part of the samples within the intervals."""
    check_part("prob", prob, "it is the part of the samples within the interval.")
    samples = walk.samples(group_by_chain=True)
    if isinstance(model, BayesianNetwork):
        print("\n".join([*_by_site(samples), *_by_function(model, walk, samples, prob)]))
    else:
        util.print_summary(samples, prob=prob, group_by_chain=True)


def _by_site(samples: dict[str, Tensor]) -> list[str]:
    """A line for each site: weights of a network can change places, so one by one they say little."""
    width = max(map(len, samples))
    lines = [f"{'site':<{width}}  {'weights':>9}  {'mean':>8}  {'size':>8}  {'deviation':>9}"]
    for name, value in samples.items():
        flat = value.flatten(0, 1).double()  # (draws, ...)
        size, deviation = float(flat.pow(2).mean().sqrt()), float(flat.var(0, correction=0).mean().sqrt())
        figures = f"{float(flat.mean()):>8.3f}  {size:>8.3f}  {deviation:>9.3f}"
        lines.append(f"{name:<{width}}  {flat[0].numel():>9,}  {figures}")
    return [*lines, "(size: root mean square of the weights; deviation: of a typical weight over the draws)"]


def _by_function(model: BayesianNetwork, walk: Trajectories, samples: dict[str, Tensor], prob: float) -> list[str]:
    """The network's output at some of its inputs: how wide it is, and whether the walks agree on it."""
    args, kwargs = walk.arguments
    x = some_rows(inspect.signature(model.forward).bind(*args, **kwargs).arguments["x"])
    if walk.num_steps < MIN_DRAWS:
        return [f"function values: at least {MIN_DRAWS} points a walk are needed to compare them."]
    f = predict(model, {name: value.flatten(0, 1) for name, value in samples.items()}, x).f.double()
    low, high = (f.quantile((1 + side * prob) / 2, dim=0) for side in (-1, 1))
    typical, widest = float((high - low).median()), float((high - low).max())
    within = f"within {typical:.3g} of each other at the typical input, within {widest:.3g} at the widest"
    return [f"{prob:.0%} of the functions lie {within}", str(function_mixing(model, samples, x))]
