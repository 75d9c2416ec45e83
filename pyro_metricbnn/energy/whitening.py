"""Units for a network that is linear in what is inferred, as a last layer is: its energy bends alike everywhere.

In: an energy, the MAP, the prior's deviations.  Out: a root R (D, D) of the inverse Hessian: in theta = scale * (R z)
the posterior is about as wide in all directions of z.
"""

import torch
from pyro import poutine
from torch import Tensor

from ..model.network import BayesianNetwork
from .handlers import Unvalidated
from .potential import BatchedPotential
from .prior_units import hessian_times

MOST_WEIGHTS = 2000  # whose Hessian is decomposed in seconds
MOST_ROWS = 20_000  # that it is of. It hangs on few rows, those that the network is not sure of: with 3,750 of 10,000
# images some directions were taken for far wider than they are, and particles were thrown out
AT_ONCE = 100  # of its rows
NUM_BATCHES, NUM_POWER_ITERATIONS = 10, 15
STRAIGHT = 1e-3  # of a change of the outputs: what may be bent of it
FLAT = 1.0  # prior precisions, at temperature 1: no direction is flatter


def whitening(potential: BatchedPotential, theta: Tensor, scale: Tensor) -> tuple[Tensor, float] | None:
    """The root, and the sharpest that a batch is in these units; None where it would say little, or take long.

    Ten thousand images, 650 weights of a last layer, batches of 250: coordinate by coordinate steps that the sharpest
    direction allows hardly move in the others, and deviations come out as .04. In these units they are .7, as on all
    images at once.
    """
    if len(theta) > MOST_WEIGHTS or not _is_linear(potential, theta):
        return None
    return whitening_at(potential, theta[None], scale)


def whitening_at(potential: BatchedPotential, thetas: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """The same, by the mean of the Hessians at points (n, D), a batch each in turn.

    At the MAP classes that are surely right bend the energy little, and a walk soon comes to where they do: there a
    batch was 1,200 times as sharp as a prior in units of the MAP's, and 40 times in units of the walk's.
    """
    values, vectors = torch.linalg.eigh(_mean_hessian(potential, thetas, scale))
    root = (vectors / values.clamp_min(FLAT / potential.temperature).sqrt() @ vectors.mT).to(scale.dtype)
    points = (thetas[i % len(thetas)] for i in range(NUM_BATCHES))
    return root, max(_sharpness(potential.next_batch(), theta, scale, root) for theta in points)


def _is_linear(potential: BatchedPotential, theta: Tensor) -> bool:
    """Whether the outputs of a network lie on a straight line where its weights do, and nothing else is inferred."""
    model = potential.model
    if not isinstance(model, BayesianNetwork) or set(potential.sites.names) != set(model.names):
        return False
    if model.likelihood.infers_noise:  # as a second output: the energy bends with it
        return False

    def outputs(point: Tensor) -> Tensor:
        values = potential.sites.constrain(point)[0]
        with Unvalidated(), poutine.block(), poutine.condition(data=values):
            return model(*potential.args, **potential.kwargs)

    with torch.no_grad():
        start, middle, end = (outputs(theta + part * (theta + 1)) for part in (0.0, 1.0, 2.0))
    return bool((end - 2 * middle + start).norm() <= STRAIGHT * (end - start).norm())


def _mean_hessian(potential: BatchedPotential, thetas: Tensor, scale: Tensor) -> Tensor:
    """Of a pass, or of as many batches as it takes for MOST_ROWS (D, D)."""
    total = torch.zeros(len(scale), len(scale), device=scale.device, dtype=torch.float64)
    num_rows, num_batches = 0, 0
    while num_rows < min(MOST_ROWS, potential.num_observations):
        batch = potential.next_batch().using(mode="trace")
        total += _hessian(batch, thetas[num_batches % len(thetas)], scale)
        num_rows, num_batches = num_rows + batch.num_rows, num_batches + 1
    return total / num_batches


def _hessian(batch: BatchedPotential, theta: Tensor, scale: Tensor) -> Tensor:
    """From gradients ahead of the point alone: for units that is near enough, and half of the time."""
    width = torch.finfo(theta.dtype).eps ** (1 / 3)
    here, steps = batch.grad(theta[None]), torch.diag(width * scale)
    rows = torch.cat([(batch.grad(theta + part) - here) * scale / width for part in steps.split(AT_ONCE)])
    return ((rows + rows.T) / 2).nan_to_num().double()


def _sharpness(batch: BatchedPotential, theta: Tensor, scale: Tensor, root: Tensor) -> float:
    """The largest curvature of one batch in the new units, by power iteration."""
    batch, v = batch.using(mode="trace"), torch.arange(1, len(theta) + 1, device=theta.device).to(root).sin()[None]
    for _ in range(NUM_POWER_ITERATIONS):
        v = hessian_times(batch, theta, scale, (v / v.norm()) @ root) @ root
    return float(v.norm())
