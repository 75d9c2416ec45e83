"""The paper's latent space: an autoencoder trained with a metric loss (section 4.2).

In: Trajectories.  Out: `AutoencoderMap`, behind the interface of latent_map.py.
"""

import itertools
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..files.storage import Content
from ..runtime.arguments import check_count, check_number
from ..walk.trajectories import Trajectories
from .latent_map import LatentMap, start_of, usable

PATIENCE = 100  # epochs without a new best, smoothed loss
BEND_EVERY = 10  # epochs
LEFT_OUT = 5e-4  # of the variance, by the basis of the span: most directions, without a difference to predictions
TYPES: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,)}  # of settings in a file
AXES = {"theta_star": "D", "residuals": "D", "spreads": "D", "_origin": "D", "_z_star": "k", "ends": "Nk"}  # of tensors
PLAIN = {"start": float, "bend": float, "_unit": float, "losses": list, "bends": list}  # and the rest that is fitted


@dataclass(eq=False, repr=False)
class AutoencoderMap(LatentMap):
    """Encoder and decoder with two hidden layers, trained so that the walks become straight.

    The paper's losses: consecutive points 1/T apart, other pairs (by reshuffling the batch) far apart, reconstruction.
    Ours adds the points that the posterior will draw, |decoder(z_0 + e (z_T - z_0)) - theta_e|^2. After `fit`, `losses`
    has the parts of the loss of each epoch, and `bends` the `bend` at each tenth.

    Example:
        >>> AutoencoderMap(latent_dim=2, num_epochs=5).fit(walk, progress=False).ends.shape
        torch.Size([4, 2])
    """

    latent_dim: int = 32  # k
    _: KW_ONLY
    num_hidden: int = 256  # units of a hidden layer
    lambda_plus: float = 1.0  # weight of the distances between consecutive points
    lambda_minus: float = 1.0  # weight of the distances between others
    lambda_segment: float = 1.0  # weight of the decoded segments (paper: 0)
    num_epochs: int = 1000  # at most
    batch_size: int = 1024  # pairs a step
    lr: float = 3e-3  # Adam's rate (the paper does not say; its setting here takes 1e-3)
    decay: bool = True  # let the rate fall to 0 along half a cosine (paper: no)
    in_span: bool = True  # work in a basis of the points' span, in units of their spread: D costs nothing (paper: no)
    stop_early: bool = True  # end when the loss has stopped falling (paper: no)

    def __post_init__(self) -> None:
        for name in ("latent_dim", "num_hidden", "num_epochs", "batch_size"):
            check_count(name, getattr(self, name), "the default is the paper's.")
        for name in ("lambda_plus", "lambda_minus", "lambda_segment"):
            check_number(name, getattr(self, name), "it weighs a part of the loss; 0 leaves it out.", or_zero=True)
        check_number("lr", self.lr, "it is Adam's rate.")
        self.losses: list[dict[str, float]] = []
        self.bends: list[float] = []

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Exactly the paper's objective and sizes, but for the changes, by name."""
        settings = {"lambda_segment": 0.0, "lr": 1e-3, "decay": False, "in_span": False, "stop_early": False}
        return cls(**settings | changes)

    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> Self:
        thetas = usable(trajectories).to(trajectories.sites.dtype)  # (N, T + 1, D)
        positions = trajectories.positions.to(thetas)
        self.start = start_of(trajectories)
        self._set_basis(thetas)
        points = self._to_points(thetas)  # (N, T + 1, B)
        self._build(points)
        self._train(points, positions, progress)
        with torch.no_grad():
            z = self._encoder(points)
            self._z_star = z[:, 0].mean(0)
            self.ends = z[:, -1] - self._z_star
            self.theta_star = self._to_theta(self._decoder(self._z_star))
            self.bend = _bend(z, positions)
            misses = self._to_theta(self._decoder(z)) - thetas
            self.residuals, self.spreads = misses.pow(2).mean((0, 1)).sqrt(), thetas[:, 1:].std((0, 1))
        return self

    def decode(self, z: Tensor) -> Tensor:
        self.check_fitted()
        return self._to_theta(self._decoder(self._z_star + z))

    def encode(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder gives, relative to z_MAP, and how far theta was from the decoded curves."""
        _, _, distance = self.nearest(theta)
        with torch.no_grad():
            return self._encoder(self._to_points(theta)) - self._z_star, distance

    def _set_basis(self, thetas: Tensor) -> None:
        self._origin, self._unit = torch.zeros_like(thetas[0, 0]), 1.0
        self._basis: Tensor | None = None
        if self.in_span:
            self._origin = thetas[0, 0]
            flat = (thetas - self._origin).flatten(0, 1)
            _, singular, axes = torch.linalg.svd(flat, full_matrices=False)
            left = 1 - (singular.double() ** 2).cumsum(0) / (singular.double() ** 2).sum()
            self._basis = axes[: 1 + int((left > LEFT_OUT).sum())]  # (B, D)
            self._unit = float(singular[0] / len(flat) ** 0.5)

    def _to_points(self, theta: Tensor) -> Tensor:
        return theta if self._basis is None else (theta - self._origin) @ self._basis.mT / self._unit

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
        pairs = torch.tensor(list(itertools.product(range(num_walks), range(num_points - 1))), device=points.device)
        optimizer = torch.optim.Adam([*self._encoder.parameters(), *self._decoder.parameters()], lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_epochs)
        best, best_epoch, smooth = 0.0, 0, 0.0
        self.losses, self.bends = [], []
        with tqdm(total=self.num_epochs, desc="latent map", disable=not progress, unit=" epochs") as bar:
            for epoch in range(1, self.num_epochs + 1):
                self.losses.append(self._epoch(points, positions, pairs, optimizer))
                if self.decay:
                    schedule.step()
                if epoch % BEND_EVERY == 0:
                    with torch.no_grad():
                        self.bends.append(_bend(self._encoder(points), positions))
                loss = sum(self.losses[-1].values())
                smooth = loss if epoch == 1 else 0.95 * smooth + 0.05 * loss
                if epoch == 1 or smooth < best - 1e-3 * abs(best):
                    best, best_epoch = smooth, epoch
                bar.update()
                bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
                if self.stop_early and epoch - best_epoch >= PATIENCE:
                    break

    def _epoch(self, points: Tensor, positions: Tensor, pairs: Tensor, optimizer: torch.optim.Adam) -> dict[str, float]:
        """A pass over the pairs (P, 2) of walk and step: the mean of each part of the loss."""
        totals: dict[str, float] = {}
        for batch in pairs[torch.randperm(len(pairs), device=points.device)].split(self.batch_size):
            losses = self._losses(points, positions, batch[:, 0], batch[:, 1])
            optimizer.zero_grad()
            torch.stack(list(losses.values())).sum().backward()
            optimizer.step()
            for name, value in losses.items():
                totals[name] = totals.get(name, 0.0) + float(value.detach()) * len(batch) / len(pairs)
        return totals

    def _losses(self, points: Tensor, positions: Tensor, walk: Tensor, step: Tensor) -> dict[str, Tensor]:
        theta = points[walk, step]
        z, z_next = self._encoder(theta), self._encoder(points[walk, step + 1])
        other = z[torch.randperm(len(z), device=z.device)]
        plus = ((z - z_next).norm(dim=-1) - (positions[step + 1] - positions[step])).pow(2).mean()
        apart = (z - other).pow(2).sum(-1)
        apart = apart[apart > torch.finfo(z.dtype).tiny]  # a point that met itself has no distance
        minus = -0.5 * torch.log(apart).mean()
        losses = {"plus": self.lambda_plus * plus, "minus": self.lambda_minus * minus}
        losses["reconstruction"] = self._square(self._decoder(z) - theta)
        if self.lambda_segment > 0:
            start, ends = self._encoder(points[0, :1]), self._encoder(points[:, -1])
            on_segment = start + positions[step][:, None] * (ends[walk] - start)
            losses["segment"] = self.lambda_segment * self._square(self._decoder(on_segment) - theta)
        return losses

    def _square(self, misses: Tensor) -> Tensor:
        """Mean squared distance in theta's own units, so that the weights mean what they do in the paper."""
        return self._unit**2 * misses.pow(2).sum(-1).mean()

    def state(self) -> dict[str, Any]:
        return {
            **{name.lstrip("_"): getattr(self, name) for name in (*AXES, *PLAIN)},
            "basis": self._basis,
            "settings": {setting.name: getattr(self, setting.name) for setting in fields(self)},
            "encoder": dict(self._encoder.state_dict()),
            "decoder": dict(self._decoder.state_dict()),
        }

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> Self:
        settings = state.part("settings")
        latent = cls(**{setting.name: settings.value(setting.name, *TYPES[setting.type]) for setting in fields(cls)})
        dim, like = trajectories.sites.dim, {"dtype": trajectories.sites.dtype}
        lengths = {"D": dim, "k": latent.latent_dim, "N": len(usable(trajectories))}
        for name, axes in AXES.items():
            setattr(latent, name, state.tensor(name.lstrip("_"), *(lengths[axis] for axis in axes), **like))
        for name, kind in PLAIN.items():
            setattr(latent, name, state.value(name.lstrip("_"), kind))
        # In memory as the SVD has it: products with other strides round in another way.
        latent._basis = state.tensor("basis", None, dim, **like).mT.contiguous().mT if latent.in_span else None
        points = latent._origin if latent._basis is None else latent._basis[:, 0]
        state.part("encoder").tensor("0.weight", latent.num_hidden, len(points), **like)  # before room is made for it
        latent._build(points)
        for network, weights in (latent._encoder, state.part("encoder")), (latent._decoder, state.part("decoder")):
            built = network.state_dict().items()
            network.load_state_dict({name: weights.tensor(name, *value.shape, **like) for name, value in built})
        return latent


def _bend(z: Tensor, positions: Tensor) -> float:
    """Mean distance of latent walks (N, T + 1, k) from their chords, as a part of the chord's length."""
    start = z[:, :1].mean(0)
    ends = z[:, -1] - start
    chords = start + positions[:, None] * ends[:, None]
    return float(((z - chords).norm(dim=-1).mean(1) / ends.norm(dim=-1)).mean())
