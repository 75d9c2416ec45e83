"""How wide the noise around the curves may be: so narrow that energies, and so predictions, do not notice.

In: a walk and its latent map.  Out: a part of the coordinates' spread.
"""

import math

import torch

from ..runtime.randomness import own_numbers
from ..walk.trajectories import Trajectories
from .latent_map import LatentMap

TUBE = 5e-4  # of a coordinate's spread: predictions of ordinary networks do not notice; twice as wide they begin to
MOST = 0.01  # of sqrt(D / 2), the deviation that the energy of a Gaussian posterior has: what the noise may add to it
NARROWER, MOST_TRIES = 10.0, 5  # where energies are not finite


def tube_of(walk: Trajectories, latent_map: LatentMap) -> float:
    """`TUBE`, or less where the posterior is so sharp that this would be felt.

    Five layers of 64 units: draws have a training NLL of .13 with it, and of .08 without, as the walk's points have.
    A walk from a file, and one whose rows are spread over ranks, are taken as ordinary.
    """
    ground, part = walk.ground, TUBE
    if ground is None or walk.share.num_rows > 1:
        return part
    potential = ground.potential.fixed() if ground.potential.is_noisy else ground.potential
    allowed = MOST * math.sqrt(len(ground.theta_star) / 2)
    spreads = latent_map.spreads.to(potential.sites.device)
    alive = walk.is_good.all(-1).to(spreads.device)
    with own_numbers(spreads.device), torch.no_grad():
        torch.manual_seed(0)
        points = [walk.thetas[:, t].to(spreads) for t in (math.ceil(walk.num_steps / 2), walk.num_steps)]
        noises = [torch.randn_like(points[0]) * spreads for _ in points]
        energy = [potential.value_and_grad(point)[0] for point in points]
        for _ in range(MOST_TRIES):
            both = [
                (potential.value_and_grad(point + sign * part * noise)[0] - before)[alive]
                for point, noise, before in zip(points, noises, energy, strict=True)
                for sign in (1, -1)  # the slope falls out: what is left is the curvature
            ]
            rise = float(torch.cat(both).mean())
            if math.isfinite(rise):
                return part * min(1.0, math.sqrt(allowed / max(rise, 1e-30)))
            part /= NARROWER
    return part
