"""Find the point that the walk leaves: theta_star, where the potential energy is lowest.

In: a BatchedPotential.  Out: `MapEstimate`, theta_star (D,) and how the search ended.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..energy.potential import BatchedPotential
from ..energy.prior_units import PriorUnits, hessian, prior_units, smallness
from ..model.network import BayesianNetwork
from ..runtime.arguments import check_count, check_mapping, check_type
from ..runtime.progress import progress_bar, warn
from .descent import FAR, End, Evaluate, adam, lbfgs, lbfgs_from_all

MAX_ITERATIONS = 500
BATCH_STEPS = 1000  # of Adam on minibatches, for as many iterations
ADAM_STEPS = 300  # from scratch, for all starts at once
WIDE = 2.0  # unconstrained: half of the starts from scratch are uniform up to it, as Pyro's init_to_uniform
MOST_ENDS = 4  # that are told apart
SAME_ENERGY = 1.0  # nats: ends with no higher ground between them are one mode, at whatever energies they stopped
NUM_BETWEEN = 16  # points at which that is looked at: as many as there are starts
SHORT_SEARCH = 100  # iterations: of all starts at once, and out of a neck
NOTHING = 0.01  # of the posterior: what a mode may hold without a word about what the walk would miss
NECK = 4.0  # prior deviations: a coordinate that far out is looked at for whether it sits in the neck of a funnel


@dataclass(frozen=True, kw_only=True)
class MapEstimate:
    """The end of a MAP search.

    Sites that are `unbounded` have no maximum, or only one in the neck of a funnel; they stand at the prior's median,
    and theta_star is the best point given that.
    """

    theta: Tensor  # theta_star (D,)
    params: dict[str, Tensor]  # the same by site, constrained
    energy: float  # U at theta_star
    converged: bool  # whether the energy had stopped falling
    unbounded: tuple[str, ...]
    energies: tuple[float, ...]  # along the search
    modes: tuple[tuple[float, float], ...]  # where starts ended: energy, and part of the posterior; theta_star's first
    thetas: Tensor  # (modes, D)
    units: PriorUnits  # the prior's centre and deviations, which the search used


def find_map(
    potential: BatchedPotential,
    init: Mapping[str, Tensor] | None = None,
    *,
    num_starts: int = 8,
    max_iterations: int = MAX_ITERATIONS,
    progress: bool = True,
) -> MapEstimate:
    """Minimise the potential energy.

    From `init`, or the weights of a bayesianized module, or else from scratch: starts around the prior's median and as
    many as wide as Pyro's own, all at once. Of a small model's modes it takes the one that holds most of the posterior,
    by Laplace's approximation, and says the others. A site along which the density is unbounded, as that of a scale
    whose effects close in, is noticed, said, and held at the prior's median.

    Args:
        potential: The energy to minimise.
        init: Constrained values to start from; sites that it leaves out start at the prior's median.
        num_starts: Starts from scratch around the prior's median; with several come as many wide ones.
        max_iterations: Iterations of L-BFGS; twice as many of Adam on minibatches.
        progress: Show a progress bar.

    Example:
        >>> estimate = find_map(BatchedPotential(model, x, y), progress=False)
        >>> estimate.converged
        True
    """
    check_type("potential", potential, BatchedPotential, "a BatchedPotential, as BatchedPotential(model, x, y) is")
    check_count("num_starts", num_starts, "the search starts somewhere.")
    check_count("max_iterations", max_iterations, "the search takes some.")
    units = prior_units(potential)
    starts = _starts(potential, units, init, num_starts)
    with progress_bar(desc="MAP", disable=not progress, leave=False, unit=" steps") as bar:
        ends, free = _search(potential, units, starts, max_iterations, bar)
    best, theta = ends[0], units.theta(ends[0].z).detach()
    unbounded = tuple(dict.fromkeys(potential.sites.at(int(i)) for i in (~free).nonzero()))
    modes = _shares(potential, units, ends, free)
    _say(best, unbounded, modes)
    return MapEstimate(
        theta=theta,
        params=potential.unflatten(theta),
        energy=best.energy,
        converged=best.settled and not unbounded,
        unbounded=unbounded,
        energies=best.energies,
        modes=modes,
        thetas=units.theta(torch.stack([end.z for end in ends])).detach(),
        units=units,
    )


def _search(
    potential: BatchedPotential, units: PriorUnits, starts: Tensor, max_iterations: int, bar: tqdm
) -> tuple[list[End], Tensor]:
    """Where the search ended, the best first, and which coordinates (D,) were free to get there."""
    free, looks_for_necks = torch.ones_like(units.scale, dtype=torch.bool), len(starts) > 1 and not potential.is_noisy
    weights = potential.model.names if isinstance(potential.model, BayesianNetwork) else ()
    may_be_held = free.clone()  # weights may not: their prior gives the density a maximum
    for site in potential.sites.sites:
        may_be_held[site.start : site.stop] = site.name not in weights
    while True:
        ends = _descend(potential, units, starts, free, max_iterations, bar)
        z, settled = ends[0].z, ends[0].settled
        held = free & may_be_held & (z.abs() > FAR) if not settled else torch.zeros_like(free)
        if settled and looks_for_necks:
            held = _in_a_neck(potential, units, z, free)
        if not bool(held.any()):
            break
        free = free & ~_with_their_sites(potential, held)
        starts = torch.where(free, z if settled else starts[0], 0.0)[None]
    if not (bool(ends[0].z.isfinite().all()) and math.isfinite(ends[0].energy)):
        raise ValueError(
            f"no start had a finite energy (the best had {ends[0].energy}): the model gives its data no density. "
            "Check the data for NaN, or pass initial values with a finite density."
        )
    return ends, free


def _starts(
    potential: BatchedPotential, units: PriorUnits, init: Mapping[str, Tensor] | None, num_starts: int
) -> Tensor:
    """Where the search starts, in prior deviations: (1, D) for given values, (S, D) from scratch."""
    init = init if init is not None else getattr(potential.model, "trained_params", None)
    if init is not None:
        check_mapping("the initial values", init, "constrained values")
        return units.z(given_point(potential, {**potential.unflatten(units.center), **init}))[None]
    near = torch.empty(num_starts, potential.dim, device=units.scale.device, dtype=units.scale.dtype)
    near.uniform_(-1, 1)
    near[0] = 0
    if num_starts == 1:
        return near
    return torch.cat([near, units.z(torch.empty_like(near).uniform_(-WIDE, WIDE))])


def given_point(potential: BatchedPotential, values: Mapping[str, Tensor]) -> Tensor:
    """Constrained values by site -> theta (D,), checked to be a point that a walk can leave."""
    theta = potential.flatten(values).detach()
    if theta.dim() != 1:
        raise ValueError(f"the initial values have shape {tuple(theta.shape[:-1])} of points: pass one point.")
    wrong = sorted({potential.sites.at(int(i)) for i in (~theta.isfinite()).nonzero()})
    if wrong:
        raise ValueError(
            f"the initial values of {', '.join(wrong)} are not finite, or on the edge of their support: "
            "the walk has nowhere to start. Pass finite values inside the support."
        )
    return theta


def _descend(
    potential: BatchedPotential, units: PriorUnits, starts: Tensor, free: Tensor, max_iterations: int, bar: tqdm
) -> list[End]:
    """Lower the energy over the free coordinates: the ends, the best first; of small models alone all that differ."""

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = potential.value_and_grad(units.theta(z))
        bar.update()
        return value, torch.where(free, grad * units.scale, 0.0)

    if potential.is_noisy:
        num_steps = round(BATCH_STEPS * max_iterations / MAX_ITERATIONS)
        return adam(evaluate, starts, num_steps, bar, lr=0.05 if len(starts) > 1 else 0.005)[:1]
    if len(starts) == 1:
        return [lbfgs(evaluate, starts[0], max_iterations, bar)]
    near, wide = starts.chunk(2)
    if not smallness(potential.dim):
        lowest = adam(evaluate, starts, ADAM_STEPS, bar)[0]
        ends = [lbfgs(evaluate, lowest.z, max_iterations, bar)]
    else:
        lowest, *others = adam(evaluate, near, ADAM_STEPS, bar)
        begun = torch.cat([torch.stack([end.z for end in (lowest, *others)]), wide])  # Adam would not come down in time
        ends = _modes(evaluate, lbfgs_from_all(evaluate, begun, SHORT_SEARCH, bar))
        # A search from all at once can stop short of a mode: what is told apart is looked at once more.
        ends = _modes(evaluate, [lbfgs(evaluate, end.z, max_iterations, bar) for end in ends[:MOST_ENDS]])
        ends.sort(key=lambda end: -_log_volume(potential, units, end.z, free))
    return [replace(ends[0], energies=lowest.energies + ends[0].energies), *ends[1:]]


def _modes(evaluate: Evaluate, ends: Sequence[End]) -> list[End]:
    """The lowest end of each mode, the lowest of all first; the others only where they settled."""
    lowest, *others = sorted(ends, key=lambda end: end.energy if math.isfinite(end.energy) else math.inf)
    known = [lowest]
    for end in others:
        if end.settled and not any(_is_same(evaluate, end, other) for other in known):
            known.append(end)
    return known


def _is_same(evaluate: Evaluate, one: End, other: End) -> bool:
    """Whether two ends are in one mode: no higher ground lies on the straight way between them."""
    parts = torch.linspace(0, 1, NUM_BETWEEN + 2, device=one.z.device, dtype=one.z.dtype)[1:-1]
    between = evaluate(torch.lerp(one.z, other.z, parts[:, None]))[0]
    return bool((between < max(one.energy, other.energy) + SAME_ENERGY).all())


def _shares(
    potential: BatchedPotential, units: PriorUnits, ends: Sequence[End], free: Tensor
) -> tuple[tuple[float, float], ...]:
    """The energy of each end, and what part of the posterior it holds by Laplace's approximation."""
    if len(ends) == 1:
        return ((ends[0].energy, 1.0),)
    volumes = torch.tensor([_log_volume(potential, units, end.z, free) for end in ends], device="cpu")
    return tuple((end.energy, share) for end, share in zip(ends, volumes.softmax(0).tolist(), strict=True))


