"""Whether draws of the default walk on batches are as far apart as those of a long one with four times the batch.

    python -m benchmarks spread --data DIR [--quick]

The dense layers of `images`' first network of FashionMNIST (scikit-learn's digits without --data), first test images.
The spread is the deviation of the logits, less their mean, and of the probabilities, over draws; means over the images.
Writes `spread.json` and `spread.md`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyro
import torch
from torch import nn

from pyro_metricbnn import Categorical, MetricBNN, bayesianize, calibration, health

from .arguments import folder, parser, share
from .image_data import Images, images
from .image_heads import DENSE
from .image_methods import processor_seconds
from .image_networks import network
from .results import Cell, Results
from .tables import markdown

BATCH, NUM_IMAGES, NUM_DRAWS = 256, 2000, 200
WALKS: dict[str, dict[str, Any]] = {
    "default": {"num_particles": 20, "effort": 1.0, "batch_size": BATCH},
    "long, four times the batch": {"num_particles": 6, "effort": 3.0, "batch_size": 4 * BATCH},
}


def measured(net: nn.Module, data: Images, part: float, num_particles: int, effort: float, batch_size: int) -> Cell:
    """Of one walk."""
    pyro.set_rng_seed(8)
    begin, x, y = processor_seconds(), data.x_test[:NUM_IMAGES], data.y_test[:NUM_IMAGES]
    model = bayesianize(net, Categorical(), where=list(DENSE))
    metric = MetricBNN(model, num_particles=num_particles, effort=part * effort)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        size = min(batch_size, len(data.x) // 2)
        metric.run(data.x, data.y, batch_size=size, map_params=model.trained_params, progress=False)
    prediction, state = metric.predict(x, num_samples=NUM_DRAWS), health(metric)
    logits = prediction.f - prediction.f.mean(-1, keepdim=True)
    heat = [temperature for _, temperature, _ in state.heat]
    return {
        "seconds": processor_seconds() - begin,
        "gradients": int(metric.trajectories.gradients[-1]),
        "logits": float(logits.std(0).mean()),
        "probs": float(logits.softmax(-1).std(0).mean()),
        "nll": calibration(prediction, y).nll,
        "coolest": min(heat),
        "hottest": max(heat),
        "arrived": state.arrived,
    }


def table(results: Results) -> str:
    """A row each."""
    header = ["", "gradients", "logits", "probabilities", "NLL", "kinetic temperature", "arrived", "s"]
    rows = [
        [
            name,
            str(cell["gradients"]),
            *(f"{cell[key]:.{digits}f}" for key, digits in (("logits", 2), ("probs", 4), ("nll", 3))),
            f"{cell['coolest']:.2f} to {cell['hottest']:.2f}",
            "yes" if cell["arrived"] else "no",
            f"{cell['seconds']:.0f}",
        ]
        for key, cell in results.cells.items()
        for name in [key.split(", ", 1)[1]]
        if "error" not in cell
    ]
    return markdown(header, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    arguments = parser(__doc__ or "").parse_args(argv)
    part, root = share(arguments), folder(arguments)
    name = "digits" if arguments.data is None else "FashionMNIST"
    torch.set_num_threads(1)
    data = images(arguments.data, name)
    net, _ = network(root / "images", data, name, 0, part)
    results = Results(root / "spread" / "spread.json", {"experiment": "spread", "share": part}, retry=arguments.retry)
    for walk, how in WALKS.items():
        cell = results.cell(f"MetricBNN, {walk}", partial(measured, net, data, part, **how))
        print(walk, {key: value for key, value in cell.items() if key not in ("run", "walk_version")}, flush=True)
    (root / "spread" / "spread.md").write_text(table(results) + "\n")


if __name__ == "__main__":
    main()
