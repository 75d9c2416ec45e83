"""Tables and a picture of the image benchmarks.

In: results.  Out: Markdown, with the paper's figures in a last column, and a panel a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .results import Cell, Results
from .tables import Figure, best, figure, markdown, written

COLUMNS = ("nll", "ece", "accuracy", "single", "seconds")
PAPER = {  # NLL on MNIST, FashionMNIST and CIFAR10, from the paper's table
    "LA GN": (2.42, 2.24, 2.29), "LA LowRank": (1.35, 1.67, 2.19), "Riem LA": (1.11, 1.20, 0.84),
    "Lin LA": (0.96, 1.27, 1.93), "Riem Lin LA": (0.62, 0.87, 0.83), "ensemble": (0.17, 0.47, 1.55),
    "SGLD": (1.60, 1.98, 0.78), "ESPRO": (0.15, 0.51, 0.84), "SWAG": (0.24, 0.89, 1.97),
    "MetricBNN": (0.12, 0.58, 0.70),
}  # fmt: skip
IN_PAPER = ("MNIST", "FashionMNIST", "CIFAR10")
OUTSIDE = {"entropy": "AUROC, entropy", "mutual_information": "AUROC, mutual information"}


def by_method(results: Results, name: str) -> dict[str, list[Cell]]:
    """The cells of a set, a list over seeds for each method."""
    found: dict[str, list[Cell]] = {}
    for key, cell in results.cells.items():
        of_set, method, _ = key.split("|")
        if of_set == name and "error" not in cell:
            found.setdefault(method, []).append(cell)
    return found


def tables(results: Results, sets: Sequence[str]) -> str:
    """One for each set, means over the seeds; and the paper's."""
    return "\n\n".join([*(_table(results, name) for name in sets), _of_paper(results)])


def _table(results: Results, name: str) -> str:
    methods = by_method(results, name)
    columns: dict[str, list[Figure | None]] = {
        column: [figure([cell[column] for cell in cells]) for cells in methods.values()] for column in COLUMNS
    }
    columns |= {
        heading: [figure([cell["auroc"][score] for cell in cells if "auroc" in cell]) for cells in methods.values()]
        for score, heading in OUTSIDE.items()
        if any("auroc" in cell for cells in methods.values() for cell in cells)
    }
    top = {column: best(columns[column], largest=column == "accuracy") for column in COLUMNS[:3]}
    digits = {"seconds": 0}
    rows = [
        [method, *(written(of[i], bold=top.get(name) == i, digits=digits.get(name, 3)) for name, of in columns.items())]
        for i, method in enumerate(methods)
    ]
    trained = figure([cell["training_seconds"] for cell in methods.get("network", [])])
    said = f"Training the network took {written(trained, digits=0)} s; seconds are those beyond it."
    return f"### {name}\n\n{markdown(['', *columns], rows)}\n\n{said}"


def _of_paper(results: Results) -> str:
    """NLL as averaged and of single draws, ours and the paper's."""
    rows = []
    for method, figures in PAPER.items():
        row = [method]
        for name, theirs in zip(IN_PAPER, figures, strict=True):
            kin = [
                cells
                for label, cells in by_method(results, name).items()
                if label.split(",")[0].split(" of ")[0] == method
            ]
            columns = [figure([cell[column] for cell in kin[-1]]) if kin else None for column in ("nll", "single")]
            row += [f"{theirs:.2f}", *(written(value) for value in columns)]
        rows.append(row)
    header = ["NLL", *(f"{name}: {what}" for name in IN_PAPER for what in ("paper", "ours", "single draws"))]
    return f"### Beside the paper\n\n{markdown(header, rows)}"


def picture(results: Results, sets: Sequence[str], path: Path) -> None:
    """NLL of each method, a panel a set."""
    import matplotlib.pyplot as plt

    figure_, axes = plt.subplots(1, len(sets), figsize=(5 * len(sets), 4.6), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], sets, strict=True):
        methods = by_method(results, name)
        means = {method: sum(cell["nll"] for cell in cells) / len(cells) for method, cells in methods.items()}
        colors = ["#0072B2" if method.startswith("MetricBNN") else "#999999" for method in means]
        bars = ax.barh(list(means), list(means.values()), color=colors)
        ax.bar_label(bars, [f"{value:.3f}" for value in means.values()], padding=2, fontsize=8)
        ax.invert_yaxis()
        if means:
            ax.set_xlim(0, 1.25 * min(max(means.values()), 3 * means.get("network", 1.0)))
        ax.set(title=name, xlabel="test NLL")
    figure_.savefig(path, dpi=110)
    plt.close(figure_)
