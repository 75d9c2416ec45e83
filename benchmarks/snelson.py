"""Snelson's regression with a gap: functions and bands of every method (the paper's figures on regression).

    python -m benchmarks snelson --data DIR [--methods NAME ...] [--seeds 3] [--quick]

Three layers of 32 ReLU units, N(0, 1) prior, noise 0.3; the inputs from 1.5 to 3 are held out, and every fifth of the
others is for tuning. Writes `snelson.json`, `snelson.md` (NLL on training rows and in the gap) and `snelson.png`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pyro_metricbnn import Gaussian

from .arguments import add_methods, chosen, folder, parser, share
from .datasets import Problem, snelson, with_validation
from .experiment import run_splits
from .methods.method import Method, Run
from .pictures import panels
from .report import of_one_set
from .results import Results
from .task import Task, trained

NOISE = 0.3
HIDDEN = (32, 32, 32)
GRID = torch.linspace(-1, 7, 161)[:, None]
LEVELS = (0.05, 0.5, 0.95)
NUM_SHOWN = 12  # functions
COLUMNS = {"train NLL": "train_nll", "gap NLL": "nll", "seconds": "seconds"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--seeds", type=int, default=3)
    add_methods(made)
    arguments = made.parse_args(argv)
    out = folder(arguments) / "snelson"
    seeds = range(1 if arguments.quick else arguments.seeds)

    def task(seed: int) -> Task:
        problem = with_validation(snelson(arguments.data))
        return trained(problem, Gaussian(NOISE), HIDDEN, num_training_steps=5000, share=share(arguments))

    def keep(method: Method, run: Run) -> None:
        out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(out / f"{slug(method.name)}.npz", allow_pickle=False, **on_grid(run))

    setting = {"experiment": "snelson", "hidden": list(HIDDEN), "noise": NOISE, "share": share(arguments)}
    results = Results(out / "snelson.json", setting, retry=arguments.retry)
    run_splits(results, chosen(arguments), task, seeds, "snelson", keep)
    names = [method.name for method in chosen(arguments)]
    text = of_one_set(results, names, COLUMNS)
    (out / "snelson.md").write_text(text + "\n")
    print(text)
    picture(snelson(arguments.data), names, out)


def slug(name: str) -> str:
    """A method's name as that of a file."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


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


def picture(problem: Problem, names: Sequence[str], out: Path) -> None:
    """A panel a method: bands, and some of its functions."""
    kept = [name for name in names if (out / f"{slug(name)}.npz").exists()]
    along = GRID.squeeze(-1).numpy()
    with panels(kept, out / "snelson.png", shared=True) as grid:
        for name, axes in grid.items():
            shown = np.load(out / f"{slug(name)}.npz")
            axes.fill_between(along, *shown["observations"][[0, 2]], color="#56B4E9", alpha=0.3, lw=0)
            axes.fill_between(along, *shown["functions"][[0, 2]], color="#0072B2", alpha=0.35, lw=0)
            axes.plot(along, shown["draws"].T, color="#0072B2", lw=0.4, alpha=0.6)
            axes.plot(along, shown["mean"], color="black", lw=1.2)
            axes.plot(problem.x, problem.y, ".", color="#D55E00", markersize=2)
            axes.set(ylim=(-3, 3), xlim=(-1, 7), xlabel="x", ylabel="y")
