"""Simulation-based calibration (Talts et al. 2018): the rank of the truth among draws, over many made data sets.

    python -m benchmarks sbc [NAME ...] [--replications 200] [--quick]

Parameters are drawn from the prior and data from the parameters; a run with the defaults then gives draws of the
posterior. Where these are right, the rank of the truth among them is uniform: draws that are too narrow give many low
and high ranks, too wide ones many in the middle, and biased ones a slope. Ranks among 99 latent draws and among 99 of
the walk's own points, spread evenly over it. Figures: the p-value of chi-square over 10 bins, and the largest distance
of the ranks' distribution from the uniform one (Kolmogorov) beside its 99 % critical value. Writes `sbc.json`,
`sbc.md` and `sbc.png`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm

from pyro_metricbnn import Gaussian, MetricBNN, bayesianize, predict
from pyro_metricbnn.plots.style import BLACK, BLUE, GREY, SKY, VERMILLION

from .arguments import folder, parser, share
from .pictures import panels
from .results import Cell, Results
from .tables import markdown

NUM_RANKED = 99  # draws: 100 ranks, which 10 bins part evenly
NUM_BINS = 10
SOURCES = ("latent draws", "walk")
Samples = Mapping[str, Tensor]


# ---------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Study:
    """A model and what is ranked."""

    name: str
    model: Callable[..., Any]
    inputs: tuple[Any, ...]  # its arguments without the data, which come last
    quantities: Callable[[Samples], dict[str, Tensor]]  # from samples (S, ...), each (S,)
    data: str = "y"  # the site of the data
    part: float = 1.0  # of the replications: fewer where a run takes long


def normal(num: Tensor, y: Tensor | None = None) -> None:
    """Unknown mean and scale."""
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(num)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def logistic(x: Tensor, y: Tensor | None = None) -> None:
    """A regression of three coefficients."""
    weights = pyro.sample("weights", dist.Normal(0.0, 1.5).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def groups(sigma: Tensor, y: Tensor | None = None) -> None:
    """Effects of groups, non-centred."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(5.0))
    with pyro.plate("groups", len(sigma)):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)


def effects(samples: Samples) -> dict[str, Tensor]:
    """The two that all groups share, and the first group's own."""
    mu, tau = samples["mu"], samples["tau"]
    return {"mu": mu, "log tau": tau.log(), "effect 1": mu + tau * samples["eta"][:, 0]}


def network() -> Study:
    """1-8-1, tanh: by its function, as hidden units can change places."""
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    model = bayesianize(net, Gaussian(0.3), prior_scale=1.0)
    x = torch.linspace(-1.5, 1.5, 20)[:, None]
    places = torch.tensor([[-1.0], [0.5], [2.5]])

    def functions(samples: Samples) -> dict[str, Tensor]:
        values = predict(model, dict(samples), places).f[..., 0]  # (S, 3)
        return {f"f({float(place):g})": value for place, value in zip(places, values.unbind(1), strict=True)}

    return Study("network", model, (x,), functions, data="obs", part=0.5)


