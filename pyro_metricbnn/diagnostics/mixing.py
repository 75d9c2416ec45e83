"""How well chains mix, by the functions they give: chains that agree on every function can disagree on every weight.

In: a network's samples grouped by chain, and inputs.  Out: `FunctionMixing`, the rank-normalised figures of Vehtari et
al. (2021) of each function value. Of a walk: the virial, whether its points are as far apart as samples are.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro.ops.stats import effective_sample_size, gelman_rubin
from torch import Tensor

from ..model.network import BayesianNetwork
from ..predictions.prediction import check_network, predict
from ..runtime.arguments import check_mapping, check_tensor
from ..runtime.each_draw import for_each
from ..search.first_look import data_of
from ..walk.trajectories import Trajectories

MIN_DRAWS = 4  # a chain, for two halves with a variance each
MAX_FUNCTION_R_HAT = 1.05  # above it chains do not agree on function values
MAX_COORDINATE_R_HAT = 1.2  # above it a walk's particles do not agree on a single coordinate: many have chance's worst
MAX_ROWS = 200  # inputs or coordinates that are asked whether chains agree on them
NUM_POINTS, MIN_PARTICLES = 10, 5  # of each particle, whose gradients the virial takes; for a deviation of it
NUM_LATE, NUM_ROWS, MOST_VALUES = 20, 50, 10**8  # points of each particle, rows, and weights of all points together
NUM_COLUMNS = 32  # function values at once: Pyro's effective sample size takes memory quadratic in the draws


@dataclass(frozen=True, kw_only=True)
class FunctionMixing:
    """R-hat and effective sample size of each value of the network's output, (n, ...) each."""

    r_hat: Tensor
    ess: Tensor

    @property
    def worst_r_hat(self) -> float:
        """The largest: above about 1.05 the chains do not agree yet on some function value."""
        return float(self.r_hat.max())

    @property
    def median_r_hat(self) -> float:
        return float(self.r_hat.median())

    @property
    def worst_ess(self) -> float:
        return float(self.ess.min())

    @property
    def median_ess(self) -> float:
        return float(self.ess.median())

    def __str__(self) -> str:
        agreed = f"median {self.median_r_hat:.3f}, worst {self.worst_r_hat:.3f}"
        size = f"effective sample size: median {self.median_ess:.0f}, worst {self.worst_ess:.0f}"
        return f"R-hat of {self.r_hat.numel()} function values: {agreed}; {size}"


def function_mixing(
    model: BayesianNetwork, samples: Mapping[str, Tensor], x: Any, *, chunk_size: int | None = None
) -> FunctionMixing:
    """R-hat and effective sample size of the network's outputs at x; of what the likelihood sees of them.

    Args:
        model: A model made by `bayesianize`.
        samples: (N, T, ...) a site: `get_samples(group_by_chain=True)` of a `MetricBNN` or of Pyro's `MCMC`.
        x: Inputs, or a tuple of a network's several inputs.
        chunk_size: At most this many rows of x at once, for when memory is short.

    Example:
        >>> function_mixing(model, walk.samples(group_by_chain=True), x).r_hat.shape
        torch.Size([20, 1])
    """
    check_network("function_mixing", model, "call r_hat and ess of pyro_metricbnn.diagnostics on what they predict")
    check_mapping("samples", samples, "draws (chains, draws, ...)")
    for name in (name for name in model.names if name in samples):
        check_tensor(f"the samples of {name!r}", samples[name])
        shape, own = tuple(samples[name].shape), tuple(model.net.get_parameter(name).shape)
        if len(shape) != len(own) + 2 or shape[2:] != own:
            wanted = ", ".join(["chains", "draws", *map(str, own)])
            said = f"the samples of {name!r} have shape {shape}, but must be ({wanted})"
            raise ValueError(f"{said}. Pass get_samples(group_by_chain=True).")
    flat = {name: value.flatten(0, 1) for name, value in samples.items() if value.dim() > 1}
    outputs = predict(model, flat, x, chunk_size=chunk_size).f
    chains = samples[model.names[0]].shape[:2]
    f = for_each(model.likelihood.identified, outputs).unflatten(0, chains)  # (N, T, n, ...)
    return FunctionMixing(r_hat=r_hat(f), ess=ess(f))


def r_hat(values: Tensor) -> Tensor:
    """Rank-normalised split R-hat of values (N, T, ...) by chain: the larger of that of the values and of their
    distance from the median, which sees chains of different spreads. A value that never changes has 1.
    """

    def of(halves: Tensor) -> Tensor:
        folded = (halves - halves.flatten(0, 1).quantile(0.5, dim=0)).abs()
        either = [gelman_rubin(rank_normalized(part)).nan_to_num(1.0, float("inf")) for part in (halves, folded)]
        return torch.maximum(*either)

    return _by_columns(of, values)


def ess(values: Tensor) -> Tensor:
    """Bulk effective sample size of values (N, T, ...) by chain. A value that never changes counts all draws."""

    def of(halves: Tensor) -> Tensor:
        num_draws = halves.shape[0] * halves.shape[1]
        most = num_draws * math.log10(num_draws)  # chance alone can make draws look better than independent
        size = effective_sample_size(rank_normalized(halves))
        size = torch.where((size > 0) & (size < most), size, most)
        varies = (halves != halves[0, 0]).any(0).any(0)
        return torch.where(varies, size, float(num_draws))

    return _by_columns(of, values)


