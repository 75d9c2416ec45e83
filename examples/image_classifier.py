"""A trained image classifier and its DataLoader: which digits it is sure of, and should not be.

python examples/image_classifier.py [--quick] [--out image_classifier.png]

scikit-learn's digits. The convolutions stay as they are and are computed once; the dense layers are inferred, in
batches.
"""

import argparse
from typing import Any

import matplotlib.pyplot as plt
import pyro
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import Categorical, bayesianize, choose_temperature


def digits() -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8) and labels, in a random order."""
    found, order = load_digits(), torch.randperm(1797)
    return torch.tensor(found.images, dtype=torch.float32)[order, None] / 16, torch.tensor(found.target)[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--out", default="image_classifier.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)
    images, labels = digits()
    (x, x_held, x_test), (y, y_held, y_test) = images.tensor_split([400, 500]), labels.tensor_split([400, 500])
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    net = nn.Sequential(features, nn.Linear(features(x[:1]).shape[1], 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(20 if arguments.quick else 100):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()

    model = bayesianize(net, Categorical(), where=["1", "3"])  # the dense layers
    walking: dict[str, Any] = {"effort": 0.05 if arguments.quick else 0.5, "map_params": model.trained_params}
    # Labels as clean as these want a cold posterior: how cold, the images that were held out say.
    choice = choose_temperature(
        model, loader, validation=(x_held, y_held), temperatures=(1, 0.1, 0.01), num_particles=10, **walking
    )
    prediction = choice.best.predict(x_test, num_samples=200)
    print(choice)
    own = net(x_test).softmax(-1).detach()
    trained, inferred = nn.functional.nll_loss(own.log(), y_test), -prediction.log_prob(y_test).mean()
    print(f"test NLL: {trained:.3f} as trained, {inferred:.3f} with inferred dense layers")

    sure, said = own.max(-1)
    wrong = torch.where(said != y_test, sure, 0.0).argsort(descending=True)[:8]
    figure, axes = plt.subplots(2, 8, figsize=(10, 3.2), layout="constrained", height_ratios=[2, 1.4])
    for (above, below), i in zip(axes.T, wrong.tolist(), strict=True):
        above.imshow(x_test[i, 0], cmap="gray_r")
        above.set_title(f"a {int(y_test[i])}, not a {int(said[i])}", fontsize=9)
        above.set(xticks=[], yticks=[])
        chances = [float(own[i, said[i]]), float(prediction.probs[i, said[i]])]
        bars = below.barh([1, 0], chances, color=["#D55E00", "#0072B2"])
        below.bar_label(bars, [f"{chance:.0%}" for chance in chances], padding=2, fontsize=8)
        below.set(xlim=(0, 1.6), xticks=[], yticks=[], frame_on=False)
    axes[1, 0].set_yticks([1, 0], ["network", "MetricBNN"])
    figure.suptitle("Where the network is surest of a wrong digit: what it gives it, and what MetricBNN does")
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
