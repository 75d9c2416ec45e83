"""The last layer of a small convolutional network on handwritten digits, made Bayesian with `where=`.

python examples/last_layer.py [--quick] [--out last_layer.png]
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import torch
from sklearn.datasets import load_digits
from torch import nn

from pyro_metricbnn import Categorical, MetricBNN, bayesianize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and particles")
    parser.add_argument("--out", default="last_layer.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)
    digits = load_digits()
    images, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    order = torch.randperm(len(y))
    rows, test = order[:100], order[100:1100]
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 16), nn.Tanh())
    net = nn.Sequential(features, nn.Linear(16, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60 if arguments.quick else 300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[rows]), y[rows]).backward()
        optimizer.step()

    model = bayesianize(net, Categorical(), where="1", prior_scale=3.0)  # "1" is the name of the last layer
    metric = MetricBNN(model, num_particles=4 if arguments.quick else 20, num_steps=20 if arguments.quick else 100)
    metric.run(images[rows], y[rows], max_iterations=50 if arguments.quick else 500)
    prediction = metric.predict(images[test], num_samples=200)
    logs = net(images[test]).log_softmax(-1).detach()
    print(f"test NLL: {nn.functional.nll_loss(logs, y[test]):.3f} as trained, ", end="")
    print(f"{-prediction.log_prob(y[test]).mean():.3f} with a Bayesian last layer")

    figure, axes = plt.subplots(2, 8, figsize=(9, 2.7), layout="constrained")
    unsure = prediction.entropy.argsort()
    for row, (chosen, said) in enumerate([(unsure[:8], "sure"), (unsure[-8:], "least sure")]):
        for ax, number in zip(axes[row], chosen, strict=True):
            probability, label = prediction.probs[number].max(0)
            right = "#0072B2" if label == y[test][number] else "#D55E00"
            ax.imshow(images[test][number, 0], cmap="gray_r")
            ax.set_title(f"{label}: {probability:.0%}", color=right, fontsize=10)
            ax.set(xticks=[], yticks=[])
        axes[row, 0].set_ylabel(said)
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
