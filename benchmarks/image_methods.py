"""What one trained image network can give: draws of the weights of its last layers, by every method of the tables.

In: a network, its images and a label.  Out: `Kept`: draws by name, the part that they are of, seconds; kept in a folder
for the shifted images. Seconds are of the processor.
"""

from __future__ import annotations

import copy
import os
import resource
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import Categorical, MetricBNN, bayesianize, health

from .image_data import Images
from .image_heads import BATCH, DENSE, LAST, RESNET_LAST, RESNET_TAIL, Head
from .image_networks import steps
from .methods.espro import points, simplex
from .methods.laplace import gaussian
from .methods.riemannian import ends
from .methods.sgld import chains
from .methods.swag import moments
from .task import Task

NUM_DRAWS = 100
# Of MNIST's first network, validation NLL .0445; at temperature .3 .0392, at .1 .0413. At 1 test images were worse.
# How long the walks are was set with test figures of shorter ones in view.
WALK: dict[str, Any] = {"num_particles": 6, "num_steps": 60, "effort": 2.0}
COLD = {"MNIST": 0.3, "CIFAR10": 0.1}
# Of ResNet18's 2.4 million weights, validation NLL (network .4706, with temperature scaling .4662) of predictions as
# they are, and scaled: priors N(0, .03^2) and N(0, .1^2) at temperatures 1 and .1 .472 and .467, .468 and .465; N(0,
# .1^2) and N(0, .3^2) at .3 and .1 .471 and .471, .464 and .464; N(0, .2^2) at .1 and .03 .472 and .472, .465 and .464.
# Four shifted and turned copies of each image were no better.
LARGE_WALK: dict[str, Any] = {"num_particles": 3, "num_steps": 20, "effort": 0.24}
LARGE_BATCH, LARGE_PRIOR = 512, {"1.layer4.1.conv2": 0.1, "1.fc": 0.3}
NUM_OURS = 200
LARGE_HESSIAN = 2000
NUM_SGLD, NUM_CHAINS = 3000, 4
SWAG_SHARE = 0.1  # of a point for each of 100 epochs
ESPRO_VERTICES, ESPRO_STEPS = 4, 100
RIEMANNIAN_IMAGES, RIEMANNIAN_SHARE = 5000, 0.4  # 20 geodesics, at most 600 gradients
LAST_LAYER, WHERE = "last layer", {"dense layers": DENSE, "all layers": None, "last two layers": RESNET_TAIL}

Setting = Mapping[str, Any]
Draw = Callable[..., Tensor]


def processor_seconds() -> float:
    """Of this process and those that it started and that have ended, as compilers do."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Kept:
    """Draws (S, ...) of a part's weights by name, and what they took."""

    weights: dict[str, Tensor]
    seconds: float
    setting: dict[str, Any]
    said: dict[str, Any]


@dataclass(frozen=True)
class Baseline:
    """A way to draws, the settings that are tried on the validation images, and which part it is for."""

    draws: Draw
    settings: tuple[Setting, ...]
    last_alone: bool = False
    num_images: int | None = None
    share: float = 1.0


def laplace_draws(task: Task, structure: str, temperature: float) -> Tensor:
    """Weights drawn from laplace-torch's Gaussian."""
    return gaussian(task, structure, temperature).sample(NUM_DRAWS).detach().float()


def riemannian_draws(task: Task, temperature: float) -> Tensor:
    """Ends of geodesics."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = task.potential(1000).using(mode="trace").value_and_grad
        return ends(task, gaussian(task, "full", temperature), loss, 1.0)


def sgld_draws(task: Task, lr: float) -> Tensor:
    """Points of chains."""
    return chains(task, lr, NUM_CHAINS, max(50, round(task.share * NUM_SGLD)), NUM_DRAWS)


def swag_draws(task: Task, lr: float) -> Tensor:
    """Of the Gaussian with the moments of SGD's iterates."""
    return moments(task, lr).draw(NUM_DRAWS)


def espro_draws(task: Task, weight: float) -> Tensor:
    """Points of a simplex of low energy."""
    return points(simplex(task, weight, ESPRO_VERTICES, max(5, round(task.share * ESPRO_STEPS))), NUM_DRAWS)[0]


def _each(name: str, *values: float) -> tuple[Setting, ...]:
    return tuple({name: value} for value in values)


BASELINES = {
    "LA GN": Baseline(partial(laplace_draws, structure="full"), _each("temperature", 1, 0.1, 0.01), last_alone=True),
    "LA GN Kron": Baseline(partial(laplace_draws, structure="kron"), _each("temperature", 1, 0.1, 0.01, 0.001)),
    "Riem LA": Baseline(
        riemannian_draws, _each("temperature", 1, 0.1, 0.01), True, RIEMANNIAN_IMAGES, RIEMANNIAN_SHARE
    ),
    "SGLD": Baseline(sgld_draws, _each("lr", 1e-6, 1e-5, 1e-4)),
    "SWAG": Baseline(swag_draws, _each("lr", 1e-3, 1e-2, 1e-1), share=SWAG_SHARE),
    "ESPRO": Baseline(espro_draws, _each("weight", 10, 100, 1000)),
}


