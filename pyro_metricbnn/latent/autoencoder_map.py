"""The paper's latent space: an autoencoder trained with a metric loss (section 4.2).

In: Trajectories.  Out: `AutoencoderMap`, behind the interface of latent_map.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..files.storage import Content
from ..runtime.arguments import check_count, check_number
from ..walk.trajectories import Trajectories
from .latent_map import LatentMap, start_of, usable

PATIENCE = 100  # epochs without a new best, smoothed loss
BEND_EVERY = 10  # epochs
LEFT_OUT = 5e-4  # of the variance, by the basis of the span: of a walk on Snelson's network 1,600 of 2,000 directions,
# whose loss does not change its NLL (.192 with, .195 without)
NUMBER = (int, float)
SETTINGS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("latent_dim", "num_hidden", "num_epochs", "batch_size"), (int,)),
    **dict.fromkeys(("lambda_plus", "lambda_minus", "lambda_segment", "lr"), NUMBER),
    **dict.fromkeys(("decay", "in_span", "stop_early"), (bool,)),
}
FITTED = ("theta_star", "residuals", "spreads", "start", "bend", "losses", "bends")  # of what is stored


class AutoencoderMap(LatentMap):
    """Encoder and decoder with two hidden layers, trained so that the walks become straight.

    The paper's losses: consecutive points 1/T apart (lambda_plus), other pairs far apart (lambda_minus,
    negatives by reshuffling the batch), reconstruction. Ours adds the points that the posterior will
    draw, |decoder(z_0 + e (z_T - z_0)) - theta_e|^2 (lambda_segment), and works in a basis of the span of the
    points, so that its cost does not depend on D.

    Args:
        latent_dim: k (paper: 32).
        num_hidden: Units of a hidden layer (paper: 256).
        lambda_plus: Weight of the distances between consecutive points (paper: 1).
        lambda_minus: Weight of the distances between others (paper: 1).
        lambda_segment: Weight of the decoded segments (paper: 0).
        num_epochs: At most this many passes (paper: 1000).
        batch_size: Pairs a step (paper: 1024).
        lr: Adam's rate (the paper does not say; its setting here takes 1e-3).
        decay: Let the rate fall to 0 along half a cosine (paper: no).
        in_span: Work in a basis of the points' span, in units of their spread (paper: no).
        stop_early: End when the loss has stopped falling (paper: no).

    After `fit`, `losses` has the parts of the loss of each epoch, and `bends` how bent the latent walks were at each
    tenth, as a part of their chords.

    Example:
        >>> AutoencoderMap(latent_dim=2, num_epochs=5).fit(walk, progress=False).ends.shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        latent_dim: int = 32,
        *,
        num_hidden: int = 256,
        lambda_plus: float = 1.0,
        lambda_minus: float = 1.0,
        lambda_segment: float = 1.0,
        num_epochs: int = 1000,
        batch_size: int = 1024,
        lr: float = 3e-3,
        decay: bool = True,
        in_span: bool = True,
        stop_early: bool = True,
    ) -> None:
        check_count("latent_dim", latent_dim, "it is the dimension of the latent space; the paper takes 32.")
        for name, count in (("num_hidden", num_hidden), ("num_epochs", num_epochs), ("batch_size", batch_size)):
            check_count(name, count, "the default is the paper's.")
        check_number("lr", lr, "it is Adam's rate.")
        weights = {"lambda_plus": lambda_plus, "lambda_minus": lambda_minus, "lambda_segment": lambda_segment}
        for name, weight in weights.items():
            check_number(name, weight, "it weighs a part of the loss; 0 leaves it out.", or_zero=True)
        self.latent_dim, self.num_hidden = latent_dim, num_hidden
        self.lambda_plus, self.lambda_minus, self.lambda_segment = lambda_plus, lambda_minus, lambda_segment
        self.num_epochs, self.batch_size, self.lr = num_epochs, batch_size, lr
        self.decay, self.in_span, self.stop_early = decay, in_span, stop_early
        self.losses: list[dict[str, float]] = []
        self.bends: list[float] = []

    @classmethod
    def paper(cls, **changes: Any) -> AutoencoderMap:
        """Exactly the paper's objective and sizes, but for the changes, by name."""
        settings = {"lambda_segment": 0.0, "lr": 1e-3, "decay": False, "in_span": False, "stop_early": False}
        return cls(**settings | changes)

    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> AutoencoderMap:
        thetas = usable(trajectories).to(trajectories.sites.dtype)  # (N, T + 1, D)
        positions = trajectories.positions.to(thetas)
        self.start = start_of(trajectories)
        points = self._set_basis(thetas)  # (N, T + 1, B)
        self._build(points)
        self._train(points, positions, progress)
        with torch.no_grad():
            z = self._encoder(points)
            self._z_star = z[:, 0].mean(0)
            self._ends = z[:, -1] - self._z_star
            self.theta_star = self.decode(torch.zeros_like(self._z_star))
            self.bend = _bend(z, positions)
            misses = self._to_theta(self._decoder(z)) - thetas
            self.residuals, self.spreads = misses.pow(2).mean((0, 1)).sqrt(), thetas[:, 1:].std((0, 1))
        return self

    @property
    def ends(self) -> Tensor:
        return self._ends

    def decode(self, z: Tensor) -> Tensor:
        return self._to_theta(self._decoder(self._z_star + z))

    def encode(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder gives, relative to z_MAP, and how far theta was from the decoded curves."""
        _, _, distance = self.nearest(theta)
        points = theta if self._basis is None else (theta - self._origin) @ self._basis.mT / self._unit
        with torch.no_grad():
            return self._encoder(points) - self._z_star, distance

    # ---------------------------------------------------------------------------------- training

    def _set_basis(self, thetas: Tensor) -> Tensor:
        self._origin = torch.zeros_like(thetas[0, 0])
        self._basis: Tensor | None = None
        self._unit = 1.0
        if not self.in_span:
            return thetas
        self._origin = thetas[0, 0]
        flat = (thetas - self._origin).flatten(0, 1)
        _, singular, axes = torch.linalg.svd(flat, full_matrices=False)
        left = 1 - (singular.double() ** 2).cumsum(0) / (singular.double() ** 2).sum()
        self._basis = axes[: 1 + int((left > LEFT_OUT).sum())]  # (B, D)
        self._unit = float(singular[0] / len(flat) ** 0.5)
        return (thetas - self._origin) @ self._basis.mT / self._unit

    def _to_theta(self, points: Tensor) -> Tensor:
        return points if self._basis is None else self._origin + self._unit * (points @ self._basis)

    def _build(self, points: Tensor) -> None:
        dim, hidden, k = points.shape[-1], self.num_hidden, self.latent_dim
        where: dict[str, Any] = {"device": points.device, "dtype": points.dtype}

        def network(*sizes: int) -> nn.Sequential:
            layers = [(nn.Linear(a, b, **where), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
            return nn.Sequential(*itertools.chain(*layers))[:-1]

        self._encoder, self._decoder = network(dim, hidden, hidden, k), network(k, hidden, hidden, dim)

    def _train(self, points: Tensor, positions: Tensor, progress: bool) -> None:
        """Adam on minibatches of consecutive pairs; the losses of each epoch are kept for plots."""
        num_walks, num_points = points.shape[:2]
        pairs = [(i, t) for i in range(num_walks) for t in range(num_points - 1)]
        index = torch.tensor(pairs, device=points.device)
        parameters = [*self._encoder.parameters(), *self._decoder.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_epochs)
        best, since, smooth = float("inf"), 0, None
        self.losses, self.bends = [], []
        with tqdm(total=self.num_epochs, desc="latent map", disable=not progress, unit=" epochs") as bar:
            for _ in range(self.num_epochs):
                totals: dict[str, float] = {}
                for batch in index[torch.randperm(len(index), device=points.device)].split(self.batch_size):
                    losses = self._losses(points, positions, batch[:, 0], batch[:, 1])
                    total = torch.stack(list(losses.values())).sum()
                    optimizer.zero_grad()
                    total.backward()
                    optimizer.step()
                    for name, value in losses.items():
                        totals[name] = totals.get(name, 0.0) + float(value.detach()) * len(batch) / len(index)
                if self.decay:
                    schedule.step()
                self.losses.append(totals)
                if len(self.losses) % BEND_EVERY == 0:
                    with torch.no_grad():
                        self.bends.append(_bend(self._encoder(points), positions))
                loss = sum(totals.values())
                smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
                best, since = (
                    (smooth, 0) if smooth < best - 1e-3 * abs(best) or best == float("inf") else (best, since + 1)
                )
                bar.update()
                bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
                if self.stop_early and since >= PATIENCE:
                    break

    def _losses(self, points: Tensor, positions: Tensor, walk: Tensor, step: Tensor) -> dict[str, Tensor]:
        theta, following = points[walk, step], points[walk, step + 1]
        z, z_next = self._encoder(theta), self._encoder(following)
        other = z[torch.randperm(len(z), device=z.device)]
        tiny = torch.finfo(z.dtype).tiny
        gap = positions[step + 1] - positions[step]
        plus = ((z - z_next).norm(dim=-1) - gap).pow(2).mean()
        apart = (z - other).pow(2).sum(-1)
        minus = -0.5 * torch.log(apart[apart > tiny]).mean()  # a point that met itself has no distance
        losses = {
            "plus": self.lambda_plus * plus,
            "minus": self.lambda_minus * minus,
            "reconstruction": self._square(self._decoder(z) - theta),
        }
        if self.lambda_segment > 0:
            start, ends = self._encoder(points[0, :1]), self._encoder(points[:, -1])
            on_segment = start + positions[step][:, None] * (ends[walk] - start)
            losses["segment"] = self.lambda_segment * self._square(self._decoder(on_segment) - theta)
        return losses

    def _square(self, misses: Tensor) -> Tensor:
        """Mean squared distance in theta's own units, so that the weights mean what they do in the paper."""
        return self._unit**2 * misses.pow(2).sum(-1).mean()

    # ----------------------------------------------------------------------------------- storage

    def state(self) -> dict[str, Any]:
        fitted = {name: getattr(self, name) for name in FITTED}
        return {
            **fitted,
            "settings": {name: getattr(self, name) for name in SETTINGS},
            "encoder": dict(self._encoder.state_dict()),
            "decoder": dict(self._decoder.state_dict()),
            "z_star": self._z_star,
            "ends": self._ends,
            "origin": self._origin,
            "basis": self._basis,
            "unit": self._unit,
        }

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> AutoencoderMap:
        settings = state.part("settings")
        latent = cls(**{name: settings.value(name, *types) for name, types in SETTINGS.items()})
        k, dim, like = latent.latent_dim, trajectories.sites.dim, {"dtype": trajectories.sites.dtype}
        latent.start, latent.bend = state.value("start", float), state.value("bend", float)
        latent.losses, latent.bends = state.value("losses", list), state.value("bends", list)
        latent.residuals, latent.spreads = (state.tensor(name, dim, **like) for name in ("residuals", "spreads"))
        latent.theta_star, latent._origin = (state.tensor(name, dim, **like) for name in ("theta_star", "origin"))
        latent._z_star = state.tensor("z_star", k, **like)
        latent._ends = state.tensor("ends", len(usable(trajectories)), k, **like)
        latent._basis = state.tensor("basis", None, dim, **like) if latent.in_span else None
        latent._unit = state.value("unit", float)
        points = latent._origin if latent._basis is None else latent._basis[:, 0]
        state.part("encoder").tensor("0.weight", latent.num_hidden, len(points), **like)  # before room is made for it
        latent._build(points)
        for name, network in (("encoder", latent._encoder), ("decoder", latent._decoder)):
            weights = state.part(name)
            shapes = {key: tuple(value.shape) for key, value in network.state_dict().items()}
            network.load_state_dict({key: weights.tensor(key, *shape, **like) for key, shape in shapes.items()})
        return latent


def _bend(z: Tensor, positions: Tensor) -> float:
    """Mean distance of latent walks (N, T + 1, k) from their chords, as a part of the chord's length."""
    start = z[:, :1].mean(0)
    ends = z[:, -1] - start
    chords = start + positions[:, None] * ends[:, None]
    return float(((z - chords).norm(dim=-1).mean(1) / ends.norm(dim=-1)).mean())
