"""Data sets by name, standardised with their training part.

In: a folder with the CSV files and splits, or None.  Out: x and y of a training, a test and a validation part. Without a
folder: what scikit-learn carries, or made data of the same shape, which the name then says.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

UCI = ("glass", "australian", "ionosphere", "breast_cancer", "vehicle", "waveform")


class Problem(NamedTuple):
    """One split of a data set."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    x_valid: Tensor | None = None
    y_valid: Tensor | None = None


def glass(folder: Path | None, split: int = 0) -> Problem:
    """Glass (214 rows, 9 features, 6 classes); made data of that shape without a folder."""
    if folder is None:
        return _made_classes("glass-like (made)", 149, 32, 9, 6)
    return uci(folder, "glass", split)


def snelson(folder: Path | None) -> Problem:
    """Snelson's regression with the gap 1.5 to 3 held out; made data of that shape without a folder."""
    if folder is None:
        x = torch.rand(200, 1) * 6
        y = torch.sin(2 * x) * torch.exp(-x / 6) + 0.3 * torch.randn_like(x)
        inside = ((x > 1.5) & (x < 3)).squeeze(-1)
        return Problem("snelson-like (made)", x[~inside], y[~inside], x[inside], y[inside])
    table = np.genfromtxt(folder / "snelson.csv", delimiter=",", skip_header=1)
    rows = np.load(folder / "snelson.splits.npz")
    x, y = (torch.tensor(table[:, i : i + 1], dtype=torch.float32) for i in (0, 1))
    train, test = rows["gap_train"], rows["gap_test"]
    return Problem("snelson", x[train], y[train], x[test], y[test])


def uci(folder: Path, name: str, split: int) -> Problem:
    """One split of a UCI classification set; the sample number of Breast (Wisconsin) is no feature."""
    table = np.genfromtxt(folder / "uci" / f"{name}.csv", delimiter=",", skip_header=1)
    rows = np.load(folder / "uci" / f"{name}.splits.npz")
    train, valid, test = (rows[part][split] for part in ("train", "valid", "test"))
    features, labels = table[:, 1 if name == "breast_cancer" else 0 : -1], torch.tensor(table[:, -1].astype(np.int64))
    spread = features[train].std(0)
    scaled = (features - features[train].mean(0)) / np.where(spread > 0, spread, 1)
    x = torch.tensor(scaled, dtype=torch.float32)
    return Problem(name, x[train], labels[train], x[test], labels[test], x[valid], labels[valid])


def _made_classes(name: str, num_train: int, num_test: int, num_features: int, num_classes: int) -> Problem:
    """Overlapping Gaussian classes."""
    centers = torch.randn(num_classes, num_features)
    y = torch.randint(num_classes, (num_train + num_test,))
    x = centers[y] + torch.randn(len(y), num_features)
    return Problem(name, x[:num_train], y[:num_train], x[num_train:], y[num_train:])
