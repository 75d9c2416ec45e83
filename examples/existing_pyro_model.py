"""A Pyro model without a network in it: eight schools, by NUTS and by MetricBNN.

python examples/existing_pyro_model.py [--quick] [--out eight_schools.png]
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from pyro_metricbnn import MetricBNN

EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(errors: Tensor, effects: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(errors)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(mu + tau * z, errors), obs=effects)


def quantities(samples: dict[str, Tensor]) -> Tensor:
    """Each draw's overall effect, spread and schools' effects: (S, 10)."""
    mu, tau = samples["mu"][:, None], samples["tau"][:, None]
    return torch.cat([mu, tau, mu + tau * samples["z"]], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, particles and draws")
    parser.add_argument("--out", default="eight_schools.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)

    num_particles, num_draws = (4, 30) if arguments.quick else (20, 600)
    metric = MetricBNN(schools, num_particles=num_particles).run(ERRORS, EFFECTS)
    nuts = MCMC(NUTS(schools), num_samples=num_draws, warmup_steps=num_draws // 2)
    nuts.run(ERRORS, EFFECTS)
    draws = {"NUTS": quantities(nuts.get_samples()), "MetricBNN": quantities(metric.draw(2000))}

    names = ["overall effect", "spread", *(f"school {letter}" for letter in "ABCDEFGH")]
    figure, ax = plt.subplots(figsize=(9, 4.4), layout="constrained")
    for (name, values), colour, shift in zip(draws.items(), ("#D55E00", "#0072B2"), (-0.15, 0.15), strict=True):
        places = torch.arange(len(names)) + shift
        for (low, high), width in (((0.05, 0.95), 1.5), ((0.25, 0.75), 5)):
            ax.hlines(places, values.quantile(low, 0), values.quantile(high, 0), color=colour, lw=width)
        ax.plot(values.mean(0), places, "o", color="white", mec=colour, mew=1.5, ms=6, label=name)
        print(f"{name}: overall effect {values[:, 0].mean():.1f} ± {values[:, 0].std():.1f},", end=" ")
        print(f"spread {values[:, 1].mean():.1f} ± {values[:, 1].std():.1f}")
    ax.plot(EFFECTS, torch.arange(2, 10), "x", color="black", label="observed")
    ax.set(yticks=range(len(names)), yticklabels=names, xlabel="effect (mean, 50 % and 90 % of the draws)")
    ax.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
