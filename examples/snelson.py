"""Regression with a gap in the data: MAP, Laplace, NUTS and MetricBNN on one network.

python examples/snelson.py [--data DIR] [--quick] [--out gap.png]

DIR has snelson.csv and snelson.splits.npz; without it, made data of the same shape. NUTS takes nearly all the time.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from pyro_metricbnn import BatchedPotential, Gaussian, MetricBNN, bayesianize, plots, predict
from pyro_metricbnn.predictive import Prediction

NOISE = 0.3


def load(folder: Path | None) -> tuple[Tensor, Tensor]:
    if folder is None:
        x = torch.rand(148, 1) * 4.5
        x = torch.where(x > 1.5, x + 1.5, x)
        return x, torch.sin(2 * x) * torch.exp(-x / 6) + NOISE * torch.randn_like(x)
    table = np.genfromtxt(folder / "snelson.csv", delimiter=",", skip_header=1, dtype=np.float32)
    x, y = torch.from_numpy(table[np.load(folder / "snelson.splits.npz")["gap_train"]]).T[..., None]
    return x, y


def laplace(net: nn.Module, x: Tensor, grid: Tensor) -> Tensor:
    """Draws of f on the grid: all weights, Gauss-Newton curvature, the network made linear in them."""
    weights = {name: value.detach() for name, value in net.named_parameters()}
    jacobian = jacrev(lambda w: functional_call(net, w, (torch.cat([x, grid]),)).squeeze(-1))(weights)
    rows = torch.cat([part.flatten(1) for part in jacobian.values()], dim=1).double()
    at_data, at_grid = rows.split([len(x), len(grid)])
    gram = at_data @ at_data.T + NOISE**2 * torch.eye(len(x))
    covariance = at_grid @ at_grid.T - at_grid @ at_data.T @ torch.linalg.solve(gram, at_data @ at_grid.T)
    values, vectors = torch.linalg.eigh(covariance)
    spread = torch.randn(400, len(grid)).double() * values.clamp_min(0).sqrt() @ vectors.T
    return net(grid).detach() + spread[..., None].float()


def nuts(net: nn.Module, potential: BatchedPotential, x: Tensor, y: Tensor, num_draws: int) -> dict[str, Tensor]:
    def energy(z: dict[str, Tensor]) -> Tensor:  # that of the model, written out: several times as fast in NUTS
        misfit = (functional_call(net, potential.unflatten(z["theta"]), (x,)) - y) / NOISE
        return (misfit.pow(2).sum() + z["theta"].pow(2).sum()) / 2

    start = {"theta": potential.flatten(dict(net.named_parameters())).detach()}
    chain = MCMC(NUTS(potential_fn=energy, max_tree_depth=9), num_draws, 2 * num_draws // 3, initial_params=start)
    chain.run()
    return potential.unflatten(chain.get_samples()["theta"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--quick", action="store_true", help="fewer steps, particles and draws")
    parser.add_argument("--out", type=Path, default=Path("gap.png"), help="the picture to write")
    arguments = parser.parse_args()
    width, num_particles, num_steps, num_draws = (4, 4, 20, 5) if arguments.quick else (8, 20, 100, 150)
    pyro.set_rng_seed(0)
    x, y = load(arguments.data)
    net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    model = bayesianize(net, Gaussian(NOISE))
    metric = MetricBNN(model, num_particles=num_particles, num_steps=num_steps).run(x, y)
    net.load_state_dict(metric.map_params)

    grid = torch.linspace(-1, 7, 200)[:, None]
    chain = nuts(net, BatchedPotential(model, x, y), x, y, num_draws)
    predictions = {
        "MAP": Prediction(f=net(grid).detach()[None], likelihood=Gaussian(NOISE), parameters={}),
        "Laplace": Prediction(f=laplace(net, x, grid), likelihood=Gaussian(NOISE), parameters={}),
        "NUTS": predict(model, chain, grid),
        "MetricBNN": metric.predict(grid, num_samples=400),
    }
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), sharey=True, layout="constrained")
    for ax, (name, prediction) in zip(axes, predictions.items(), strict=True):
        plots.plot_band(prediction, grid, (x, y), legend=False, ax=ax)
        ax.set(title=name, ylabel="y" if name == "MAP" else "", ylim=(-4.5, 3.5))
        print(f"{name}: deviation of the function at x = 2.25, in the gap: {float(prediction.model_std[81]):.2f}")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
