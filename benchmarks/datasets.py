"""Data sets by name, standardised with their training part.

In: a folder with the CSV files and splits, or None.  Out: x and y of a training, a test and a validation part.
Without a folder: what scikit-learn carries, or made data of the same shape, which the name then says.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine, make_moons
from sklearn.model_selection import train_test_split
from torch import Tensor

CARRIED = ("wine", "iris", "breast_diagnostic")  # by scikit-learn
SEEDS = (711, 1, 75, 359, 17, 420, 129, 666, 69, 36)  # of the splits, as in Immer et al. 2021
UCI = ("glass", "australian", "ionosphere", "breast_cancer", "vehicle", "waveform")
REGRESSION = ("boston", "concrete", "energy", "yacht", "wine-quality-red", "kin8nm", "power-plant")
UCI_ALL = ("glass", "australian", "ionosphere", "breast_cancer", "breast_ljubljana", "vehicle", "waveform")


class Problem(NamedTuple):
    """One split of a data set."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    x_valid: Tensor | None = None
    y_valid: Tensor | None = None
    y_scale: float = 1.0  # what a unit of y is in the source


def glass(folder: Path | None, split: int = 0) -> Problem:
    """Glass (214 rows, 9 features, 6 classes); made data of that shape without a folder."""
    if folder is None:
        return _made_classes("glass-like (made)", 149, 32, 9, 6)
    return uci(folder, "glass", split)


def snelson(folder: Path | None, *, gap: bool = True) -> Problem:
    """Snelson's regression; made data of that shape without a folder.

    Args:
        folder: Where snelson.csv is.
        gap: Hold out the inputs from 1.5 to 3; else 50 rows drawn at random, and the last fifth of the other 150 is
            for validation.
    """
    if folder is None:
        name, x = "snelson-like (made)", torch.rand(200, 1) * 6
        y = torch.sin(2 * x) * torch.exp(-x / 6) + 0.3 * torch.randn_like(x)
        inside = ((x > 1.5) & (x < 3)).squeeze(-1).numpy()
        rows = {"gap_train": ~inside, "gap_test": inside, "train": np.arange(150), "test": np.arange(150, 200)}
    else:
        name, table = "snelson", np.genfromtxt(folder / "snelson.csv", delimiter=",", skip_header=1)
        rows = dict(np.load(folder / "snelson.splits.npz"))
        x, y = (torch.tensor(table[:, i : i + 1], dtype=torch.float32) for i in (0, 1))
    if gap:
        train, test = rows["gap_train"], rows["gap_test"]
        return Problem(name, x[train], y[train], x[test], y[test])
    (train, valid), test = np.split(rows["train"], [len(rows["train"]) * 4 // 5]), rows["test"]
    return Problem(name, x[train], y[train], x[test], y[test], x[valid], y[valid])


def banana(folder: Path | None) -> Problem:
    """Two classes in the plane: 265 rows to train on, as Bergamin et al. 2023; two moons without a folder."""
    if folder is None:
        features, labels = make_moons(1060, noise=0.3, random_state=0)
        train, valid, test = np.split(np.arange(1060), [265, 660])
        return _standardised("moons (made)", features, labels, train, valid, test)
    table = np.genfromtxt(folder / "banana.csv", delimiter=",", skip_header=1)
    rows = np.load(folder / "banana.splits.npz")
    return _standardised("banana", table[:, :2], table[:, 2], rows["train"], rows["valid"], rows["test"])


def regression(folder: Path | None, name: str, split: int) -> Problem:
    """One split of a regression set, x and y in units of the training part; a tenth of that part is for validation."""
    if folder is None:
        features, targets = load_diabetes(return_X_y=True)
        train, test = train_test_split(np.arange(len(targets)), test_size=0.1, random_state=split)
    else:
        path = folder / "uci_regression" / f"{name}.npz"
        if not path.exists():
            raise SystemExit(f"{path} is missing: --data is a folder with uci_regression/{name}.npz.")
        content = np.load(path)
        features, targets = content["X"], content["y"]
        train, test = content["train_idx"][split], content["test_idx"][split]
    train, valid = train_test_split(train, test_size=0.1, random_state=split)
    made = _standardised(name, features, np.zeros(len(targets)), train, valid, test)
    center, scale = targets[train].mean(), targets[train].std()
    y = torch.tensor((targets - center) / scale, dtype=torch.float32)[:, None]
    return made._replace(y=y[train], y_valid=y[valid], y_test=y[test], y_scale=float(scale))


def classification(folder: Path | None, name: str, split: int, *, raw: bool = False) -> Problem:
    """One split of a classification set, of a folder or of those that scikit-learn carries; `raw` in its own units."""
    if folder is not None:
        return uci(folder, name, split, raw=raw)
    if name not in CARRIED:
        raise SystemExit(f"{name} is not among the sets that scikit-learn carries ({', '.join(CARRIED)}): pass --data.")
    loaders = {"wine": load_wine, "iris": load_iris, "breast_diagnostic": load_breast_cancer}
    features, labels = loaders[name](return_X_y=True)
    seed, rows = SEEDS[split], np.arange(len(labels))
    train, rest = train_test_split(rows, train_size=0.7, random_state=seed, stratify=labels)
    test, valid = train_test_split(rest, train_size=0.5, random_state=seed, stratify=labels[rest])
    return _standardised(name, features, labels, train, valid, test, raw=raw)


def with_validation(problem: Problem) -> Problem:
    """Every fifth training row held out."""
    held = torch.arange(len(problem.x)) % 5 == 4
    return problem._replace(x=problem.x[~held], y=problem.y[~held], x_valid=problem.x[held], y_valid=problem.y[held])


def uci(folder: Path, name: str, split: int, *, raw: bool = False) -> Problem:
    """One split of a UCI classification set; the sample number of Breast (Wisconsin) is no feature."""
    path = folder / "uci" / f"{name}.csv"
    if not path.exists():
        raise SystemExit(f"{path} is missing: --data is a folder with uci/{name}.csv and uci/{name}.splits.npz.")
    table = np.genfromtxt(path, delimiter=",", skip_header=1)
    rows = np.load(folder / "uci" / f"{name}.splits.npz")
    train, valid, test = (rows[part][split] for part in ("train", "valid", "test"))
    features = table[:, 1 if name == "breast_cancer" else 0 : -1]
    return _standardised(name, features, table[:, -1], train, valid, test, raw=raw)


def _standardised(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    valid: np.ndarray,
    test: np.ndarray,
    *,
    raw: bool = False,
) -> Problem:
    """Features in units of the training part's deviations; `raw` as they are."""
    y = torch.tensor(labels.astype(np.int64))
    spread = features[train].std(0)
    scaled = (features - features[train].mean(0)) / np.where(spread > 0, spread, 1)
    x = torch.tensor(features if raw else scaled, dtype=torch.float32)
    return Problem(name, x[train], y[train], x[test], y[test], x[valid], y[valid])


def _made_classes(name: str, num_train: int, num_test: int, num_features: int, num_classes: int) -> Problem:
    """Overlapping Gaussian classes."""
    centers = torch.randn(num_classes, num_features)
    y = torch.randint(num_classes, (num_train + num_test,))
    x = centers[y] + torch.randn(len(y), num_features)
    return Problem(name, x[:num_train], y[:num_train], x[num_train:], y[num_train:])
