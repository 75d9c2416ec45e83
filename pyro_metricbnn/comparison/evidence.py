"""What can be said of each posterior that is compared: predictions, leave-one-out, mixing, health.

In: a `Task` and a `Contender`.  Out: its `Evidence`, from which the table and the pictures are made.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..diagnostics.calibration import ClassCalibration, RealCalibration, calibration
from ..diagnostics.health import WEIGHTS_MAY_DIFFER, health
from ..diagnostics.mixing import MAX_FUNCTION_R_HAT, ess, function_mixing, r_hat, some_rows
from ..predictions.pointwise import Draws, Pointwise
from ..predictions.prediction import Prediction
from .contenders import Contender, Task

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MIN_LOO_DRAWS = 25  # that differ: with fewer there is no tail to smooth
MAX_K = 0.7  # above it the estimate of a left-out point cannot be trusted (Vehtari et al., 2024)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found out about one posterior; NaN or None where a figure has no meaning."""

    contender: Contender
    prediction: Prediction | None  # of a network, where it is judged
    calibration: ClassCalibration | RealCalibration | None  # how good that is
    elpd: Tensor  # (n,), leave-one-out log predictive density of each observation
    num_bad_k: float  # observations for which that cannot be trusted
    r_hat: float  # the worst, of function values for a network, else of all coordinates
    ess: float  # the smallest effective sample size of them
    derived: Draws  # deterministic sites (S, ...) of a model that is no network

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with it, and what to do."""
        source, said = self.contender.source, list(self.contender.warnings)
        if source.is_walked:
            # Whether functions agree is known here: a warning that weights do not, which they need not, would mislead.
            said += [text for text in health(source.given).warnings if WEIGHTS_MAY_DIFFER not in text]
        if self.r_hat > MAX_FUNCTION_R_HAT:
            said.append(
                f"the worst R-hat is {self.r_hat:.2f}: its chains do not agree yet, so another run would give other "
                "figures. Run it for longer; for a walk take MetricBNN(model, effort=4)."
            )
        if len(self.elpd) and math.isnan(self.num_bad_k):
            said.append(f"it has no leave-one-out score: take at least {MIN_LOO_DRAWS} draws that differ.")
        if self.num_bad_k > 0:
            said.append(
                f"{self.num_bad_k:.0f} of {len(self.elpd)} observations have a Pareto k above {MAX_K}: leave-one-out "
                "leans on a few draws there. Judge by test data, or refit without those observations."
            )
        return tuple(said)


def gather(task: Task, contender: Contender) -> Evidence:
    """Ask one posterior everything."""
    prediction = figures = None
    if task.y_judged is not None:
        prediction = task.predict(contender.draws, task.x_judged)
        figures = calibration(prediction, task.y_judged, levels=LEVELS)
    args, kwargs = task.arguments
    each, derived = Pointwise(task.model, args, kwargs, task.layout).given_data(contender.draws)
    elpd, pareto_k = leave_one_out(each)
    worst_r_hat, least_ess = _mixing(task, contender)
    return Evidence(
        contender=contender,
        prediction=prediction,
        calibration=figures,
        elpd=elpd,
        num_bad_k=float((pareto_k > MAX_K).sum()) if bool(elpd.isfinite().any()) else float("nan"),
        r_hat=worst_r_hat,
        ess=least_ess,
        derived={} if task.is_network else derived,
    )


def leave_one_out(each: Draws) -> tuple[Tensor, Tensor]:
    """PSIS-LOO by ArviZ of log-likelihoods (S, ...) by observed site: log predictive density and Pareto k, (n,) each.

    All observed sites together, in order; NaN from too few draws that differ. Draws count as independent for the length
    of the tail: effective sample sizes of a network's weights say nothing about its likelihood.
    """
    if not each:
        return torch.zeros(0, device="cpu"), torch.zeros(0, device="cpu")
    values = torch.cat([value.double().cpu().reshape(len(value), -1) for value in each.values()], dim=1)  # (S, n)
    unknown, elpd, pareto_k = torch.full_like(values[0], float("nan")), values[0].clone(), torch.zeros_like(values[0])
    if len(values.sum(1).unique()) < MIN_LOO_DRAWS:
        return unknown, unknown
    varies = (values != values[0]).any(0)  # what a mask leaves out does not, and ArviZ 1.x refuses it
    try:
        with warnings.catch_warnings(action="ignore"):  # about Pareto k, which is in the table
            elpd[varies], pareto_k[varies] = _arviz_loo(values[:, varies])
    except (ValueError, IndexError):  # of ArviZ 1.x, where the tail of an observation is one draw again and again
        return unknown, unknown
    return elpd, pareto_k


def _arviz_loo(values: Tensor) -> Iterator[Tensor]:
    import arviz
    import xarray

    data = xarray.Dataset({"all": (("chain", "draw", "observation"), values[None].numpy())})
    is_old = "InferenceData" in vars(arviz)  # ArviZ 0.x
    groups, scale = {"log_likelihood": data}, {"scale": "log"} if is_old else {}
    tree = arviz.InferenceData(**groups) if is_old else xarray.DataTree.from_dict(groups)
    found = arviz.loo(tree, pointwise=True, reff=1.0, **scale)
    for one in (found.loo_i if is_old else found.elpd_i, found.pareto_k):
        yield torch.as_tensor(one.values.copy(), device="cpu")


def _mixing(task: Task, contender: Contender) -> tuple[float, float]:
    """The worst R-hat and the least effective sample size."""
    if contender.chains is None:
        return float("nan"), float("nan")
    if task.is_network:
        x = some_rows(task.x)
        found = function_mixing(task.model, contender.chains, x, chunk_size=task.chunk_size)  # type: ignore[arg-type]
        return found.worst_r_hat, found.worst_ess
    chains = [value.double().reshape(*value.shape[:2], -1) for value in contender.chains.values()]
    coordinates = torch.cat(chains, dim=-1)  # (N, T, D)
    return float(r_hat(coordinates).max()), float(ess(coordinates).min())