def rank_normalized(values: Tensor) -> Tensor:
    """Normal scores of the ranks of values (chains, draws, F) among all of their column; ties share one."""
    columns = values.flatten(0, 1).mT.contiguous()  # (F, S)
    in_order = columns.sort(-1).values
    below, up_to = (torch.searchsorted(in_order, columns, right=right) for right in (False, True))
    rank = (below + up_to + 1).to(values.dtype) / 2
    score = torch.special.ndtri((rank - 0.375) / (columns.shape[-1] + 0.25))
    return score.mT.unflatten(0, values.shape[:2])


def _by_columns(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A function of chains cut in two (2 N, T // 2, F) for a few columns at once: (N, T, ...) -> (...)."""
    if values.dim() < 2 or values.shape[1] < MIN_DRAWS:
        wanted = f"(chains, draws, ...) with at least {MIN_DRAWS} draws a chain, whose halves are compared"
        raise ValueError(f"the values have shape {tuple(values.shape)}, but must be {wanted}. Take more draws.")
    if wrong := int((~values.isfinite()).sum()):
        raise ValueError(f"{wrong} of the values are not finite and cannot be ranked. Leave their draws out.")
    half = values.shape[1] // 2
    columns = values.reshape(*values.shape[:2], -1).double()
    halves = torch.cat([columns[:, :half], columns[:, -half:]])
    figures = torch.cat([function(part) for part in halves.split(NUM_COLUMNS, dim=-1)])
    return figures.reshape(values.shape[2:]).to(values.dtype)


def some_rows(x: Any, most: int = MAX_ROWS) -> Any:
    """At most so many rows of a network's inputs, evenly taken."""
    if isinstance(x, tuple):
        return tuple(some_rows(value, most) for value in x)
    if not torch.is_tensor(x) or not x.dim() or len(x) <= most:
        return x
    return x[torch.linspace(0, len(x) - 1, most, device=x.device, dtype=torch.float64).round().long()]


def virial(walk: Trajectories) -> tuple[float, float]:
    """The mean of (theta - c) . grad U(theta) / D over points of the walk, and its standard error by particles.

    By parts it is 1 for samples of exp(-U), whatever c is; here c is the mean of the points. Near a minimum gradients
    are small, and between places that the walk has not left yet points are near each other: it is less there, whether
    the energy still changes or not. It says nothing (NaN) of a record that the way from the MAP is a part of, on
    purpose, of minibatches, of a file, of one rank of several, or of models that are no network.
    """
    ground = walk.ground
    known = ground is not None and not walk.in_batches and not walk.share.is_several
    if ground is None or not known or not isinstance(ground.potential.model, BayesianNetwork):
        return math.nan, math.nan
    has_approach = float(walk.positions[1]) > 1.5 / walk.num_steps
    whole = walk.is_good.all(-1).to(ground.theta_star.device)
    if not has_approach or int(whole.sum()) < MIN_PARTICLES:
        return math.nan, math.nan
    mode = ground.potential.execution.mode
    potential = ground.potential.using(mode="trace" if mode in ("auto", "compile") else mode)  # too few to compile for

    def points() -> Iterator[Tensor]:
        """One after another (N, D): a copy of all may not fit."""
        for i in (
            torch.linspace(1, walk.num_steps, min(NUM_POINTS, walk.num_steps), device="cpu").round().long().tolist()
        ):
            yield walk.thetas[:, i].to(potential.sites.device, potential.sites.dtype)

    center = torch.stack([theta[whole].mean(0) for theta in points()]).mean(0)
    each = torch.stack([((theta - center) * potential.grad(theta)).sum(-1) for theta in points()])
    means = each.mean(0)[whole].double() / len(center)  # (N,)
    return float(means.mean()), float(means.std()) / math.sqrt(len(means))


def late_function_r_hat(walk: Trajectories) -> float:
    """The median R-hat of function values over the second half of the walk, at some of the rows that it was given.

    Particles on their own ways through flat ground have energies at rest, and gradients say little of how far they
    still have to go: whether they give the same functions does. It says nothing (NaN) of one rank of several, of a
    walk from a file, of too few points, or of models that are no network.
    """
    ground = walk.ground
    if ground is None or walk.share.is_several:
        return math.nan
    model, whole = ground.potential.model, walk.is_good.all(-1).to(walk.thetas.device)
    num_particles = int(whole.sum())
    affordable = MOST_VALUES // max(1, num_particles * walk.sites.dim)
    num_points = min(NUM_LATE, walk.num_steps // 2, affordable)
    if not isinstance(model, BayesianNetwork) or num_particles < MIN_PARTICLES or num_points < MIN_DRAWS:
        return math.nan
    late = torch.linspace(walk.num_steps // 2 + 1, walk.num_steps, num_points, device="cpu").round().long()
    points = walk.thetas[:, late.to(walk.thetas.device)][whole]  # in this order: of all points a copy may not fit
    points = points.to(walk.sites.device, walk.sites.dtype)
    x, _ = data_of(model, *walk.arguments)
    rows = some_rows(x, NUM_ROWS)
    return function_mixing(model, walk.sites.unflatten(points), rows).median_r_hat
