"""A latent space in which the walks are straight, and the decoder back (paper, section 4.2).

In: Trajectories.  Out: `LatentMap`: segments from z_MAP to the end of each walk, encode, decode.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..files.storage import Content
from ..runtime.arguments import check_count, check_type
from ..walk.trajectories import Trajectories

LENGTH_SCALES = (4.0, 10.0, 30.0, 100.0)  # in steps between recorded points
NUM_PLACES, REFINEMENT = 200, 10  # of a segment that are looked at for the nearest, and how much finer after that
NUMBERS_AT_ONCE = 2**21  # of a walk's T x D that are worked on together: the record is not held twice
RIDGE = 1e-8  # of the kernel's own size: for the solve alone; the curves go through the points


class LatentMap(ABC):
    """Walks laid out as straight segments: position e on segment i is z_MAP + e (z_i - z_MAP).

    Attributes:
        theta_star: (D,), what the common start of the segments decodes to.
        start: The position at which the posterior begins: behind the approach, where the walk had one.
        bend: How far the latent walks are from their chords, as a part of the chord's length.
        residuals: (D,), root mean square distance of each recorded coordinate from its reconstruction.
        spreads: (D,), the deviation of each coordinate over the recorded points.
    """

    theta_star: Tensor
    start: float
    bend: float
    residuals: Tensor
    spreads: Tensor

    def __getattr__(self, name: str) -> NoReturn:
        """Only for what is not there: before `fit`, all that it finds."""
        if "theta_star" in vars(self) or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise AttributeError(
            f"the latent map has not been fitted, so it has no {name!r}: call fit(trajectories) first."
        )

    @property
    @abstractmethod
    def ends(self) -> Tensor:
        """The ends of the segments, relative to z_MAP: (N, k)."""

    @property
    def num_segments(self) -> int:
        """N."""
        return len(self.ends)

    def check(self, num_walks: int) -> None:  # noqa: B027  (most maps take any number)
        """Refuse so many walks, before they are walked, if they cannot be laid out."""

    @abstractmethod
    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> LatentMap:
        """Lay out these walks; returns the fitted map itself."""

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Latent points (..., k), relative to z_MAP -> theta (..., D)."""

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        """Points of the segments: indices (S,) and positions (S,) in [0, 1] -> theta (S, D)."""
        return self.decode(position[:, None] * self.ends[segment])

    def encode(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The latent point of the nearest place on the decoded curves, and how far theta was from it.

        Args:
            theta: (S, D).

        Returns:
            z (S, k), relative to z_MAP, and distances (S,).
        """
        segment, position, distance = self.nearest(theta)
        return position[:, None] * self.ends[segment], distance

    def nearest(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The place on the decoded curves that is nearest to theta (S, D): segment, position and distance, (S,) each.

        A grid on every segment, then ever finer ones around the best point.
        """
        if theta.dim() != 2 or theta.shape[1] != len(self.theta_star):
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but must be (S, {len(self.theta_star)}).")
        positions = torch.linspace(0, 1, NUM_PLACES + 1, device=theta.device, dtype=theta.dtype)
        best = torch.full((len(theta),), float("inf"), device=theta.device, dtype=theta.dtype)
        segment, position = torch.zeros_like(best, dtype=torch.long), torch.zeros_like(best)
        for i in range(self.num_segments):
            curve = self.decode_on(torch.full((NUM_PLACES + 1,), i, device=theta.device), positions)
            distance, nearest = torch.cdist(theta, curve).min(-1)
            closer = distance < best
            best = torch.where(closer, distance, best)
            segment = torch.where(closer, i, segment)
            position = torch.where(closer, positions[nearest], position)
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
    """The walks (N, T + 1, D) that never froze, as they are stored."""
    check_type("trajectories", trajectories, Trajectories, "the Trajectories of a walk, as metric.trajectories are")
    whole = trajectories.is_good.all(-1).to(trajectories.thetas.device)
    if not bool(whole.any()):
        raise ValueError(
            "every particle of the walk froze: there is no whole walk to lay out. Walk again with a smaller step."
        )
    return trajectories.thetas if bool(whole.all()) else trajectories.thetas[whole]


def start_of(trajectories: Trajectories) -> float:
    """Where the posterior begins: at the first recorded point of a walk that had left the MAP behind, else at it."""
    first, *rest = trajectories.positions[1:].tolist()
    approached = bool(rest) and first > 1.5 * (rest[0] - first)
    return first if approached else 0.0


@dataclass(frozen=True)
class _Kernel:
    """Matern's kernel of smoothness 3/2 between positions on a segment, conditioned to vanish at z_MAP.

    Smooth enough to follow a walk and no smoother: on Snelson's network with 100 recorded points the training NLL of
    the draws was .174, with radial basis functions .204, with straight lines .169, with the walk's own points .159; and
    straight lines keep 66 % of the variance of coordinates that are independent from point to point, this 87 %.
    """

    length_scale: float

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return self._free(a[:, None] - b) - self._free(a)[:, None] * self._free(b)

    def _free(self, distance: Tensor) -> Tensor:
        r = distance.abs() * (math.sqrt(3) / self.length_scale)
        return (1 + r) * torch.exp(-r)


class KernelMap(LatentMap):
    """The metric losses' optimum, placed: orthonormal segments of length 1, decoded by kernel regression.

    The losses want consecutive points 1/T apart and all others as far apart as can be: straight
    segments in orthogonal directions q_i. The decoder is kernel regression from there to theta, with a kernel that is a
    sum over the directions and conditioned to give theta_star at z_MAP; so the terms between walks vanish,
    and what is left is one T x T solve for all of them:

        theta(z) = theta_star + sum over i, t of w_t(z.q_i) (theta_(i,t) - theta_star).

    The length scale has the smallest leave-one-out error, in closed form.

    Args:
        latent_dim: k; None for as many as there are walks. Fewer are refused: the walks could not be
            orthogonal.

    Example:
        >>> latent = KernelMap().fit(walk)
        >>> latent.decode_on(torch.tensor([0, 1]), torch.tensor([0.5, 1.0])).shape
        torch.Size([2, 3])
    """

    def __init__(self, latent_dim: int | None = None) -> None:
        if latent_dim is not None:
            check_count("latent_dim", latent_dim, "it counts directions; None takes one for each walk.")
        self.latent_dim = latent_dim
        self.length_scale = float("nan")

    def check(self, num_walks: int) -> None:
        if self.latent_dim is not None and self.latent_dim < num_walks:
            raise ValueError(
                f"latent_dim = {self.latent_dim} is less than the {num_walks} walks: KernelMap needs a direction for "
                "each. Pass latent_dim=None, or use AutoencoderMap, which takes any."
            )

    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> KernelMap:
        self._thetas = usable(trajectories)  # (N, T + 1, D), not copied: it may be most of the memory
        num_walks = len(self._thetas)
        self.check(num_walks)
        self.theta_star = self._thetas[0, 0].to(dtype=trajectories.sites.dtype, device=trajectories.sites.device)
        self.start = start_of(trajectories)
        # In float64: with a small ridge the inverse has large entries that cancel.
        self._positions = trajectories.positions[1:].to(device=self.theta_star.device, dtype=torch.float64)  # (T,)
        self._ends = torch.eye(
            num_walks, self.latent_dim or num_walks, device=self.theta_star.device, dtype=self.theta_star.dtype
        )
        self.spreads = self._spread()
        self.length_scale = self._choose()
        self._inverse = torch.linalg.inv(self._gram(self.length_scale))  # (T, T)
        self.bend, self.residuals = 0.0, self._residual()
        return self

    @property
    def ends(self) -> Tensor:
        return self._ends

    def decode(self, z: Tensor) -> Tensor:
        if z.shape[-1:] != self._ends.shape[1:]:
            raise ValueError(f"z has shape {tuple(z.shape)}, but must end in {self._ends.shape[1]}: a latent point.")
        flat = z.reshape(-1, z.shape[-1])
        weights = [self._weights(flat @ end) for end in self._ends]
        parts = []
        for columns in self._columns:
            part = self.theta_star[columns].expand(len(flat), -1)
            for i, weight in enumerate(weights):
                part = part + weight @ self._offsets(i, columns)
            parts.append(part)
        return torch.cat(parts, dim=-1).reshape(*z.shape[:-1], -1)

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        weights = self._weights(position)  # (S, T): only the walk itself contributes
        theta = weights.new_empty(len(position), len(self.theta_star))
        for i in segment.unique().tolist():
            rows = (segment == i).nonzero().squeeze(-1)
            for columns in self._columns:
                theta[rows, columns] = self.theta_star[columns] + weights[rows] @ self._offsets(i, columns)
        return theta

    @property
    def _columns(self) -> list[slice]:
        """All coordinates, in parts that are worked on one after another."""
        dim, size = len(self.theta_star), max(1, NUMBERS_AT_ONCE // len(self._positions))
        return [slice(start, min(start + size, dim)) for start in range(0, dim, size)]

    def _offsets(self, i: int, columns: slice) -> Tensor:
        """Walk i in some coordinates, seen from the MAP, in the model's precision: (T, part of D)."""
        return self._thetas[i, 1:, columns].to(self.theta_star) - self.theta_star[columns]

    def _weights(self, position: Tensor) -> Tensor:
        near = _Kernel(self.length_scale)(position.double(), self._positions)
        return (near @ self._inverse).to(self.theta_star.dtype)

    def _gram(self, length_scale: float) -> Tensor:
        gram = _Kernel(length_scale)(self._positions, self._positions)
        return gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device, dtype=gram.dtype)

    def _choose(self) -> float:
        """The length scale of the smallest leave-one-out error, in spreads; [K^-1 R]_t / [K^-1]_tt is the one at t."""
        steps = self._positions.diff()
        step = float(steps.mean()) if len(steps) else 1.0
        products = torch.zeros_like(self._gram(step))
        for i in range(self.num_segments):
            for columns in self._columns:
                spreads = self.spreads[columns]
                moves = spreads > 0  # a constant says nothing about the scale
                offsets = self._offsets(i, columns)[:, moves] / spreads[moves]
                products += (offsets @ offsets.mT).double()
        errors = {}
        for length_scale in (scale * step for scale in LENGTH_SCALES):
            inverse = torch.linalg.inv(self._gram(length_scale))
            left_out = (inverse @ products @ inverse).diagonal() / inverse.diagonal() ** 2
            errors[length_scale] = float(left_out.sum().nan_to_num(float("inf")))
        return min(errors, key=errors.__getitem__)

    def _spread(self) -> Tensor:
        """The deviation of each coordinate over the recorded points, walk by walk."""
        mean, square = torch.zeros_like(self.theta_star), torch.zeros_like(self.theta_star)
        for i in range(self.num_segments):
            for columns in self._columns:
                offsets = self._offsets(i, columns)
                mean[columns] += offsets.mean(0) / self.num_segments
                square[columns] += offsets.pow(2).mean(0) / self.num_segments
        return (square - mean**2).clamp_min(0).sqrt()

    def _residual(self) -> Tensor:
        """The root mean square distance of each recorded coordinate from its reconstruction."""
        at_points = self._weights(self._positions)  # (T, T)
        square = torch.zeros_like(self.theta_star)
        for i in range(self.num_segments):
            for columns in self._columns:
                offsets = self._offsets(i, columns)
                square[columns] += (at_points @ offsets - offsets).pow(2).mean(0) / self.num_segments
        return square.sqrt()

    def state(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim}

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> KernelMap:
        """Fitted again: it takes milliseconds, draws no random number, and gives the same bits."""
        return cls(state.value("latent_dim", int, type(None))).fit(trajectories, progress=False)
