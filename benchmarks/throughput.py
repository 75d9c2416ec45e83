"""Gradients per second of a Pyro model's energy, and what a walk costs as the network grows.

    python -m benchmarks.throughput            # 10 minutes on two cores
    python -m benchmarks.throughput --quick    # one size, no walks

Contenders, all for the same Pyro model, timed in turns within one run:
- `pyro`: a loop over particles of the gradient of Pyro's own potential_fn, as its NUTS takes it, with Pyro's
  default settings; `pyro, bare`: the same with validation off, as inside Pyro's MCMC;
- `vmap`: torch.func.vmap of its gradient;
- `traced`, `compiled`: ours;
- `limit`: the same network written by hand as batched matrix products, without Pyro, compiled.

Writes throughput.json, throughput.md and throughput.png into --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor, nn
from torch.func import grad_and_value

from pyro_metricbnn import BatchedPotential, DriftRefineKernel, Gaussian, Steer, bayesianize

from .networks import mlp, train, wiggle
from .results import this_run

NOISE = 0.3


def pyro_loop(model: Any, potential: BatchedPotential, x: Tensor, y: Tensor, validate: bool) -> Callable[[Tensor], Any]:
    """Pyro's own energy, one particle after another."""
    with pyro.validation_enabled(validate):
        _, potential_fn, _, _ = initialize_model(model, (x, y))

    def run(theta: Tensor) -> list[Any]:
        with pyro.validation_enabled(validate):
            return [potential_grad(potential_fn, potential.sites.unconstrained(particle)) for particle in theta]

    return run


def by_hand(net: nn.Sequential, x: Tensor, y: Tensor) -> Callable[[Tensor], Any]:
    """The energy of the network as batched products, all particles at once, compiled."""
    shapes = [p.shape for p in net.parameters()]

    def energy(theta: Tensor) -> Tensor:
        parts = theta.split([shape.numel() for shape in shapes], dim=-1)
        h = x.expand(len(theta), -1, -1)
        for i in range(0, len(parts), 2):
            weight, bias = parts[i].view(-1, *shapes[i]), parts[i + 1]
            h = torch.baddbmm(bias[:, None], h, weight.mT)
            h = h.relu() if i + 2 < len(parts) else h
        return ((h - y) ** 2).sum() / (2 * NOISE**2) + (theta**2).sum() / 2

    return torch.compile(grad_and_value(energy), dynamic=False)


