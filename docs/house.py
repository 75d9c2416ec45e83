"""Draw the packages in the order of the flow, with their files and what imports what.

In: the imports in the source.  Out: a picture; `python -m docs pictures house` draws it anew.
"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyro_metricbnn"
FLOW = ["runtime", "ranks", "files", "model", "graphs", "energy", "refiners", "search", "walk"]
FLOW += ["latent", "predictions", "diagnostics", "tempering", "plots", "comparison"]
TOP = ["results", "inference", "temperature"]
COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
SAID = {
    "runtime": "arguments, threads, random states, memory",
    "ranks": "several processes: shares, messages, faults",
    "files": "files that cannot run code",
    "model": "network, priors, likelihoods, sites",
    "graphs": "a function for all particles at once",
    "energy": "U and its gradient for all particles",
    "refiners": "from one recorded point to the next",
    "search": "a first look; the MAP, or trained networks",
    "walk": "the loop, the record, checkpoints, the kernel",
    "latent": "straight walks, posterior, guide",
    "predictions": "what draws say, wherever they come from",
    "diagnostics": "whether to believe it",
    "tempering": "which temperature, which prior scale",
    "plots": "pictures",
    "comparison": "posteriors beside each other",
    "the front door": "MetricBNN and what can be asked of it",
}


def imports(path: Path) -> set[str]:
    """The packages that a file imports from, its own apart."""
    depth = len(path.relative_to(PACKAGE).parts)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {(node.module or "").split(".")[0] for node in nodes if node.level == depth} & set(FLOW)


def rows() -> dict[str, tuple[list[str], set[str]]]:
    """Of each package, in the order of the flow: its files, and what they import from."""
    found = {}
    for name in FLOW:
        files = sorted(path for path in (PACKAGE / name).glob("*.py") if path.stem != "__init__")
        found[name] = [path.stem for path in files], set().union(*map(imports, files)) - {name}
    files = [PACKAGE / f"{name}.py" for name in TOP]
    found["the front door"] = TOP, set().union(*map(imports, files))
    return found


def draw(target: Path) -> None:
    """Boxes from the first package down to the front door; arcs on the right go from who imports to what."""
    house = rows()
    figure, ax = plt.subplots(figsize=(9.5, 8.2), layout="constrained")
    places = {name: -i for i, name in enumerate(house)}
    for name, (files, imported) in house.items():
        y = places[name]
        ax.add_patch(FancyBboxPatch((0, y - 0.36), 7.2, 0.72, boxstyle="round,pad=0.02", fc="#f5f7f9", ec="#5b6472"))
        ax.text(0.12, y + 0.13, name, fontsize=11, weight="bold", va="center")
        ax.text(7.1, y + 0.13, SAID[name], fontsize=8.5, va="center", ha="right", color="#5b6472")
        ax.text(0.12, y - 0.18, "  ".join(files), fontsize=8.5, va="center", family="monospace")
        for other in imported:
            colour = COLOURS[list(house).index(other) % len(COLOURS)]
            ends = (7.25, y + 0.08), (7.25, places[other] - 0.08)
            bend = "arc3,rad=0.55" if y - places[other] < -1 else "arc3,rad=0.9"
            style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": colour, "alpha": 0.75}
            ax.add_patch(FancyArrowPatch(*ends, connectionstyle=bend, **style))
    ax.set(xlim=(-0.1, 9.9), ylim=(-len(house) + 0.5, 0.6))
    ax.axis("off")
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "docs" / "pictures" / "house.png")
