"""Networks and data that the benchmarks share.

In: sizes.  Out: plain torch modules, and made data of the shape of the Snelson problem.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A fully connected network with an activation after each hidden layer."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def train(net: nn.Module, x: Tensor, y: Tensor, noise: float, num_steps: int = 2000) -> nn.Module:
    """Fit by Adam to the energy of a standard-normal prior and Gaussian noise."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).sum() / (2 * noise**2) + sum(p.pow(2).sum() for p in net.parameters()) / 2
        loss.backward()
        optimizer.step()
    return net


def wiggle(num_points: int = 148) -> tuple[Tensor, Tensor]:
    """One-dimensional regression with a gap: inputs from 0 to 6 without (1.5, 3), noise 0.3."""
    x = torch.rand(num_points, 1) * 4.5
    x = torch.where(x > 1.5, x + 1.5, x)
    return x, torch.sin(2 * x) * torch.exp(-x / 6) + 0.3 * torch.randn_like(x)
