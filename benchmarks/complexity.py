"""What depth costs: seconds and NLL on Snelson's regression with 1 to 9 hidden layers (a figure of the paper).

    python -m benchmarks complexity --data DIR [--depths 1 2 ...] [--methods NAME ...] [--quick]

Hidden layers of 64 ReLU units, noise 0.3, N(0, 1) prior. The ordinary split, not the one with a gap: the paper speaks
of the NLL of the regression task. Of its 150 training rows 30 are for validation, on which a method chooses among its
settings at each depth; the seconds are those of the chosen one, and of the processor: other work on the machine does
not count, a second thread would twice. A prediction is of 100 draws, as in the paper, taken evenly from those of a
method that has more; an ensemble has 20, Riem LA 50.

All networks take 1,500 steps of Adam. One seed on all 150 rows: training NLL .07 to .10 at 3, 6 and 9 layers. With
5,000 steps it is .03 at nine, the test NLL of that single network .37 instead of .26, and training takes four times as
long.

--quick takes layers of 16 units and no tuning. Writes `complexity.json`, `complexity.md` and `complexity.png`.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from tqdm import tqdm

from pyro_metricbnn import Gaussian
from pyro_metricbnn.plots.style import BLACK, BLUE, GREEN, GREY, MARKERS, ORANGE, PURPLE, SKY, VERMILLION
from pyro_metricbnn.predictions.prediction import Prediction

from .arguments import add_methods, chosen, folder, parser, share
from .datasets import snelson
from .methods.method import FromDraws, Method, timed, tuned
from .report import SELF_TRAINED
from .results import Cell, Results, version
from .tables import Figure, best, markdown, written
from .task import Task, trained

METHODS = ("MAP", "LA GN", "LA GN Kron", "Riem LA", "Ensemble", "HMC", "MetricBNN")
COLORS = dict(zip(METHODS, (BLACK, BLUE, SKY, PURPLE, GREEN, ORANGE, VERMILLION), strict=True))
DEPTHS = tuple(range(1, 10))
QUICK_DEPTHS = (2, 3)
NUM_UNITS = 64
QUICK_UNITS = 16
NOISE = 0.3
NUM_DRAWS = 100
SEED = 1000
TOP = 3.0  # NLL at the upper edge of the picture


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--depths", nargs="+", type=int, default=None, help="hidden layers; 1 to 9")
    add_methods(made, METHODS)
    arguments = made.parse_args(argv)
    arguments.depths = arguments.depths or (QUICK_DEPTHS if arguments.quick else DEPTHS)
    out = folder(arguments) / "complexity"
    setting = {"experiment": "complexity", "units": units(arguments), "draws": NUM_DRAWS, "share": share(arguments)}
    results = Results(out / "complexity.json", setting, retry=arguments.retry)
    run(results, chosen(arguments), arguments)
    report(results.cells, out)


def run(results: Results, methods: Sequence[Method], arguments: argparse.Namespace) -> None:
    """All cells that are missing, depth by depth."""
    bar = tqdm([(depth, method) for depth in arguments.depths for method in methods], desc="complexity", unit=" cells")
    task: Task | None = None
    for depth, method in bar:
        bar.set_postfix_str(f"{method.name}, depth {depth}")
        key = f"{method.name}|{depth}"
        if key in results.cells:
            continue
        if task is None or len(task.hidden) != depth:
            task = task_of(arguments, depth)
        results.cell(key, partial(measured, method, task))


def units(arguments: argparse.Namespace) -> int:
    """Of a hidden layer."""
    return QUICK_UNITS if arguments.quick else NUM_UNITS


def task_of(arguments: argparse.Namespace, depth: int) -> Task:
    """The trained network of a depth, its seconds those of the processor; made data are the same at all depths."""
    pyro.set_rng_seed(SEED)
    problem = snelson(arguments.data, gap=False)
    begin = processor_seconds()
    task = trained(problem, Gaussian(NOISE), (units(arguments),) * depth, share=share(arguments))
    return replace(task, seconds=processor_seconds() - begin)


def processor_seconds() -> float:
    """Of this process so far, and of the compilers that it has called."""
    return sum(os.times()[:4])


def measured(method: Method, task: Task) -> Cell:
    """Test NLL and seconds, after the method's tuning."""
    if method.needs is not None and version(method.needs) is None:
        raise ImportError(f"{method.name} needs {method.needs}: pip install 'pyro_metricbnn[benchmarks]'.")
    pyro.set_rng_seed(SEED)
    setting = dict(tuned(method, task) if task.share == 1 else method.settings[0])
    pyro.set_rng_seed(SEED + 1)
    begin = processor_seconds()
    run = timed(method, task, setting, task.problem.x_test)
    seconds = processor_seconds() - begin
    prediction = at_most(run.prediction, NUM_DRAWS)
    nll = -float(prediction.log_prob(task.problem.y_test).mean())
    return {
        "nll": nll,
        "train_nll": -float(at_most(run.predictor(task.problem.x), NUM_DRAWS).log_prob(task.problem.y).mean()),
        "seconds": seconds,
        **({"mean_square": run.predictor.mean_square} if isinstance(run.predictor, FromDraws) else {}),
        "wall_seconds": run.seconds,
        "training_seconds": task.seconds,
        "draws": prediction.num_samples,
        "weights": len(task.theta_star),
        "setting": setting,
        "seed": SEED,
    }


