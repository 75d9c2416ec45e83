"""Made data of the shapes of posteriordb's, for those who do not have them: the same variables, other numbers.

In: the name of a data set.  Out: a mapping as the JSON file has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Made = dict[str, Any]


def made(name: str) -> Made:
    """The data set of a name, always the same."""
    generator = torch.Generator().manual_seed(1)
    kinds: dict[str, Callable[[torch.Generator], Made]] = {
        **{"earnings": earnings, "kidiq": kidiq, "kidiq_with_mom_work": kidiq, "mesquite": mesquite, "arK": series},
        **{"sblrc": plain, "sblri": plain, "eight_schools": schools, "gp_pois_regr": counts},
        **{"low_dim_gauss_mix": mixture, "hmm_example": chain, "bball_drive_event_0": drive},
    }
    return (survey if name.startswith("nes") else kinds[name])(generator)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _classes(generator: torch.Generator, first: int, last: int, num: int) -> Tensor:
    return torch.randint(first, last + 1, (num,), generator=generator).double()


def _listed(**columns: Tensor) -> Made:
    return {"N": len(next(iter(columns.values()))), **{name: value.tolist() for name, value in columns.items()}}


def earnings(generator: torch.Generator) -> Made:
    """Dollars by inches and sex."""
    male = _classes(generator, 0, 1, 1192)
    height = 64 + 5 * male + 2.6 * _normal(generator, 1192)
    earn = (8.2 + 0.02 * height + 0.4 * male + 0.9 * _normal(generator, 1192)).exp()
    return _listed(earn=earn, height=height, male=male)


def kidiq(generator: torch.Generator) -> Made:
    """Scores of children and mothers."""
    school = (_uniform(generator, 434) < 0.8).double()
    score = 97 + 5 * school + 15 * _normal(generator, 434)
    child = 26 + 6 * school + 0.56 * score + 18 * _normal(generator, 434)
    return _listed(kid_score=child, mom_hs=school, mom_iq=score, mom_work=_classes(generator, 1, 4, 434))


def mesquite(generator: torch.Generator) -> Made:
    """Bushes."""
    size = 0.5 * _normal(generator, 46)
    names = ("diam1", "diam2", "canopy_height", "total_height")
    measures = {name: (0.5 + size + 0.2 * _normal(generator, 46)).exp() for name in names}
    density, group = _classes(generator, 1, 5, 46), _classes(generator, 0, 1, 46)
    weight = (5.3 + 2.2 * size - 0.5 * group + 0.3 * _normal(generator, 46)).exp()
    return _listed(weight=weight, density=density, group=group, **measures)


def survey(generator: torch.Generator) -> Made:
    """Voters."""
    steps = {"real_ideo": 7, "race_adj": 2, "age_discrete": 4, "educ1": 4, "gender": 2, "income": 5}
    answers = {name: _classes(generator, 1, last, 1200) for name, last in steps.items()}
    party = 1.5 + 0.6 * answers["real_ideo"] - 1.2 * answers["race_adj"] + 1.8 * _normal(generator, 1200)
    return _listed(partyid7=party, **answers)


def plain(generator: torch.Generator) -> Made:
    """Columns of a deviation of 100."""
    x = 100 * _normal(generator, 100, 5)
    return {"D": 5, **_listed(X=x, y=x.sum(1) + _normal(generator, 100))}


def series(generator: torch.Generator) -> Made:
    """An autoregression of order 5, of which two coefficients are not 0."""
    values = [0.0] * 5
    for shock in (0.15 * _normal(generator, 195)).tolist():
        values.append(0.5 * values[-1] - 0.2 * values[-2] + shock)
    return {"K": 5, "T": 200, "y": values}


def schools(generator: torch.Generator) -> Made:
    """Effects and their errors."""
    sigma = 9 + 9 * _uniform(generator, 8)
    return {"J": 8, "y": (8 + sigma * _normal(generator, 8)).tolist(), "sigma": sigma.tolist()}


def counts(generator: torch.Generator) -> Made:
    """Counts and values on a line."""
    x = torch.linspace(-10, 10, 11, dtype=torch.float64)
    rate = (3 + torch.sin(x / 3)).exp()
    values = torch.sin(x / 3) + 0.5 * _normal(generator, 11)
    return _listed(x=x, y=values, k=torch.poisson(rate, generator=generator))


def mixture(generator: torch.Generator) -> Made:
    """Two normals."""
    high = (_uniform(generator, 1000) < 0.4).double()
    return _listed(y=-2.7 + 5.6 * high + _normal(generator, 1000))


def _states(generator: torch.Generator, num: int, leaves: tuple[float, float]) -> Tensor:
    """A chain of two states, by the chances to leave them."""
    state, found = 0, []
    for chance in _uniform(generator, num).tolist():
        state = 1 - state if chance < leaves[state] else state
        found.append(state)
    return torch.tensor(found)


def chain(generator: torch.Generator) -> Made:
    """Two hidden states."""
    means = torch.tensor([3.0, 9.0], dtype=torch.float64)
    y = means[_states(generator, 100, (0.3, 0.1))] + _normal(generator, 100)
    return {"K": 2, **_listed(y=y)}


def drive(generator: torch.Generator) -> Made:
    """Two hidden states, exponential times and distances."""
    state = _states(generator, 416, (0.01, 0.04))
    rates = torch.tensor([[1.8, 6.7], [0.028, 0.076]], dtype=torch.float64)[:, state]
    u, v = -_uniform(generator, 2, 416).log() / rates
    return {"K": 2, "alpha": [[6.0, 1.0], [1.0, 6.0]], **_listed(u=u, v=v)}
