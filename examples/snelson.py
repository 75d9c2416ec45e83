"""Regression with a gap in the data: MAP, Laplace, NUTS and MetricBNN on one network.

python examples/snelson.py [--data DIR] [--quick] [--out gap.png]
"""

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from pyro_metricbnn import BatchedPotential, Gaussian, MetricBNN, bayesianize, plots, predict

NOISE = 0.3


def load(folder: Path | None) -> tuple[Tensor, Tensor]:
    if folder is None:
        x = torch.cat([1.5 * torch.rand(50, 1), 3 + 3 * torch.rand(98, 1)])
        return x, torch.sin(2 * x) * torch.exp(-x / 6) + NOISE * torch.randn_like(x)
    table = np.genfromtxt(folder / "snelson.csv", delimiter=",", skip_header=1, dtype=np.float32)
    rows = torch.from_numpy(table[np.load(folder / "snelson.splits.npz")["gap_train"]])
    return rows[:, :1], rows[:, 1:]


def laplace(net: nn.Module, weights: dict[str, Tensor], x: Tensor, grid: Tensor) -> Tensor:
    """Draws of f on the grid: all weights, Gauss-Newton curvature, the network made linear in them."""
    jacobian = jacrev(lambda w: functional_call(net, w, (torch.cat([x, grid]),)).squeeze(-1))(weights)
    at_data, at_grid = torch.cat([p.flatten(1) for p in jacobian.values()], dim=1).double().split([len(x), len(grid)])
    seen = torch.linalg.solve(at_data @ at_data.T + NOISE**2 * torch.eye(len(x)), at_data @ at_grid.T)
    values, vectors = torch.linalg.eigh(at_grid @ (at_grid.T - at_data.T @ seen))
    spread = torch.randn(400, len(grid)).double() * values.clamp_min(0).sqrt() @ vectors.T
    return functional_call(net, weights, (grid,)) + spread[..., None].float()


def nuts(net: nn.Module, potential: BatchedPotential, start: dict[str, Tensor], num_draws: int) -> dict[str, Tensor]:
    def energy(z: dict[str, Tensor]) -> Tensor:  # the model's, written out: several times as fast in NUTS
        f = functional_call(net, potential.unflatten(z["theta"]), potential.args[:1])
        return (((f - potential.args[1]) / NOISE).pow(2).sum() + z["theta"].pow(2).sum()) / 2

    chain = MCMC(NUTS(potential_fn=energy, max_tree_depth=9), num_draws, 2 * num_draws // 3, initial_params=start)
    chain.run()
    return potential.unflatten(chain.get_samples()["theta"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of snelson.csv and its splits; without it, made data")
    parser.add_argument("--quick", action="store_true", help="fewer units, particles, steps and draws")
    parser.add_argument("--out", default="gap.png", help="the picture to write")
    args = parser.parse_args()
    units, num_particles, num_steps, num_draws = (4, 4, 20, 3) if args.quick else (8, 20, 100, 150)
    pyro.set_rng_seed(0)
    x, y = load(args.data)
    net = nn.Sequential(nn.Linear(1, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), nn.Linear(units, 1))
    model = bayesianize(net, Gaussian(NOISE))
    metric = MetricBNN(model, num_particles=num_particles, num_steps=num_steps).run(x, y)
    star, grid = metric.map_params, torch.linspace(-1, 7, 200)[:, None]
    chain = nuts(net, BatchedPotential(model, x, y), {"theta": metric.trajectories.theta_star}, num_draws)
    trained = predict(model, {name: value[None] for name, value in star.items()}, grid)
    shown = {"MAP": trained, "Laplace": replace(trained, f=laplace(net, star, x, grid))}
    shown |= {"NUTS": predict(model, chain, grid), "MetricBNN": metric.predict(grid, 400)}
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.8), sharey=True, layout="constrained")
    for ax, (name, prediction) in zip(axes, shown.items(), strict=True):
        plots.plot_band(prediction, grid, (x, y), legend=False, ax=ax)
        ax.set(title=f"{name} (± {prediction.model_std[81].item():.2f} in the gap)", ylim=(-3, 3))
        ax.label_outer()
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
