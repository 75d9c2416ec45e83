"""The images: MNIST, FashionMNIST and CIFAR10 as torchvision keeps them, or scikit-learn's digits, enlarged.

In: the folder of the data and a name.  Out: `Images`, with the last training images kept for what is chosen.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

SETS = ("MNIST", "FashionMNIST", "CIFAR10")
NUM_VALIDATION = 5000
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR10's training images


class Images(NamedTuple):
    """Images (n, C, H, W) from 0 to 1, and labels (n,)."""

    x: Tensor
    y: Tensor
    x_valid: Tensor
    y_valid: Tensor
    x_test: Tensor
    y_test: Tensor


@cache
def images(data: Path | None, name: str) -> Images:
    """A set, its training images but the last ones, those, and the test images."""
    if data is None:
        return _digits()
    from torchvision import datasets

    parts = [getattr(datasets, name)(str(data / "torchvision"), train=train, download=False) for train in (True, False)]
    (x, y), (x_test, y_test) = ((_pixels(part.data), torch.as_tensor(part.targets)) for part in parts)
    cut = len(x) - NUM_VALIDATION
    return Images(x[:cut], y[:cut], x[cut:], y[cut:], x_test, y_test)


def _pixels(found: object) -> Tensor:
    """(n, H, W) or (n, H, W, 3), whole numbers to 255 -> (n, C, H, W) to 1."""
    pixels = torch.as_tensor(found)
    pixels = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
    return pixels.float().contiguous() / 255


def _digits() -> Images:
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16, torch.tensor(found.target)
    x = interpolate(x, (28, 28), mode="bilinear")
    return Images(x[:1000], y[:1000], x[1000:1300], y[1000:1300], x[1300:], y[1300:])
