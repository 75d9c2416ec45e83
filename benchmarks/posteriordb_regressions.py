"""The linear regressions of posteriordb that have flat coefficients.

In: the data.  Out: `regressions`, problems by the name of posteriordb's model, each made of a response and predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from .posteriordb_problem import Data, Problem, column, flat, flat_positive

Columns = tuple[Tensor, list[Tensor]]  # the response (n,) and the predictors, each (n,)


def regression(x: Tensor, y: Tensor, sigma_scale: Tensor | None = None) -> None:
    """Flat coefficients of x (n, k), whose first column is 1; the noise is flat, or half-Cauchy of a scale."""
    reach = torch.cat([y.new_ones(1), x[:, 1:].std(0)])
    beta = flat("beta", y.std() / reach)
    if sigma_scale is None:
        sigma = flat_positive("sigma", y.std())
    else:
        sigma = pyro.sample("sigma", dist.HalfCauchy(sigma_scale))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def regression_on(columns: Callable[[Data], Columns], data: Data, sigma_scale: float | None = None) -> Problem:
    """With an intercept."""
    y, predictors = columns(data)
    x = torch.stack([torch.ones_like(y), *predictors], dim=1)
    return Problem(regression, (x, y) if sigma_scale is None else (x, y, y.new_tensor(sigma_scale)))


def standardised(x: Tensor, deviations: float = 1.0) -> Tensor:
    """With a mean of 0; in units of so many deviations."""
    return (x - x.mean()) / (deviations * x.std())


def earn_height(data: Data) -> Columns:
    """Earnings by height."""
    return column(data, "earn"), [column(data, "height")]


def log10earn_height(data: Data) -> Columns:
    """Their decimal logarithm."""
    return column(data, "earn").log10(), [column(data, "height")]


def logearn_height(data: Data) -> Columns:
    """Their natural logarithm."""
    return column(data, "earn").log(), [column(data, "height")]


def logearn_height_male(data: Data) -> Columns:
    """By height and sex."""
    return column(data, "earn").log(), [column(data, "height"), column(data, "male")]


def logearn_interaction(data: Data) -> Columns:
    """With a slope for each sex."""
    height, male = column(data, "height"), column(data, "male")
    return column(data, "earn").log(), [height, male, height * male]


def logearn_interaction_z(data: Data) -> Columns:
    """The same, heights standardised."""
    height, male = standardised(column(data, "height")), column(data, "male")
    return column(data, "earn").log(), [height, male, height * male]


def logearn_logheight_male(data: Data) -> Columns:
    """By the logarithm of the height."""
    return column(data, "earn").log(), [column(data, "height").log(), column(data, "male")]


def kidscore_momhs(data: Data) -> Columns:
    """Test scores of children by whether the mother finished high school."""
    return column(data, "kid_score"), [column(data, "mom_hs")]


def kidscore_momiq(data: Data) -> Columns:
    """By the mother's score."""
    return column(data, "kid_score"), [column(data, "mom_iq")]


def kidscore_momhsiq(data: Data) -> Columns:
    """By both."""
    return column(data, "kid_score"), [column(data, "mom_hs"), column(data, "mom_iq")]


def with_product(data: Data, school: Tensor, score: Tensor) -> Columns:
    """By both and their product."""
    return column(data, "kid_score"), [school, score, school * score]


def kidscore_interaction(data: Data) -> Columns:
    """As measured."""
    return with_product(data, column(data, "mom_hs"), column(data, "mom_iq"))


def kidscore_interaction_c(data: Data) -> Columns:
    """Centred on their means."""
    school, score = column(data, "mom_hs"), column(data, "mom_iq")
    return with_product(data, school - school.mean(), score - score.mean())


def kidscore_interaction_c2(data: Data) -> Columns:
    """Centred on round values."""
    return with_product(data, column(data, "mom_hs") - 0.5, column(data, "mom_iq") - 100)


def kidscore_interaction_z(data: Data) -> Columns:
    """In units of two deviations."""
    return with_product(data, standardised(column(data, "mom_hs"), 2), standardised(column(data, "mom_iq"), 2))


def kidscore_mom_work(data: Data) -> Columns:
    """By how the mother worked, four classes."""
    work = column(data, "mom_work")
    return column(data, "kid_score"), [(work == kind).double() for kind in (2, 3, 4)]


def mesquite(data: Data) -> Columns:
    """Weight of the leaves of bushes by their measures."""
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return column(data, "weight"), [column(data, name) for name in names]


def logmesquite(data: Data) -> Columns:
    """On the logarithmic scale; the group is a yes or no."""
    weight, measures = mesquite(data)
    return weight.log(), [*(one.log() for one in measures[:-1]), measures[-1]]


def logmesquite_of(names: Sequence[str], data: Data) -> Columns:
    """On the logarithmic scale by what the measures make together."""
    weight, (first, second, height, total, density, group) = logmesquite(data)
    made = {
        "volume": first + second + height,
        "area": first + second,
        "shape": first - second,
        "total height": total,
        "density": density,
        "group": group,
    }
    return weight, [made[name] for name in names]


def nes(data: Data) -> Columns:
    """Party by ideology, race, age in four classes, education, sex and income."""
    age = column(data, "age_discrete")
    ages = [(age == kind).double() for kind in (2, 3, 4)]
    before, after = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    return column(data, "partyid7"), [
        *(column(data, name) for name in before), *ages, *(column(data, name) for name in after),
    ]  # fmt: skip


def regressions() -> dict[str, Callable[[Data], Problem]]:
    """The linear ones with flat coefficients, by the model's name."""
    flat_noise = (
        *(earn_height, log10earn_height, logearn_height, logearn_height_male, logearn_interaction),
        *(logearn_interaction_z, logearn_logheight_male, kidscore_interaction_c, kidscore_interaction_c2),
        *(kidscore_interaction_z, kidscore_mom_work, mesquite, logmesquite, nes),
    )
    cauchy_noise = (kidscore_momhs, kidscore_momiq, kidscore_momhsiq, kidscore_interaction)
    made = {
        "logmesquite_logvolume": ("volume",),
        "logmesquite_logva": ("volume", "area", "group"),
        "logmesquite_logvas": ("volume", "area", "shape", "total height", "density", "group"),
        "logmesquite_logvash": ("volume", "area", "shape", "total height", "group"),
    }
    found: dict[str, Callable[[Data], Problem]] = {}
    found |= {columns.__name__: partial(regression_on, columns) for columns in flat_noise}
    found |= {columns.__name__: partial(regression_on, columns, sigma_scale=2.5) for columns in cauchy_noise}
    found |= {name: partial(regression_on, partial(logmesquite_of, names)) for name, names in made.items()}
    return found
