"""37 posteriors of posteriordb that have reference draws, as Pyro models.

In: the data of a posterior as posteriordb's JSON has them.  Out: `posteriors`, each with its `Problem`.

Models are those of posteriordb, in double precision as there. Names of parameters are Stan's.
"""

from __future__ import annotations

from functools import partial

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from .posteriordb_problem import WIDE, Data, Posterior, Problem, Samples, column
from .posteriordb_regressions import regressions

# --------------------------------------------------------------------- a regression, series and mixtures


def blr(data: Data) -> Problem:
    """A regression without an intercept and with proper priors."""

    def model(x: Tensor, y: Tensor) -> None:
        ten = y.new_tensor(10.0)
        beta = pyro.sample("beta", dist.Normal(0.0, ten).expand([x.shape[1]]).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfNormal(ten))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Problem(model, (column(data, "X"), column(data, "y")))


def autoregression(data: Data) -> Problem:
    """Of order K."""
    order, series = data["K"], column(data, "y")

    def model(before: Tensor, y: Tensor) -> None:
        ten = y.new_tensor(10.0)
        alpha = pyro.sample("alpha", dist.Normal(0.0, ten))
        beta = pyro.sample("beta", dist.Normal(0.0, ten).expand([order]).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfCauchy(y.new_tensor(2.5)))
        with pyro.plate("time", len(y)):
            pyro.sample("y", dist.Normal(alpha + before @ beta, sigma), obs=y)

    lags = [series[order - lag : len(series) - lag] for lag in range(1, order + 1)]
    return Problem(model, (torch.stack(lags, dim=1), series[order:]))


def ordered_pair(name: str, prior: dist.Normal, *, scale: float, positive: bool = False) -> Tensor:
    """Two numbers in order, each with its normal prior cut off there: the lower one and the gap, of Jacobian 1.

    The sites' own priors are flat ones; the factor has the density of the pair.
    """
    wide = prior.mean.new_tensor(WIDE * scale)
    low = pyro.sample(f"{name}_low", dist.HalfNormal(wide) if positive else dist.Normal(0.0, wide))
    gap = pyro.sample(f"{name}_gap", dist.HalfNormal(wide))
    pair = torch.stack([low, low + gap], dim=-1)
    pyro.factor(f"{name}_prior", prior.log_prob(pair).sum(-1))
    return pair


def pairs_joined(names: tuple[str, ...], samples: Samples) -> dict[str, Tensor]:
    """Ordered pairs from their lower one and gap."""
    found = {name: value for name, value in samples.items() if not name.endswith(("_low", "_gap"))}
    for name in names:
        low, gap = samples[f"{name}_low"], samples[f"{name}_gap"]
        found[name] = torch.stack([low, low + gap], dim=-1)
    return found


def pairs_parted(names: tuple[str, ...], parameters: Samples) -> dict[str, Tensor]:
    """The other way."""
    found = {name: value for name, value in parameters.items() if name not in names}
    for name in names:
        found[f"{name}_low"] = parameters[name][..., 0]
        found[f"{name}_gap"] = parameters[name][..., 1] - parameters[name][..., 0]
    return found


def forward(transition: Tensor, emission: Tensor) -> Tensor:
    """The log-likelihood of a hidden Markov chain whose start has weight 1 in each state.

    The forward algorithm, steps joined in pairs: 9 rounds for 416 steps in place of 416.

    Args:
        transition: Logarithms of the chances (K, K) to come from a row's state to a column's.
        emission: Log-densities (T, K) of the observations.
    """
    steps = transition + emission[1:, None, :]  # (T - 1, K, K)
    while len(steps) > 1:
        even = len(steps) // 2 * 2
        joined = torch.logsumexp(steps[0:even:2, :, :, None] + steps[1:even:2, None, :, :], dim=-2)
        steps = torch.cat([joined, steps[even:]])
    return torch.logsumexp(emission[0, :, None] + steps[0], dim=(0, 1))


