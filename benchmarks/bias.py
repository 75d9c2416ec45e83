"""The bias of the walk and of the latent draws, on posteriors that are known in closed form.

    python -m benchmarks bias [NAME ...] [--seeds 3] [--particles 20] [--quick]

The first group is what the method is for, the second what it is not for: several modes, funnels, heavy tails. Each
posterior can be drawn from exactly; 50,000 such draws are the reference. Three figures, each of the worst coordinate
and of the worst seed: the distance of the means in posterior deviations; the ratio of the deviations that is
farthest from 1; and the exact posterior's mass in the central 90 % interval of the draws. Beside them, those of as many
exact draws as there are of the walk's. Writes `bias.json` and `bias.md`.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Sequence
from functools import partial

import pyro
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_metricbnn import DriftRefineKernel, MetricBNN, Steer

from .arguments import folder, parser, share
from .closed_forms import Target, targets
from .results import Cell, Results
from .tables import markdown

NUM_EXACT = 50_000
NUM_DRAWS = 10_000
SOURCES = ("walk", "latent draws", "exact draws")
RIGHT = {"mean": 0.0, "deviation": 1.0, "mass": 0.9}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    made = parser(__doc__ or "")
    made.add_argument("names", nargs="*", metavar="NAME", help="targets, by a part of the name; all by default")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--particles", type=int, default=20, help="N; its results are for a folder of their own, --out")
    arguments = made.parse_args(argv)
    out = folder(arguments, takes_data=False) / "bias"
    setting = {"experiment": "bias", "particles": arguments.particles, "share": share(arguments)}
    results = Results(out / "bias.json", setting, retry=arguments.retry)
    chosen = [one for one in targets() if not arguments.names or any(part in one.name for part in arguments.names)]
    seeds = range(1 if arguments.quick else arguments.seeds)
    for target, seed in tqdm([(target, seed) for target in chosen for seed in seeds], unit=" runs"):
        results.cell(f"{target.name}|{seed}", partial(measured, target, seed, arguments.particles, share(arguments)))
    text = table(results.cells)
    out.mkdir(parents=True, exist_ok=True)
    (out / "bias.md").write_text(text + "\n")
    print(text)


def measured(target: Target, seed: int, num_particles: int, part: float) -> Cell:
    """The figures of one run."""
    pyro.set_rng_seed(seed)
    exact = target.draw(NUM_EXACT)
    kernel = DriftRefineKernel(target.model, refiner=Steer(effort=part))
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        metric = MetricBNN(kernel, num_particles=num_particles).run(progress=False)
    seconds = time.perf_counter() - begun
    found = {"walk": flat(metric.get_samples()), "latent draws": flat(metric.draw(NUM_DRAWS))}
    found["exact draws"] = target.draw(len(found["walk"]))
    figures = {
        f"{source} {name}": value for source, draws in found.items() for name, value in errors(draws, exact).items()
    }
    return {**figures, "seconds": seconds, "warnings": [str(one.message) for one in said], "seed": seed}


def flat(samples: dict[str, Tensor]) -> Tensor:
    """All sites in a row (S, D)."""
    return torch.cat([value.reshape(len(value), -1) for value in samples.values()], dim=1)


def errors(draws: Tensor, exact: Tensor) -> dict[str, float]:
    """The three figures of the worst coordinate."""
    deviation = exact.std(0)
    shift = ((draws.mean(0) - exact.mean(0)) / deviation).abs().max()
    ratio = draws.std(0) / deviation
    worst = ratio[ratio.log().abs().argmax()]
    low, high = draws.quantile(torch.tensor([0.05, 0.95]), dim=0)
    mass = ((exact >= low) & (exact <= high)).float().mean(0)
    return {"mean": float(shift), "deviation": float(worst), "mass": float(mass[(mass - 0.9).abs().argmax()])}


def table(cells: dict[str, Cell]) -> str:
    """A row a target, the worst of the seeds."""
    header = ("mean / deviation / mass", *SOURCES, "s")
    aims = RIGHT.items()
    groups = []
    for suits, title in ((True, "What it is for"), (False, "What it is not for")):
        rows = []
        for target in targets():
            runs = [
                cell for key, cell in cells.items() if key.rpartition("|")[0] == target.name and "error" not in cell
            ]
            if runs and target.suits == suits:
                figures = [
                    " / ".join(farthest([run[f"{source} {name}"] for run in runs], right) for name, right in aims)
                    for source in SOURCES
                ]
                rows.append((target.name, *figures, f"{statistics.median(run['seconds'] for run in runs):.1f}"))
        if rows:
            groups.append(f"**{title}**\n\n" + markdown(header, rows))
    failed = [f"{key.replace('|', ', seed ')}: {cell['error']}" for key, cell in cells.items() if "error" in cell]
    return "\n\n".join([*groups, *failed])


def farthest(values: Sequence[float], right: float) -> str:
    """The value that is farthest from the right one, in two digits; a ratio by its logarithm."""
    if not all(map(math.isfinite, values)):
        return "–"
    worst = max(values, key=lambda value: abs(math.log(max(value, 1e-9))) if right == 1 else abs(value - right))
    return f"{worst:.2f}"


if __name__ == "__main__":
    main()
