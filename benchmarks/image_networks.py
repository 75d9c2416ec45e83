"""The trained networks of the image benchmarks: LeNet and torchvision's ResNet18, made once and kept in a folder.

In: a folder, images, the set's name and a seed.  Out: the network and the processor seconds that training took.

LeNet: two convolutions and three dense layers, tanh, Adam, 20 epochs. ResNet18 is torchvision's as it is, whose stem is
made for images seven times as wide: SGD, random crops and flips, bfloat16 where it multiplies. An epoch at a time is
kept, so that a run that was stopped goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from .image_data import DEVIATION, MEAN, Images

BATCH_SIZE = 128
EPOCHS, LEARNING_RATE = 20, 1e-3  # of LeNet
RESNET_EPOCHS, RESNET_RATE, MOMENTUM, DECAY, MARGIN = 15, 0.1, 0.9, 5e-4, 4
FEWEST_STEPS = 50

Augment = Callable[[Tensor], Tensor]


class Standardised(nn.Module):
    """Images from 0 to 1 -> mean 0 and deviation 1, a channel at a time."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("deviation", torch.tensor(DEVIATION)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


def lenet() -> nn.Sequential:
    """Two convolutions and three dense layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    )


def resnet() -> nn.Sequential:
    """Torchvision's ResNet18, "1", of standardised images."""
    from torchvision.models import resnet18

    return nn.Sequential(Standardised(), resnet18(num_classes=10))


def network(out: Path, data: Images, name: str, seed: int, part: float = 1.0) -> tuple[nn.Module, float]:
    """A trained network, from the folder where it is there, and the processor seconds that training took."""
    path = out / "networks" / f"{name}-{seed}.pt"
    made = resnet if name == "CIFAR10" else lenet
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pyro.set_rng_seed(seed)
        _train(made(), data, f"{name}-{seed}", part, path)
    net = made()
    kept = torch.load(path, weights_only=True)
    net.load_state_dict(kept["net"])
    return net.eval(), kept["seconds"]


def _train(net: nn.Module, data: Images, name: str, part: float, path: Path) -> None:
    """Train and keep it; what there is after each epoch is kept beside it."""
    large = name.startswith("CIFAR10")
    epochs = max(1, round(part * (RESNET_EPOCHS if large else EPOCHS)))
    num_steps = max(FEWEST_STEPS if part < 1 else 1, epochs * (len(data.x) // BATCH_SIZE))
    if large:
        settings: dict[str, Any] = {"momentum": MOMENTUM, "weight_decay": DECAY, "nesterov": True}
        optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), RESNET_RATE, **settings)
        schedule: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, RESNET_RATE, num_steps, cycle_momentum=False)
        net.to(memory_format=torch.channels_last)
    else:
        optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    kept = {"net": net, "optimizer": optimizer, "schedule": schedule}
    unfinished, seconds, done = path.with_suffix(".unfinished"), 0.0, 0
    if unfinished.exists():
        found = torch.load(unfinished, weights_only=True)
        for key, value in kept.items():
            value.load_state_dict(found[key])
        seconds, done = found["seconds"], found["done"]
        torch.set_rng_state(found["random"])
    while done < num_steps:
        begin = time.process_time()
        count = min(num_steps - done, len(data.x) // BATCH_SIZE)
        loss = steps(net, data.x, data.y, count, optimizer, schedule, augmented if large else None, mixed=large)
        seconds, done = seconds + time.process_time() - begin, done + count
        print(f"{name}: {done} of {num_steps} steps, {seconds:.0f} s, loss {loss:.3f}", flush=True)
        content: dict[str, Any] = {key: value.state_dict() for key, value in kept.items()}
        content |= {"seconds": seconds, "done": done, "random": torch.get_rng_state()}
        torch.save(content, unfinished)
    torch.save({"net": net.state_dict(), "seconds": seconds}, path)
    os.remove(unfinished)


def steps(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    count: int,
    optimizer: torch.optim.Optimizer,
    schedule: Any,
    augment: Augment | None = None,
    *,
    batch_size: int = BATCH_SIZE,
    mixed: bool = False,
) -> float:
    """So many steps on batches of a new order; the mean of the losses."""
    net.train()
    order, total = torch.zeros(0, dtype=torch.long), 0.0
    for _ in range(count):
        order = order if len(order) >= batch_size else torch.randperm(len(x))
        rows, order = order[:batch_size], order[batch_size:]
        batch = x[rows] if augment is None else augment(x[rows])
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = cross_entropy(net(batch), y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
        total += float(loss.detach())
    return total / max(1, count)


def augmented(x: Tensor) -> Tensor:
    """Each image shifted by up to `MARGIN` pixels, and half of them turned left to right."""
    n, _, height, width = x.shape
    wide = pad(x, (MARGIN,) * 4)
    top, left = torch.randint(0, 2 * MARGIN + 1, (2, n))
    columns = torch.arange(width).expand(n, width)
    columns = torch.where((torch.rand(n) < 0.5)[:, None], columns.flip(-1), columns) + left[:, None]
    rows = torch.arange(height) + top[:, None]  # (n, H)
    cut = wide.permute(0, 2, 3, 1)[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2)
