"""A plane to draw walks in: through the MAP, along two principal components of the recorded points.

In: Trajectories or a LatentMap; for the energy a BatchedPotential.  Out: `Plane`: coordinates, and U on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..energy.potential import BatchedPotential
from ..latent.latent_map import LatentMap
from ..walk.trajectories import Trajectories

MAX_POINTS = 500  # that the components are found from: two directions of a walk need no more
MAX_NUMBERS = 4_000_000  # of thetas at once


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Two directions through a point.

    Args:
        origin: (D,).
        axes: (2, D), orthonormal.
        shares: (2,), the part of the points' variance along each.

    Example:
        >>> Plane.of_walks(walk).project(walk.theta_star)
        tensor([0., 0.])
    """

    origin: Tensor
    axes: Tensor
    shares: Tensor

    @classmethod
    def of_walks(cls, trajectories: Trajectories) -> Plane:
        """Through the MAP, along the two directions in which the recorded points vary most."""
        num_walks, num_points, dim = trajectories.thetas.shape
        if dim < 2:
            raise ValueError("a model of one coordinate has no plane to draw its walks in: use plot_energy instead.")
        if num_walks * (num_points - 1) < 2:
            raise ValueError("one recorded point has no principal components: walk at least two.")
        every = math.ceil(num_walks * num_points / MAX_POINTS)
        star = trajectories.theta_star.double()
        points = trajectories.thetas[:, 1::every].flatten(0, 1).double() - star
        _, singular, axes = torch.linalg.svd(points - points.mean(0), full_matrices=False)
        shares = singular[:2] ** 2 / singular.pow(2).sum()
        return cls(origin=star, axes=axes[:2], shares=shares)

    @classmethod
    def of_segments(cls, latent_map: LatentMap) -> Plane:
        """Of a latent space, through z_MAP.

        Where all segments are orthogonal every plane is as good as another; this one shows them all, as a fan.
        """
        ends = latent_map.ends.detach().double()  # (N, k)
        origin = torch.zeros_like(ends[0])
        if ends.shape[1] < 2:
            raise ValueError("a latent space of one dimension has no plane to draw its segments in.")
        _, singular, axes = torch.linalg.svd(ends, full_matrices=False)
        if len(ends) > 2 and float(singular[-1]) > 0.999 * float(singular[0]):
            angle = 2 * math.pi * torch.arange(len(ends), device=ends.device, dtype=ends.dtype) / len(ends)
            axes = torch.stack([angle.cos(), angle.sin()]) @ ends
            axes = axes / axes.norm(dim=-1, keepdim=True)
        if len(axes) < 2:  # one segment: along it, and any direction across
            across = torch.eye(2, ends.shape[1], device=ends.device, dtype=ends.dtype)
            axes = torch.linalg.qr(torch.cat([ends, across]).T)[0].T
        return cls(origin=origin, axes=axes[:2], shares=singular.new_full((2,), float("nan")))

    def project(self, theta: Tensor) -> Tensor:
        """(..., D) -> coordinates (..., 2)."""
        return ((theta.to(self.origin) - self.origin) @ self.axes.mT).to(theta.dtype)

    def lift(self, coordinates: Tensor) -> Tensor:
        """(..., 2) -> the points (..., D) of the plane."""
        return (self.origin + coordinates.to(self.origin) @ self.axes).to(coordinates.dtype)

    def energies(self, potential: BatchedPotential, first: Tensor, second: Tensor) -> Tensor:
        """U on the grid of coordinates first (A,) and second (B,): (B, A), a few points at once."""
        rows, columns = torch.meshgrid(second, first, indexing="ij")
        coordinates = torch.stack([columns, rows], dim=-1).flatten(0, 1)
        at_once = max(1, min(256, MAX_NUMBERS // len(self.origin)))
        parts = [potential.value(self.lift(part)) for part in coordinates.split(at_once)]
        return torch.cat(parts).detach().reshape(rows.shape)
