"""What a run did: its walks, their energies, the latent segments, and the losses of the paper's autoencoder.

python examples/inside_a_run.py [--quick] [--out inside_a_run.png]
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import torch
from torch import nn

from pyro_metricbnn import AutoencoderMap, Gaussian, MetricBNN, bayesianize, plots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, particles and epochs")
    parser.add_argument("--out", default="inside_a_run.png", help="the picture to write")
    arguments = parser.parse_args()
    num_particles, num_steps, num_epochs = (4, 20, 30) if arguments.quick else (10, 100, 300)
    pyro.set_rng_seed(0)
    x = torch.linspace(-3, 3, 60)[:, None]
    y = torch.sin(2 * x) + 0.3 * torch.randn_like(x)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    latent_map = AutoencoderMap(latent_dim=8, num_epochs=num_epochs)
    metric = MetricBNN(
        bayesianize(net, Gaussian(0.3)), num_particles=num_particles, num_steps=num_steps, latent_map=latent_map
    ).run(x, y)

    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    plots.plot_walks(metric, ax=axes[0, 0]).set_title("walks")
    plots.plot_energy(metric, ax=axes[0, 1]).set_title("energy along the walks")
    plots.plot_segments(metric, ax=axes[1, 0]).set_title("latent segments")
    plots.plot_losses(metric, ax=axes[1, 1]).set_title("training of the latent map")
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
