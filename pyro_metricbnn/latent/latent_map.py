"""A latent space in which the walks are straight, and the decoder back (paper, section 4.2).

In: Trajectories.  Out: `LatentMap`: segments from z_MAP to the end of each walk, encode, decode.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from ..files.storage import Content
from ..runtime.arguments import check_type
from ..walk.trajectories import Trajectories

NUM_PLACES, REFINEMENT = 200, 10  # of a segment that are looked at for the nearest, and how much finer after that


class LatentMap(ABC):
    """Walks laid out as straight segments: position e on segment i is z_MAP + e (z_i - z_MAP).

    `fit` sets all of these.
    """

    theta_star: Tensor  # (D,), what the common start of the segments decodes to
    ends: Tensor  # (N, k), of the segments, relative to z_MAP
    start: float  # the position at which the posterior begins: behind the approach, where the walk had one
    bend: float  # how far the latent walks are from their chords, as a part of the chord's length
    residuals: Tensor  # (D,), root mean square distance of each recorded coordinate from its reconstruction
    spreads: Tensor  # (D,), the deviation of each coordinate over the recorded points

    def __repr__(self) -> str:
        said = f"{self.num_segments} segments, {len(self.theta_star)} coordinates" if self.is_fitted else "not fitted"
        return f"{type(self).__name__}({said})"

    @property
    def is_fitted(self) -> bool:
        """Whether walks have been laid out."""
        return hasattr(self, "theta_star")

    def check_fitted(self) -> None:
        """Refuse to decode or encode before `fit`."""
        if not self.is_fitted:
            raise AttributeError("the latent map has not been fitted: call fit(trajectories) first.")

    @property
    def num_segments(self) -> int:
        """N."""
        return len(self.ends)

    def check(self, num_walks: int) -> None:  # noqa: B027  (most maps take any number)
        """Refuse so many walks, before they are walked, if they cannot be laid out."""

    @abstractmethod
    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> Self:
        """Lay out these walks; returns the fitted map itself."""

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Latent points (..., k), relative to z_MAP -> theta (..., D)."""

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        """Points of the segments: indices (S,) and positions (S,) in [0, 1] -> theta (S, D)."""
        return self.decode(position[:, None] * self.ends[segment])

    def encode(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Theta (S, D) -> the nearest place on the decoded curves, z (S, k) relative to z_MAP, and distances (S,)."""
        segment, position, distance = self.nearest(theta)
        return position[:, None] * self.ends[segment], distance

    def nearest(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The place on the decoded curves nearest to each theta (S, D): segment, position and distance, (S,) each."""
        self.check_fitted()
        if theta.dim() != 2 or theta.shape[1] != len(self.theta_star):
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but must be (S, {len(self.theta_star)}).")
        positions = torch.linspace(0, 1, NUM_PLACES + 1, device=theta.device, dtype=theta.dtype)
        # A grid on every segment, then ever finer ones around the best point.
        segments = torch.arange(self.num_segments, device=theta.device)
        curves = (self.decode_on(i.expand(len(positions)), positions) for i in segments)
        on_each = [torch.cdist(theta, curve).min(-1) for curve in curves]
        segment = torch.stack([found.values for found in on_each]).argmin(0)
        places = torch.stack([found.indices for found in on_each])  # (N, S)
        position = positions[places.gather(0, segment[None]).squeeze(0)]
        offsets = torch.linspace(-1, 1, 2 * REFINEMENT + 1, device=theta.device, dtype=theta.dtype) / NUM_PLACES
        for _ in range(2):
            places = (position[:, None] + offsets).clamp(0, 1)  # (S, P)
            curve = self.decode_on(segment.repeat_interleave(len(offsets)), places.flatten())
            distance, nearest = (curve.unflatten(0, places.shape) - theta[:, None]).norm(dim=-1).min(-1)
            position = places.gather(1, nearest[:, None]).squeeze(1)
            offsets = offsets / REFINEMENT
        return segment, position, distance

    def state(self) -> dict[str, Any]:
        """The fitted map in tensors and plain values, for `MetricBNN.save`."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved: nothing says what of it a file needs. Give it state() -> dict, of "
            "tensors and plain values, and a classmethod restored(state, trajectories), as KernelMap has."
        )

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> Self:
        """The map of such a state; `state.tensor` and `state.value` check what the file has."""
        raise NotImplementedError(f"to load a {cls.__name__}, give it restored(state, trajectories), as KernelMap has.")


def usable(trajectories: Trajectories) -> Tensor:
    """The walks (N, T + 1, D) that never froze, as they are stored."""
    check_type("trajectories", trajectories, Trajectories, "the Trajectories of a walk, as metric.trajectories are")
    whole = trajectories.is_good.all(-1).to(trajectories.thetas.device)
    if not bool(whole.any()):
        raise ValueError("every particle of the walk froze: there is none to lay out. Walk again with a smaller step.")
    return trajectories.thetas if bool(whole.all()) else trajectories.thetas[whole]


def start_of(trajectories: Trajectories) -> float:
    """Where the posterior begins: at the first recorded point of a walk that had left the MAP behind, else at it."""
    first, *rest = trajectories.positions[1:].tolist()
    approached = bool(rest) and first > 1.5 * (rest[0] - first)
    return first if approached else 0.0
