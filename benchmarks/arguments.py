"""Arguments that the experiments share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .methods import methods
from .methods.method import Method

RESULTS = Path(__file__).parent / "results"
WITHOUT_DATA = Path(__file__).parent / "results_without_data"
QUICK_SHARE = 0.02


def parser(description: str) -> argparse.ArgumentParser:
    """With --data, --out, --quick and --retry."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of the data sets; without it, what scikit-learn carries")
    made.add_argument("--out", type=Path, help="folder of results, tables and pictures")
    made.add_argument("--quick", action="store_true", help="a fiftieth of the work, to see that all runs")
    made.add_argument("--retry", action="store_true", help="run again what ended in an error")
    return made


def add_methods(made: argparse.ArgumentParser, default: Sequence[str] | None = None) -> None:
    """With --methods."""
    names = tuple(methods())
    made.add_argument(
        "--methods", nargs="+", choices=names, default=default or names, metavar="NAME", help=", ".join(names)
    )


def chosen(arguments: argparse.Namespace, experiment: str | None = None) -> list[Method]:
    """The methods of --methods that the experiment is for, in the order of the tables."""
    there = (method for name, method in methods().items() if name in arguments.methods)
    return [method for method in there if method.only in (None, experiment)]


def folder(arguments: argparse.Namespace, *, takes_data: bool = True) -> Path:
    """Where results go: those of a look at --quick, or of made data, never mix with the tables'; a look begins anew."""
    if arguments.out is not None:
        return Path(arguments.out)
    if arguments.quick:
        return Path(tempfile.mkdtemp(prefix="metricbnn-quick-"))
    return WITHOUT_DATA if takes_data and arguments.data is None else RESULTS


def share(arguments: argparse.Namespace) -> float:
    """The part of the full work."""
    return QUICK_SHARE if arguments.quick else 1.0
