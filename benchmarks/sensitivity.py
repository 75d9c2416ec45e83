"""What the knobs do: NLL on Snelson's regression over alpha, N, T, M, k and the lambdas (the paper's appendix).

    python -m benchmarks sensitivity --data DIR [--epochs 300] [--quick]

1-32-32-32-1, ReLU, noise 0.3, N(0, 1) prior; NLL of the training rows and of the rows in the gap. The paper's walk
(descent with eta = 1e-3 on the mean loss) and its autoencoder, over alpha, N, T, M and k; then lambda_plus and
lambda_minus in the paper's own setting. Beside them, in the same colours: the same walks with `KernelMap` instead of
the autoencoder; `Adam`'s pull-back, whose alpha T is the prior's typical radius; the default walk (`Steer`).

What is shared. One walk for each alpha and M, N = 20 and T = 100, gives all smaller N and T as its first particles and
steps. The default walk's path does not depend on T, so that fewer points are every second or fifth one of it.

What is cheaper than in the paper. Going by single fits, its 1,000 epochs on the 2,209 weights themselves would take
about half a day on one core for the whole grid. Here the autoencoder works in the span of the points (`in_span=True`:
the same losses in the same units, 6 to 21 coordinates instead of 2,209; an epoch about 6 times as fast) for 300 epochs,
which should take half an hour. It is not the same: with N = 10, T = 50, M = 10, k = 32, alpha = 0.1 and one network,
two fits in the span had NLL .19 and .20 (training), 1.54 and 1.54 (gap), one of 300 epochs on the weights .29 and 1.49.

Writes `sensitivity.json`, `sensitivity.md`, `sensitivity_train.png` and `sensitivity_gap.png`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pyro
from torch import Tensor
from tqdm import tqdm

from pyro_metricbnn import DriftRefineKernel, Gaussian, KernelMap, Steer, predict
from pyro_metricbnn.latent.autoencoder_map import AutoencoderMap
from pyro_metricbnn.latent.latent_map import LatentMap
from pyro_metricbnn.latent.posterior import MetricPosterior
from pyro_metricbnn.refiners.pull_back import Adam, Descent
from pyro_metricbnn.refiners.refiner import Refiner
from pyro_metricbnn.walk.trajectories import Trajectories

from .arguments import folder, parser, share
from .datasets import snelson
from .heat_maps import HeatMap, colour_scale, draw
from .prefixes import prefix
from .results import Cell, Results
from .tables import markdown
from .task import Task, trained

NOISE = 0.3
ETA = 1e-3
NUM_EPOCHS = 300
NUM_DRAWS = 1000
SEED = 1000
KERNEL = "KernelMap"  # in the place of k
PARTS = ("train", "gap")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values of each knob; the paper's own setting is that of `own`."""

    hidden: tuple[int, ...] = (32, 32, 32)
    alphas: tuple[float, ...] = (0.01, 0.1)
    particles: tuple[int, ...] = (5, 10, 20)  # N
    steps: tuple[int, ...] = (20, 50, 100)  # T
    refinements: tuple[int, ...] = (1, 5, 10, 20)  # M
    dims: tuple[int, ...] = (2, 8, 32)  # k
    lambdas: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    own: tuple[float, int, int, int, int] = (0.1, 10, 10, 100, 32)  # alpha, M, N, T, k

    @property
    def columns(self) -> tuple[object, ...]:
        """Of the maps over M and k."""
        return (*self.dims, KERNEL)

    def keys(self) -> Iterator[str]:
        """All cells, the cheap ones first."""
        plane = list(itertools.product(self.particles, self.steps))
        walks = list(itertools.product(self.alphas, self.refinements, plane))
        yield "MAP"
        yield from (f"{kind}|{n}|{t}" for kind in ("Steer", "Adam") for n, t in plane)
        yield from (f"paper|{alpha}|{m}|{n}|{t}|{KERNEL}" for alpha, m, (n, t) in walks)
        yield from (f"lambda|{plus}|{minus}" for plus, minus in itertools.product(self.lambdas, self.lambdas))
        yield from (f"paper|{alpha}|{m}|{n}|{t}|{k}" for alpha, m, (n, t) in walks for k in self.dims)


QUICK = Grid(
    hidden=(16, 16), alphas=(0.1,), particles=(2, 3), steps=(3, 6), refinements=(1, 2), dims=(2,), lambdas=(1.0, 10.0),
    own=(0.1, 2, 3, 6, 2),
)  # fmt: skip


