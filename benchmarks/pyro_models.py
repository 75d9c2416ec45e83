"""Ordinary Pyro models that are not networks: walk and latent draws against long runs of NUTS.

    python -m benchmarks pyro_models [NAME ...] [--seed 0] [--reference]

Worst coordinate of each model: the difference of means in posterior deviations, and the ratio of deviations.
--reference makes pyro_models.json anew, for the named models or all of them, with Pyro's NUTS. Writes
`pyro_models.json` and `pyro_models.md` into the folder of results.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor
from torch.distributions import constraints
from tqdm import tqdm

from pyro_metricbnn import MetricBNN

from .arguments import folder, parser
from .results import Cell, Results
from .tables import markdown

REFERENCE = Path(__file__).with_suffix(".json")
NUM_CHAINS, NUM_WARMUP, NUM_SAMPLES = 4, 500, 1000  # of the reference
NUTS_SETTINGS = {"full_mass": True, "target_accept_prob": 0.9}
NUM_DRAWS = 10_000  # the deviation of 1,000 draws of a heavy-tailed site is off by a quarter now and then


@dataclass(frozen=True)
class Case:
    """A model and what it is called with."""

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    num_samples: int = NUM_SAMPLES  # a chain of the reference; more where NUTS mixes slowly, fewer where it is slow


# -------------------------------------------------------------------------------- one or two unknowns


def normal_mean(y: Tensor) -> None:
    """Conjugate."""
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 2.0), obs=y)


def lognormal_scale(y: Tensor) -> None:
    """One positive site and six observations: skewed."""
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)


def gamma_poisson(y: Tensor) -> None:
    """Conjugate."""
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def beta_binomial(hits: Tensor) -> None:
    """Conjugate, near the edge of the unit interval."""
    chance = pyro.sample("chance", dist.Beta(1.0, 1.0))
    pyro.sample("hits", dist.Binomial(20, probs=chance), obs=hits)


def dirichlet_multinomial(counts: Tensor) -> None:
    """Conjugate; one class was never seen."""
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(5)))
    pyro.sample("counts", dist.Multinomial(total_count=int(counts.sum()), probs=shares), obs=counts)


def autoregression(y: Tensor) -> None:
    """AR(1) on a bounded coefficient."""
    coefficient = pyro.sample("coefficient", dist.Uniform(-1.0, 1.0))
    level = pyro.sample("level", dist.Normal(0.0, 2.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("time", len(y) - 1):
        pyro.sample("y", dist.Normal(level + coefficient * (y[:-1] - level), scale), obs=y[1:])


# ----------------------------------------------------------------------------------------- regressions


def linear_regression(x: Tensor, y: Tensor) -> None:
    """Strongly correlated columns, unknown noise."""
    weights = pyro.sample("weights", dist.Normal(0.0, 5.0).expand([x.shape[1]]).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 5.0))
    scale = pyro.sample("scale", dist.HalfCauchy(2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(bias + x @ weights, scale), obs=y)


def logistic_regression(x: Tensor, y: Tensor) -> None:
    """Weakly informative priors."""
    weights = pyro.sample("weights", dist.Normal(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=bias + x @ weights), obs=y)


def count_regression(x: Tensor, y: Tensor) -> None:
    """Negative binomial with an unknown dispersion."""
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 2.0))
    concentration = pyro.sample("concentration", dist.Exponential(0.5))
    logits = bias + x @ weights - concentration.log()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.NegativeBinomial(concentration, logits=logits), obs=y)


def robust_regression(x: Tensor, y: Tensor) -> None:
    """Student's t with unknown degrees of freedom."""
    slope = pyro.sample("slope", dist.Normal(0.0, 5.0))
    bias = pyro.sample("bias", dist.Normal(0.0, 5.0))
    scale = pyro.sample("scale", dist.HalfNormal(2.0))
    df = pyro.sample("df", dist.Gamma(2.0, 0.1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(df, bias + slope * x, scale), obs=y)


def shrinkage_regression(x: Tensor, y: Tensor) -> None:
    """More columns than matter: a non-centred lasso whose local variances are exponential."""
    overall = pyro.sample("overall", dist.HalfNormal(1.0))
    with pyro.plate("columns", x.shape[1]):
        local = pyro.sample("local", dist.Exponential(0.5))
        raw = pyro.sample("raw", dist.Normal(0.0, 1.0))
    weights = pyro.deterministic("weights", overall * local.sqrt() * raw)
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def survival(x: Tensor, time: Tensor, is_event: Tensor) -> None:
    """Weibull regression, a third of it censored."""
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 2.0))
    shape = pyro.sample("shape", dist.LogNormal(0.0, 0.5))
    hazard = (time * (bias + x @ weights).exp()) ** shape
    with pyro.plate("data", len(x)):
        pyro.factor("y", is_event * (shape.log() + hazard.log() - time.log()) - hazard)


