"""Snelson's regression with a gap: functions and bands of every method (the paper's figures on regression).

    python -m benchmarks snelson --data DIR [--methods NAME ...] [--seeds 3] [--quick]

Three layers of 32 ReLU units, N(0, 1) prior, noise 0.3; the inputs from 1.5 to 3 are held out, and every fifth of the
others is for tuning. Writes `snelson.json`, `snelson.md` (NLL on training rows and in the gap) and `snelson.png`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_metricbnn import Gaussian

from .datasets import Problem, snelson, with_validation
from .figure import Figure, Shown
from .methods.method import Run
from .task import Task, trained

NOISE = 0.3
HIDDEN = (32, 32, 32)
GRID = torch.linspace(-1, 7, 161)[:, None]
LEVELS = (0.05, 0.5, 0.95)
NUM_SHOWN = 12  # functions


def task(data: Path | None, share: float) -> Task:
    """The problem with its trained network."""
    problem = with_validation(snelson(data))
    return trained(problem, Gaussian(NOISE), HIDDEN, num_training_steps=5000, share=share)


def on_grid(run: Run) -> dict[str, np.ndarray]:
    """Quantiles of function and observations along the input, and a few functions."""
    prediction = run.predictor(GRID)
    f = prediction.expected.squeeze(-1)
    observed = prediction.points().squeeze(-1)
    return {
        "functions": f.quantile(torch.tensor(LEVELS), dim=0).numpy(),
        "observations": observed.quantile(torch.tensor(LEVELS), dim=0).numpy(),
        "mean": prediction.mean.squeeze(-1).numpy(),
        "draws": f[torch.linspace(0, len(f) - 1, min(NUM_SHOWN, len(f))).long()].numpy(),
    }


def bands(axes: Any, shown: Shown, problem: Problem) -> None:
    """Bands, and some of the functions."""
    along = GRID.squeeze(-1).numpy()
    axes.fill_between(along, *shown["observations"][[0, 2]], color="#56B4E9", alpha=0.3, lw=0)
    axes.fill_between(along, *shown["functions"][[0, 2]], color="#0072B2", alpha=0.35, lw=0)
    axes.plot(along, shown["draws"].T, color="#0072B2", lw=0.4, alpha=0.6)
    axes.plot(along, shown["mean"], color="black", lw=1.2)
    axes.plot(problem.x, problem.y, ".", color="#D55E00", markersize=2)
    axes.set(ylim=(-3, 3), xlim=(-1, 7), xlabel="x", ylabel="y")


main = Figure(
    name="snelson",
    about=__doc__ or "",
    setting={"hidden": list(HIDDEN), "noise": NOISE},
    columns={"train NLL": "train_nll", "gap NLL": "nll", "seconds": "seconds"},
    problem=snelson,
    task=task,
    shown=on_grid,
    panel=bands,
).main