def hmm_example(data: Data) -> Problem:
    """Two hidden states with normal observations of deviation 1."""
    pairs = ("mu",)

    def model(y: Tensor) -> None:
        chances = [pyro.sample(name, dist.Dirichlet(y.new_ones(2))) for name in ("theta1", "theta2")]
        mu = ordered_pair("mu", dist.Normal(y.new_tensor([3.0, 10.0]), 1.0), scale=1.0, positive=True)
        emission = dist.Normal(mu, 1.0).log_prob(y[:, None])
        pyro.factor("y", forward(torch.stack(chances).log(), emission))

    return Problem(model, (column(data, "y"),), partial(pairs_joined, pairs), partial(pairs_parted, pairs))


def hmm_drive(data: Data) -> Problem:
    """Two hidden states with exponential times and distances."""
    pairs = ("phi", "lambda")

    def model(alpha: Tensor, u: Tensor, v: Tensor) -> None:
        chances = [pyro.sample(f"theta{state}", dist.Dirichlet(alpha[state - 1])) for state in (1, 2)]
        prior = dist.Normal(u.new_tensor([0.0, 3.0]), 1.0)
        phi, rate = (ordered_pair(name, prior, scale=1.0, positive=True) for name in pairs)
        emission = dist.Exponential(phi).log_prob(u[:, None]) + dist.Exponential(rate).log_prob(v[:, None])
        pyro.factor("y", forward(torch.stack(chances).log(), emission))

    args = tuple(column(data, name) for name in ("alpha", "u", "v"))
    return Problem(model, args, partial(pairs_joined, pairs), partial(pairs_parted, pairs))


def gauss_mix(data: Data) -> Problem:
    """Two normals in order."""
    pairs = ("mu",)

    def model(y: Tensor) -> None:
        two, five = y.new_tensor(2.0), y.new_tensor(5.0)
        mu = ordered_pair("mu", dist.Normal(y.new_zeros(2), two), scale=1.0)
        sigma = pyro.sample("sigma", dist.HalfNormal(two).expand([2]).to_event(1))
        theta = pyro.sample("theta", dist.Beta(five, five))
        shares = torch.stack([theta, 1 - theta])
        each = dist.Normal(mu, sigma).log_prob(y[:, None]) + shares.log()  # (n, 2)
        pyro.factor("y", torch.logsumexp(each, dim=-1).sum())

    return Problem(model, (column(data, "y"),), partial(pairs_joined, pairs), partial(pairs_parted, pairs))


# ------------------------------------------------------------------------ hierarchies, Gaussian processes


def eight_schools(data: Data) -> Problem:
    """Non-centred."""

    def model(y: Tensor, sigma: Tensor) -> None:
        five = y.new_tensor(5.0)
        mu = pyro.sample("mu", dist.Normal(0.0, five))
        tau = pyro.sample("tau", dist.HalfCauchy(five))
        with pyro.plate("schools", len(y)):
            eta = pyro.sample("eta", dist.Normal(y.new_zeros(()), 1.0))
            pyro.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)

    def parameters(samples: Samples) -> dict[str, Tensor]:
        mu, tau = samples["mu"], samples["tau"]
        return {"theta": mu[:, None] + tau[:, None] * samples["eta"], "mu": mu, "tau": tau}

    def sites(parameters: Samples) -> dict[str, Tensor]:
        mu, tau = parameters["mu"], parameters["tau"]
        return {"eta": (parameters["theta"] - mu[:, None]) / tau[:, None], "mu": mu, "tau": tau}

    return Problem(model, (column(data, "y"), column(data, "sigma")), parameters, sites)


def covariance(x: Tensor, alpha: Tensor, rho: Tensor, variance: Tensor) -> Tensor:
    """Squared exponential (n, n) of length rho and height alpha, with a variance of its own at each place."""
    near = torch.exp(-((x[:, None] - x) ** 2) / (2 * rho**2))
    return alpha**2 * near + variance * torch.eye(len(x), dtype=x.dtype)


