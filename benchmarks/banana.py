"""Banana, two classes in the plane: where every method is sure (the paper's figure on classification).

    python -m benchmarks banana --data DIR [--methods NAME ...] [--seeds 3] [--quick]

Two layers of 16 tanh units (the paper's appendix; its text has 6), N(0, 1) prior, 265 training rows. Writes
`banana.json`, `banana.md` and `banana.png`, the probability of the likelier class over the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical

from .arguments import add_methods, chosen, folder, parser, share
from .datasets import Problem, banana
from .experiment import run_splits
from .methods.method import Method, Run
from .pictures import panels
from .report import of_one_set
from .results import Results
from .snelson import slug
from .task import Task, trained

HIDDEN = (16, 16)
GRID_SIZE = 60
REACH = 4.0  # of the picture, in the data's deviations
COLORS = ("#D55E00", "#0072B2")
COLUMNS = {"NLL": "nll", "ECE": "ece", "accuracy": "accuracy", "seconds": "seconds"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--seeds", type=int, default=3)
    add_methods(made)
    arguments = made.parse_args(argv)
    out = folder(arguments) / "banana"
    seeds = range(1 if arguments.quick else arguments.seeds)

    def task(seed: int) -> Task:
        return trained(banana(arguments.data), Categorical(), HIDDEN, activation=nn.Tanh, share=share(arguments))

    def keep(method: Method, run: Run) -> None:
        out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(out / f"{slug(method.name)}.npz", probs=run.predictor(plane()).probs[:, 1].numpy())

    setting = {"experiment": "banana", "hidden": list(HIDDEN), "share": share(arguments)}
    results = Results(out / "banana.json", setting, retry=arguments.retry)
    run_splits(results, chosen(arguments), task, seeds, "banana", keep)
    names = [method.name for method in chosen(arguments)]
    text = of_one_set(results, names, COLUMNS)
    (out / "banana.md").write_text(text + "\n")
    print(text)
    picture(banana(arguments.data), names, out)


def plane() -> Tensor:
    """The inputs of the picture (GRID_SIZE^2, 2)."""
    side = torch.linspace(-REACH, REACH, GRID_SIZE)
    return torch.cartesian_prod(side, side)


def picture(problem: Problem, names: Sequence[str], out: Path) -> None:
    """A panel a method: the probability of the second class, and the training rows."""
    kept = [name for name in names if (out / f"{slug(name)}.npz").exists()]
    with panels(kept, out / "banana.png", size=(2.9, 2.8), shared=True) as grid:
        for name, axes in grid.items():
            probs = np.load(out / f"{slug(name)}.npz")["probs"].reshape(GRID_SIZE, GRID_SIZE).T
            shown = axes.imshow(probs, origin="lower", extent=(-REACH, REACH) * 2, cmap="PuOr", vmin=0, vmax=1)
            for label, color in enumerate(COLORS):
                rows = problem.x[problem.y == label]
                axes.plot(rows[:, 0], rows[:, 1], "o", color=color, markeredgecolor="white", markeredgewidth=0.3, ms=3)
            axes.set(xlabel="$x_1$", ylabel="$x_2$")
        axes.figure.colorbar(shown, ax=list(grid.values()), label="probability of the second class", shrink=0.6)
