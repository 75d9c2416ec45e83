"""Go downhill: Adam and L-BFGS from many starts at once, L-BFGS with a better line search from one.

In: a function z (S, D) -> energies (S,) and gradients (S, D), and starts.  Out: where they end, whether that settled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, variance

import torch
from torch import Tensor
from tqdm.auto import tqdm

SETTLED = 0.1  # nats in 50 iterations: less than this does not move the posterior
HISTORY, SHORT_HISTORY = 20, 4  # pairs of vectors (D,) that L-BFGS remembers; the second above LARGE coordinates
LARGE = 1_000_000
MOST_HALVINGS, ENOUGH = 8, 1e-4  # of a step, until it lowers the energy by this part of what its slope promises
FAR = 10.0  # prior deviations: a coordinate that far out, with the energy still falling, runs away

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class End:
    """Where a descent ended."""

    z: Tensor  # (D,)
    energies: tuple[float, ...]  # on the way there
    settled: bool

    @property
    def energy(self) -> float:
        return self.energies[-1]


def adam(evaluate: Evaluate, starts: Tensor, num_steps: int, bar: tqdm, lr: float = 0.05) -> list[End]:
    """Adam from all starts at once, with a falling rate: their ends, the lowest first and those that ran away last.

    The energies are the lowest of all starts, step by step, and it is these that settle.
    """
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
    settled = _has_settled(energies)
    order = [int(score.argmin())]
    order += [int(i) for i in score.argsort() if int(i) != order[0] and bool(score[i].isfinite())]
    return [End(end[i], tuple(energies), settled) for i in order]


def _has_settled(energies: list[float]) -> bool:
    """Whether the last quarter is no lower than the one before, by more than their noise."""
    quarter = len(energies) // 4
    late, before = energies[-quarter:], energies[-2 * quarter : -quarter]
    if not all(map(math.isfinite, before + late)):
        return False
    noise = math.sqrt((variance(late) + variance(before)) / quarter)
    return fmean(before) - fmean(late) < SETTLED + 2 * noise


def lbfgs(evaluate: Evaluate, start: Tensor, max_iterations: int, bar: tqdm) -> End:
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
    return End(best, tuple(energies), settled and rounding < SETTLED)


def lbfgs_from_all(evaluate: Evaluate, starts: Tensor, num_iterations: int, bar: tqdm) -> list[End]:
    """L-BFGS from all starts (S, D) at once, each with its own memory and steps: their ends, in the same order.

    torch's own takes all rows for one point. Steps are halved until the energy falls; good enough to find a mode. A row
    for which that does not help begins again from its gradient, and stops where that does not help either.
    """
    z, (energy, grad) = starts, evaluate(starts)
    energies, memory = [energy], list[tuple[Tensor, Tensor, Tensor]]()
    goes_on = torch.ones_like(energy, dtype=torch.bool)
    fresh = goes_on  # those whose step is along the gradient
    for _ in range(num_iterations):
        step = _quasi_newton(grad, memory)
        fresh = fresh | ((step * grad).sum(-1) >= 0)
        step = torch.where(fresh[:, None], -grad / grad.abs().sum(-1, keepdim=True).clamp_min(1.0), step)
        slope, size = (step * grad).sum(-1), torch.ones_like(energy)
        for _ in range(MOST_HALVINGS):
            moved = z + size[:, None] * step
            after, grad_after = evaluate(moved)
            better = (after <= energy + ENOUGH * size * slope) & grad_after.isfinite().all(-1)
            if bool((better | ~goes_on).all()):
                break
            size = torch.where(better, size, size / 2)
        better = better & goes_on
        change = torch.where(better[:, None], moved - z, 0.0)
        bend = torch.where(better[:, None], grad_after - grad, 0.0)
        curved = (change * bend).sum(-1)
        memory = (
            [(s, y, torch.where(fresh & better, 0.0, inverse)) for s, y, inverse in memory] if fresh.any() else memory
        )
        memory = [*memory, (change, bend, torch.where(curved > 1e-12, 1 / curved, 0.0))][-HISTORY:]
        z, grad, energy = z + change, grad + bend, torch.where(better, after, energy)
        energies.append(energy)
        bar.set_postfix(energy=f"{float(energy.min()):.1f}", refresh=False)
        goes_on = goes_on & (better | ~fresh) & ~_is_settled(energies)
        fresh = ~better
        if not bool(goes_on.any()):
            break
    settled, columns = _is_settled(energies).tolist(), torch.stack(energies).T.tolist()
    return [End(z[i], tuple(columns[i]), settled[i] or not bool(goes_on[i])) for i in range(len(z))]


def _is_settled(energies: list[Tensor]) -> Tensor:
    """Which rows (S,) fell by next to nothing in 20 iterations."""
    before = energies[-21] if len(energies) > 20 else torch.full_like(energies[0], math.inf)
    return before - energies[-1] < SETTLED


def _quasi_newton(grad: Tensor, memory: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Minus the inverse Hessian that the last steps show, times the gradient (S, D): the two loops of L-BFGS."""
    q, parts = grad, []
    for change, bend, inverse in reversed(memory):
        parts.append(inverse * (change * q).sum(-1))
        q = q - parts[-1][:, None] * bend
    if memory:
        change, bend, inverse = memory[-1]
        known = inverse > 0
        q = q * torch.where(known, 1 / (inverse * bend.square().sum(-1)), 1.0)[:, None]
    for (change, bend, inverse), part in zip(memory, reversed(parts), strict=True):
        q = q + (part - inverse * (bend * q).sum(-1))[:, None] * change
    return -q