def length_and_height(x: Tensor) -> tuple[Tensor, Tensor]:
    """The priors of both Gaussian processes."""
    rho = pyro.sample("rho", dist.Gamma(x.new_tensor(25.0), x.new_tensor(4.0)))
    alpha = pyro.sample("alpha", dist.HalfNormal(x.new_tensor(2.0)))
    return rho, alpha


def gp_regr(data: Data) -> Problem:
    """Values with noise; sigma is its variance, as in Stan's model."""

    def model(x: Tensor, y: Tensor) -> None:
        rho, alpha = length_and_height(x)
        sigma = pyro.sample("sigma", dist.HalfNormal(x.new_tensor(1.0)))
        spread = covariance(x, alpha, rho, sigma)
        pyro.sample("y", dist.MultivariateNormal(torch.zeros_like(y), spread), obs=y)

    return Problem(model, (column(data, "x"), column(data, "y")))


def gp_pois_regr(data: Data) -> Problem:
    """Counts whose log-rate is a Gaussian process."""
    x = column(data, "x")

    def root(alpha: Tensor, rho: Tensor) -> Tensor:
        return torch.linalg.cholesky(covariance(x, alpha, rho, x.new_tensor(1e-10)))

    def model(counts: Tensor) -> None:
        rho, alpha = length_and_height(x)
        f_tilde = pyro.sample("f_tilde", dist.Normal(torch.zeros_like(x), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("k", dist.Poisson((root(alpha, rho) @ f_tilde).exp()), obs=counts)

    roots = torch.vmap(root)

    def parameters(samples: Samples) -> dict[str, Tensor]:
        f = (roots(samples["alpha"], samples["rho"]) @ samples["f_tilde"][..., None])[..., 0]
        return {"rho": samples["rho"], "alpha": samples["alpha"], "f": f}

    def sites(parameters: Samples) -> dict[str, Tensor]:
        whitened = torch.linalg.solve_triangular(
            roots(parameters["alpha"], parameters["rho"]), parameters["f"][..., None], upper=False
        )
        return {"rho": parameters["rho"], "alpha": parameters["alpha"], "f_tilde": whitened[..., 0]}

    return Problem(model, (column(data, "k"),), parameters, sites)


# -------------------------------------------------------------------------------------------- all of them


def posteriors() -> tuple[Posterior, ...]:
    """In the order of the tables."""
    problems = regressions() | {
        "arK": autoregression,
        "blr": blr,
        "hmm_drive_0": hmm_drive,
        "hmm_example": hmm_example,
        "low_dim_gauss_mix": gauss_mix,
        "eight_schools_noncentered": eight_schools,
        "gp_pois_regr": gp_pois_regr,
        "gp_regr": gp_regr,
    }
    data_of = {
        "earnings": [name for name in problems if "earn_" in name],
        "kidiq": ["kidscore_interaction", "kidscore_momhs", "kidscore_momhsiq", "kidscore_momiq"],
        "kidiq_with_mom_work": [
            *("kidscore_interaction_c", "kidscore_interaction_c2", "kidscore_interaction_z", "kidscore_mom_work"),
        ],
        "mesquite": [name for name in problems if "mesquite" in name],
        **{f"nes{year}": ["nes"] for year in range(1972, 2000, 4)},
        "sblrc": ["blr"],
        "sblri": ["blr"],
        "arK": ["arK"],
        "eight_schools": ["eight_schools_noncentered"],
        "gp_pois_regr": ["gp_pois_regr", "gp_regr"],
        "low_dim_gauss_mix": ["low_dim_gauss_mix"],
        "hmm_example": ["hmm_example"],
        "bball_drive_event_0": ["hmm_drive_0"],
    }
    return tuple(Posterior(f"{data}-{name}", problems[name]) for data, names in data_of.items() for name in names)
