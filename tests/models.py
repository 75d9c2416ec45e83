"""Small Pyro models with their data, all in float64, shared by the tests of everything that takes a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_metricbnn import Categorical, Gaussian, NoisyCategorical, bayesianize


@dataclass(frozen=True)
class Case:
    """A model and what it is called with."""

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def real(*values: float) -> Tensor:
    """One number as a scalar, several as a vector, in float64."""
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers that are the same at each run, whatever the global generator does."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ZERO, ONE = real(0.0), real(1.0)

# ---------------------------------------------------------------------------------- one or two sites


def scalar_site() -> None:
    x = pyro.sample("x", dist.Normal(real(1.0), real(2.0)))
    pyro.sample("obs", dist.Normal(x, real(0.5)), obs=real(0.3))


def normal_mean(y: Tensor) -> None:
    """Conjugate: prior N(0, 1), noise 1, so the posterior is N(sum(y) / (n + 1), 1 / (n + 1))."""
    mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(mean, ONE), obs=y)


def beta_and_interval(y: Tensor) -> None:
    chance = pyro.sample("chance", dist.Beta(real(2.0), real(3.0)))
    shift = pyro.sample("shift", dist.Uniform(real(-2.0), real(3.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(chance + shift, ONE), obs=y)


def positive_scales(y: Tensor) -> None:
    a = pyro.sample("a", dist.LogNormal(ZERO, ONE))
    b = pyro.sample("b", dist.HalfCauchy(real(2.0)))
    c = pyro.sample("c", dist.Gamma(real(2.0), real(3.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.StudentT(a + 2, c, b), obs=y)


def simplex(counts: Tensor) -> None:
    """Reads a number out of its data, which is not a branch on a site: all particles take one path."""
    shares = pyro.sample("shares", dist.Dirichlet(real(1.0, 2.0, 3.0, 4.0)))
    pyro.sample("obs", dist.Multinomial(total_count=int(counts.sum()), probs=shares), obs=counts)


def impossible_category(counts: Tensor) -> None:
    """0 log 0 in the density of the counts."""
    level = pyro.sample("level", dist.Normal(ZERO, ONE))
    logits = torch.stack([level, ZERO, ZERO - torch.inf])
    pyro.sample("obs", dist.Multinomial(total_count=3, logits=logits), obs=counts)


def correlated_site(y: Tensor) -> None:
    covariance = torch.eye(3, dtype=torch.float64) + 0.5
    location = pyro.sample("location", dist.MultivariateNormal(torch.zeros(3, dtype=torch.float64), covariance))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(location, ONE).to_event(1), obs=y)


def correlation_matrix(y: Tensor) -> None:
    cholesky = pyro.sample("cholesky", dist.LKJCholesky(3, real(1.5)))
    with pyro.plate("columns", 3):
        scale = pyro.sample("scale", dist.HalfNormal(ONE))
    with pyro.plate("data", len(y)):
        tril = scale.unsqueeze(-1) * cholesky
        pyro.sample("obs", dist.MultivariateNormal(torch.zeros(3, dtype=torch.float64), scale_tril=tril), obs=y)


def mixture(y: Tensor) -> None:
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(2, dtype=torch.float64)))
    with pyro.plate("components", 2):
        location = pyro.sample("location", dist.Normal(ZERO, real(3.0)))
    with pyro.plate("data", len(y)):
        components = dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(location, ONE))
        pyro.sample("obs", components, obs=y)


# --------------------------------------------------------------------------------------- regressions


def linear_regression(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(ZERO, ONE).expand([x.shape[1]]).to_event(1))
    bias = pyro.sample("bias", dist.Normal(ZERO, real(2.0)))
    scale = pyro.sample("scale", dist.Exponential(ONE))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weights + bias, scale), obs=y)


def logistic_regression(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(ZERO, ONE).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=x @ weights), obs=y)


def poisson_regression(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Laplace(ZERO, ONE).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Poisson((x @ weights).exp()), obs=y)


def keyword_arguments(x: Tensor, *, y: Tensor, settings: dict[str, Any]) -> None:
    slope = pyro.sample("slope", dist.Normal(ZERO, real(settings["prior_scale"])))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(slope * x + settings["offset"], ONE), obs=y)


# --------------------------------------------------------------------------------------- hierarchies


def hierarchical_regression(x: Tensor, group: Tensor, y: Tensor) -> None:
    location = pyro.sample("location", dist.Normal(ZERO, ONE))
    spread = pyro.sample("spread", dist.HalfNormal(ONE))
    with pyro.plate("groups", 4):
        effect = pyro.sample("effect", dist.Normal(location, spread))
    slope = pyro.sample("slope", dist.Normal(ZERO, ONE))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(effect[group] + slope * x, real(0.5)), obs=y)


def crossed_plates(y: Tensor) -> None:
    rows, columns = pyro.plate("rows", y.shape[0], dim=-2), pyro.plate("columns", y.shape[1], dim=-1)
    with rows:
        row_effect = pyro.sample("row_effect", dist.Normal(ZERO, ONE))
    with columns:
        column_effect = pyro.sample("column_effect", dist.Normal(ZERO, ONE))
    with rows, columns:
        cell_scale = pyro.sample("cell_scale", dist.Gamma(real(3.0), real(3.0)))
        pyro.sample("obs", dist.Normal(row_effect + column_effect, cell_scale), obs=y)


def eight_schools_centred(y: Tensor, sigma: Tensor) -> None:
    """Unbounded where tau goes to 0 with all theta at mu: it has no MAP."""
    mu = pyro.sample("mu", dist.Normal(ZERO, real(5.0)))
    tau = pyro.sample("tau", dist.HalfCauchy(real(5.0)))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def eight_schools_non_centred(y: Tensor, sigma: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(ZERO, real(5.0)))
    tau = pyro.sample("tau", dist.HalfCauchy(real(5.0)))
    with pyro.plate("schools", len(y)):
        eta = pyro.sample("eta", dist.Normal(ZERO, ONE))
        theta = pyro.deterministic("theta", mu + tau * eta)
        pyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def random_walk(y: Tensor) -> None:
    """As many sites as observations, from a Python loop."""
    state = pyro.sample("start", dist.Normal(ZERO, ONE))
    for t in range(len(y)):
        state = pyro.sample(f"state_{t}", dist.Normal(state, real(0.5)))
        pyro.sample(f"obs_{t}", dist.Normal(state, ONE), obs=y[t])


# ----------------------------------------------------------------------------- corners of Pyro itself


def param_held_fixed(y: Tensor) -> None:
    offset = pyro.param("offset", real(0.7))
    scale = pyro.param("noise", real(0.4), constraint=dist.constraints.positive)
    mean = pyro.sample("mean", dist.Normal(offset, ONE))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(mean, scale), obs=y)


def with_factor(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(ZERO, ONE).expand([2]).to_event(1))
    pyro.factor("ridge", -0.5 * (mean[0] - mean[1]) ** 2)
    with pyro.plate("data", len(y)):
        pyro.factor("density", -((y - mean[0]) ** 2) - (y - mean[1]) ** 4)


def masked_and_scaled(y: Tensor, seen: Tensor) -> None:
    with poutine.scale(scale=0.5):
        mean = pyro.sample("mean", dist.Normal(ZERO, ONE))
    with pyro.plate("data", len(y)), poutine.mask(mask=seen), poutine.scale(scale=3.0):
        pyro.sample("obs", dist.Normal(mean, ONE), obs=y)


STRICT_SLOPES = dist.Normal(torch.zeros(3, dtype=torch.float64), real(2.0), validate_args=True).to_event(1)
STRICT_SCALE = dist.Gamma(real(2.0), real(2.0), validate_args=True)


def made_outside_with_validation(x: Tensor, y: Tensor) -> None:
    slopes = pyro.sample("slopes", STRICT_SLOPES)
    with pyro.plate("halves", 2):
        scale = pyro.sample("scale", STRICT_SCALE)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ slopes, scale.sum()), obs=y)


# ------------------------------------------------------------------------------------------ networks


def small_network(num_inputs: int, num_outputs: int, seed: int = 0) -> nn.Sequential:
    """Two layers with weights that are the same at each run."""
    net = nn.Sequential(nn.Linear(num_inputs, 4), nn.Tanh(), nn.Linear(4, num_outputs)).double()
    with torch.no_grad():
        for number, weight in enumerate(net.parameters()):
            weight.copy_(0.5 * noise(*weight.shape, seed=seed + number))
    return net


# --------------------------------------------------------------------------------------------- cases

X, SIGNAL = noise(12, 3, seed=1), noise(12, seed=2)
SCHOOLS = real(28, 8, -3, 7, -1, 1, 18, 12), real(15, 10, 16, 11, 9, 11, 10, 18)

CASES = (
    Case("scalar_site", scalar_site),
    Case("normal_mean", normal_mean, (SIGNAL,)),
    Case("beta_and_interval", beta_and_interval, (SIGNAL,)),
    Case("positive_scales", positive_scales, (SIGNAL,)),
    Case("simplex", simplex, (real(3, 1, 4, 2),)),
    Case("impossible_category", impossible_category, (real(2, 1, 0),)),
    Case("correlated_site", correlated_site, (X,)),
    Case("correlation_matrix", correlation_matrix, (X,)),
    Case("mixture", mixture, (2 * SIGNAL,)),
    Case("linear_regression", linear_regression, (X, SIGNAL)),
    Case("logistic_regression", logistic_regression, (X, (SIGNAL > 0).double())),
    Case("poisson_regression", poisson_regression, (X, (3 * SIGNAL).abs().round())),
    Case(
        "keyword_arguments", keyword_arguments, (X[:, 0],), {"y": SIGNAL, "settings": {"prior_scale": 2, "offset": 1}}
    ),
    Case("hierarchical_regression", hierarchical_regression, (X[:, 0], torch.arange(12) % 4, SIGNAL)),
    Case("crossed_plates", crossed_plates, (noise(4, 3, seed=3),)),
    Case("eight_schools_centred", eight_schools_centred, SCHOOLS),
    Case("eight_schools_non_centred", eight_schools_non_centred, SCHOOLS),
    Case("random_walk", random_walk, (SIGNAL[:4],)),
    Case("param_held_fixed", param_held_fixed, (SIGNAL,)),
    Case("with_factor", with_factor, (SIGNAL,)),
    Case("masked_and_scaled", masked_and_scaled, (SIGNAL, torch.arange(12) % 3 > 0)),
    Case("made_outside_with_validation", made_outside_with_validation, (X, SIGNAL)),
    Case("classifier", bayesianize(small_network(3, 3), Categorical()), (X, torch.arange(12) % 3)),
    Case("noisy_classifier", bayesianize(small_network(3, 3), NoisyCategorical()), (X, torch.arange(12) % 3)),
    Case(
        "regression_network_with_latent_scale",
        bayesianize(small_network(3, 1), Gaussian(dist.LogNormal(ZERO, ONE))),
        (X, SIGNAL),
    ),
)


# ------------------------------------------------------------------- a mode that starts near the prior's median miss


def hidden_mode(advantage: float = 60.0) -> None:
    """One mode at 0, and two outside of a prior deviation, lower by so many nats (and narrower)."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    near, far = -(a**2) / 0.02, advantage - (a.abs() - 2) ** 2 / 0.005
    pyro.factor("modes", torch.logaddexp(near, far))
