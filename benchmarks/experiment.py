"""Methods on the splits of a data set: tuned once on the first, then measured on each.

In: `Results`, methods and a way to make the task of a split.  Out: cells "method|split" with the test figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pyro
from tqdm import tqdm

from pyro_metricbnn import calibration
from pyro_metricbnn.diagnostics.calibration import ClassCalibration

from .methods.method import Method, Run, timed, tuned
from .results import Cell, Results, version
from .task import Task

MakeTask = Callable[[int], Task]
Keep = Callable[[Method, Run], None]


def measured(method: Method, task: Task, setting: Cell, seed: int, keep: Callable[[Run], None] | None = None) -> Cell:
    """The test figures of a method on a task, in the units of y, and its seconds; `keep` sees the run, too."""
    pyro.set_rng_seed(seed)
    run = timed(method, task, setting, task.problem.x_test)
    figures = calibration(run.prediction, task.problem.y_test)
    if isinstance(figures, ClassCalibration):
        cell = {"nll": figures.nll, "ece": figures.ece, "accuracy": figures.accuracy, "brier": figures.brier}
    else:
        covered = figures.coverage[figures.levels.index(0.9)]
        unit = task.problem.y_scale
        cell = {"nll": figures.nll + math.log(unit), "rmse": figures.rmse * unit, "coverage_90": covered}
    train_nll = -float(run.predictor(task.problem.x).log_prob(task.problem.y).mean())
    cell["train_nll"] = train_nll + math.log(task.problem.y_scale)
    if keep is not None:
        keep(run)
    return {
        **cell,
        "seconds": run.seconds,
        "training_seconds": task.seconds,
        "draws": run.prediction.num_samples,
        "setting": setting,
        "seed": seed,
    }


def run_splits(
    results: Results,
    methods: Sequence[Method],
    make_task: MakeTask,
    splits: Sequence[int],
    label: str,
    keep: Keep | None = None,
) -> None:
    """All cells that are missing."""
    made: dict[int, Task] = {}

    def task_of(split: int) -> Task:
        if split not in made:
            pyro.set_rng_seed(split)
            made[split] = make_task(split)
        return made[split]

    bar = tqdm([(split, method) for split in splits for method in methods], desc=label, unit=" cells")
    for split, method in bar:
        bar.set_postfix_str(f"{method.name}, split {split}")
        run_cell(results, method, task_of, split, keep)
        for done in [other for other in made if other not in (0, split)]:
            del made[done]


def run_cell(results: Results, method: Method, task_of: MakeTask, split: int, keep: Keep | None = None) -> None:
    """One cell, after the method's tuning on the first split."""
    key = f"{method.name}|{split}"
    if key in results.cells:
        return
    if method.needs is not None and version(method.needs) is None:
        message = f"{method.name} needs {method.needs}: pip install {method.needs}."
        results.cell(key, lambda: {"error": message})
        return

    def choose() -> Cell:
        pyro.set_rng_seed(1000)
        return {"setting": dict(tuned(method, task_of(0)))}

    choice = results.cell(f"{method.name}|tuning", choose)
    if "error" in choice:
        results.cell(key, lambda: {"error": choice["error"]})
        return
    task = task_of(split)  # before the clock starts
    seen = None if keep is None else partial(keep, method)
    results.cell(key, lambda: measured(method, task, choice["setting"], 1000 + split, seen))
