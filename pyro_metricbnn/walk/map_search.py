"""Find the point that the walk leaves: theta_star, where the potential energy is lowest.

In: a BatchedPotential.  Out: `MapEstimate`, theta_star (D,) and how the search ended.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, variance

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..energy.curvature import hessian, smallness
from ..energy.potential import BatchedPotential
from ..energy.prior_units import PriorUnits, prior_units
from ..runtime.arguments import check_count, check_mapping, check_type

MAX_ITERATIONS = 500
BATCH_STEPS = 1000  # of Adam on minibatches, for as many iterations
ADAM_STEPS = 300  # from scratch, for all starts at once
SETTLED = 0.1  # nats in 50 iterations: less than this does not move the posterior
HISTORY, SHORT_HISTORY = 20, 4  # pairs of vectors (D,) that L-BFGS remembers; the second above LARGE coordinates
LARGE = 1_000_000
NECK_ITERATIONS = 100
NECK = 4.0  # prior deviations: a coordinate that far out is looked at for whether it sits in the neck of a funnel
FAR = 10.0  # prior deviations: a coordinate that far out, with the energy still falling, runs away


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

    From `init`, or the weights of a bayesianized module, or else from scratch: several starts around the prior's
    median, all at once with Adam, then L-BFGS from the best. A site along which the density is unbounded, as that of a
    scale whose effects close in, is noticed, said, and held at the prior's median.

    Args:
        potential: The energy to minimise.
        init: Constrained values to start from; sites that it leaves out start at the prior's median.
        num_starts: Starts from scratch.
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
    if init is not None:
        check_mapping("the initial values", init, "constrained values")
    units = prior_units(potential)
    starts = _starts(potential, units, init, num_starts)
    with tqdm(desc="MAP", disable=not progress, leave=False, unit=" steps") as bar:
        z, free, energies, converged = _search(potential, units, starts, max_iterations, bar)
    theta, energy = units.theta(z).detach(), energies[-1]
    if not (bool(theta.isfinite().all()) and math.isfinite(energy)):
        raise ValueError(
            f"no start had a finite energy (the best had {energy}): the model gives its data no density. "
            "Check the data for NaN, or pass initial values with a finite density."
        )
    unbounded = tuple(dict.fromkeys(potential.sites.at(int(i)) for i in (~free).nonzero()))
    _say(converged, unbounded, energies)
    converged = converged and not unbounded
    found = {"energy": energy, "energies": tuple(energies), "converged": converged, "unbounded": unbounded}
    return MapEstimate(theta=theta, params=potential.unflatten(theta), units=units, **found)  # type: ignore[arg-type]


def _search(
    potential: BatchedPotential, units: PriorUnits, starts: Tensor, max_iterations: int, bar: tqdm
) -> tuple[Tensor, Tensor, list[float], bool]:
    """The best z (D,), which coordinates (D,) were free to get there, energies, and whether they settled."""
    free = torch.ones_like(units.scale, dtype=torch.bool)
    while True:
        z, energies, converged = _descend(potential, units, starts, free, max_iterations, bar)
        runaway = free & (z.abs() > FAR)
        if converged or not bool(runaway.any()):
            break
        free = free & ~_with_their_sites(potential, runaway)
        starts = torch.where(free, starts[:1], torch.zeros_like(z))
    if converged and len(starts) > 1 and not potential.is_noisy:
        far = _in_a_neck(potential, units, z, free)
        if bool(far.any()):
            free = free & ~far
            starts = torch.where(free, z, 0.0)[None]
            z, energies, converged = _descend(potential, units, starts, free, max_iterations, bar)
    return z, free, energies, converged


def _starts(
    potential: BatchedPotential, units: PriorUnits, init: Mapping[str, Tensor] | None, num_starts: int
) -> Tensor:
    """Where the search starts, in prior deviations: (1, D) for given values, (S, D) from scratch."""
    init = init if init is not None else getattr(potential.model, "trained_params", None)
    if init is not None:
        return units.z(given_point(potential, {**potential.unflatten(units.center), **init}))[None]
    jitter = torch.empty(num_starts, potential.dim, device=units.scale.device, dtype=units.scale.dtype)
    jitter.uniform_(-1, 1)
    jitter[0] = 0
    return jitter


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
    potential: BatchedPotential,
    units: PriorUnits,
    starts: Tensor,
    free: Tensor,
    max_iterations: int,
    bar: tqdm,
) -> tuple[Tensor, list[float], bool]:
    """Lower the energy over the free coordinates: the best z (D,), energies, and whether they settled."""

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = potential.value_and_grad(units.theta(z))
        bar.update()
        return value, torch.where(free, grad * units.scale, 0.0)

    if potential.is_noisy:
        num_steps = round(BATCH_STEPS * max_iterations / MAX_ITERATIONS)
        return _adam(evaluate, starts, num_steps, bar, lr=0.05 if len(starts) > 1 else 0.005)
    energies: list[float] = []
    z = starts[0]
    if len(starts) > 1:
        z, energies, _ = _adam(evaluate, starts, ADAM_STEPS, bar)
    z, more, converged = _lbfgs(evaluate, z, max_iterations, bar)
    return z, energies + more, converged


Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


def _adam(
    evaluate: Evaluate, starts: Tensor, num_steps: int, bar: tqdm, lr: float = 0.05
) -> tuple[Tensor, list[float], bool]:
    """Adam from all starts at once, with a falling rate; gives the best that did not run away."""
    z = starts.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps, eta_min=lr / 100)
    energies: list[float] = []
    value = starts.new_full((len(starts),), float("inf"))
    for step in range(num_steps):
        value, grad = evaluate(z.detach())
        z.grad = grad.nan_to_num()
        optimizer.step()
        schedule.step()
        energies.append(float(value.nan_to_num(float("inf"), posinf=float("inf")).min()))
        if step % 20 == 0:
            bar.set_postfix(energy=f"{energies[-1]:.1f}", refresh=False)
    end = z.detach()
    score = value.nan_to_num(float("inf"), posinf=float("inf"))
    bounded = (end.abs() <= FAR).all(-1) & score.isfinite()
    score = torch.where(bounded, score, float("inf")) if bool(bounded.any()) else score
    quarter = num_steps // 4
    late, before = energies[-quarter:], energies[-2 * quarter : -quarter]
    settled = False
    if all(map(math.isfinite, before + late)):
        noise = math.sqrt((variance(late) + variance(before)) / quarter)
        settled = fmean(before) - fmean(late) < SETTLED + 2 * noise
    return end[score.argmin()], energies, settled


def _lbfgs(evaluate: Evaluate, start: Tensor, max_iterations: int, bar: tqdm) -> tuple[Tensor, list[float], bool]:
    """L-BFGS until the energy has settled, from one start (D,)."""
    z = start.clone().requires_grad_()
    history = HISTORY if len(z) <= LARGE else SHORT_HISTORY
    optimizer = torch.optim.LBFGS([z], max_iter=10, history_size=history, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value, grad = evaluate(z.detach()[None])
        z.grad = grad[0].nan_to_num()
        return value[0].nan_to_num(float("inf"), posinf=float("inf"))

    energies: list[float] = []
    best, settled = start, False
    for _ in range(-(-max_iterations // 10)):
        energy = float(optimizer.step(closure))
        if not (bool(z.isfinite().all()) and energy < float("inf")):
            break
        best = z.detach().clone()
        energies.append(energy)
        bar.set_postfix(energy=f"{energy:.1f}", refresh=False)
        settled = len(energies) > 5 and energies[-6] - energy < SETTLED
        if settled or bool((best.abs() > 1e3 * FAR).any()):
            break
    value, grad = evaluate(best[None])
    energies.append(float(value))
    # Where one rounding error of a coordinate is worth nats, the search has stalled, not settled.
    rounding = float((grad.abs() * best.abs()).max()) * torch.finfo(best.dtype).eps
    return best, energies, settled and rounding < SETTLED


def _in_a_neck(potential: BatchedPotential, units: PriorUnits, z: Tensor, free: Tensor) -> Tensor:
    """Which coordinates (D,) are far out only because they sit in the neck of a funnel.

    There a hierarchical density is highest, with next to none of its mass. So sites that are far out are compared with
    the prior's median by Laplace's approximation of their own density, with all others integrated out.
    """
    far = _with_their_sites(potential, free & (z.abs() > NECK))
    rest = free & ~far
    if smallness(potential.dim) == 0 or not bool(far.any()) or not bool(rest.any()):
        return torch.zeros_like(far)
    middle = torch.where(far, 0.0, z)
    with tqdm(disable=True) as bar:
        middle, _, _ = _descend(potential, units, middle[None], rest, NECK_ITERATIONS, bar)
    wins = _log_volume(potential, units, middle, rest) > _log_volume(potential, units, z, rest)
    return far if wins else torch.zeros_like(far)


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


def _say(converged: bool, unbounded: tuple[str, ...], energies: list[float]) -> None:
    if unbounded:
        warnings.warn(
            f"the density has no maximum along {', '.join(map(repr, unbounded))} that the posterior is near: the "
            "energy falls into a funnel. The walk starts from the best point with it at the prior's median. Where "
            "effects are centred, a non-centred parametrisation (pyro.infer.reparam.LocScaleReparam) helps.",
            stacklevel=3,
        )
    elif not converged:
        tenth = max(1, len(energies) // 10)
        fall = fmean(energies[-2 * tenth : -tenth] or energies[:1]) - fmean(energies[-tenth:])
        warnings.warn(
            f"the MAP search did not converge: the energy still fell by {fall:.2g} nats at the end. The walk "
            "starts from where it came to. Pass a larger max_iterations= to run, or train the network longer.",
            stacklevel=3,
        )