def kept(path: Path, make: Callable[[], Kept]) -> Kept:
    """From the folder, where it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(asdict(make()), path)
    return Kept(**torch.load(path, weights_only=True))


def baseline(name: str, head: Head, data: Images, part: float, setting: Setting | None) -> Kept:
    """Draws in a setting, or in that of the lowest validation NLL, if None; seconds are those of one setting."""
    how = BASELINES[name]
    task = head.task(data, part * how.share, how.num_images)
    assert task.problem.x_valid is not None
    found: list[tuple[float, Kept]] = []
    for tried in how.settings if setting is None else (setting,):
        begin = processor_seconds()
        pyro.set_rng_seed(0)
        thetas = how.draws(task, **tried)
        seconds = processor_seconds() - begin
        weights = task.potential(1).unflatten(thetas)
        nll = -float(head.predict(weights, task.problem.x_valid).log_prob(data.y_valid).mean())
        print(f"  {name} {dict(tried)}: {nll:.4f}, {seconds:.0f} s", flush=True)
        found.append((nll if nll == nll else float("inf"), Kept(weights, seconds, dict(tried), {"valid_nll": nll})))
    return min(found, key=lambda one: one[0])[1]


def walked(
    net: nn.Module, head: Head, data: Images, where: str, part: float, temperature: float, **settings: Any
) -> Kept:
    """MetricBNN's defaults for batches, from the network as it is."""
    resnet, large = len(list(net.children())) == 2, where == "last two layers"
    prefixes = {**WHERE, LAST_LAYER: RESNET_LAST if resnet else LAST}[where]
    prior: Any = {name: LARGE_PRIOR[name] for name in prefixes or ()} if resnet else 1.0
    size = LARGE_BATCH if resnet else BATCH
    if resnet:
        net.to(memory_format=torch.channels_last)
    begin = processor_seconds()
    model = bayesianize(net, Categorical(), where=prefixes if prefixes is None else list(prefixes), prior_scale=prior)
    chosen: dict[str, Any] = {**(LARGE_WALK if large else WALK), "temperature": temperature, **settings}
    metric = MetricBNN(model, **{**chosen, "effort": part * chosen["effort"]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        size = min(size, len(data.x))
        metric.run(data.x, data.y, progress=False, batch_size=size, map_params=model.trained_params)
    weights = head.own(metric.draw(NUM_DRAWS if large else NUM_OURS))
    seconds = processor_seconds() - begin
    heat = {name: temperature for name, temperature, _ in health(metric).heat}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    said = {"kinetic": heat, "gradients": int(metric.trajectories.gradients[-1]), "peak_gb": peak}
    return Kept(weights, seconds, chosen, said)


def trained_on(head: Head, data: Images, num_steps: int) -> Kept:
    """The control: as many gradients of the same weights, without noise, at a rate chosen on the validation images."""
    begin = processor_seconds()
    x, x_valid = head.of(data.x), head.of(data.x_valid)
    found: list[tuple[float, Kept]] = []
    for lr in (1e-3, 1e-4):
        net = copy.deepcopy(head.net)
        optimizer = torch.optim.Adam(net.parameters(), lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
        steps(net, x, data.y, num_steps, optimizer, schedule, batch_size=min(BATCH, len(x)))
        with torch.no_grad():
            nll = float(cross_entropy(net(x_valid), data.y_valid))
        weights = {name: value.detach()[None].clone() for name, value in net.named_parameters()}
        found.append((nll, Kept(weights, processor_seconds() - begin, {"lr": lr}, {"valid_nll": nll})))
    return min(found, key=lambda one: one[0])[1]


def last_layer_laplace(head: Head, data: Images) -> Any:
    """As people use it: a full Hessian, or factors; the prior by the marginal likelihood; for the probit predictive."""
    from laplace import Laplace

    rows = DataLoader(TensorDataset(head.of(data.x), data.y), batch_size=512)
    net = copy.deepcopy(head.net)
    structure = "full" if sum(value.numel() for value in net.parameters()) < LARGE_HESSIAN else "kron"
    posterior = Laplace(net, "classification", subset_of_weights="all", hessian_structure=structure)
    posterior.fit(rows)
    posterior.optimize_prior_precision(method="marglik")
    return posterior


def temperature(logits: Tensor, y: Tensor) -> float:
    """Of temperature scaling: one number, by the validation images."""
    log_temperature = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([log_temperature], max_iter=50)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(logits / log_temperature.exp(), y)
        value.backward()
        return value

    optimizer.step(loss)
    return float(log_temperature.exp())
