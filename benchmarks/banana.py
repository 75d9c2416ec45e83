"""Banana, two classes in the plane: where every method is sure (the paper's figure on classification).

    python -m benchmarks banana --data DIR [--methods NAME ...] [--seeds 3] [--quick]

Two layers of 16 tanh units (the paper's appendix; its text has 6), N(0, 1) prior, 265 training rows. Writes
`banana.json`, `banana.md` and `banana.png`, the probability of the likelier class over the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical

from .datasets import Problem, banana
from .figure import Figure, Shown
from .methods.method import Run
from .task import Task, trained

HIDDEN = (16, 16)
GRID_SIZE = 60
REACH = 4.0  # of the picture, in the data's deviations
COLORS = ("#D55E00", "#0072B2")


def task(data: Path | None, share: float) -> Task:
    """The problem with its trained network."""
    return trained(banana(data), Categorical(), HIDDEN, activation=nn.Tanh, share=share, kind="classification")


def plane() -> Tensor:
    """The inputs of the picture (GRID_SIZE^2, 2)."""
    side = torch.linspace(-REACH, REACH, GRID_SIZE)
    return torch.cartesian_prod(side, side)


def on_plane(run: Run) -> dict[str, np.ndarray]:
    """The probability of the second class over the plane."""
    return {"probs": run.predictor(plane()).probs[:, 1].numpy()}


def decisions(axes: Any, shown: Shown, problem: Problem) -> Any:
    """That probability, and the training rows."""
    probs = shown["probs"].reshape(GRID_SIZE, GRID_SIZE).T
    image = axes.imshow(probs, origin="lower", extent=(-REACH, REACH) * 2, cmap="PuOr", vmin=0, vmax=1)
    for label, color in enumerate(COLORS):
        rows = problem.x[problem.y == label]
        axes.plot(rows[:, 0], rows[:, 1], "o", color=color, markeredgecolor="white", markeredgewidth=0.3, ms=3)
    axes.set(xlabel="$x_1$", ylabel="$x_2$")
    return image


def with_scale(all_axes: Sequence[Any], image: Any) -> None:
    """What the colours mean."""
    all_axes[0].figure.colorbar(image, ax=all_axes, label="probability of the second class", shrink=0.6)


main = Figure(
    name="banana",
    about=__doc__ or "",
    setting={"hidden": list(HIDDEN)},
    columns={"NLL": "nll", "ECE, per cent": "ece", "accuracy": "accuracy", "seconds": "seconds"},
    problem=banana,
    task=task,
    shown=on_plane,
    panel=decisions,
    finish=with_scale,
    size=(2.9, 2.8),
).main