def at_most(prediction: Prediction, count: int) -> Prediction:
    """So many of the draws, evenly over all."""
    if prediction.num_samples <= count:
        return prediction
    rows = torch.linspace(0, prediction.num_samples - 1, count).long()
    parameters = {name: value[rows] for name, value in prediction.parameters.items()}
    return replace(prediction, f=prediction.f[rows], parameters=parameters)


# ------------------------------------------------------------------------------------------ report


def report(cells: dict[str, Cell], out: Path) -> None:
    """Tables and picture of what is there."""
    table = by_method(cells)
    depths = sorted({depth for row in table.values() for depth in row})
    if not depths:
        print(f"no result in {out} yet.\n\n{footnotes(cells)}")
        return
    weights = {depth: row[depth]["weights"] for row in table.values() for depth in row}
    header = ["hidden layers (weights)", *(f"{depth} ({weights[depth]:,})" for depth in depths)]
    sections = [
        "### Test NLL\n\n" + _table(table, header, depths, "nll", bold=True),
        "### NLL of the training rows\n\n" + _table(table, header, depths, "train_nll"),
        "### Mean square of the weights (prior: 1)\n\n" + _table(table, header, depths, "mean_square"),
        "### Processor seconds of the method\n\n" + _table(table, header, depths, "seconds", digits=1),
        "### Processor seconds with the training of the network\n\n"
        + _table(table, header, depths, "total_seconds", digits=1),
        footnotes(cells),
    ]
    text = "\n\n".join(section for section in sections if section)
    (out / "complexity.md").write_text(text + "\n")
    print(text)
    picture(table, out / "complexity.png")


def by_method(cells: dict[str, Cell]) -> dict[str, dict[int, Cell]]:
    """The figures of each method by depth, with the seconds that include training."""
    table: dict[str, dict[int, Cell]] = {}
    for key, cell in cells.items():
        if "error" not in cell:
            name, depth = key.split("|")
            total = cell["seconds"] + (0 if name in SELF_TRAINED else cell["training_seconds"])
            table.setdefault(name, {})[int(depth)] = {**cell, "total_seconds": total}
    return {name: dict(sorted(row.items())) for name, row in table.items()}


def _table(
    table: dict[str, dict[int, Cell]],
    header: Sequence[str],
    depths: Sequence[int],
    quantity: str,
    *,
    digits: int = 3,
    bold: bool = False,
) -> str:
    figures = {
        name: [Figure(row[depth][quantity], float("nan"), 1) if depth in having else None for depth in depths]
        for name, row in table.items()
        if (having := {depth for depth, cell in row.items() if quantity in cell})
    }
    winners = [best(column) for column in zip(*figures.values(), strict=True)]
    rows = [
        [name, *(written(value, bold=bold and i == winners[j], digits=digits) for j, value in enumerate(row))]
        for i, (name, row) in enumerate(figures.items())
    ]
    return markdown(header, rows)


def footnotes(cells: dict[str, Cell]) -> str:
    """What could not be run, a line a method, with the first depth's error."""
    failed: dict[str, list[int]] = {}
    for key in (key for key, cell in cells.items() if "error" in cell):
        name, depth = key.split("|")
        failed.setdefault(name, []).append(int(depth))
    lines = [
        f"- {name}, depth {', '.join(map(str, sorted(depths)))}: {_short(cells[f'{name}|{min(depths)}']['error'])}"
        for name, depths in failed.items()
    ]
    return "### What could not be run\n\n" + "\n".join(lines) if lines else ""


def _short(error: str) -> str:
    """Without the same complaint about other settings."""
    return error.split("; ")[0]


def picture(table: dict[str, dict[int, Cell]], path: Path) -> None:
    """NLL against seconds with the depth at each marker, and seconds against depth."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator, NullFormatter

    canvas = Canvas(figsize=(11, 4.6), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for (name, row), marker in zip(table.items(), itertools.cycle(MARKERS), strict=False):
        style: dict[str, Any] = {"color": COLORS.get(name, GREY), "marker": marker, "markersize": 5, "linewidth": 1.3}
        seconds = [cell["total_seconds"] for cell in row.values()]
        heights = [min(cell["nll"], TOP) for cell in row.values()]
        left.plot(seconds, heights, **style)
        right.plot(list(row), seconds, label=name, **style)
        for depth, x, y in zip(row, seconds, heights, strict=True):
            left.annotate(
                str(depth), (x, y), xytext=(0, 5), textcoords="offset points", fontsize=7, ha="center",
                color=style["color"],
            )  # fmt: skip
    values = [cell["nll"] for row in table.values() for cell in row.values()]
    edge = f", {TOP:g} and more on the upper edge" if max(values) > TOP else ""
    left.set(xscale="log", xlabel="processor seconds, training included", ylabel=f"test NLL{edge}")
    left.set_title("Each number is a network's hidden layers", fontsize=10)
    right.set(yscale="log", xlabel="hidden layers", ylabel="processor seconds, training included")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for scale in (left.xaxis, right.yaxis):
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter(NullFormatter())
    for axes in (left, right):
        axes.grid(alpha=0.25)
    canvas.legend(loc="outside lower center", ncols=len(table), frameon=False)
    canvas.savefig(path, dpi=130)
