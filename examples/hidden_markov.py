"""A loop over time in a Pyro model: a hidden Markov model of two states, its states summed out, beside the truth.

python examples/hidden_markov.py [--quick] [--out hidden_markov.png]
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_metricbnn import MetricBNN

TRUTH = {"stay in A": 0.9, "stay in B": 0.8, "mean of A": -1.0, "mean of B": 1.0, "noise": 0.6}


def switching(y: Tensor) -> None:
    stay = pyro.sample("stay", dist.Beta(torch.full((2,), 4.0), 1.0).to_event(1))
    mean = pyro.sample("mean", dist.Normal(torch.tensor([-1.0, 1.0]), 1.0).to_event(1))
    move = torch.stack([torch.stack([stay[0], 1 - stay[0]]), torch.stack([1 - stay[1], stay[1]])]).log()
    seen = dist.Normal(mean, pyro.sample("noise", dist.HalfNormal(1.0))).log_prob(y[:, None])  # (T, 2)
    state = seen[0] + torch.tensor(0.5).log()
    for now in seen[1:]:  # the forward algorithm: log p(y up to t, state at t)
        state = (state[:, None] + move).logsumexp(0) + now
    pyro.factor("observed", state.logsumexp(0))


def made(length: int) -> tuple[Tensor, Tensor]:
    (*stay, _, _, noise), states = TRUTH.values(), [0]
    for chance in torch.rand(length - 1):
        states.append(states[-1] if chance < stay[states[-1]] else 1 - states[-1])
    return torch.tensor(states), 2.0 * torch.tensor(states) - 1 + noise * torch.randn(length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a shorter series, fewer particles")
    parser.add_argument("--out", default="hidden_markov.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)
    (states, y), num_particles = made(30 if arguments.quick else 150), 4 if arguments.quick else 20
    draws = MetricBNN(switching, num_particles=num_particles, num_steps=30).run(y).draw(1000)
    values = torch.cat([draws["stay"], draws["mean"], draws["noise"][:, None]], dim=1)
    figure, (above, below) = plt.subplots(2, figsize=(9, 5), layout="constrained", height_ratios=(2, 3))
    above.plot(y, ".", 2 * states - 1, "k", ms=4, lw=1, drawstyle="steps-mid")
    above.set(xlabel="time", ylabel="observed", title="A series (dots) and its hidden state (line)")
    for place, (name, true) in enumerate(TRUTH.items()):
        low, middle, high = values[:, place].quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
        print(f"{name}: {middle:.2f}, 90 % from {low:.2f} to {high:.2f}; the truth is {true}")
        below.hlines(place, low, high, color="#0072B2", lw=4)
        below.plot(true, place, "x", color="black", mew=2)
    below.set(yticks=range(len(TRUTH)), yticklabels=TRUTH, ylim=(4.5, -0.5), xlabel="90 % of the draws; x: the truth")
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
