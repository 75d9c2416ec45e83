"""How near every method's predictions are to those of long NUTS chains, in units of two such runs' distance.

    python -m benchmarks fidelity --data DIR [--methods NAME ...] [--seeds 3] [--quick]

Two problems whose posterior NUTS can reach: Banana (two layers of 16 tanh units) by top-1 agreement and total
variation, Snelson with a gap (two layers of 10) by the Wasserstein distances of observations and functions. The
reference is two runs of NUTS, each from a network of its own, pooled; 1.0 in the tables is as near as those two are to
each other. Writes `fidelity.md` and a JSON file a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor, nn
from tqdm import tqdm

from pyro_metricbnn import Categorical, Gaussian, agreement

from .arguments import add_methods, chosen, folder, parser, share
from .datasets import Problem, banana, snelson, with_validation
from .latent import r_hat
from .methods.hmc import predictor
from .methods.method import Method, timed, tuned
from .methods.nuts import chain
from .report import in_order
from .results import Results
from .tables import figure, markdown, written
from .task import Task, train_together, trained

NOISE = 0.3
NUM_WARMUP, NUM_DRAWS = 300, 500  # of NUTS
PROBLEMS = ("banana", "snelson")


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    made = parser(__doc__ or "")
    made.add_argument("--seeds", type=int, default=3)
    add_methods(made)
    arguments = made.parse_args(argv)
    out = folder(arguments) / "fidelity"
    texts = []
    for name in PROBLEMS:
        setting = {
            "experiment": "fidelity",
            "problem": name,
            "nuts": [NUM_WARMUP, NUM_DRAWS],
            "share": share(arguments),
        }
        results = Results(out / f"{name}.json", setting, retry=arguments.retry)
        seeds = range(1 if arguments.quick else arguments.seeds)
        run(results, chosen(arguments), name, arguments.data, share(arguments), seeds, out)
        texts.append(f"### {name}\n\n{table(results)}")
    (out / "fidelity.md").write_text("\n\n".join(texts) + "\n")
    print("\n\n".join(texts))


def task_of(name: str, data: Path | None, seed: int, part: float) -> Task:
    """A problem with its trained network."""
    pyro.set_rng_seed(seed)
    if name == "banana":
        return trained(banana(data), Categorical(), (16, 16), activation=nn.Tanh, share=part, kind="classification")
    problem = with_validation(snelson(data))
    return trained(problem, Gaussian(NOISE), (10, 10), activation=nn.Tanh, num_training_steps=5000, share=part)


def inputs(problem: Problem) -> Tensor:
    """Where predictions are compared: the test rows, and for Snelson what lies around them."""
    return problem.x_test if problem.x.shape[1] > 1 else torch.linspace(-1, 7, 161)[:, None]


def reference(results: Results, task: Task, out: Path) -> list[Tensor]:
    """Outputs of two runs of NUTS at the compared inputs: (S, n, C) each."""
    path = out / f"{task.problem.name.split()[0]}-nuts.npz"
    if not path.exists() and results.cells.keys() - {"reference"}:
        raise SystemExit(
            f"{results.path} has distances to runs of NUTS that are not here ({path.name}): others would be another "
            "yardstick. Take another folder with --out, or delete the file."
        )
    if "reference" not in results.cells or not path.exists():
        runs = []
        for seed in (1, 2):
            pyro.set_rng_seed(seed)
            (net,) = task.new_networks(1)
            net.load_state_dict(train_together(task, [net])[0])
            own = replace(task, net=net)
            points = chain(own, task.count(NUM_WARMUP, 10), task.count(NUM_DRAWS, 10))
            runs.append(predictor(own, points)(inputs(task.problem)).f)
        out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, first=runs[0].numpy(), second=runs[1].numpy())
        between = vars(agreement(task.prediction(runs[0]), task.prediction(runs[1])))
        results.cells.pop("reference", None)
        results.cell("reference", lambda: {**between, "r_hat": r_hat(torch.stack(runs))})
    content = np.load(path)
    return [torch.from_numpy(content[name]) for name in ("first", "second")]


def run(
    results: Results,
    methods: Sequence[Method],
    name: str,
    data: Path | None,
    part: float,
    seeds: Sequence[int],
    out: Path,
) -> None:
    """Distances of each method to the reference, a cell a seed."""
    first = task_of(name, data, 0, part)
    pooled = first.prediction(torch.cat(reference(results, first, out)))
    for seed in seeds:
        missing = [method for method in methods if f"{method.name}|{seed}" not in results.cells]
        task = task_of(name, data, seed, part) if missing else first
        for method in tqdm(missing, desc=f"{name}, seed {seed}", unit=" methods"):

            def measure(method: Method = method, task: Task = task, seed: int = seed) -> dict[str, Any]:
                pyro.set_rng_seed(1000 + seed)
                setting = dict(tuned(method, task))
                done = timed(method, task, setting, inputs(task.problem))
                near = vars(agreement(done.prediction, pooled))
                return {**near, "seconds": done.seconds, "setting": setting, "seed": seed}

            results.cell(f"{method.name}|{seed}", measure)


def table(results: Results) -> str:
    """Each figure in the unit of the same between the two runs of NUTS."""
    unit = {key: value for key, value in results.cells["reference"].items() if key not in ("run", "r_hat")}
    rows = []
    for method in in_order(results.cells):
        cells = [cell for key, cell in results.cells.items() if key.startswith(f"{method}|") and "seed" in cell]
        scaled = [figure([_scaled(key, cell[key], unit[key]) for cell in cells]) for key in unit]
        rows.append([method, *map(written, scaled), written(figure([cell["seconds"] for cell in cells]), digits=1)])
    between = ", ".join(f"{key} {value:.4f}" for key, value in unit.items())
    note = f"Between the two runs of NUTS: {between}; R-hat of the outputs {results.cells['reference']['r_hat']:.3f}."
    errors = [f"- {key}: {cell['error']}" for key, cell in results.cells.items() if "error" in cell]
    header = ["", *(f"1 - {key}" if key == "top_1" else key for key in unit), "seconds"]
    return "\n\n".join([markdown(header, rows), note, *(["\n".join(errors)] if errors else [])])


def _scaled(key: str, value: float, unit: float) -> float:
    """A distance in units of another; of agreement, what is missing to 1."""
    if key == "top_1":
        value, unit = 1 - value, 1 - unit
    return value / unit if unit > 0 else float("nan")
