"""A latent space in which the walks are straight, and the decoder back (paper, section 4.2).

In: Trajectories.  Out: `LatentMap`: segments from z_MAP to the end of each walk, encode, decode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .storage import Content
from .trajectories import Trajectories

LENGTH_SCALES = (1.0, 1.5, 2.5, 4.0, 6.0)  # in steps between recorded points
RIDGES = (1e-6, 1e-4, 1e-2)


class LatentMap(ABC):
    """Walks laid out as straight segments: position e on segment i is z_MAP + e (z_i - z_MAP).

    Attributes:
        theta_star: (D,), what the common start of the segments decodes to.
        start: The position at which the posterior begins: behind the approach, where the walk had one.
        bend: How far the latent walks are from their chords, as a part of the chord's length.
        residual: Root mean square distance of a recorded coordinate from what its position decodes to.
    """

    theta_star: Tensor
    start: float
    bend: float
    residual: float

    @property
    @abstractmethod
    def ends(self) -> Tensor:
        """The ends of the segments, relative to z_MAP: (N, k)."""

    @property
    def num_segments(self) -> int:
        """N."""
        return len(self.ends)

    @abstractmethod
    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> LatentMap:
        """Lay out these walks; returns the fitted map itself."""

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Latent points (..., k), relative to z_MAP -> theta (..., D)."""

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        """Points of the segments: indices (S,) and positions (S,) in [0, 1] -> theta (S, D)."""
        return self.decode(position[:, None] * self.ends[segment])

    def encode(self, theta: Tensor, num_points: int = 200) -> tuple[Tensor, Tensor]:
        """The latent point of the nearest place on the decoded curves, and how far theta was from it.

        Args:
            theta: (S, D).
            num_points: Points a segment that are looked at.

        Returns:
            z (S, k), relative to z_MAP, and distances (S,).
        """
        positions = torch.linspace(0, 1, num_points, device=theta.device, dtype=theta.dtype)
        best = torch.full((len(theta),), float("inf"), device=theta.device, dtype=theta.dtype)
        z = torch.zeros(len(theta), self.ends.shape[1], device=theta.device, dtype=theta.dtype)
        for i in range(self.num_segments):
            curve = self.decode_on(torch.full((num_points,), i, device=theta.device), positions)
            distance, nearest = torch.cdist(theta, curve).min(-1)
            closer = distance < best
            best = torch.where(closer, distance, best)
            z = torch.where(closer[:, None], positions[nearest, None] * self.ends[i], z)
        return z, best

    def state(self) -> dict[str, Any]:
        """The fitted map in tensors and plain values, for `MetricBNN.save`."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved: nothing says what of it a file needs. Give it state() -> dict, "
            "of tensors and plain values, and a classmethod restored(state, trajectories), as KernelMap has."
        )

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> LatentMap:
        """The map of such a state; `state.tensor` and `state.value` check what the file has."""
        raise NotImplementedError(
            f"{cls.__name__} cannot be loaded: it has no classmethod restored(state, trajectories), as KernelMap has."
        )


def usable(trajectories: Trajectories) -> Tensor:
    """The walks (N, T + 1, D) that never froze, in the model's precision."""
    whole = trajectories.is_good.all(-1).to(trajectories.thetas.device)
    if not bool(whole.any()):
        raise ValueError(
            "every particle of the walk froze: there is no whole walk to lay out. Walk again with a smaller step."
        )
    return trajectories.thetas[whole].to(trajectories.sites.dtype)


def start_of(trajectories: Trajectories) -> float:
    """Where the posterior begins: at the first recorded point of a walk that had left the MAP behind, else at it."""
    first, *rest = trajectories.positions[1:].tolist()
    approached = bool(rest) and first > 1.5 * (rest[0] - first)
    return first if approached else 0.0


@dataclass(frozen=True)
class _Kernel:
    """Radial basis functions of positions on a segment, conditioned to vanish at z_MAP."""

    length_scale: float

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        near = torch.exp(-((a[:, None] - b) ** 2) / (2 * self.length_scale**2))
        return near - torch.exp(-(a[:, None] ** 2 + b**2) / (2 * self.length_scale**2))


