"""Inputs from elsewhere: a classifier of the digits 0 to 4 that is shown the digits 5 to 9.

python examples/out_of_distribution.py [--quick] [--out out_of_distribution.png]

A network gives every image a class. How far its draws disagree, the mutual information, tells the images that it has
never seen the like of from those that are only hard.
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import torch
from sklearn.datasets import load_digits
from torch import nn

from pyro_metricbnn import Categorical, MetricBNN, bayesianize, plots
from pyro_metricbnn.diagnostics import detection
from pyro_metricbnn.predictions.prediction import Prediction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and particles")
    parser.add_argument("--out", default="out_of_distribution.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)
    digits, order = load_digits(), torch.randperm(1797)
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    known, elsewhere = labels < 5, images[labels >= 5]
    (x, x_test), (y, y_test) = images[known].tensor_split([500]), labels[known].tensor_split([500])

    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    model = bayesianize(net, Categorical())
    count = 4 if arguments.quick else 10
    # Labels as clean as these want a colder posterior than 1: see temperature="auto".
    metric = MetricBNN(model, num_particles=count, effort=0.05 if arguments.quick else 0.5, temperature=0.1)
    metric.run(x, y, map_params=model.trained_params)
    inside, outside = (metric.predict(rows, num_samples=200) for rows in (x_test, elsewhere))
    with torch.no_grad():
        own = [Prediction(f=net(rows)[None], likelihood=Categorical(), parameters={}) for rows in (x_test, elsewhere)]
    print(f"test NLL: {-own[0].log_prob(y_test).mean():.3f} as trained, {-inside.log_prob(y_test).mean():.3f} inferred")
    print("network's entropy:    ", detection(*own, score="entropy"))
    print("mutual information:   ", detection(inside, outside, score="mutual_information"))

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained", width_ratios=[1, 1, 0.8])
    plots.plot_detection(*own, score="entropy", ax=axes[0])
    axes[0].set_title("the network's entropy", fontsize=10)
    plots.plot_detection(inside, outside, score="mutual_information", ax=axes[1])
    axes[1].set_title("MetricBNN's mutual information", fontsize=10)
    sure = own[1].probs.amax(-1).argsort(descending=True)[:6]  # what the network is surest of, and has never seen
    shown = nn.functional.pad(elsewhere[sure], (1, 1, 1, 1)).reshape(2, 3, 10, 10)
    axes[2].imshow(shown.permute(0, 2, 1, 3).reshape(20, 30), "gray_r")
    least, most = float(own[1].probs.amax(-1)[sure].min()), float(sureness(outside, sure))
    axes[2].set_title(f"unknown digits that the network\nis {least:.1%} sure of; MetricBNN {most:.0%}", fontsize=10)
    axes[2].axis("off")
    figure.savefig(arguments.out, dpi=100)


def sureness(prediction: Prediction, rows: torch.Tensor) -> torch.Tensor:
    """The mean of how sure a prediction is of its own class at these rows."""
    return prediction.probs.amax(-1)[rows].mean()


if __name__ == "__main__":
    main()
