"""Shifted test images: what the methods of `images` predict there.

In: the folder of `images`' networks and draws, shifted images.  Out: a cell for each method and shift.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from .images import Place, judged, predictors
from .results import Cell, Results
from .tables import figure, markdown, written

COLUMNS = ("nll", "ece", "accuracy")


def run(results: Results, place: Place, shifts: Iterable[tuple[str, Tensor]], y: Tensor, methods: list[str]) -> None:
    """Every method at every shift: what is missing."""
    ready = {method: make()[0] for method, make in predictors(place, methods).items()}
    for shift, x in shifts:
        for method, predict in ready.items():

            def measure(predict=predict, x=x) -> Cell:  # type: ignore[no-untyped-def]
                return judged(predict(x), y)

            results.cell(f"{shift}|{method}|{place.seed}", measure)
        print(shift, {m: round(results.cells[f"{shift}|{m}|{place.seed}"]["nll"], 4) for m in ready}, flush=True)


def measured(root: Path, name: str, seed: int, methods: Sequence[str]) -> list[str]:
    """Those of the methods that `images` has measured in this folder; all, if it has measured nothing."""
    path = root / "images" / "images.json"
    there = Results(path, {}, read_only=True).cells if path.exists() else {}
    return [one for one in methods if "error" not in there.get(f"{name}|{one}|{seed}", {"error": ""})] or list(methods)


def means(results: Results, column: str, groups: Sequence[str]) -> dict[str, list[list[float]]]:
    """By method: for each group of shifts, the mean of each seed. A shift belongs to the group that it begins with."""
    seeds: dict[str, dict[str, dict[str, list[float]]]] = {}
    for key, cell in results.cells.items():
        shift, method, seed = key.split("|")
        group = shift.split(":")[0]
        if "error" not in cell and group in groups:
            seeds.setdefault(method, {}).setdefault(group, {}).setdefault(seed, []).append(cell[column])
    return {
        method: [[math.fsum(of) / len(of) for of in found.get(group, {}).values()] for group in groups]
        for method, found in seeds.items()
    }


def table(results: Results, groups: Sequence[str]) -> str:
    """NLL by method and group, and the means over all groups."""
    nll = means(results, "nll", groups)
    rows = []
    for method, found in nll.items():
        overall = [
            written(figure([sum(of) / len(of) for of in zip(*means(results, column, groups)[method], strict=True)]))
            for column in COLUMNS
        ]
        rows.append([method, *overall, *(written(figure(of), digits=2) for of in found)])
    return markdown(["", "mean NLL", "mean ECE", "mean accuracy", *groups], rows)


def picture(results: Results, groups: Sequence[str], label: str, path: Path) -> None:
    """NLL by group, a line a method."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    shown, ax = plt.subplots(figsize=(max(7, 0.7 * len(groups)), 4.6), layout="constrained")
    for i, (method, found) in enumerate(means(results, "nll", groups).items()):
        ours = method.startswith("MetricBNN")
        averages = [sum(of) / len(of) for of in found]
        style = "-" if ours else (":" if i > 9 else "--")
        ax.plot(range(len(groups)), averages, style, label=method, linewidth=2.5 if ours else 1.2, color=f"C{i % 10}")
    ax.set_xticks(range(len(groups)), groups, rotation=0 if label else 45, ha="center" if label else "right")
    ax.set(xlabel=label, ylabel="NLL", yscale="log")
    ticks = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    low, high = ax.get_ylim()
    ax.set_yticks([tick for tick in ticks if low <= tick <= high])
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    shown.savefig(path, dpi=100)
    plt.close(shown)
