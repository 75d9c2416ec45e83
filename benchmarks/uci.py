"""UCI classification: every method on the splits of each set (the paper's tables 1 and 3).

    python -m benchmarks uci --data DIR [--sets glass ...] [--splits 10] [--methods NAME ...] [--prior unit] [--raw]
                            [--training paper]

Two layers of 32 ReLU units. The prior is that of the paper, whose decay of the weights, .01 on the mean loss, is
N(0, 100 / n) for n rows. Variants, each in a folder of its own: `--prior unit` takes N(0, 1), `--raw` features that are
not standardised, `--training paper` a network that is trained as the paper's are (batches of 32, 1,000 epochs), which
leaves it short of the MAP. `--sets` takes waveform5000, too. All methods start from the same trained network, but for
those that train their own (ensemble, MILE). Each may try a few settings on the validation rows of the first split.
Writes a JSON file a set, `uci.md` with the tables and `uci.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyro_metricbnn import Categorical

from . import paper_figures
from .arguments import add_methods, chosen, folder, parser, share
from .datasets import CARRIED, UCI_ALL, classification
from .experiment import run_splits
from .methods.method import Method
from .methods.metric_paper import OWN_PRIOR
from .report import Cells, as_markdown, figures, footnotes, publish, read, winner
from .results import Results
from .tables import markdown
from .task import Task, paper_prior_scale, trained

PAPER_COLUMN = {  # the paper does not say which it means
    "breast_cancer": "breast",
    "breast_ljubljana": "breast",
    "waveform5000": "waveform",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write tables and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--sets", nargs="+", default=None, help=f"of {', '.join(UCI_ALL)}")
    made.add_argument("--splits", type=int, default=10, choices=range(1, 11), metavar="1..10")
    made.add_argument("--raw", action="store_true", help="features as they are, not standardised")
    made.add_argument("--prior", default="paper", choices=("paper", "unit"), help="N(0, 100 / n), or N(0, 1)")
    made.add_argument("--training", default="map", choices=("map", "paper"), help="to the MAP, or as the paper trains")
    add_methods(made)
    arguments = made.parse_args(argv)
    out = folder(arguments) / name_of(arguments)
    sets = arguments.sets or (list(CARRIED if arguments.data is None else UCI_ALL))
    if arguments.quick:
        sets, arguments.splits = sets[:1], min(arguments.splits, 2)
    for split in range(arguments.splits):  # split by split, so that a run that is stopped has all sets
        for name in sets:
            run(arguments, out, name, split)
    cells = read(out, list(dict.fromkeys([*UCI_ALL, *CARRIED, *sets])))
    publish(out, "uci", sections(cells), cells)


def name_of(arguments: argparse.Namespace) -> str:
    """The folder of a variant."""
    variants = {
        "_unit_prior": arguments.prior == "unit",
        "_raw": arguments.raw,
        "_paper_training": arguments.training == "paper",
    }
    return "uci" + "".join(variant for variant, is_asked in variants.items() if is_asked)


def run(arguments: argparse.Namespace, out: Path, name: str, split: int) -> None:
    """One split of a set."""
    results = Results(out / f"{name}.json", setting(arguments), retry=arguments.retry)

    def task(number: int) -> Task:
        problem = classification(arguments.data, name, number, raw=arguments.raw)
        prior_scale = paper_prior_scale(problem) if arguments.prior == "paper" else 1.0
        as_paper = arguments.training == "paper"
        return trained(problem, Categorical(), prior_scale=prior_scale, share=share(arguments), as_paper=as_paper)

    run_splits(results, wanted(arguments), task, [split], name)


def wanted(arguments: argparse.Namespace) -> list[Method]:
    """The chosen methods, each once: with the paper's prior for all, the paper's setting is one row and not two."""
    return [method for method in chosen(arguments, "uci") if arguments.prior == "unit" or method.name != OWN_PRIOR]


def setting(arguments: argparse.Namespace) -> dict[str, object]:
    """What all cells of a file have in common."""
    prior_scale = "10 / sqrt(n)" if arguments.prior == "paper" else 1.0
    common = {"experiment": "uci", "hidden": [32, 32], "prior_scale": prior_scale, "share": share(arguments)}
    features = {"features": "raw"} if arguments.raw else {}
    training = {"training": "paper"} if arguments.training == "paper" else {}
    return {**common, **features, **training}


def sections(cells: Cells) -> list[str]:
    """The tables."""
    return [
        "### NLL\n\n" + as_markdown(figures(cells, "nll")),
        "\n".join(winner(cells, name) for name in cells),
        "### ECE, per cent\n\n" + as_markdown(figures(cells, "ece"), digits=1),
        "### Accuracy\n\n" + as_markdown(figures(cells, "accuracy"), largest=True),
        "### Seconds\n\n" + as_markdown(figures(cells, "seconds"), digits=1, bold=False),
        "### Seconds with the network's training\n\n"
        + as_markdown(figures(cells, "total_seconds"), digits=1, bold=False),
        "### The paper's NLL\n\n" + _paper(paper_figures.NLL, list(cells)),
        "### The paper's ECE, per cent\n\n" + _paper(paper_figures.ECE, list(cells)),
        "### The paper's accuracy\n\n" + _paper(paper_figures.ACCURACY, list(cells)),
        footnotes(cells),
    ]


def _paper(of_methods: Mapping[str, tuple[str, ...]], sets: Sequence[str]) -> str:
    columns = [name for name in sets if PAPER_COLUMN.get(name, name) in paper_figures.SETS]
    where = [paper_figures.SETS.index(PAPER_COLUMN.get(name, name)) for name in columns]
    return markdown(["", *columns], [[method, *(row[i] for i in where)] for method, row in of_methods.items()])
