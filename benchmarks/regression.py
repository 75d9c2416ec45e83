"""UCI regression: methods on the splits of each set; NLL, RMSE and coverage of the 90 % interval.

    python -m benchmarks regression --data DIR [--sets yacht ...] [--splits 20] [--methods NAME ...] [--quick]

One layer of 50 ReLU units, N(0, 1) prior, x and y in units of the training part, figures in those of the source. The
noise is one number a split, the same for all methods: the root mean square error of a first network on the tenth of
the training rows that is held out. Some rows learn it: "noise inferred" as a site of the model, `Gaussian()`;
"heteroscedastic" and MILE as a second output of the network, at each input. Writes a JSON file a set, `regression.md`
and `regression.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from pyro_metricbnn import Gaussian

from .arguments import add_methods, chosen, folder, parser, share
from .datasets import REGRESSION, regression
from .experiment import run_splits
from .report import Cells, as_markdown, figures, footnotes, publish, read, winner
from .results import Results
from .task import Task, trained

HIDDEN = (50,)
FIRST_NOISE = 0.3
LEAST_NOISE = 0.02


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write tables and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--sets", nargs="+", default=None, help=f"of {', '.join(REGRESSION)}")
    made.add_argument("--splits", type=int, default=20, choices=range(1, 21), metavar="1..20")
    add_methods(made)
    arguments = made.parse_args(argv)
    out = folder(arguments) / "regression"
    sets = arguments.sets or (["diabetes"] if arguments.data is None else list(REGRESSION))
    if arguments.quick:
        sets, arguments.splits = sets[:1], 1
    for split in range(arguments.splits):
        for name in sets:
            run(arguments, out, name, split)
    cells = read(out, list(dict.fromkeys([*REGRESSION, *sets])))
    publish(out, "regression", sections(cells), cells)


def task_of(data: Path | None, name: str, split: int, part: float) -> Task:
    """A split with its noise and its trained network."""
    problem = regression(data, name, split)
    first = trained(problem, Gaussian(FIRST_NOISE), HIDDEN, share=part)
    with torch.no_grad():
        error = (first.net(problem.x_valid) - problem.y_valid).pow(2).mean().sqrt()
    return trained(problem, Gaussian(max(LEAST_NOISE, float(error))), HIDDEN, share=part)


def run(arguments: argparse.Namespace, out: Path, name: str, split: int) -> None:
    """One split of a set."""
    setting = {"experiment": "regression", "hidden": list(HIDDEN), "prior_scale": 1.0, "share": share(arguments)}
    results = Results(out / f"{name}.json", setting, retry=arguments.retry)

    def task(number: int) -> Task:
        return task_of(arguments.data, name, number, share(arguments))

    run_splits(results, chosen(arguments, "regression"), task, [split], name)


def sections(cells: Cells) -> list[str]:
    """The tables."""
    return [
        "### NLL\n\n" + as_markdown(figures(cells, "nll")),
        "\n".join(winner(cells, name) for name in cells),
        "### RMSE\n\n" + as_markdown(figures(cells, "rmse")),
        "### Coverage of the 90 % interval\n\n" + as_markdown(figures(cells, "coverage_90"), bold=False),
        "### Seconds with the network's training\n\n"
        + as_markdown(figures(cells, "total_seconds"), digits=1, bold=False),
        footnotes(cells),
    ]
