"""The walk and NUTS of one model side by side in ArviZ: summaries, leave-one-out scores, a picture.

python examples/arviz_comparison.py [--quick] [--out arviz_comparison.png]

Runs with ArviZ 0.x and 1.x.
"""

import argparse
import time

import arviz as az
import matplotlib
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from pyro_metricbnn import MetricBNN, to_arviz

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter", "Hotchkiss", "Lawrenceville", "St. Paul's", "Mt. Hermon"]
EFFECT = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12])
ERROR = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18])


def eight_schools(error: Tensor, effect: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("school", len(error)):
        offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * offset)
        pyro.sample("obs", dist.Normal(theta, error), obs=effect)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer draws")
    parser.add_argument("--out", default="arviz_comparison.png", help="the picture to write")
    arguments = parser.parse_args()
    pyro.set_rng_seed(0)

    began = time.perf_counter()
    metric = MetricBNN(eight_schools, num_particles=4 if arguments.quick else 20).run(ERROR, EFFECT)
    walked = time.perf_counter()
    num_samples, depth = (200, 3) if arguments.quick else (1000, 10)
    mcmc = MCMC(NUTS(eight_schools, max_tree_depth=depth), num_samples=num_samples, warmup_steps=num_samples // 2)
    mcmc.run(ERROR, EFFECT)
    print(f"the walk took {walked - began:.0f} s, NUTS {time.perf_counter() - walked:.0f} s")

    # The same groups, variables, dims and coords, whatever the draws come from. Without num_samples the first would
    # be the walk's own points, a chain for each particle; ArviZ 1.x plots only models with as many draws together.
    labels = {"school": SCHOOLS}
    exports = {
        "MetricBNN": metric.to_arviz(num_samples=num_samples, coords=labels),
        "NUTS": to_arviz(mcmc, eight_schools, ERROR, EFFECT, coords=labels),
    }
    for name, data in exports.items():
        print(f"\n{name}\n{az.summary(data, var_names=['mu', 'tau', 'theta'], kind='stats')}")
    print(f"\nleave-one-out\n{az.compare(exports).to_string()}")

    shown, title = {"var_names": ["mu", "tau", "theta"], "combined": True}, "Eight schools: 50 % and 90 % intervals"
    if "InferenceData" in vars(az):  # ArviZ 0.x
        shown.update(model_names=list(exports), hdi_prob=0.9, figsize=(7, 6), textsize=11)
        ax = az.plot_forest(list(exports.values()), **shown)[0]
        ax.set(title=title, xlabel="effect, in points of the test")
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.11), "ncols": 2}
        ax.legend(ax.get_legend().legend_handles[::-1], list(exports), **place)  # beside the intervals, not on them
    else:
        plot = az.plot_forest(exports, ci_probs=(0.5, 0.9), figure_kwargs={"figsize": (8, 6)}, **shown)
        plot.add_legend("model", title="", loc="outside upper right")
        plt.suptitle(title)
    plt.savefig(arguments.out, dpi=150, bbox_inches="tight")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
