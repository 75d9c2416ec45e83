"""UCI classification: every method on the splits of each set (the paper's tables 1 and 3).

    python -m benchmarks uci --data DIR [--sets glass ...] [--splits 10] [--methods NAME ...] [--quick]

Two layers of 32 ReLU units, N(0, 1) prior. All methods start from the same trained network; those that train their own
(ensemble, MILE, the paper's setting with its prior) are marked. Each may try four settings on the validation rows of
the first split. Writes a JSON file a set, `uci.md` with the tables and `uci.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pyro_metricbnn import Categorical

from . import paper_figures
from .arguments import add_methods, chosen, folder, parser, share
from .datasets import CARRIED, UCI_ALL, classification
from .experiment import run_splits
from .methods import methods
from .pictures import quality_against_time
from .results import Results
from .tables import Figure, best, figure, markdown, written
from .task import Task, trained

OURS = "MetricBNN"
SELF_TRAINED = ("Ensemble", "MILE", "MetricBNN (paper, its prior too)")
PAPER_COLUMN = {"breast_cancer": "breast", "breast_ljubljana": "breast"}  # the paper does not say which it means
Table = dict[str, dict[str, Figure | None]]  # by method, then set


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write tables and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--sets", nargs="+", default=None, help=f"of {', '.join(UCI_ALL)}")
    made.add_argument("--splits", type=int, default=10)
    add_methods(made)
    arguments = made.parse_args(argv)
    out = folder(arguments) / "uci"
    sets = arguments.sets or (list(CARRIED if arguments.data is None else UCI_ALL))
    if arguments.quick:
        sets, arguments.splits = sets[:1], min(arguments.splits, 2)
    for split in range(arguments.splits):  # split by split, so that a run that is stopped has all sets
        for name in sets:
            run(arguments, out, name, split)
    report(out, sets)


def run(arguments: argparse.Namespace, out: Path, name: str, split: int) -> None:
    """One split of a set."""
    results = Results(out / f"{name}.json", setting(arguments), retry=arguments.retry and split == 0)

    def task(number: int) -> Task:
        return trained(classification(arguments.data, name, number), Categorical(), share=share(arguments))

    run_splits(results, chosen(arguments), task, [split], name)


def setting(arguments: argparse.Namespace) -> dict[str, object]:
    """What all cells of a file have in common."""
    return {"experiment": "uci", "hidden": [32, 32], "prior_scale": 1.0, "share": share(arguments)}


def report(out: Path, sets: Sequence[str]) -> None:
    """Tables and picture of what is in the folder."""
    cells = {name: Results(out / f"{name}.json", {}, read_only=True).cells for name in sets}
    text = "\n\n".join(_sections(cells, sets))
    (out / "uci.md").write_text(text + "\n")
    print(text)
    times = column_figures(cells, "total_seconds")
    quality_against_time(column_figures(cells, "nll"), times, sets, out / "uci.png")


def column_figures(cells: dict[str, dict[str, dict[str, object]]], quantity: str) -> Table:
    """Mean and error over the splits of each method and set."""
    return {
        method: {name: figure(_values(of_set, method, quantity)) for name, of_set in cells.items()}
        for method in methods()
        if any(_values(of_set, method, quantity) for of_set in cells.values())
    }


def _values(cells: dict[str, dict[str, object]], method: str, quantity: str) -> list[float]:
    """A quantity on each split that a method has finished."""
    rows = [cell for key, cell in cells.items() if key.split("|")[0] == method and "nll" in cell]
    if quantity == "total_seconds":
        return [row["seconds"] + (0 if method in SELF_TRAINED else row["training_seconds"]) for row in rows]  # type: ignore[operator]
    return [float(row[quantity]) for row in rows]  # type: ignore[arg-type]


def _sections(cells: dict[str, dict[str, dict[str, object]]], sets: Sequence[str]) -> list[str]:
    tables = {name: column_figures(cells, name) for name in ("nll", "ece", "accuracy", "seconds", "total_seconds")}
    return [
        "### NLL\n\n" + _table(tables["nll"], sets),
        "\n".join(_winner(tables["nll"], name) for name in sets),
        "### ECE\n\n" + _table(tables["ece"], sets),
        "### Accuracy\n\n" + _table(tables["accuracy"], sets, largest=True),
        "### Seconds\n\n" + _table(tables["seconds"], sets, digits=1, bold=False),
        "### Seconds with the network's training\n\n" + _table(tables["total_seconds"], sets, digits=1, bold=False),
        "### The paper's NLL\n\n" + _paper(paper_figures.NLL, sets),
        "### The paper's ECE, per cent\n\n" + _paper(paper_figures.ECE, sets),
        "### The paper's accuracy\n\n" + _paper(paper_figures.ACCURACY, sets),
        _footnotes(cells),
    ]


def _table(table: Table, sets: Sequence[str], *, largest: bool = False, digits: int = 3, bold: bool = True) -> str:
    winners = {name: best([row[name] for row in table.values()], largest=largest) for name in sets}
    rows = [
        [method, *(written(row[name], bold=bold and i == winners[name], digits=digits) for name in sets)]
        for i, (method, row) in enumerate(table.items())
    ]
    return markdown(["", *sets], rows)


def _winner(table: Table, name: str) -> str:
    """A line that says who has the lowest NLL on a set, and where the default stands."""
    ranked = sorted((value.mean, method) for method, row in table.items() if (value := row[name]) is not None)
    if not ranked:
        return f"- {name}: no results"
    line = f"- {name}: {ranked[0][1]} has the lowest NLL, {ranked[0][0]:.3f}"
    ours = table.get(OURS, {}).get(name)
    if ours is None or ranked[0][1] == OURS:
        return line
    near = "within" if ours.mean - ranked[0][0] <= ours.error else "not within"
    return f"{line}; {OURS} {ours.mean:.3f} ± {ours.error:.3f}, {near} one standard error"


def _paper(figures: dict[str, tuple[str, ...]], sets: Sequence[str]) -> str:
    columns = [name for name in sets if PAPER_COLUMN.get(name, name) in paper_figures.SETS]
    where = [paper_figures.SETS.index(PAPER_COLUMN.get(name, name)) for name in columns]
    return markdown(["", *columns], [[method, *(row[i] for i in where)] for method, row in figures.items()])


def _footnotes(cells: dict[str, dict[str, dict[str, object]]]) -> str:
    """Errors, and how many splits stand behind the means."""
    errors = sorted(
        {
            f"- {name}, {key}: {cell['error']}"
            for name, of in cells.items()
            for key, cell in of.items()
            if "error" in cell
        }
    )
    counts = [
        f"- {method}: " + ", ".join(f"{name} {len(_values(of, method, 'nll'))}" for name, of in cells.items())
        for method in methods()
    ]
    return "### Splits behind each figure\n\n" + "\n".join(counts + (["", "### Errors", "", *errors] if errors else []))
