"""One problem, every method, a panel each: what the paper's figures have in common.

In: a `Figure`.  Out: its JSON file, table and picture; what a panel shows is kept beside them, a file a method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import add_methods, chosen, folder, parser, share
from .datasets import Problem
from .experiment import run_splits
from .methods.method import Method, Run
from .pictures import panels
from .report import in_order, of_one_set
from .results import Results
from .task import Task

Shown = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A problem, and what is shown of each method on it.

    Args:
        name: Of the command, its folder and its files.
        about: The text of `--help`.
        setting: What all cells have in common.
        columns: Of the table: heading and figure.
        problem: The data of a folder, or without one.
        task: The same with its trained network, for a part of the work.
        shown: What a panel needs of a run.
        panel: Draws that; what it returns, of the last panel, goes to `finish`.
        finish: Adds to the whole, given all axes and what the last panel returned.
        size: Of a panel.
    """

    name: str
    about: str
    setting: Mapping[str, Any]
    columns: Mapping[str, str]
    problem: Callable[[Path | None], Problem]
    task: Callable[[Path | None, float], Task]
    shown: Callable[[Run], Shown]
    panel: Callable[[Any, Shown, Problem], Any]
    finish: Callable[[Sequence[Any], Any], None] = lambda axes, last: None
    size: tuple[float, float] = (3.2, 2.5)

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Run what is missing; write table and picture."""
        made = parser(self.about)
        made.add_argument("--seeds", type=int, default=3)
        add_methods(made)
        arguments = made.parse_args(argv)
        out, methods = folder(arguments) / self.name, chosen(arguments)

        def keep(method: Method, run: Run) -> None:
            out.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file_of(out, method.name), allow_pickle=False, **self.shown(run))

        setting = {"experiment": self.name, **self.setting, "share": share(arguments)}
        results = Results(out / f"{self.name}.json", setting, retry=arguments.retry)
        seeds = range(1 if arguments.quick else arguments.seeds)
        run_splits(results, methods, lambda _: self.task(arguments.data, share(arguments)), seeds, self.name, keep)
        text = of_one_set(results, self.columns)
        (out / f"{self.name}.md").write_text(text + "\n")
        print(text)
        self.draw(self.problem(arguments.data), in_order(results.cells), out)

    def draw(self, problem: Problem, names: Sequence[str], out: Path) -> None:
        """The picture of the methods that have been kept."""
        kept = [name for name in names if file_of(out, name).exists()]
        if not kept:
            print(f"No picture: no method has been kept in {out}.")
            return
        with panels(kept, out / f"{self.name}.png", size=self.size, shared=True) as grid:
            last = None
            for name, axes in grid.items():
                last = self.panel(axes, np.load(file_of(out, name)), problem)
            self.finish(list(grid.values()), last)


def file_of(out: Path, name: str) -> Path:
    """Where a method's panel is kept."""
    return out / ("".join(letter if letter.isalnum() else "-" for letter in name.lower()) + ".npz")