def gaussian_process(x: Tensor, y: Tensor) -> None:
    """The hyperparameters of a marginal Gaussian process."""
    variance = pyro.sample("variance", dist.LogNormal(0.0, 1.0))
    length_scale = pyro.sample("length_scale", dist.LogNormal(0.0, 1.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    near = torch.exp(-((x[:, None] - x) ** 2) / (2 * length_scale**2))
    covariance = variance * near + (noise**2 + 1e-4) * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)


# ----------------------------------------------------------------------------------------- hierarchies


def eight_schools(y: Tensor, sigma: Tensor) -> None:
    """Non-centred."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)


def baseball(at_bats: Tensor, hits: Tensor) -> None:
    """Efron and Morris: partial pooling of chances on the unit interval."""
    mean = pyro.sample("mean", dist.Beta(2.0, 2.0))
    concentration = pyro.sample("concentration", dist.LogNormal(4.0, 1.0))
    with pyro.plate("players", len(hits)):
        chance = pyro.sample("chance", dist.Beta(mean * concentration, (1 - mean) * concentration))
        pyro.sample("hits", dist.Binomial(at_bats, probs=chance), obs=hits)


def nested_plates(y: Tensor) -> None:
    """Centred: pupils (rows) in classes (columns) in schools."""
    num_pupils, num_classes, num_schools = y.shape
    location = pyro.sample("location", dist.Normal(0.0, 5.0))
    school_scale = pyro.sample("school_scale", dist.HalfNormal(2.0))
    class_scale = pyro.sample("class_scale", dist.HalfNormal(2.0))
    noise = pyro.sample("noise", dist.HalfNormal(2.0))
    with pyro.plate("schools", num_schools, dim=-1):
        school = pyro.sample("school", dist.Normal(location, school_scale))
        with pyro.plate("classes", num_classes, dim=-2):
            classroom = pyro.sample("classroom", dist.Normal(school, class_scale))
            with pyro.plate("pupils", num_pupils, dim=-3):
                pyro.sample("y", dist.Normal(classroom, noise), obs=y)


def varying_slopes(x: Tensor, group: Tensor, y: Tensor) -> None:
    """Intercepts and slopes by group, centred, for counts."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = pyro.sample("spread", dist.LogNormal(-1.0, 0.5).expand([2]).to_event(1))
    with pyro.plate("groups", 8):
        effect = pyro.sample("effect", dist.Normal(mean, spread).to_event(1))
    log_rate = effect[group, 0] + effect[group, 1] * x
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson(log_rate.exp()), obs=y)


def local_level(y: Tensor) -> None:
    """A random walk seen through noise, by its increments."""
    drift_scale = pyro.sample("drift_scale", dist.HalfNormal(0.5))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    start = pyro.sample("start", dist.Normal(0.0, 2.0))
    with pyro.plate("time", len(y)):
        step = pyro.sample("step", dist.Normal(0.0, 1.0))
        level = start + drift_scale * step.cumsum(-1)
        pyro.sample("y", dist.Normal(level, noise), obs=y)


# ------------------------------------------------------------------------------ mixtures, correlations


def mixture(y: Tensor) -> None:
    """Two components, told apart by their priors."""
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(2)))
    location = pyro.sample("location", dist.Normal(torch.tensor([-2.0, 2.0]), 1.0).to_event(1))
    with pyro.plate("components", 2):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(location, scale)), obs=y)


