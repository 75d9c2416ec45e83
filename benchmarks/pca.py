"""Two principal components of MetricBNN's and HMC's samples on Banana for growing T (the paper's last appendix).

    python -m benchmarks pca --data DIR [--quick]

Two layers of 16 Tanh units (the paper's appendix; its text says 6), N(0, 1) prior, 265 training rows. HMC: eight
chains from the MAP. The plane is that of HMC's two components, the axes are the same in all panels. One long walk gives
all T, as its first T steps: our walk with a path of 6 sqrt(D) at T = 100, about the default's, and three times as
long at 300; and the paper's walk (alpha 0.1, M 10, eta 1e-3 on the mean loss) with its autoencoder.

Weight space has symmetries: units of a layer can change places, and a Tanh unit its signs. Chains and walks that leave
one MAP see some of its copies or none, nothing here is aligned, and equal predictions can be far apart in the plane.

Writes `pca.json`, `pca.pt` (the projections), `pca.md` and `pca.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from tqdm import tqdm

from pyro_metricbnn import Categorical, DriftRefineKernel, KernelMap, Steer, predict
from pyro_metricbnn.latent.autoencoder_map import AutoencoderMap
from pyro_metricbnn.latent.posterior import MetricPosterior
from pyro_metricbnn.plots.style import BLACK, BLUE, GREY, VERMILLION
from pyro_metricbnn.refiners.pull_back import Descent
from pyro_metricbnn.walk.trajectories import Trajectories

from . import reference
from .arguments import folder, parser, share
from .datasets import banana
from .prefixes import prefix
from .results import Cell, Results
from .tables import markdown
from .task import Task, trained

HIDDEN = (16, 16)
STEPS = (10, 30, 100, 300)  # T
QUICK_STEPS = (5, 10)
KINDS = {"MetricBNN": VERMILLION, "MetricBNN (paper)": BLUE}
PATH = 6.0  # of 100 steps, in sqrt(D)
NUM_CHAINS, NUM_WARMUP, NUM_ITERATIONS = 8, 100, 250
NUM_DRAWS = 1000
NUM_EPOCHS = 1000
SEED = 1000


class Plane:
    """The mean of HMC's draws and the two directions in which they vary most.

    Args:
        draws: (S, D).
    """

    def __init__(self, draws: Tensor) -> None:
        self.center = draws.mean(0)
        _, singular, axes = torch.linalg.svd(draws - self.center, full_matrices=False)
        self.axes = axes[:2]  # (2, D)
        self.shares = singular[:2].square() / singular.square().sum()

    def of(self, draws: Tensor) -> Tensor:
        """Where draws (S, D) are in it: (S, 2)."""
        return (draws - self.center) @ self.axes.mT


class Samples:
    """All that is sampled, each when it is first asked for and with a seed of its own.

    Args:
        task: The trained network.
        steps: T, of which the last is walked.
    """

    def __init__(self, task: Task, steps: Sequence[int]) -> None:
        self.task, self.steps = task, steps

    @cached_property
    def hmc(self) -> Tensor:
        """The chains' points (S, D)."""
        task = self.task
        pyro.set_rng_seed(SEED)
        warmup, iterations = task.count(NUM_WARMUP, 10), task.count(NUM_ITERATIONS, 10)
        start = task.theta_star.expand(NUM_CHAINS, -1).clone()
        potential = task.potential((warmup + iterations) * 100)
        return reference.hmc(potential, start, warmup, iterations, "HMC").flatten(0, 1)

    @cached_property
    def plane(self) -> Plane:
        """Of HMC's draws."""
        return Plane(self.hmc)

    @cached_property
    def walks(self) -> dict[str, Trajectories]:
        """The longest walk of each kind, from the trained weights."""
        problem, longest = self.task.problem, self.steps[-1]
        kinds = {
            "MetricBNN": (Steer(path=PATH * longest / 100, effort=self.task.share), 20),
            "MetricBNN (paper)": (Descent(alpha=0.1, num_refinements=10, eta=1e-3, mean_loss=True), 10),
        }
        walks = {}
        for name, (refiner, num_particles) in kinds.items():
            pyro.set_rng_seed(SEED + 1)
            kernel = DriftRefineKernel(self.task.model, refiner=refiner, num_steps=longest)
            walks[name] = kernel.walk(
                problem.x, problem.y, num_particles=num_particles, progress=False,
                map_params=dict(self.task.net.named_parameters()),
            )  # fmt: skip
        return walks

    def drawn(self, kind: str, num_steps: int) -> Tensor:
        """Draws (S, D) of the latent posterior of the first T steps."""
        walk = prefix(self.walks[kind], self.walks[kind].num_particles, num_steps)
        pyro.set_rng_seed(SEED + 2)
        if kind == "MetricBNN":
            return MetricPosterior(KernelMap().fit(walk)).sample((NUM_DRAWS,))
        latent = AutoencoderMap.paper(num_epochs=self.task.count(NUM_EPOCHS)).fit(walk, progress=False)
        return MetricPosterior(latent, 0.0).sample((NUM_DRAWS,)).detach()


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    arguments = parser(__doc__ or "").parse_args(argv)
    out = folder(arguments) / "pca"
    steps = QUICK_STEPS if arguments.quick else STEPS
    setting = {"experiment": "pca", "hidden": HIDDEN, "steps": steps, "share": share(arguments)}
    results = Results(out / "pca.json", setting, retry=arguments.retry)
    projections = run(results, arguments, steps, out / "pca.pt")
    report(results.cells, projections, steps, out)


