"""Was it worth it: the network as it came, the MAP that the search moved it to, and the posterior, side by side.

In: a run of a network and rows that it has not seen.  Out: `Gain`, a table, with a word where nothing was gained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..model.network import BayesianNetwork
from ..model.structure import Model, find_layout
from ..predictions.prediction import check_network, predict
from ..runtime.arguments import WrongTypeError
from ..runtime.randomness import own_numbers
from ..search.first_look import NO_SKILL, data_of
from ..walk.trajectories import Trajectories
from .calibration import ClassCalibration, RealCalibration, calibration

CAME, FOUND, WALKED = "as it came", "MAP", "posterior"
TOO_SMALL = 1 / 3  # of the residuals: a noise that is smaller leaves them unexplained
WORSE, MOST_ERRORS = 0.01, 2.0  # nats a row, and standard errors
STANDARDISED = "a narrower prior (prior_scale=), and x and y of a mean of 0 and a deviation of 1"
BY_NUMBER = "a colder temperature by its number, as MetricBNN(model, temperature=0.1)"
COLDER = 'another temperature, MetricBNN(model, temperature="auto") or a colder one by its number, as 0.1'


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What each stage of a run predicts on the same rows; printed, it is a table."""

    stages: Mapping[str, ClassCalibration | RealCalibration]
    difference: float  # NLL a row of the posterior, less that of the network as it came
    standard_error: float  # of that difference, over the rows
    way: str = COLDER  # to something better

    def __str__(self) -> str:
        width = max(map(len, self.stages))
        lines = [f"{name:<{width}}  {figures}" for name, figures in self.stages.items()]
        against = f"the posterior's NLL less that of the network as it came: {self.difference:+.3f}"
        return "\n".join([*lines, f"{against} ± {self.standard_error:.3f} a row", *self.warnings])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to try, where the posterior predicts worse than what came in."""
        if self.difference <= max(WORSE, MOST_ERRORS * self.standard_error):
            return ()
        by_search = self.stages[FOUND].nll > self.stages[CAME].nll + WORSE
        way = (
            "leaving from the weights as they are, run(..., map_params=model.trained_params)" if by_search else self.way
        )
        return (
            f"the posterior predicts these rows worse than the network as it came, by {self.difference:.3f} ± "
            f"{self.standard_error:.3f} nats a row. Try {way}; or more effort, if health says that the walk has not "
            "come to rest.",
        )


def gain(model: BayesianNetwork, walk: Trajectories, draws: Mapping[str, Tensor], x: Any, y: Any) -> Gain:
    """The three stages on rows x, y.

    Args:
        model: A model made by `bayesianize`.
        walk: The walk of it.
        draws: Of its posterior, (S, ...) a site.
        x, y: Rows that neither the network nor the walk has seen.

    Example:
        >>> list(gain(model, walk, walk.samples(), x, y).stages)
        ['as it came', 'MAP', 'posterior']
    """
    check_network("gain", model, "compare(model, ...) has leave-one-out scores")
    x, y = model.taken(x, y)
    points = {CAME: as_it_came(model, walk), FOUND: at(walk, walk.theta_star), WALKED: draws}
    predictions = {name: predict(model, samples, x) for name, samples in points.items()}
    each = predictions[CAME].log_prob(y) - predictions[WALKED].log_prob(y)
    error = float(each.std()) / len(each) ** 0.5 if len(each) > 1 else float("inf")
    stages = {name: calibration(prediction, y) for name, prediction in predictions.items()}
    way = STANDARDISED if model.likelihood.infers_noise else BY_NUMBER if walk.in_batches else COLDER
    return Gain(stages=stages, difference=float(each.mean()), standard_error=error, way=way)


def as_it_came(model: BayesianNetwork, walk: Trajectories) -> dict[str, Tensor]:
    """The trained weights as one draw; the likelihood's own parameters as the residuals of the data ask for."""
    weights = {name: value[None] for name, value in model.trained_params.items()}
    x, y = data_of(model, *walk.arguments)
    f = predict(model, weights, x).f[0]
    own = model.likelihood.fitted(f, model.likelihood.targets(f, y))
    shapes = {site.name: site.shape for site in walk.sites.sites}
    return weights | {name: value.expand(shapes[name])[None] for name, value in own.items()}


def at(walk: Trajectories, theta: Tensor) -> dict[str, Tensor]:
    """Points (D,) or (S, D) as draws by site."""
    theta = theta if theta.dim() == 2 else theta[None]
    return walk.sites.unflatten(theta.to(dtype=walk.sites.dtype, device=walk.sites.device))


def noise_warnings(model: Any, walk: Trajectories) -> list[str]:
    """What to say of a noise that is far below the residuals, where the walk began or where it ended."""
    if not isinstance(model, BayesianNetwork) or not model.likelihood.has_normal_noise:
        return []
    x, y = data_of(model, *walk.arguments)
    good = walk.is_good[:, -1].to(walk.thetas.device)
    points = {FOUND: walk.theta_star, WALKED: walk.thetas[good, -1]}
    figures = {}
    for name, theta in points.items():
        if len(theta):
            prediction = predict(model, at(walk, theta), x)
            y_like = model.likelihood.targets(prediction.f[0], y)
            residual = float((prediction.expected - y_like).square().mean().sqrt())
            figures[name] = residual, float(prediction.noise_std.square().mean().sqrt())
    came = as_it_came(model, walk)
    first = predict(model, came, x)
    y_like = model.likelihood.targets(first.f[0], y)
    as_came = float((first.mean - y_like).square().mean().sqrt())
    said = []
    error = model.likelihood.error_of(first.f[0], y_like)
    residual, noise = figures[FOUND]
    if model.likelihood.infers_noise and noise < TOO_SMALL * as_came and error is not None and error < NO_SKILL:
        said.append(
            f"the search for the MAP took the noise down to {noise:.2g}, where the residuals of the network as it came "
            f"are {as_came:.2g}: the joint maximum is an overfitted network without noise. Leave from the trained "
            "weights and the noise of held-out rows: run(..., map_params={**model.trained_params, 'scale': noise})."
        )
    for name, (residual, noise) in figures.items():
        if noise < TOO_SMALL * residual:
            where = "at the MAP" if name == FOUND else "at the end of the walk"
            said.append(
                f"{where} the noise is {noise:.2g} and the residuals are {residual:.2g}: predictions are far too sure. "
                "Let the noise be inferred, Gaussian(), or give one of the residuals' size."
            )
            break
    return said


def unseen_rows(model: Model, validation: Sequence[Any] | None) -> tuple[Any, Any] | None:
    """The validation rows, refused before the walk where they cannot be predicted."""
    if validation is None:
        return None
    if not isinstance(validation, (tuple, list)) or len(validation) != 2:
        raise WrongTypeError(f"validation must be a pair (x, y) of rows, got {type(validation).__name__}.")
    if not isinstance(model, BayesianNetwork):
        raise ValueError(
            "validation is for networks made models by bayesianize: which argument of another model it replaces is not "
            "known. Leave it out; compare(model, ...) has leave-one-out scores."
        )
    with own_numbers(model.net.get_parameter(model.names[0]).device):  # a look at the model draws from it
        find_layout(model, tuple(validation), {})
    return validation[0], validation[1]