# ---------------------------------------------------------------------------------------- measuring


class Walks:
    """The long walks of which all others are parts; each walked when it is first asked for, with the same seed.

    Args:
        arguments: Of the command.
        grid: The values of each knob.
    """

    def __init__(self, arguments: argparse.Namespace, grid: Grid) -> None:
        self._arguments, self._grid = arguments, grid
        self._walked: dict[tuple[Refiner, int], Trajectories] = {}

    @cached_property
    def task(self) -> Task:
        """The trained network."""
        pyro.set_rng_seed(SEED)
        return trained(snelson(self._arguments.data), Gaussian(NOISE), self._grid.hidden, share=share(self._arguments))

    def walk(self, refiner: Refiner, num_steps: int) -> Trajectories:
        """The most particles for T steps."""
        if (refiner, num_steps) not in self._walked:
            task = self.task
            pyro.set_rng_seed(SEED + 1)
            kernel = DriftRefineKernel(task.model, refiner=refiner, num_steps=num_steps)
            self._walked[refiner, num_steps] = kernel.walk(
                task.problem.x, task.problem.y, num_particles=max(self._grid.particles), progress=False,
                map_params={name: value.detach() for name, value in task.net.named_parameters()},
            )  # fmt: skip
        return self._walked[refiner, num_steps]

    def paper(self, alpha: float, m: int, n: int, t: int) -> Trajectories:
        """The paper's walk."""
        refiner = Descent(alpha=alpha, num_refinements=m, eta=ETA, mean_loss=True)
        return prefix(self.walk(refiner, max(self._grid.steps)), n, t)

    def adam(self, n: int, t: int) -> Trajectories:
        """Adam's pull-back, whose alpha T is the prior's typical radius: a walk for each T."""
        return prefix(self.walk(Adam(), t), n, t)

    def steer(self, n: int, t: int) -> Trajectories:
        """The default walk."""
        longest = max(self._grid.steps)
        walk = self.walk(Steer(effort=share(self._arguments)), longest)
        return prefix(walk, n, longest).thinned(longest // t)


def measured(walks: Walks, grid: Grid, num_epochs: int, key: str) -> Cell:
    """NLL of the training rows and of the gap, with 1,000 draws."""
    kind, *knobs = key.split("|")
    if kind == "MAP":
        return scores(walks.task, walks.task.theta_star[None])
    tube: float | None = None
    latent: LatentMap = KernelMap()
    if kind in ("Steer", "Adam"):
        walk = (walks.steer if kind == "Steer" else walks.adam)(*map(int, knobs))
    elif kind == "paper":
        walk, tube = walks.paper(float(knobs[0]), *map(int, knobs[1:4])), 0.0
        if knobs[4] != KERNEL:
            latent = AutoencoderMap.paper(latent_dim=int(knobs[4]), num_epochs=num_epochs, in_span=True)
    else:
        walk, tube = walks.paper(*grid.own[:4]), 0.0
        plus, minus = map(float, knobs)
        latent = AutoencoderMap.paper(
            latent_dim=grid.own[4], num_epochs=num_epochs, in_span=True, lambda_plus=plus, lambda_minus=minus
        )
    pyro.set_rng_seed(SEED + 2)
    begin = time.perf_counter()
    posterior = MetricPosterior(latent.fit(walk, progress=False), tube)
    seconds = time.perf_counter() - begin
    away = (walk.thetas[:, -1] - walk.theta_star).norm(dim=-1).mean()
    draws = posterior.sample((NUM_DRAWS,)).detach()
    return {**scores(walks.task, draws), "radius": float(away), "bend": latent.bend, "map_seconds": seconds}


def scores(task: Task, draws: Tensor) -> Cell:
    """NLL of both parts under draws (S, D)."""
    problem, weights = task.problem, task.potential(1).unflatten(draws)
    rows = zip(PARTS, ((problem.x, problem.y), (problem.x_test, problem.y_test)), strict=True)
    nll = {part: -float(predict(task.model, weights, x).log_prob(y).mean()) for part, (x, y) in rows}
    return {**nll, "seed": SEED}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write tables and pictures."""
    made = parser(__doc__ or "")
    made.add_argument("--epochs", type=int, default=NUM_EPOCHS, help=f"of each autoencoder; {NUM_EPOCHS}")
    arguments = made.parse_args(argv)
    out = folder(arguments) / "sensitivity"
    grid = QUICK if arguments.quick else Grid()
    num_epochs = 5 if arguments.quick else arguments.epochs
    setting = {"experiment": "sensitivity", "hidden": grid.hidden, "epochs": num_epochs, "share": share(arguments)}
    results = Results(out / "sensitivity.json", setting, retry=arguments.retry)
    walks = Walks(arguments, grid)
    for key in tqdm(list(grid.keys()), desc="sensitivity", unit=" cells"):
        results.cell(key, partial(measured, walks, grid, num_epochs, key))
    report(results.cells, grid, num_epochs, out)


# ------------------------------------------------------------------------------------------ report


def report(cells: dict[str, Cell], grid: Grid, num_epochs: int, out: Path) -> None:
    """Tables and pictures of what is there."""
    text = "\n\n".join(
        [
            f"Autoencoders: {num_epochs} epochs, in the span of the points. NLL of {NUM_DRAWS:,} draws.",
            "### One setting each\n\n" + _settings(cells, grid),
            "### Over the grid\n\n" + _spread(cells, grid),
            "### Each knob, median over the others (training / gap)\n\n" + _knobs(cells, grid),
            "### lambda_plus (rows) and lambda_minus (columns), training / gap\n\n" + _lambdas(cells, grid),
            _errors(cells),
        ]
    )
    (out / "sensitivity.md").write_text(text.strip() + "\n")
    print(text)
    for part in PARTS:
        picture(cells, grid, part, out / f"sensitivity_{part}.png")


def value(cells: dict[str, Cell], key: str, part: str) -> float:
    """NaN where there is none."""
    return float(cells.get(key, {}).get(part, math.nan))


def _settings(cells: dict[str, Cell], grid: Grid) -> str:
    alpha, m, n, t, k = grid.own
    most, longest = max(grid.particles), max(grid.steps)
    lines = {
        "MAP": "MAP",
        f"the paper's setting (alpha {alpha:g}, M {m}, N {n}, T {t}, k {k})": f"paper|{alpha}|{m}|{n}|{t}|{k}",
        "the same walk, KernelMap": f"paper|{alpha}|{m}|{n}|{t}|{KERNEL}",
        f"Adam's pull-back to the prior's radius, KernelMap, N {most}, T {longest}": f"Adam|{most}|{longest}",
        f"default (Steer, KernelMap), N {most}, T {longest}": f"Steer|{most}|{longest}",
    }
    rows = [
        [
            name,
            *(f"{value(cells, key, part):.3f}" for part in (*PARTS,)),
            f"{value(cells, key, 'radius'):.1f}".replace("nan", "–"),
        ]
        for name, key in lines.items()
    ]
    return markdown(["", "training NLL", "gap NLL", "distance of the walks' ends from the MAP"], rows)


def _spread(cells: dict[str, Cell], grid: Grid) -> str:
    plane = list(itertools.product(grid.particles, grid.steps))
    kinds: dict[str, list[str]] = {}
    for alpha in grid.alphas:
        walks = [f"paper|{alpha}|{m}|{n}|{t}" for m in grid.refinements for n, t in plane]
        kinds[f"paper, alpha {alpha:g}"] = [f"{walk}|{k}" for walk in walks for k in grid.dims]
        kinds[f"paper's walk, alpha {alpha:g}, KernelMap"] = [f"{walk}|{KERNEL}" for walk in walks]
    kinds["lambdas"] = [f"lambda|{a}|{b}" for a, b in itertools.product(grid.lambdas, grid.lambdas)]
    kinds["Adam to the prior's radius"] = [f"Adam|{n}|{t}" for n, t in plane]
    kinds["default (Steer)"] = [f"Steer|{n}|{t}" for n, t in plane]
    rows = []
    for name, keys in kinds.items():
        figures = []
        for part in PARTS:
            values = _known(cells, keys, part)
            figures += [f"{f(values):.3f}" if values else "–" for f in (min, statistics.median, max)]
        rows.append([name, str(len(_known(cells, keys, "train"))), *figures])
    header = [f"{part}: {what}" for part in ("training", "gap") for what in ("least", "median", "most")]
    return markdown(["", "cells", *header], rows)


def _knobs(cells: dict[str, Cell], grid: Grid) -> str:
    """Of the autoencoder's cells."""
    names: dict[str, tuple[Sequence[object], int]] = {
        "M": (grid.refinements, 2), "N": (grid.particles, 3), "T": (grid.steps, 4), "k": (grid.dims, 5),
    }  # fmt: skip
    rows = []
    for alpha in grid.alphas:
        keys = [key for key in cells if key.startswith(f"paper|{alpha}|") and not key.endswith(KERNEL)]
        for name, (choices, place) in names.items():
            shown = [f"{c}: {_medians(cells, [x for x in keys if x.split('|')[place] == str(c)])}" for c in choices]
            rows.append([f"alpha {alpha:g}", name, ", ".join(shown)])
    return markdown(["", "knob", "its values"], rows)


def _lambdas(cells: dict[str, Cell], grid: Grid) -> str:
    rows = [
        [f"{plus:g}", *(_medians(cells, [f"lambda|{plus}|{minus}"]) for minus in grid.lambdas)] for plus in grid.lambdas
    ]
    return markdown(["", *(f"{minus:g}" for minus in grid.lambdas)], rows)


def _known(cells: dict[str, Cell], keys: Sequence[str], part: str) -> list[float]:
    values = (value(cells, key, part) for key in keys)
    return [number for number in values if math.isfinite(number)]


def _medians(cells: dict[str, Cell], keys: Sequence[str]) -> str:
    known = [_known(cells, keys, part) for part in PARTS]
    return " / ".join(f"{statistics.median(values):.2f}" if values else "–" for values in known)


def _errors(cells: dict[str, Cell]) -> str:
    lines = [f"- {key}: {cell['error']}" for key, cell in cells.items() if "error" in cell]
    return "### Errors\n\n" + "\n".join(lines) if lines else ""


def picture(cells: dict[str, Cell], grid: Grid, part: str, path: Path) -> None:
    """For each alpha a map over M and k for each N and T; below them the lambdas and the walks to our radius."""
    from matplotlib.figure import Figure as Canvas

    def maps_of(alpha: float) -> list[HeatMap]:
        return [
            heat_map(lambda m, k, n=n, t=t: f"paper|{alpha}|{m}|{n}|{t}|{k}", grid.refinements, grid.columns,  # type: ignore[misc]
                     "M", "k", f"N = {n}, T = {t}")
            for n, t in itertools.product(grid.particles, grid.steps)
        ]  # fmt: skip

    def heat_map(
        key: Callable[[object, object], str], rows: Sequence[object], columns: Sequence[object], *labels: str
    ) -> HeatMap:
        values = [[value(cells, key(row, column), part) for column in columns] for row in rows]
        short = ["kernel" if column == KERNEL else column for column in columns]
        return HeatMap(values, rows, short, *labels)

    blocks = {alpha: maps_of(alpha) for alpha in grid.alphas}
    plane = (grid.particles, grid.steps, "N", "T")
    below = [
        heat_map(lambda a, b: f"lambda|{a}|{b}", grid.lambdas, grid.lambdas, "lambda +", "lambda −",
                 "Paper's setting, other lambdas"),
        heat_map(lambda n, t: f"Adam|{n}|{t}", *plane, "Adam to the prior's radius"),
        heat_map(lambda n, t: f"Steer|{n}|{t}", *plane, "Default walk (Steer)"),
    ]  # fmt: skip
    scale = colour_scale([each for block in blocks.values() for each in block] + below)
    canvas = Canvas(figsize=(6.2 * len(blocks) + 0.6, 8.6), layout="constrained")
    upper, lower = canvas.subfigures(2, 1, height_ratios=(3, 1.15))
    for side, (alpha, block) in zip(upper.subfigures(1, len(blocks), squeeze=False)[0], blocks.items(), strict=True):
        side.suptitle(f"The paper's walk, alpha = {alpha:g}", fontsize=10)
        axes = side.subplots(len(grid.particles), len(grid.steps), squeeze=False)
        for one, each in zip(axes.flat, block, strict=True):
            drawn = draw(one, each, scale)
            one.label_outer()
    for one, each in zip(lower.subplots(1, len(below)), below, strict=True):
        drawn = draw(one, each, scale)
    rows = "training rows" if part == "train" else "rows in the gap"
    bar = canvas.colorbar(drawn, ax=lower.axes, extend="max")
    bar.set_label(f"NLL of the {rows}", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    canvas.savefig(path, dpi=130)
