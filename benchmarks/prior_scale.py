"""The prior's scale: 1, chosen by `prior_scale="auto"`, and the best of a few as the test rows would have it.

    python -m benchmarks prior_scale [--splits 3] [--quick]

One layer of 32 ReLU units on what scikit-learn carries (70 % of the rows of wine, iris and breast_diagnostic) and on
made data on which a wide prior overfits: 40 rows of 20 inputs, of which one counts. No validation rows are given. The
best of a few fixed scales is chosen on the test rows, so it is a bound and no method. Seconds are of the processor.
Writes `prior_scale.json` and `prior_scale.md`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import partial

import pyro
import torch
from torch import nn
from tqdm import tqdm

from pyro_metricbnn import Categorical, Gaussian, MetricBNN, bayesianize

from .arguments import folder, parser, share
from .datasets import CARRIED, Problem, classification
from .networks import mlp
from .results import Cell, Results
from .tables import markdown

MADE, NOISE = "one input of 20", 0.5
FIXED = (1.0, 0.4, 0.2, 3.0)
TRAINING_STEPS = 300  # of Adam at 1e-2, without a weight decay


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    made = parser(__doc__ or "")
    made.add_argument("--splits", type=int, default=3, choices=range(1, 11), metavar="1..10")
    arguments = made.parse_args(argv)
    part, out = share(arguments), folder(arguments) / "prior_scale"
    results = Results(out / "prior_scale.json", {"experiment": "prior_scale", "share": part}, retry=arguments.retry)
    names = (MADE,) if arguments.quick else (MADE, *CARRIED)
    scales: tuple[float | str, ...] = ("auto", 1.0) if arguments.quick else ("auto", *FIXED)
    tasks = [(name, split) for split in range(1 if arguments.quick else arguments.splits) for name in names]
    for name, split in tqdm(tasks, unit=" splits"):
        problem = _regression(split) if name == MADE else classification(None, name, split)
        for scale in scales:
            results.cell(f"{name}|{split}|{scale}", partial(judged, problem, split, scale, part))
    (out / "prior_scale.md").write_text(table(results) + "\n")


def _regression(split: int) -> Problem:
    """Linear in one input; the noise is known."""
    draw = torch.Generator().manual_seed(split)
    x = torch.randn(540, 20, generator=draw)
    y = x[:, :1] + NOISE * torch.randn(540, 1, generator=draw)
    return Problem(MADE, x[:40], y[:40], x[40:], y[40:])


def judged(problem: Problem, split: int, scale: float | str, part: float) -> Cell:
    """Test NLL and seconds of a run of one network, the same for all scales."""
    pyro.set_rng_seed(split)
    numbers = problem.y.is_floating_point()
    net = mlp(problem.x.shape[1], 32, 1 if numbers else int(problem.y.max()) + 1)
    _train(net, problem, nn.MSELoss() if numbers else nn.CrossEntropyLoss())
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bayesianize(net, Gaussian(NOISE) if numbers else Categorical(), prior_scale=scale)  # type: ignore[arg-type]
        metric = MetricBNN(model, effort=part, num_steps=None if part == 1 else 20)
        metric.run(problem.x, problem.y, progress=False)
    seconds = time.process_time() - begin
    log_prob = metric.predict(problem.x_test, 500).log_prob(problem.y_test)
    chosen = metric.prior_choice
    return {"nll": -float(log_prob.mean()), "seconds": seconds, "scale": chosen.scale if chosen is not None else scale}


def _train(net: nn.Module, problem: Problem, loss: nn.Module) -> None:
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        loss(net(problem.x), problem.y).backward()
        optimizer.step()


def table(results: Results) -> str:
    """A row for each split."""
    by_split: dict[tuple[str, str], dict[str, Cell]] = {}
    for key, cell in results.cells.items():
        name, split, scale = key.split("|")
        by_split.setdefault((name, split), {})[scale] = cell
    rows, columns = [], list[list[float]]()
    for (name, split), cells in sorted(by_split.items()):
        auto, one = cells["auto"], cells["1.0"]
        best = min((cell for scale, cell in cells.items() if scale != "auto"), key=lambda cell: cell["nll"])
        columns.append([one["nll"], auto["nll"], best["nll"], one["seconds"], auto["seconds"]])
        nll, seconds = [f"{value:.3f}" for value in columns[-1][:3]], [f"{value:.1f}" for value in columns[-1][3:]]
        rows.append([f"{name}, {split}", *nll, f"{auto['scale']:g}", f"{best['scale']:g}", *seconds])
    mean = torch.tensor(columns).mean(0).tolist()
    rows.append(["mean", *(f"{value:.3f}" for value in mean[:3]), "", "", *(f"{value:.1f}" for value in mean[3:])])
    return markdown(["set, split", "scale 1", "auto", "best of four", "chosen", "best", "s at 1", "s of auto"], rows)


if __name__ == "__main__":
    main()
