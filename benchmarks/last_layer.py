"""The last layer of a small image network: ours on batches and on all images at once, beside laplace-torch's.

    python -m benchmarks last_layer --data DIR [--rounds 5] [--quick]

10,000 images of FashionMNIST (scikit-learn's digits without --data), two convolutions and a layer of 64 units, D = 650.
Every contender fits in turns, from the trained network to a posterior that can predict; seconds are of the processor,
in one thread. The deviations are means over the weights. Writes `last_layer.json` and `last_layer.md`.
"""

from __future__ import annotations

import copy
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import Categorical, MetricBNN, bayesianize, calibration
from pyro_metricbnn.predictions.prediction import Prediction

from .arguments import folder, parser, share
from .image_data import Images, images
from .image_methods import processor_seconds
from .image_networks import steps
from .images import of_logits
from .results import Cell, Results
from .tables import markdown

NUM_IMAGES, EPOCHS, LEARNING_RATE, TRAINING_BATCH = 10_000, 8, 2e-3, 128
BATCH, LAPLACE_BATCH = 250, 512
LAST, NUM_UNITS = "9", 64
NUM_DRAWS = 200

Found = tuple[Callable[[Tensor], Prediction], float | None]  # a predictor, and the mean deviation of the weights


def small_network(data: Images, part: float) -> nn.Sequential:
    """Trained here: two convolutions, 64 units and the last layer."""
    size = data.x.shape[-1] // 4
    net = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * size * size, NUM_UNITS), nn.ReLU(), nn.Linear(NUM_UNITS, 10)),
    )
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    num_steps = max(1, round(part * EPOCHS * len(data.x) / TRAINING_BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    steps(net, data.x, data.y, num_steps, optimizer, schedule, batch_size=TRAINING_BATCH)
    return net.eval()


def as_trained(net: nn.Module, data: Images, part: float) -> Found:
    """The network."""
    return lambda x: of_logits(net(x).detach()), None


def ours(net: nn.Module, data: Images, part: float, batch_size: int | None) -> Found:
    """The defaults, from the trained weights."""
    model = bayesianize(net, Categorical(), where=LAST)
    metric = MetricBNN(model, effort=part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.run(data.x, data.y, batch_size=batch_size, map_params=model.trained_params, progress=False)
    samples = metric.get_samples()
    deviations = torch.cat([value.std(0).flatten() for value in samples.values()])
    return lambda x: metric.predict(x, num_samples=NUM_DRAWS), float(deviations.mean())


def laplace(net: nn.Module, data: Images, part: float, structure: str, searches: bool) -> Found:
    """laplace-torch's last layer, with N(0, 1) or with the prior by the marginal likelihood."""
    from laplace import Laplace

    rows = DataLoader(TensorDataset(data.x, data.y), batch_size=LAPLACE_BATCH)
    posterior = Laplace(copy.deepcopy(net), "classification", "last_layer", structure)
    posterior.fit(rows)
    if searches:
        posterior.optimize_prior_precision(method="marglik")
    spread = float(posterior.sample(NUM_DRAWS).std(0).mean())

    def predict(x: Tensor) -> Prediction:
        probs: Tensor = torch.cat([posterior(some, link_approx="probit") for some in x.split(1000)])
        return of_logits(probs.detach().clamp_min(1e-12).log())

    return predict, spread


CONTENDERS: dict[str, Callable[[nn.Module, Images, float], Found]] = {
    "network": as_trained,
    f"MetricBNN, batches of {BATCH}": partial(ours, batch_size=BATCH),
    "MetricBNN, all images at once": partial(ours, batch_size=None),
    "laplace-torch, factors": partial(laplace, structure="kron", searches=False),
    "laplace-torch, factors, its prior": partial(laplace, structure="kron", searches=True),
    "laplace-torch, full": partial(laplace, structure="full", searches=False),
    "laplace-torch, full, its prior": partial(laplace, structure="full", searches=True),
}
FITS = "laplace-torch, factors"  # what it does where nothing is said


def measured(make: Callable[[nn.Module, Images, float], Found], net: nn.Module, data: Images, part: float) -> Cell:
    """Seconds of the fit, and figures at the test images."""
    begin = processor_seconds()
    predict, deviation = make(net, data, part)
    seconds = processor_seconds() - begin
    figures: Any = calibration(predict(data.x_test), data.y_test)
    return {"seconds": seconds, "nll": figures.nll, "ece": figures.ece, "deviation": deviation}


def table(results: Results) -> str:
    """A row each: medians over the rounds."""
    rows = []
    for name in CONTENDERS:
        cells = [cell for key, cell in results.cells.items() if key.startswith(f"{name}|") and "error" not in cell]
        if not cells:
            continue
        fits = [results.cells.get(f"{FITS}|{key.split('|')[1]}") for key in results.cells if key.startswith(f"{name}|")]
        ratios = [cell["seconds"] / fit["seconds"] for cell, fit in zip(cells, fits, strict=False) if fit]
        spread = cells[0]["deviation"]
        figures = [f"{statistics.median(cell[key] for cell in cells):.3f}" for key in ("nll", "ece")]
        figures += ["–" if spread is None else f"{spread:.2f}"]
        seconds = statistics.median(cell["seconds"] for cell in cells)
        rows.append([name, *figures, f"{seconds:.1f}", f"{statistics.median(ratios):.1f}" if ratios else "–"])
    return markdown(["", "nll", "ece", "deviation of the weights", "seconds", "in those of laplace-torch's fit"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    made = parser(__doc__ or "")
    made.add_argument("--rounds", type=int, default=5)
    arguments = made.parse_args(argv)
    part, out = share(arguments), folder(arguments) / "last_layer"
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    data = _part(arguments.data)
    net = small_network(data, part)
    results = Results(out / "last_layer.json", {"experiment": "last_layer", "share": part}, retry=arguments.retry)
    for number in range(1 if arguments.quick else arguments.rounds):
        for name, make in CONTENDERS.items():
            pyro.set_rng_seed(number)
            cell = results.cell(f"{name}|{number}", partial(measured, make, net, data, part))
            print(number, name, {key: value for key, value in cell.items() if key not in ("run", "walk_version")})
    (out / "last_layer.md").write_text(table(results) + "\n")


def _part(data: Path | None) -> Images:
    found = images(data, "FashionMNIST")
    return found._replace(x=found.x[:NUM_IMAGES], y=found.y[:NUM_IMAGES])


if __name__ == "__main__":
    main()