class KernelMap(LatentMap):
    """The metric losses' optimum, placed: orthonormal segments of length 1, decoded by kernel regression.

    The losses want consecutive points 1/T apart and all others as far apart as can be: straight
    segments in orthogonal directions. The decoder is kernel ridge regression from there to theta,
    conditioned to give theta_star at z_MAP; with orthogonal directions the terms between walks vanish,
    and what is left is one T x T solve for all of them:

        theta(i, e) = theta_star + sum over t of w_t(e) (theta_(i,t) - theta_star).

    Length scale and ridge have the smallest leave-one-out error, in closed form.

    Args:
        latent_dim: k; None for as many as there are walks. Fewer are refused: the walks could not be
            orthogonal.

    Example:
        >>> latent = KernelMap().fit(walk)
        >>> latent.decode_on(torch.tensor([0, 1]), torch.tensor([0.5, 1.0])).shape
        torch.Size([2, 3])
    """

    def __init__(self, latent_dim: int | None = None) -> None:
        self.latent_dim = latent_dim
        self.length_scale = self.ridge = float("nan")

    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> KernelMap:
        thetas = usable(trajectories)
        num_walks = len(thetas)
        if self.latent_dim is not None and self.latent_dim < num_walks:
            raise ValueError(
                f"latent_dim = {self.latent_dim} is less than the {num_walks} walks: KernelMap needs a direction for "
                "each. Pass latent_dim=None, or use AutoencoderMap, which takes any."
            )
        # In float64: with a small ridge the inverse has large entries that cancel.
        self._positions = trajectories.positions[1:].to(device=thetas.device, dtype=torch.float64)  # (T,)
        self.theta_star = thetas[0, 0].clone()
        self.start = start_of(trajectories)
        self._offsets = thetas[:, 1:] - self.theta_star  # (N, T, D)
        self._ends = torch.eye(num_walks, self.latent_dim or num_walks, device=thetas.device, dtype=thetas.dtype)
        self.length_scale, self.ridge = self._choose()
        self._inverse = torch.linalg.inv(self._gram(self.length_scale, self.ridge))  # (T, T)
        misses = self._weights(self._positions) @ self._offsets - self._offsets
        self.bend, self.residual = 0.0, float(misses.pow(2).mean().sqrt())
        return self

    @property
    def ends(self) -> Tensor:
        return self._ends

    def decode(self, z: Tensor) -> Tensor:
        flat = z.reshape(-1, z.shape[-1]).double()
        square = flat.pow(2).sum(-1, keepdim=True)  # (S, 1)
        theta = self.theta_star.expand(len(flat), -1)
        width = 2 * self.length_scale**2
        for i, end in enumerate(self._ends):  # |z - e q|^2 = |z|^2 - 2 e (z.q) + e^2
            along = flat @ end.double()
            near = torch.exp(-(square - 2 * along[:, None] * self._positions + self._positions**2) / width)
            far = torch.exp(-(square + self._positions**2) / width)
            theta = theta + ((near - far) @ self._inverse).to(theta.dtype) @ self._offsets[i]
        return theta.reshape(*z.shape[:-1], -1)

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        weights = self._weights(position)  # (S, T): only the walk itself contributes
        theta = weights.new_zeros(len(position), len(self.theta_star))
        for i in segment.unique().tolist():
            rows = (segment == i).nonzero().squeeze(-1)
            theta = theta.index_add(0, rows, weights[rows] @ self._offsets[i])
        return self.theta_star + theta

    def _weights(self, position: Tensor) -> Tensor:
        near = _Kernel(self.length_scale)(position.double(), self._positions)
        return (near @ self._inverse).to(self.theta_star.dtype)

    def _eye(self) -> Tensor:
        return torch.eye(len(self._positions), device=self._positions.device, dtype=self._positions.dtype)

    def _gram(self, length_scale: float, ridge: float) -> Tensor:
        return _Kernel(length_scale)(self._positions, self._positions) + ridge * self._eye()

    def _choose(self) -> tuple[float, float]:
        """Length scale and ridge of the smallest leave-one-out error; [K^-1 R]_t / [K^-1]_tt is the one at t."""
        steps = self._positions.diff()
        step = float(steps.mean()) if len(steps) else 1.0
        products = torch.einsum("ntd,nsd->ts", self._offsets, self._offsets).double()
        errors = {}
        for length_scale in (scale * step for scale in LENGTH_SCALES):
            for ridge in RIDGES:
                inverse = torch.linalg.inv(self._gram(length_scale, ridge))
                left_out = (inverse @ products @ inverse).diagonal() / inverse.diagonal() ** 2
                errors[length_scale, ridge] = float(left_out.sum().nan_to_num(float("inf")))
        return min(errors, key=errors.__getitem__)

    def state(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim}

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> KernelMap:
        """Fitted again: it takes milliseconds, draws no random number, and gives the same bits."""
        return cls(state.value("latent_dim", int, type(None))).fit(trajectories, progress=False)