def run(results: Results, arguments: argparse.Namespace, steps: Sequence[int], path: Path) -> dict[str, Tensor]:
    """All cells that are missing, and the projections of all."""
    keys = ["HMC", *(f"{kind}|{num_steps}" for kind in KINDS for num_steps in steps)]
    points: dict[str, Tensor] = torch.load(path, weights_only=True) if path.exists() else {}
    missing = [key for key in keys if key not in results.cells]
    if not missing:
        return points
    samples = Samples(task_of(arguments), steps)
    for key in tqdm(missing, desc="pca", unit=" cells"):
        results.cell(key, partial(measured, samples, key, points))
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(points, path)
    return points


def task_of(arguments: argparse.Namespace) -> Task:
    """The trained network."""
    pyro.set_rng_seed(SEED)
    return trained(banana(arguments.data), Categorical(), HIDDEN, activation=nn.Tanh, share=share(arguments))


def measured(samples: Samples, key: str, points: dict[str, Tensor]) -> Cell:
    """Spread in HMC's plane and in all directions, and the NLL; the projection goes to the points."""
    plane, problem = samples.plane, samples.task.problem
    kind, _, number = key.partition("|")
    draws = samples.drawn(kind, int(number)) if number else samples.hmc
    points[key] = plane.of(draws).clone()
    points["MAP"] = plane.of(samples.task.theta_star[None]).clone()
    weights = samples.task.potential(1).unflatten(draws)
    nll = -float(predict(samples.task.model, weights, problem.x_test).log_prob(problem.y_test).mean())
    hmc = plane.of(samples.hmc)
    return {
        "component_1": float(points[key][:, 0].var() / hmc[:, 0].var()),
        "component_2": float(points[key][:, 1].var() / hmc[:, 1].var()),
        "both": float(points[key].var(0).sum() / hmc.var(0).sum()),
        "all_directions": float(draws.var(0).sum() / samples.hmc.var(0).sum()),
        "distance": float((points[key].mean(0).square() / hmc.var(0)).sum().sqrt()),
        "nll": nll,
        "draws": len(draws),
        "seed": SEED,
        "shares": plane.shares.tolist(),
        "weights": len(plane.center),
    }


# ------------------------------------------------------------------------------------------ report


def table(cells: dict[str, Cell]) -> str:
    """A row a kind of walk and T."""
    names = {
        "component_1": "1st component",
        "component_2": "2nd",
        "both": "both",
        "all_directions": f"all {cells['HMC']['weights']} directions",
    }
    rows = []
    for key, cell in cells.items():
        kind, _, number = key.partition("|")
        if "error" in cell:
            rows.append([kind, number, cell["error"], *[""] * (len(names) + 1)])
            continue
        shown = [f"{cell[name]:.0%}" for name in names]
        rows.append([kind, number, *shown, f"{cell['distance']:.2f}", f"{cell['nll']:.3f}"])
    return markdown(["", "T", *names.values(), "distance of the means, HMC's deviations", "test NLL"], rows)


def report(cells: dict[str, Cell], points: dict[str, Tensor], steps: Sequence[int], out: Path) -> None:
    """Table and picture."""
    shares = cells["HMC"].get("shares") if "HMC" in cells else None
    if shares is None:
        print(f"HMC has no result: {cells.get('HMC')}")
        return
    first, second = (f"{share:.1%}" for share in shares)
    text = "\n\n".join(
        [
            "### Variance along HMC's principal components, as a part of HMC's",
            table(cells),
            f"The two components have {first} and {second} of HMC's variance. Nothing is aligned: weight space has "
            "symmetries, units that change places or signs, so that equal predictions can be far apart.",
        ]
    )
    (out / "pca.md").write_text(text + "\n")
    print(text)
    if any(key not in points for key in cells if "error" not in cells[key]):
        print(f"No picture: the points of these results are not in {out}.")
        return
    picture(points, steps, shares, out / "pca.png")


def picture(points: dict[str, Tensor], steps: Sequence[int], shares: Sequence[float], path: Path) -> None:
    """A row a kind of walk, a panel a T, HMC's points behind."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    canvas = Canvas(figsize=(2.9 * len(steps), 2.9 * len(KINDS) + 0.5), layout="constrained")
    grid = canvas.subplots(len(KINDS), len(steps), squeeze=False, sharex=True, sharey=True)
    hmc = points["HMC"].numpy()
    style: dict[str, Any] = {"linewidths": 0, "rasterized": True}
    for row, (kind, color) in zip(grid, KINDS.items(), strict=True):
        for axes, num_steps in zip(row, steps, strict=True):
            axes.scatter(*hmc.T, s=7, color=GREY, alpha=0.35, **style)
            key = f"{kind}|{num_steps}"
            if key in points:
                axes.scatter(*points[key].numpy().T, s=7, color=color, alpha=0.6, **style)
            axes.plot(*points["MAP"].numpy()[0], "+", color=BLACK, markersize=9, markeredgewidth=1.5)
            axes.set_title(f"{kind}, T = {num_steps}", fontsize=9)
            axes.grid(alpha=0.2)
    for axes in grid[-1]:
        axes.set_xlabel(f"HMC's 1st component ({shares[0]:.1%})", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"2nd component ({shares[1]:.1%})", fontsize=8)
    handles = [_dot(name, color) for name, color in {"HMC": GREY, **KINDS}.items()]
    handles.append(Line2D([], [], linestyle="", marker="+", markeredgewidth=1.5, color=BLACK, label="MAP"))
    canvas.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    canvas.savefig(path, dpi=130)


def _dot(name: str, color: str) -> Any:
    """For the legend, as dark as its name."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker="o", markersize=5, color=color, label=name)
