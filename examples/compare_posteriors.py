"""Which posterior to trust: MetricBNN, NUTS, a mean-field guide and the MAP of one network, in one report.

python examples/compare_posteriors.py [--quick] [--out compare_posteriors.html]

The report is one HTML file with a table and pictures, which opens without a network.
"""

import argparse
import time
from pathlib import Path

import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_metricbnn import Gaussian, MetricBNN, bayesianize, compare


def make_data(x: Tensor) -> Tensor:
    return torch.sin(2 * x) + 0.2 * torch.randn_like(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, particles and draws")
    parser.add_argument("--out", type=Path, default=Path("compare_posteriors.html"), help="the report to write")
    arguments = parser.parse_args()
    num_particles, num_steps, num_draws, num_chains = (4, 20, 30, 1) if arguments.quick else (20, 100, 200, 2)
    num_epochs, depth = (50, 3) if arguments.quick else (3000, 6)
    pyro.set_rng_seed(0)
    x = torch.cat([torch.linspace(-2, -0.5, 25), torch.linspace(0.6, 2, 25)])[:, None]  # with a gap
    x_test = torch.linspace(-2.2, 2.2, 80)[:, None]
    y, y_test = make_data(x), make_data(x_test)

    model = bayesianize(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), Gaussian(0.2))
    seconds, began = {}, time.perf_counter()
    metric = MetricBNN(model, num_particles=num_particles, num_steps=num_steps).run(x, y)
    seconds["MetricBNN"], began = time.perf_counter() - began, time.perf_counter()

    samples = []
    for _ in range(num_chains):  # one after another: a process for each would have to import all of this again
        mcmc = MCMC(NUTS(model, max_tree_depth=depth), num_samples=num_draws, warmup_steps=num_draws // 2)
        mcmc.run(x, y)
        samples.append(mcmc.get_samples())
    nuts = {name: torch.stack([chain[name] for chain in samples]) for name in samples[0]}
    seconds["NUTS"], began = time.perf_counter() - began, time.perf_counter()

    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for _ in range(num_epochs):
        svi.step(x, y)
    seconds["AutoNormal"] = time.perf_counter() - began

    trained = {name: value[None] for name, value in metric.map_params.items()}  # one draw: the MAP
    posteriors = {"MetricBNN": metric, "NUTS": nuts, "AutoNormal": guide, "MAP": trained}
    result = compare(model, posteriors, x, y, x_test=x_test, y_test=y_test, reference="NUTS", seconds=seconds)
    print(result)
    result.save_report(arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
