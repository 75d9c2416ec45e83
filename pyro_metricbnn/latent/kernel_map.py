"""The latent space in closed form: the metric losses' optimum, decoded by kernel regression.

In: Trajectories.  Out: `KernelMap`, behind the interface of latent_map.py.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor

from ..files.storage import Content
from ..runtime.arguments import check_count
from ..walk.trajectories import Trajectories
from .latent_map import LatentMap, start_of, usable

LENGTH_SCALES = (4.0, 10.0, 30.0, 100.0)  # in steps between recorded points
NUMBERS_AT_ONCE = 2**21  # of a walk's T x D that are worked on together: the record is not held twice
MOST_SAVED = 2**16  # directions of a map from a file, if it has no more coordinates: room is made for them
RIDGE = 1e-8  # of the kernel's own size: for the solve alone; the curves go through the points


def _kernel(a: Tensor, b: Tensor, length_scale: float) -> Tensor:
    """Matern's kernel of smoothness 3/2 between positions on a segment, conditioned to vanish at z_MAP."""
    # Radial basis functions predict worse; straight lines lose variance of what is independent from point to point.

    def free(distance: Tensor) -> Tensor:
        r = distance.abs() * (math.sqrt(3) / length_scale)
        return (1 + r) * torch.exp(-r)

    return free(a[:, None] - b) - free(a)[:, None] * free(b)


class KernelMap(LatentMap):
    """The metric losses' optimum, placed: orthonormal segments of length 1, decoded by kernel regression.

    The losses want consecutive points 1/T apart and all others far apart: straight segments in orthogonal directions
    q_i. The kernel is a sum over the directions and gives theta_star at z_MAP; so the terms between walks vanish, and
    what is left is one T x T solve, its length scale that of the smallest leave-one-out error:

        theta(z) = theta_star + sum over i, t of w_t(z.q_i) (theta_(i,t) - theta_star).

    Args:
        latent_dim: k; None for as many as there are walks. Fewer are refused: the walks could not be orthogonal.

    Example:
        >>> latent = KernelMap().fit(walk)
        >>> latent.decode_on(torch.tensor([0, 1]), torch.tensor([0.5, 1.0])).shape
        torch.Size([2, 3])
    """

    def __init__(self, latent_dim: int | None = None) -> None:
        check_count("latent_dim", latent_dim, "it counts directions; None takes one for each walk.", or_none=True)
        self.latent_dim, self.length_scale = latent_dim, math.nan

    def check(self, num_walks: int) -> None:
        if self.latent_dim is not None and self.latent_dim < num_walks:
            few = f"latent_dim = {self.latent_dim} is less than the {num_walks} walks, and each needs a direction"
            raise ValueError(f"{few}: pass latent_dim=None, or use AutoencoderMap, which takes any.")

    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> Self:
        self._thetas = usable(trajectories)  # (N, T + 1, D), not copied: it may be most of the memory
        num_walks = len(self._thetas)
        self.check(num_walks)
        self.theta_star = self._thetas[0, 0].to(dtype=trajectories.sites.dtype, device=trajectories.sites.device)
        self.start = start_of(trajectories)
        # In float64: with a small ridge the inverse has large entries that cancel.
        self._positions = trajectories.positions[1:].to(device=self.theta_star.device, dtype=torch.float64)  # (T,)
        self.ends = self.theta_star.new_zeros(num_walks, self.latent_dim or num_walks).fill_diagonal_(1)
        mean, square = self._average(lambda offsets: offsets), self._average(torch.square)
        self.spreads = (square - mean**2).clamp_min(0).sqrt()
        self.length_scale = self._choose()
        self._inverse = torch.linalg.inv(self._gram(self.length_scale))  # (T, T)
        at_points = self._weights(self._positions)  # (T, T)
        self.residuals = self._average(lambda offsets: (at_points @ offsets - offsets).square()).sqrt()
        self.bend = 0.0
        return self

    def decode(self, z: Tensor) -> Tensor:
        self.check_fitted()
        if z.shape[-1:] != self.ends.shape[1:]:
            raise ValueError(f"z has shape {tuple(z.shape)}, but must end in {self.ends.shape[1]}: a latent point.")
        flat = z.reshape(-1, z.shape[-1])
        weights = [self._weights(flat @ end) for end in self.ends]
        parts = [
            sum((weight @ self._offsets(i, columns) for i, weight in enumerate(weights)), self.theta_star[columns])
            for columns in self._columns
        ]
        return torch.cat(parts, dim=-1).reshape(*z.shape[:-1], -1)

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        self.check_fitted()
        if torch.jit.is_tracing() or torch.compiler.is_compiling():  # a graph is for later draws, of other walks
            return super().decode_on(segment, position)  # the same up to rounding, by the work of all walks
        weights = self._weights(position)  # (S, T): only the walk itself contributes
        theta = weights.new_empty(position.shape[0], len(self.theta_star))
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

    @property
    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """All walks in all coordinates, a part at a time."""
        for i in range(self.num_segments):
            for columns in self._columns:
                yield columns, self._offsets(i, columns)

    def _weights(self, position: Tensor) -> Tensor:
        near = _kernel(position.double(), self._positions, self.length_scale)
        return (near @ self._inverse).to(self.theta_star.dtype)

    def _gram(self, length_scale: float) -> Tensor:
        gram = _kernel(self._positions, self._positions, length_scale)
        return gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device, dtype=gram.dtype)

    def _choose(self) -> float:
        """The length scale of the smallest leave-one-out error, in spreads; [K^-1 R]_t / [K^-1]_tt is the one at t."""
        steps = self._positions.diff()
        step = float(steps.mean()) if len(steps) else 1.0
        products = self._positions.new_zeros(len(self._positions), len(self._positions))
        for columns, offsets in self._parts:
            moves = self.spreads[columns] > 0  # a constant says nothing about the scale
            scaled = offsets[:, moves] / self.spreads[columns][moves]
            products += (scaled @ scaled.mT).double()

        def error(length_scale: float) -> float:
            inverse = torch.linalg.inv(self._gram(length_scale))
            left_out = (inverse @ products @ inverse).diagonal() / inverse.diagonal() ** 2
            return float(left_out.sum().nan_to_num(float("inf")))

        return min((scale * step for scale in LENGTH_SCALES), key=error)

    def _average(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean over all recorded points of a function of them: (D,)."""
        average = torch.zeros_like(self.theta_star)
        for columns, offsets in self._parts:
            average[columns] += function(offsets).mean(0) / self.num_segments
        return average

    def state(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim}

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> Self:
        """Fitted again: it takes milliseconds, draws no random number, and gives the same bits."""
        latent_dim = state.value("latent_dim", int, type(None))
        if latent_dim is not None and not 0 < latent_dim <= max(MOST_SAVED, trajectories.sites.dim):
            raise state.wrong("latent_dim", "a number of directions that somebody could want")
        return cls(latent_dim).fit(trajectories, progress=False)