def _in_a_neck(potential: BatchedPotential, units: PriorUnits, z: Tensor, free: Tensor) -> Tensor:
    """Which coordinates (D,) are far out only because they sit in the neck of a funnel.

    There a hierarchical density is highest, with next to none of its mass. So sites that are far out are compared with
    the prior's median by Laplace's approximation of their own density, with all others integrated out.
    """
    far = more = _with_their_sites(potential, free & (z.abs() > NECK))
    middle, nothing = z, torch.zeros_like(far)
    while smallness(potential.dim) and bool(more.any()):  # out of one neck a search can fall into the next
        rest = free & ~far
        if not bool(rest.any()):
            return nothing
        with tqdm(disable=True) as bar:
            middle = _descend(potential, units, torch.where(far, 0.0, z)[None], rest, SHORT_SEARCH, bar)[0].z
        more = _with_their_sites(potential, rest & (middle.abs() > NECK))
        far = far | more
    if middle is z:
        return nothing
    rest = free & ~far
    wins = _log_volume(potential, units, middle, rest) > _log_volume(potential, units, z, rest)
    return far if wins else nothing


def _log_volume(potential: BatchedPotential, units: PriorUnits, z: Tensor, over: Tensor) -> float:
    """Laplace's log density at z with the coordinates in `over` integrated out, up to a constant."""
    theta = units.theta(z)
    curvature = hessian(potential, theta, units.scale, 20)[over][:, over]
    return -float(potential.value(theta[None])) - 0.5 * float(
        torch.linalg.eigvalsh(curvature).clamp_min(1e-3).log().sum()
    )


