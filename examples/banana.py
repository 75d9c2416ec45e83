"""Classification of two inputs: where the trained network is sure, and where the walk's networks still agree.

python examples/banana.py [--data DIR] [--quick] [--out banana.png]

DIR has banana.csv and banana.splits.npz; without it, made data of the same shape.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, MetricBNN, bayesianize, plots, predict


def load(folder: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x and y of a training and a test part."""
    if folder is None:
        y = torch.randint(2, (1060,))
        angle = math.pi * (torch.rand(1060) + y)
        x = torch.stack([angle.cos() + y - 0.5, angle.sin() + 0.5 * y - 0.25], dim=-1) + 0.3 * torch.randn(1060, 2)
        return x[:265], y[:265], x[265:], y[265:]
    table = torch.from_numpy(np.genfromtxt(folder / "banana.csv", delimiter=",", skip_header=1, dtype=np.float32))
    train, test = (torch.from_numpy(np.load(folder / "banana.splits.npz")[part]).long() for part in ("train", "test"))
    return table[train, :2], table[train, 2].long(), table[test, :2], table[test, 2].long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--quick", action="store_true", help="fewer steps, particles and draws")
    parser.add_argument("--out", type=Path, default=Path("banana.png"), help="the picture to write")
    arguments = parser.parse_args()
    num_particles, num_steps, grid_size = (4, 20, 40) if arguments.quick else (20, 100, 120)
    pyro.set_rng_seed(0)
    x, y, x_test, y_test = load(arguments.data)

    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    model = bayesianize(net, Categorical())
    metric = MetricBNN(model, num_particles=num_particles, num_steps=num_steps).run(x, y)
    trained = {name: value[None] for name, value in metric.map_params.items()}  # one draw: the MAP

    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    looks: dict[str, Any] = {"margin": 0.6, "grid_size": grid_size}
    plots.plot_decision(lambda at: predict(model, trained, at), x, y, colorbar=False, ax=axes[0], **looks)
    plots.plot_decision(metric, x, y, ax=axes[1], **looks)
    predictions = {"MAP": predict(model, trained, x_test), "MetricBNN": metric.predict(x_test)}
    plots.plot_reliability(predictions["MetricBNN"].probs, y_test, ax=axes[2])
    for ax, title in zip(axes, ("MAP", "MetricBNN", "MetricBNN, test data"), strict=True):
        ax.set_title(title)
    for name, prediction in predictions.items():
        print(f"{name}: test NLL {-prediction.log_prob(y_test).mean():.3f}")
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