def covariance_matrix(y: Tensor) -> None:
    """Mean, deviations and correlations of a Gaussian."""
    dim = y.shape[1]
    location = pyro.sample("location", dist.Normal(0.0, 5.0).expand([dim]).to_event(1))
    with pyro.plate("columns", dim):
        scale = pyro.sample("scale", dist.HalfNormal(2.0))
    cholesky = pyro.sample("cholesky", dist.LKJCholesky(dim, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(location, scale_tril=scale[:, None] * cholesky), obs=y)


# ------------------------------------------------------------------------------------------------ data


def _cases() -> tuple[Case, ...]:
    generator = torch.Generator().manual_seed(20240)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    def poisson(rate: Tensor) -> Tensor:
        return torch.poisson(rate, generator=generator)

    x = normal(80, 3)
    correlated = torch.stack([x[:, 0], x[:, 0] + 0.2 * x[:, 1], x[:, 2]], -1)
    weights = torch.tensor([1.0, -0.5, 0.3])
    gamma = torch.stack([-uniform(80).log() for _ in range(2)]).sum(0) / 2  # Gamma(2, 2)
    outliers = torch.where(torch.arange(40) % 8 == 0, 6.0, 1.0)
    series = [torch.tensor(1.0)]
    for shock in normal(59):
        series.append(1.0 + 0.8 * (series[-1] - 1.0) + 0.5 * shock)
    sparse = normal(50, 10)
    lifetime = torch.exp(-(0.3 + x @ weights)) * (-uniform(80).log()) ** (1 / 1.5)
    place = 6 * uniform(25)
    group = torch.arange(80) % 8
    effect = torch.tensor([0.8, 0.4]) + torch.tensor([0.4, 0.2]) * normal(8, 2)
    log_rate = effect[group, 0] + effect[group, 1] * x[:, 0]
    schools = 1.0 + 0.8 * normal(6) + 0.5 * normal(4, 6) + normal(5, 4, 6)
    tall = torch.linalg.cholesky(torch.tensor([[1.0, 0.7, -0.3], [0.7, 1.0, 0.2], [-0.3, 0.2, 1.0]]))
    hits = torch.tensor([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7]).float()
    return (
        Case("normal_mean", normal_mean, (1.5 + 2 * normal(20),)),
        Case("lognormal_scale", lognormal_scale, (1.5 * normal(6),), 4000),
        Case("gamma_poisson", gamma_poisson, (poisson(torch.full((10,), 1.3)),)),
        Case("beta_binomial", beta_binomial, (torch.tensor(19.0),)),
        Case("dirichlet_multinomial", dirichlet_multinomial, (torch.tensor([12.0, 5.0, 2.0, 1.0, 0.0]),)),
        Case("autoregression", autoregression, (torch.stack(series),)),
        Case("linear_regression", linear_regression, (correlated, 1.0 + correlated @ weights + 0.7 * normal(80))),
        Case("logistic_regression", logistic_regression, (x, (uniform(80) < (2 * x @ weights).sigmoid()).float())),
        Case("count_regression", count_regression, (x, poisson((1.0 + x @ weights).exp() * gamma))),
        Case("robust_regression", robust_regression, (x[:40, 0], 1.0 + 2 * x[:40, 0] + 0.5 * outliers * normal(40))),
        Case("shrinkage_regression", shrinkage_regression, (sparse, sparse[:, :2] @ weights[:2] * 2 + normal(50)), 500),
        Case("survival", survival, (x, lifetime.clamp_max(1.0), (lifetime < 1.0).float())),
        Case("gaussian_process", gaussian_process, (place, torch.sin(2 * place) + 0.3 * normal(25))),
        Case(
            "eight_schools",
            eight_schools,
            (
                torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
                torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
            ),
        ),
        Case("baseball", baseball, (torch.full((18,), 45.0), hits)),
        Case("nested_plates", nested_plates, (schools,), 500),
        Case("varying_slopes", varying_slopes, (x[:, 0], group, poisson(log_rate.exp()))),
        Case("local_level", local_level, ((0.3 * normal(40)).cumsum(0) + 0.5 * normal(40),), 500),
        Case("mixture", mixture, (torch.cat([-1.5 + 0.7 * normal(20), 2.0 + normal(40)]),)),
        Case("covariance_matrix", covariance_matrix, (normal(40, 3) @ tall.T * torch.tensor([1.0, 2.0, 0.5]),)),
    )


CASES = _cases()

# ------------------------------------------------------------------------------------------- reference


def nuts(case: Case, seed: int) -> dict[str, Any]:
    """Moments of each site from chains of NUTS, one after another, and how far to trust them."""
    begin, chains = time.perf_counter(), []
    for chain in range(NUM_CHAINS):
        pyro.set_rng_seed(seed + chain)
        pyro.clear_param_store()
        kernel = NUTS(case.model, jit_compile=True, ignore_jit_warnings=True, **NUTS_SETTINGS)
        mcmc = MCMC(kernel, num_samples=case.num_samples, warmup_steps=NUM_WARMUP, disable_progbar=True)
        mcmc.run(*case.args)
        chains.append(mcmc.get_samples())
    seconds = time.perf_counter() - begin
    sites = {name: torch.stack([chain[name] for chain in chains]).double() for name in chains[0]}
    moving = {name: value[:, :, _moves(value.flatten(0, 1).std(0))] for name, value in sites.items()}
    return {
        "seconds": round(seconds, 1),
        "draws": NUM_CHAINS * case.num_samples,
        "worst R-hat": max(float(split_gelman_rubin(value).max()) for value in moving.values()),
        "least effective size": min(float(effective_sample_size(value).min()) for value in moving.values()),
        "sites": {
            name: {"mean": value.mean((0, 1)).tolist(), "deviation": value.flatten(0, 1).std(0).tolist()}
            for name, value in sites.items()
        },
    }


def _moves(deviation: Tensor) -> Tensor:
    """Which coordinates are no constants, as the zeros of a triangular matrix are."""
    return deviation > 1e-6


def make_reference(cases: list[Case], seed: int = 0) -> None:
    """Write each model's moments as soon as they are there; models that are not run keep theirs."""
    written = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {"models": {}}
    written["settings"] = {"chains": NUM_CHAINS, "warm-up": NUM_WARMUP, "seed": seed, **NUTS_SETTINGS}
    written["versions"] = {"torch": torch.__version__, "pyro": pyro.__version__}
    for case in cases:
        result = written["models"][case.name] = nuts(case, seed)
        REFERENCE.write_text(json.dumps(written, indent=1) + "\n")
        numbers = {key: value for key, value in result.items() if key != "sites"}
        print(case.name, numbers, flush=True)


def read_reference() -> dict[str, dict[str, dict[str, Tensor]]]:
    """Mean and deviation of each site of each model."""
    models = json.loads(REFERENCE.read_text())["models"]
    return {
        name: {
            site: {kind: torch.tensor(value, dtype=torch.float64) for kind, value in moments.items()}
            for site, moments in model["sites"].items()
        }
        for name, model in models.items()
    }


# ------------------------------------------------------------------------------------------ comparison


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The coordinates of a model that are furthest from the reference, and their sites."""

    mean: float  # difference, in posterior deviations
    mean_site: str
    deviation: float  # ratio
    deviation_site: str


def compare(samples: Mapping[str, Tensor], reference: Mapping[str, Mapping[str, Tensor]]) -> Comparison:
    """Samples (S, ...) by site against the reference's moments."""
    means, deviations = [], []
    for name, moments in reference.items():
        moves = _moves(moments["deviation"])
        values = samples[name].double()[:, moves]  # (S, coordinates)
        scale = moments["deviation"][moves]
        means += [(float(d), name) for d in (values.mean(0) - moments["mean"][moves]) / scale]
        deviations += [(float(d), name) for d in values.std(0) / scale]
    mean, mean_site = max(means, key=lambda pair: abs(pair[0]))
    deviation, deviation_site = max(deviations, key=lambda pair: abs(pair[0] - 1))
    return Comparison(mean=mean, mean_site=mean_site, deviation=deviation, deviation_site=deviation_site)


def supports(case: Case) -> dict[str, constraints.Constraint]:
    """The support of each latent site."""
    trace = pyro.poutine.trace(case.model).get_trace(*case.args)
    return {
        name: node["fn"].support
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and not pyro.poutine.util.site_is_subsample(node)
    }


def run(case: Case, seed: int) -> tuple[MetricBNN, float]:
    """A walk with the library's defaults, and its seconds."""
    pyro.set_rng_seed(seed)
    begin = time.perf_counter()
    metric = MetricBNN(case.model).run(*case.args, progress=False)
    return metric, time.perf_counter() - begin


def measured(case: Case, seed: int, reference: Mapping[str, Mapping[str, Mapping[str, Tensor]]]) -> Cell:
    """The figures of one model."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric, seconds = run(case, seed)
    worst = {"walk": metric.get_samples(), "draws": metric.draw(NUM_DRAWS)}
    figures = {source: asdict(compare(samples, reference[case.name])) for source, samples in worst.items()}
    said = [str(warning.message) for warning in caught]
    return {"dim": metric.trajectories.sites.dim, "seconds": seconds, **figures, "warnings": said}


def table(cells: Mapping[str, Cell], seed: int = 0) -> str:
    """A row a model: the coordinates that are furthest from NUTS, of the walk and of the draws."""
    rows = []
    for case in CASES:
        cell = cells.get(f"{case.name}|MetricBNN|{seed}", {})
        if "dim" in cell:
            row = [case.name, str(cell["dim"]), f"{cell['seconds']:.1f}"]
            for one in (cell["walk"], cell["draws"]):
                row += [f"{one['mean']:+.2f} {one['mean_site']}", f"{one['deviation']:.2f} {one['deviation_site']}"]
            rows.append(row)
    return markdown(["", "D", "s", "walk: mean", "deviation", "draws: mean", "deviation"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    made = parser(__doc__ or "")
    made.add_argument("names", nargs="*", help="models to run; all of them without")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--reference", action="store_true", help="run NUTS and write the reference")
    given = made.parse_args(argv)
    cases = [case for case in CASES if not given.names or case.name in given.names]
    if given.reference:
        make_reference(cases, given.seed)
        return
    reference, out = read_reference(), folder(given, takes_data=False) / "pyro_models"
    results = Results(out / "pyro_models.json", {"experiment": "pyro_models"}, retry=given.retry)
    for case in tqdm(cases[:1] if given.quick else cases, unit=" models"):
        results.cell(f"{case.name}|MetricBNN|{given.seed}", partial(measured, case, given.seed, reference))
    (out / "pyro_models.md").write_text(table(results.cells, given.seed) + "\n")
    print(table(results.cells, given.seed))


if __name__ == "__main__":
    main()