def studies() -> tuple[Study, ...]:
    """Four of different kinds, on few data, so that a run is quick and the prior matters."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.ones(30, 1), torch.randn(30, 2, generator=generator)], dim=1)
    sigma = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]) / 2
    return (
        Study("normal", normal, (torch.zeros(10),), lambda s: {"mean": s["mean"], "scale": s["scale"]}),
        Study("logistic", logistic, (x,), lambda s: {f"weight {i}": s["weights"][:, i] for i in range(3)}),
        Study("groups", groups, (sigma,), effects),
        network(),
    )


# ------------------------------------------------------------------------------------------------ ranks


def rank(truth: float, draws: Tensor) -> int:
    """How many of the draws are below the truth."""
    return int((draws < truth).sum())


def spread_evenly(samples: Samples, num: int) -> dict[str, Tensor]:
    """So many of the walks' points (N, T, ...), without the first tenth of each: from all walks, at even places.

    The first points are near the MAP, from where all of them left.
    """
    found = {}
    for name, value in samples.items():
        later = value[:, value.shape[1] // 10 :].flatten(0, 1)
        found[name] = later[torch.linspace(0, len(later) - 1, num).round().long()]
    return found


def simulated(study: Study) -> tuple[dict[str, float], Tensor]:
    """Quantities from the prior, and data from them."""
    nodes = pyro.poutine.trace(study.model).get_trace(*study.inputs).nodes
    drawn = {name: node["value"].detach() for name, node in nodes.items() if node["type"] == "sample"}
    y = drawn[study.data]
    latent = {name: value[None] for name, value in drawn.items() if name != study.data and torch.is_tensor(value)}
    return {name: float(value) for name, value in study.quantities(latent).items()}, y


def replicated(study: Study, seed: int, effort: float) -> Cell:
    """One truth, its data and a run on them: the ranks by quantity."""
    pyro.set_rng_seed(seed)
    pyro.clear_param_store()
    truth, y = simulated(study)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric = MetricBNN(study.model, effort=effort).run(*study.inputs, y, progress=False)
        found = {"latent draws": metric.draw(NUM_RANKED)}
    seconds = time.perf_counter() - begun
    found["walk"] = spread_evenly(metric.get_samples(group_by_chain=True), NUM_RANKED)
    ranks = {
        source: {name: rank(truth[name], draws) for name, draws in study.quantities(samples).items()}
        for source, samples in found.items()
    }
    return {**ranks, "seconds": seconds}


@dataclass(frozen=True)
class Uniformity:
    """How far ranks are from uniform ones."""

    p_value: float  # of chi-square over the bins
    distance: float  # Kolmogorov's
    critical: float  # what it is above in 1 % of all cases


def uniformity(ranks: Sequence[int]) -> Uniformity:
    """Of ranks from 0 to NUM_RANKED; their distance is a little below that of continuous values."""
    counts = binned(ranks)
    below = np.searchsorted(np.sort(ranks), np.arange(NUM_RANKED + 1), side="right") / len(ranks)
    distance = np.abs(below - np.arange(1, NUM_RANKED + 2) / (NUM_RANKED + 1)).max()
    return Uniformity(
        p_value=float(stats.chisquare(counts).pvalue),
        distance=float(distance),
        critical=float(stats.kstwo.ppf(0.99, len(ranks))),
    )


def binned(ranks: Sequence[int]) -> Any:
    """How many are in each bin."""
    return np.histogram(ranks, bins=NUM_BINS, range=(-0.5, NUM_RANKED + 0.5))[0]


# ----------------------------------------------------------------------------------------- the experiment


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    made = parser(__doc__ or "")
    made.add_argument("names", nargs="*", metavar="NAME", help="models; all by default")
    made.add_argument("--replications", type=int, default=200)
    arguments = made.parse_args(argv)
    out = folder(arguments, takes_data=False) / "sbc"
    results = Results(out / "sbc.json", {"experiment": "sbc", "share": share(arguments)}, retry=arguments.retry)
    chosen = [study for study in studies() if not arguments.names or study.name in arguments.names]
    num = max(4, math.ceil(share(arguments) * arguments.replications))
    wanted = [(study, seed) for seed in range(num) for study in chosen if seed < study.part * num]
    for study, seed in tqdm(wanted, unit=" runs"):
        results.cell(f"{study.name}|{seed}", partial(replicated, study, seed, share(arguments)))
    ranks = gathered(results.cells)
    text = table(ranks, results.cells)
    out.mkdir(parents=True, exist_ok=True)
    (out / "sbc.md").write_text(text + "\n")
    draw(ranks, out / "sbc.png")
    print(text)


Ranks = dict[str, dict[str, list[int]]]  # by model and quantity, then source


def gathered(cells: Mapping[str, Cell]) -> Ranks:
    """The ranks of all data sets."""
    found: Ranks = {}
    for key, cell in cells.items():
        for source in SOURCES:
            for name, one in cell.get(source, {}).items():
                by_source = found.setdefault(f"{key.partition('|')[0]}: {name}", {})
                by_source.setdefault(source, []).append(one)
    order = [study.name for study in studies()]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0].partition(":")[0])))


def table(ranks: Ranks, cells: Mapping[str, Cell]) -> str:
    """A row a quantity; in bold what uniform ranks have in fewer than 1 of 100 cases."""
    header = ["", "data sets", *(f"{source}: {what}" for source in SOURCES for what in ("p", "distance")), "critical"]
    rows = []
    for name, by_source in ranks.items():
        found = [uniformity(by_source[source]) for source in SOURCES]
        figures = []
        for one in found:
            figures.append(f"**{one.p_value:.3f}**" if one.p_value < 0.01 else f"{one.p_value:.3f}")
            figures.append(f"**{one.distance:.3f}**" if one.distance > one.critical else f"{one.distance:.3f}")
        rows.append((name, str(len(by_source[SOURCES[0]])), *figures, f"{found[0].critical:.3f}"))
    failed = [f"{key.replace('|', ', seed ')}: {cell['error']}" for key, cell in cells.items() if "error" in cell]
    seconds = sum(cell.get("seconds", 0.0) for cell in cells.values())
    return "\n\n".join([markdown(header, rows), *failed, f"{len(cells)} runs, {seconds:.0f} s."])


def draw(ranks: Ranks, path: Path) -> None:
    """A histogram a quantity, with the band in which 99 % of the bins of uniform ranks are."""
    with panels(list(ranks), path, size=(2.7, 2.0)) as grid:
        edges = np.linspace(0, NUM_RANKED + 1, NUM_BINS + 1)
        for i, (name, axes) in enumerate(grid.items()):
            num = len(ranks[name][SOURCES[0]])
            low, high = stats.binom.ppf([0.005, 0.995], num, 1 / NUM_BINS)
            axes.axhspan(low, high, color=GREY, alpha=0.25, linewidth=0, label="99 % of uniform bins")
            for height in (low, num / NUM_BINS, high):  # over the bars, which would hide the band's lower edge
                axes.axhline(height, color=BLACK, linewidth=0.7, linestyle=(0, (4, 3)), zorder=3)
            axes.stairs(binned(ranks[name]["latent draws"]), edges, fill=True, color=SKY, label="latent draws")
            axes.stairs(binned(ranks[name]["latent draws"]), edges, color=BLUE, linewidth=0.8)
            axes.stairs(binned(ranks[name]["walk"]), edges, color=VERMILLION, linewidth=1.2, label="the walk's points")
            axes.set(xlim=(0, NUM_RANKED + 1), ylim=(0, 1.15 * max(high, *axes.get_ylim())), xlabel="rank of the truth")
            if i % 4 == 0:
                axes.set_ylabel("data sets")
        first = next(iter(grid.values()))
        first.figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)


if __name__ == "__main__":
    main()
