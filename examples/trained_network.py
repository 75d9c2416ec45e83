"""From a trained network to uncertainty: where there is no data, the walk's networks disagree.

python examples/trained_network.py [--quick] [--out trained_network.png]
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import torch
from torch import nn

from pyro_metricbnn import Gaussian, MetricBNN, bayesianize, plots

NOISE = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and particles")
    parser.add_argument("--out", default="trained_network.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)

    x = torch.rand(100, 1) * 4 - 2
    x = torch.where(x > 0, x + 1, x - 1)  # no data from -1 to 1
    y = torch.sin(2 * x) + NOISE * torch.randn_like(x)

    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-3)
    for step in range(200 if arguments.quick else 1000):
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        if step % 200 == 199:
            print(f"training step {step + 1}: mean squared error {loss.item():.3f}")

    # A trained network -> a Pyro model -> walks on its low-loss fiber, straightened -> predictions.
    model = bayesianize(net, Gaussian(NOISE))
    metric = MetricBNN(model, num_particles=4 if arguments.quick else 20, num_steps=20 if arguments.quick else 100)
    metric.run(x, y)
    grid = torch.linspace(-4, 4, 200)[:, None]
    prediction = metric.predict(grid, num_samples=400)

    std, inside = prediction.model_std.squeeze(), grid.squeeze().abs() < 1
    at_data = (grid.squeeze().abs() > 1) & (grid.squeeze().abs() < 3)
    print(f"deviation of the function: {std[at_data].mean():.2f} at the data, {std[inside].mean():.2f} in the gap")

    ax = plt.subplots(figsize=(9, 4), layout="constrained")[1]
    plots.plot_band(prediction, grid, (x, y), legend=False, ax=ax)
    ax.plot(grid, net(grid).detach(), color="#D55E00", linestyle="--", label="the trained network")
    ax.set_title("From one trained network")
    ax.figure.legend(loc="outside lower center", ncols=3, frameon=False)
    ax.figure.savefig(arguments.out, dpi=120)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
