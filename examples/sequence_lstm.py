"""All weights of an LSTM that tells waves whose frequency rises from those whose frequency falls.

python examples/sequence_lstm.py [--quick] [--out sequence_lstm.png]
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, MetricBNN, bayesianize


class Classifier(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, hidden, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def made(num_rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Waves whose frequency rises (1) or falls (0), in noise: (n, T, 1) and (n,)."""
    time, y = torch.linspace(0, 1, length), torch.randint(0, 2, (num_rows,))
    phase = 6.28 * (2 * time + 1.5 * (2 * y[:, None] - 1) * (time - 1) * time + torch.rand(num_rows, 1))
    return (torch.sin(phase) + 0.8 * torch.randn(num_rows, length))[..., None], y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and particles")
    parser.add_argument("--out", default="sequence_lstm.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)
    (x, y), (x_test, y_test), net = made(60, 15), made(400, 15), Classifier()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    for _ in range(50 if arguments.quick else 300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    metric = MetricBNN(bayesianize(net, Categorical()), num_particles=3 if arguments.quick else 10, num_steps=20)
    metric.run(x, y, max_iterations=20 if arguments.quick else 100)
    probs = {"the trained network": net(x_test).softmax(-1).detach(), "MetricBNN": metric.predict(x_test).probs}
    ax = plt.subplots(figsize=(9, 3.6), layout="constrained")[1]
    for (name, p), colour in zip(probs.items(), ("#D55E00", "#0072B2"), strict=True):
        sure, right = p.max(-1).values.sort().values, (p.argmax(-1) == y_test).float().mean()
        print(f"{name}: {right:.0%} right, NLL {nn.functional.nll_loss(p.log(), y_test):.2f}")
        ax.plot(torch.linspace(0, 1, len(sure)), sure, color=colour, lw=2, label=f"{name}, says {sure.mean():.0%}")
        ax.axhline(float(right), color=colour, lw=1, ls=":", label=f"is right in {right:.0%}")
    ax.set(xlabel="part of the test sequences", ylabel="probability of the likelier class", ylim=(0.48, 1.02))
    ax.figure.legend(loc="outside lower center", ncols=2, frameon=False)
    ax.figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