def medians(contenders: dict[str, Callable[[], Any]], rounds: int = 9, turn: float = 0.1) -> dict[str, float]:
    """Median seconds a call of each. They take turns of at least `turn` seconds: a walk, too, calls without pause."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            run()
            run()  # compiled, and its data in the cache
            calls, begin = 0, time.perf_counter()
            while calls < 3 or time.perf_counter() - begin < turn:
                run()
                calls += 1
            seconds[name].append((time.perf_counter() - begin) / calls)
    return {name: statistics.median(times) for name, times in seconds.items()}


def measure(num_particles: int, depth: int, width: int) -> dict[str, Any]:
    """Gradients per second of every contender for one size."""
    x, y = wiggle()
    net = mlp(1, *[width] * depth, 1)
    model = bayesianize(net, Gaussian(NOISE))
    potential = BatchedPotential(model, x, y)
    theta = 0.3 * torch.randn(num_particles, potential.dim)
    loop, bare_loop = (pyro_loop(model, potential, x, y, validate) for validate in (True, False))
    limit = by_hand(net, x, y)
    ours = {mode: potential.using(mode=mode) for mode in ("vmap", "trace", "compile")}
    seconds = medians(
        {
            "pyro": lambda: loop(theta),
            "pyro, bare": lambda: bare_loop(theta),
            "vmap": lambda: ours["vmap"].value_and_grad(theta),
            "traced": lambda: ours["trace"].value_and_grad(theta),
            "compiled": lambda: ours["compile"].value_and_grad(theta),
            "limit": lambda: limit(theta),
        }
    )
    rates = {name: num_particles / median for name, median in seconds.items()}
    return {"num_particles": num_particles, "depth": depth, "width": width, "dim": potential.dim, "rates": rates}


def walk_cost(depth: int, width: int = 64) -> dict[str, Any]:
    """Seconds of a tenth of a default walk of 20 particles from a trained network; gradients not compiled."""
    x, y = wiggle()
    net = train(mlp(1, *[width] * depth, 1), x, y, NOISE)
    refiner = Steer(path=0.6, warmup=0.0)
    kernel = DriftRefineKernel(bayesianize(net, Gaussian(NOISE)), refiner=refiner, num_steps=10, compile=False)
    begin = time.perf_counter()
    walk = kernel.walk(x, y, progress=False)
    seconds = time.perf_counter() - begin
    gradients = int(walk.gradients[-1])
    return {"depth": depth, "dim": walk.thetas.shape[-1], "seconds": seconds, "gradients": gradients}


def table(rows: list[dict[str, Any]], walks: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    names = list(rows[0]["rates"])
    lines = [
        "| N | depth | D | "
        + " | ".join(f"{name}, grad/s" for name in names)
        + " | ours / pyro | ours / bare | ours / limit |"
    ]
    lines.append("|" + "---|" * (len(names) + 6))
    for row in rows:
        rates = row["rates"]
        ratios = [f"{rates['compiled'] / rates[name]:.3g}" for name in ("pyro", "pyro, bare", "limit")]
        cells = [str(row["num_particles"]), str(row["depth"]), str(row["dim"])]
        lines.append("| " + " | ".join([*cells, *(f"{rates[name]:.0f}" for name in names), *ratios]) + " |")
    if walks:
        lines += [
            "",
            "| depth | D | a tenth of a walk, s | gradients | ms a gradient of 20 particles |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {w['depth']} | {w['dim']} | {w['seconds']:.1f} | {w['gradients']} | "
            f"{1000 * w['seconds'] / w['gradients']:.2f} |"
            for w in walks
        ]
    return "\n".join(lines) + "\n"


def picture(rows: list[dict[str, Any]], walks: list[dict[str, Any]], path: Path) -> None:
    """Rates by contender, and the cost of a walk by depth."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2 if walks else 1, figsize=(11 if walks else 6, 4), squeeze=False)
    names = {"pyro, bare": "Pyro, loop", "vmap": "vmap", "traced": "traced", "compiled": "compiled", "limit": "by hand"}
    colors = ["#999999", "#56B4E9", "#0072B2", "#D55E00", "#000000"]  # Okabe-Ito: told apart by colour-blind readers
    left = axes[0, 0]
    for i, (name, label) in enumerate(names.items()):
        positions = [row + (i - 2) * 0.16 for row in range(len(rows))]
        left.bar(positions, [row["rates"][name] for row in rows], 0.16, label=label, color=colors[i])
    left.set_yscale("log")
    left.set_xticks(range(len(rows)), [f"{row['num_particles']}\n{row['depth']}" for row in rows])
    left.set(xlabel="particles (above), hidden layers (below)", ylabel="gradients per second", title="One Pyro model")
    left.legend(frameon=False, fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    if walks:
        right = axes[0, 1]
        depths = [w["depth"] for w in walks]
        right.plot(depths, [1000 * w["seconds"] / w["gradients"] for w in walks], "o-", color="#D55E00")
        right.set(xlabel="hidden layers of 64 units", ylabel="ms a gradient of 20 particles", ylim=(0, None))
        right.set_title("Cost of a walk step, not compiled")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="one size, no walks")
    parser.add_argument("--walks-only", action="store_true", help="one size, and the walks")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    pyro.set_rng_seed(0)
    sizes = (
        [(20, 3)]
        if arguments.quick or arguments.walks_only
        else [(20, 3), *((n, depth) for depth in (1, 3, 9) for n in (1, 10, 50))]
    )
    rows, walks = [], []
    for num_particles, depth in sizes:
        rows.append(measure(num_particles, depth, width=32))
        print(rows[-1], flush=True)
    for depth in [] if arguments.quick else range(1, 10):
        walks.append(walk_cost(depth))
        print(walks[-1], flush=True)
    result = {**this_run(), "seed": 0, "rates": rows, "walks": walks}
    (arguments.out / "throughput.json").write_text(json.dumps(result, indent=1))
    (arguments.out / "throughput.md").write_text(table(rows, walks))
    picture(rows, walks, arguments.out / "throughput.png")
    print(table(rows, walks))


if __name__ == "__main__":
    main()
