"""Cells of several data sets -> tables by method and set, and what stands behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .methods import methods
from .methods.metric_paper import OWN_PRIOR
from .pictures import quality_against_time
from .results import Results
from .tables import Figure, best, complete, figure, markdown, written

OURS = "MetricBNN"
SELF_TRAINED = (  # their seconds have the training in them
    *("Ensemble", "Ensemble, stopped early", "Ensemble, heteroscedastic"),
    *("MetricBNN, noisy labels", "MetricBNN, heteroscedastic", "MILE", OWN_PRIOR),
)
Cells = dict[str, dict[str, dict[str, Any]]]  # by set, then "method|split"
Table = dict[str, dict[str, Figure | None]]  # by method, then set


def read(folder: Path, sets: Sequence[str]) -> Cells:
    """The results that a folder has of each set."""
    paths = {name: folder / f"{name}.json" for name in sets}
    return {name: Results(path, {}, read_only=True).cells for name, path in paths.items() if path.exists()}


def values(cells: dict[str, dict[str, Any]], method: str, quantity: str) -> list[float]:
    """A quantity on each split that a method has finished."""
    rows = [cell for key, cell in cells.items() if key.split("|")[0] == method and "nll" in cell]
    if quantity == "total_seconds":
        return [row["seconds"] + (0 if method in SELF_TRAINED else row["training_seconds"]) for row in rows]
    if quantity == "ece":  # per cent, as in the paper
        return [100 * row["ece"] for row in rows]
    return [row[quantity] for row in rows]


def figures(cells: Cells, quantity: str) -> Table:
    """Mean and error over the splits of each method and set."""
    return {
        method: {name: figure(values(of_set, method, quantity)) for name, of_set in cells.items()}
        for method in methods()
        if any(values(of_set, method, quantity) for of_set in cells.values())
    }


def as_markdown(table: Table, *, largest: bool = False, digits: int = 3, bold: bool = True) -> str:
    """Methods as rows, sets as columns, the best of a column in bold."""
    sets = list(next(iter(table.values()), {}))
    winners = {name: best([row[name] for row in table.values()], largest=largest) for name in sets}
    most = {name: max((row[name].num_splits for row in table.values() if row[name]), default=0) for name in sets}  # type: ignore[union-attr]

    def cell(i: int, value: Figure | None, name: str) -> str:
        text = written(value, bold=bold and i == winners[name], digits=digits)
        return (
            text if value is None or value.num_splits == most[name] else f"{text} ({value.num_splits} of {most[name]})"
        )

    rows = [[method, *(cell(i, row[name], name) for name in sets)] for i, (method, row) in enumerate(table.items())]
    return markdown(["", *sets], rows)


def winner(cells: Cells, name: str) -> str:
    """A line that says who has the lowest NLL on a set, where the default stands, and by how much they differ on a
    split: of that, what one split is harder than another for both is no part.
    """
    table = figures(cells, "nll")
    column = dict(zip(table, complete([row[name] for row in table.values()]), strict=True))
    ranked = sorted((value.mean, method) for method, value in column.items() if value is not None)
    if not ranked:
        return f"- {name}: no results"
    line = f"- {name}: {ranked[0][1]} has the lowest NLL, {ranked[0][0]:.3f}"
    if ranked[0][1] == OURS or table.get(OURS, {}).get(name) is None:
        return line
    ours = column[OURS]
    if ours is None:
        return f"{line}; {OURS} has fewer splits and is not compared"
    near = "within" if ours.mean - ranked[0][0] <= ours.error else "not within"
    apart = figure([ours - other for ours, other in on_the_same_splits(cells[name], OURS, ranked[0][1])])
    return (
        f"{line}; {OURS} {ours.mean:.3f} ± {ours.error:.3f}, {near} one standard error; split by split "
        f"{written(apart)} above it"
    )


def on_the_same_splits(cells: dict[str, dict[str, Any]], *pair: str) -> list[tuple[float, ...]]:
    """The NLL of both methods on each split that both have."""
    splits = {key.split("|")[1] for key in cells if key.split("|")[0] in pair}
    rows = [[cells.get(f"{method}|{split}", {}) for method in pair] for split in sorted(splits)]
    return [tuple(cell["nll"] for cell in row) for row in rows if all("nll" in cell for cell in row)]


def footnotes(cells: Cells) -> str:
    """How many splits stand behind the means of what was run, and the errors."""
    splits = {
        method: {name: len(values(of_set, method, "nll")) for name, of_set in cells.items()} for method in methods()
    }
    counts = [
        f"- {method}: " + ", ".join(f"{name} {count}" for name, count in by_set.items())
        for method, by_set in splits.items()
        if any(by_set.values())
    ]
    errors = sorted(
        f"- {name}, {key}: {cell['error']}"
        for name, of_set in cells.items()
        for key, cell in of_set.items()
        if "error" in cell
    )
    return "### Splits behind each figure\n\n" + "\n".join(counts + (["", "### Errors", "", *errors] if errors else []))


def publish(out: Path, stem: str, sections: Sequence[str], cells: Cells) -> None:
    """The sections as a file and on the screen, and the picture of NLL against time."""
    text = "\n\n".join(sections)
    (out / f"{stem}.md").write_text(text + "\n")
    print(text)
    quality_against_time(figures(cells, "nll"), figures(cells, "total_seconds"), list(cells), out / f"{stem}.png")


def in_order(cells: Mapping[str, Any]) -> list[str]:
    """The methods that have a cell, in the order of the tables."""
    there = {key.split("|")[0] for key in cells}
    return [name for name in methods() if name in there]


def of_one_set(results: Results, columns: Mapping[str, str]) -> str:
    """Methods as rows, quantities by their headings as columns, mean over the seeds; the errors below."""
    rows = []
    for name in in_order(results.cells):
        seen = {heading: figure(values(results.cells, name, quantity)) for heading, quantity in columns.items()}
        rows.append([name, *map(written, seen.values())])
    errors = [f"- {key}: {cell['error']}" for key, cell in results.cells.items() if "error" in cell]
    return "\n\n".join([markdown(["", *columns], rows), *(["\n".join(errors)] if errors else [])])
