"""Where particles leave from without a search: trained networks as they are.

In: the potential of a network, and perhaps other networks.  Out: points (S, D), one for each.

With inferred noise the joint maximum is a network that fits every row, without noise. No walk leaves from there.
Where some labels are wrong, the network that was given has learned them. Others are trained here, with that in mind.
"""

import copy
import inspect
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from tqdm.auto import tqdm

from ..energy.potential import BatchedPotential
from ..model.network import BayesianNetwork
from ..model.structure import Model
from ..runtime.progress import progress_bar
from ..runtime.threads import in_turn
from .first_look import NO_SKILL, data_of
from .map_search import given_point

NUM_NETWORKS = 8  # that particles leave from, the one that was given included
MOST_WEIGHTS = 10_000  # of a network that is trained again
# Of Adam: at most, at least, and times weights and rows; how often held-out rows are looked at. After 300 steps a walk
# on clean data is still on its way down when it ends: validation rows of UCI's energy, two splits, NLL .37 both; after
# 1,500, with twice as many stages, .24 and .07. What held-out rows bring was not told from chance.
MOST_STEPS, LEAST_STEPS, MOST_WORK, RATE, EVERY, HELD_OUT = 1500, 300, 2e9, 1e-2, 25, 0.1
FIRST_NOISE = 0.5  # of the targets' deviation, where the training of another network begins
Start = Mapping[str, Tensor] | nn.Module


def leaves_as_trained(model: Model, num_networks: int | None = None, in_batches: bool = False) -> bool:
    """Whether a walk leaves from trained weights, without a search for the joint maximum."""
    if not isinstance(model, BayesianNetwork):
        return False
    if model.likelihood.leaves_from == "anew":  # one network is the one that was given
        return num_networks != 1 and not in_batches and begins_anew(model)
    return model.likelihood.leaves_from == "trained"


def given_points(potential: BatchedPotential, starts: Sequence[Start]) -> Tensor:
    """Networks, or constrained values by site: (S, D). What is missing of the noise is that of their residuals."""
    model, points = potential.model, []
    for start in starts:
        values = dict(start.named_parameters()) if isinstance(start, nn.Module) else dict(start)
        if isinstance(model, BayesianNetwork):
            values = {name: value for name, value in values.items() if name in potential.sites.names}
            values = _noise(potential, values) | values if set(model.names) <= set(values) else values
        points.append(given_point(potential, values))
    return torch.stack(points)


def trained_points(potential: BatchedPotential, num_networks: int, progress: bool) -> Tensor:
    """The network that was given, with the noise of its residuals, and others that are trained here: (S, D).

    A network that is no better than a constant is trained, too, and one that does not get better is left out. So is the
    one that was given where the likelihood asks for others.
    """
    model: Any = potential.model
    (given,) = given_points(potential, [model.trained_params])
    left_out = model.likelihood.leaves_from == "anew"
    untrained = not left_out and _error(potential, given) >= NO_SKILL
    begun = [given] if untrained else []
    if not potential.is_noisy and begins_anew(model):
        begun += [fresh_point(potential) for _ in range(num_networks if left_out else num_networks - 1)]
    if not begun:
        return given[None]
    begin = time.perf_counter()
    ends = _trained_well(potential, torch.stack(begun), progress)
    good = [end for end in ends if _error(potential, end) < NO_SKILL]
    points = torch.stack([*([] if untrained or left_out else [given]), *(good or ends[:1])])
    if progress:
        said = f"{len(begun)} networks were trained in {time.perf_counter() - begin:.1f} s"
        tqdm.write(f"{said}: particles leave from {len(points)}. num_networks=1 keeps to yours.", file=sys.stderr)
    return points


def begins_anew(model: BayesianNetwork) -> bool:
    """Whether the whole network is Bayesian, small, and knows how to begin again."""
    begins = [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.net.named_modules()
        if callable(getattr(module, "reset_parameters", None))
        for name, _ in module.named_parameters(recurse=False)
    ]
    own = dict(model.net.named_parameters())
    is_small = sum(value.numel() for value in own.values()) <= MOST_WEIGHTS
    return is_small and set(own) == set(model.names) == set(begins)