def _with_their_sites(potential: BatchedPotential, coordinates: Tensor) -> Tensor:
    """All coordinates of the sites that the marked ones belong to."""
    marked = coordinates.clone()
    for site in potential.sites.sites:
        marked[site.start : site.stop] = coordinates[site.start : site.stop].any()
    return marked


def _say(best: End, unbounded: tuple[str, ...], modes: Sequence[tuple[float, float]]) -> None:
    if unbounded:
        warn(
            f"the density has no maximum along {', '.join(map(repr, unbounded))} that the posterior is near: the "
            "energy falls into a funnel. The walk starts from the best point with it at the prior's median. Where "
            "effects are centred, a non-centred parametrisation (pyro.infer.reparam.LocScaleReparam) helps."
        )
    elif not best.settled:
        tenth = max(1, len(best.energies) // 10)
        fall = fmean(best.energies[-2 * tenth : -tenth] or best.energies[:1]) - fmean(best.energies[-tenth:])
        warn(
            f"the MAP search did not converge: the energy still fell by {fall:.2g} nats at the end. The walk "
            "starts from where it came to. Pass a larger max_iterations= to run, or train the network longer."
        )
    if said := said_of_modes(modes):
        warn(said)


def said_of_modes(modes: Sequence[tuple[float, float]]) -> str:
    """What to say of starts that ended at several energies; nothing of one, as where labels change places."""
    if all(abs(energy - modes[0][0]) < SAME_ENERGY for energy, _ in modes):
        return ""
    ends = ", ".join(f"{energy:.1f} ({share:.1%} of the posterior)" for energy, share in modes)
    advice = "All particles leave from the first; other starts may find a lower one: compare runs of several seeds."
    if modes[0][1] < 1 - NOTHING:
        advice = (
            "Particles leave from each by what it holds. Where no way of low energy leads from one to another, that "
            "figure stays as it is: look whether runs of several seeds agree."
        )
    return f"the search for the MAP ended at several energies: {ends}, by Laplace's approximation. {advice}"
