"""All weights of a transformer encoder: does a sequence of symbols hold the same one twice?

python examples/transformer.py [--quick] [--out transformer.png]
"""

import argparse

import pyro
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, MetricBNN, bayesianize, plots

NUM_SYMBOLS, LENGTH = 8, 4


class Encoder(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS, width)
        self.encoder = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))


def made(num_rows: int) -> tuple[Tensor, Tensor]:
    """Sequences (n, T), and whether a symbol is in them twice (n,)."""
    x = torch.randint(0, NUM_SYMBOLS, (num_rows, LENGTH))
    ordered = x.sort(1).values
    return x, (ordered[:, 1:] == ordered[:, :-1]).any(1).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and particles")
    parser.add_argument("--out", default="transformer.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)
    (x, y), (x_test, y_test), net = made(150), made(500), Encoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(50 if arguments.quick else 300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    metric = MetricBNN(bayesianize(net, Categorical()), num_particles=3 if arguments.quick else 10, num_steps=20)
    metric.run(x, y, max_iterations=20 if arguments.quick else 100)
    prediction, trained = metric.predict(x_test), net.eval()(x_test).log_softmax(-1).detach()
    nll = nn.functional.nll_loss(trained, y_test), -prediction.log_prob(y_test).mean()
    print(f"test NLL: {nll[0]:.2f} as trained, {nll[1]:.2f} by MetricBNN")
    ax = plots.plot_reliability(prediction.probs, y_test)
    ax.set_title("A transformer encoder, all weights")
    ax.figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