def fresh_point(potential: BatchedPotential) -> Tensor:
    """A network of the same kind as torch begins one (D,); an inferred noise is a part of what a constant leaves."""
    model: Any = potential.model
    net = copy.deepcopy(model.net)
    for module in net.modules():
        if callable(begin := getattr(module, "reset_parameters", None)):
            begin()
    weights = dict(net.named_parameters())
    f, y = _outputs(model, weights, *data_of(model, potential.args, potential.kwargs))
    if model.likelihood.observes == "numbers":
        f, y = torch.zeros_like(f), FIRST_NOISE * (y - y.mean(0))
    return given_point(potential, {**weights, **_shaped(potential, model.likelihood.fitted(f, y))})


def _noise(potential: BatchedPotential, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The likelihood's own parameters, as the residuals of these weights ask for."""
    model: Any = potential.model
    outputs = _outputs(model, weights, *data_of(model, potential.args, potential.kwargs))
    return _shaped(potential, model.likelihood.fitted(*outputs))


def _error(potential: BatchedPotential, theta: Tensor) -> float:
    """Of the weights in theta (D,), as a part of a constant's; 0 where that says nothing."""
    model: Any = potential.model
    outputs = _outputs(model, potential.unflatten(theta), *data_of(model, potential.args, potential.kwargs))
    return model.likelihood.error_of(*outputs) or 0.0


def _outputs(model: BayesianNetwork, values: Mapping[str, Tensor], x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """What weights give at x, and y in its shape."""
    weights = {name: values[name].detach() for name in model.names}
    with torch.no_grad(), in_turn():
        f = functional_call(model.net, weights, x if isinstance(x, tuple) else (x,))
    return f, model.likelihood.targets(f, y)


def _shaped(potential: BatchedPotential, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    shapes = {site.name: site.shape for site in potential.sites.sites}
    return {name: value.expand(shapes[name]) for name, value in values.items()}


def trained(
    potential: BatchedPotential,
    theta: Tensor,
    progress: bool,
    num_steps: int,
    rate: float = RATE,
    held_out: BatchedPotential | None = None,
) -> list[Tensor]:
    """Adam on the energy from all points (S, D) at once, with a falling rate: their ends, or best on held-out rows."""
    theta = theta.clone().requires_grad_()
    best, kept = theta.new_full((len(theta),), torch.inf), theta.detach().clone()
    optimizer = torch.optim.Adam([theta], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    with progress_bar(total=num_steps, desc="training", disable=not progress, leave=False, unit=" steps") as bar:
        for i in range(1, num_steps + 1):
            theta.grad = potential.grad(theta.detach()).nan_to_num()
            optimizer.step()
            schedule.step()
            bar.update()
            if held_out is not None and i % EVERY == 0:
                score = held_out.energy_parts(theta.detach())[1].nan_to_num(nan=torch.inf)
                better = score < best
                best, kept = torch.where(better, score, best), torch.where(better[:, None], theta.detach(), kept)
    return list(theta.detach() if held_out is None else kept)


def _trained_well(potential: BatchedPotential, theta: Tensor, progress: bool) -> list[Tensor]:
    """Points (S, D) trained until rows that they do not see are fitted best; without such rows for a short time."""
    model: Any = potential.model
    given = inspect.signature(model.forward).bind(*potential.args, **potential.kwargs).arguments
    x, y = given["x"], given["y"]
    if potential.is_noisy or not torch.is_tensor(x) or not torch.is_tensor(y) or not 10 <= len(y) == len(x):
        return trained(potential, theta, progress, LEAST_STEPS)
    order = torch.randperm(len(y), device="cpu").to(y.device)
    held_out, rest = (
        BatchedPotential(model, x[rows], y[rows]).at(potential.temperature)
        for rows in order.tensor_split([round(HELD_OUT * len(y))])
    )
    num_steps = int(max(LEAST_STEPS, min(MOST_STEPS, MOST_WORK / potential.dim / len(y))))
    return trained(rest.using(mode="trace"), theta, progress, num_steps, RATE, held_out)
