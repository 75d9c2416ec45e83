"""What a network's output means: f (n, ...) -> the distribution of the observations, and what can be said of it.

In: the output f of a network for n inputs.  Out: a Pyro distribution with batch shape (n,), moments, probabilities.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from ..runtime.arguments import check_device, check_number

FEWEST_ROWS, NEAR = 8, 0.1  # of outputs that are looked at; to 0 and to 1
SIGMOID = (
    "the network's outputs lie from 0 to 1: it ends in a sigmoid, and {} reads logits. Leave the sigmoid out; what was "
    "trained with it keeps its weights."
)


Scaled = tuple["Likelihood", Tensor, Mapping[str, Tensor]]


class Likelihood(ABC):
    """How observations scatter around a network's output f, that of one draw of the weights.

    A new likelihood is one more class. Only `distribution` is a must; override `parameters` where it has latent
    parameters of its own, `targets` where observations have another shape than the output, `moments` where its
    distribution has no mean and variance, `identified` where it does not see all of the output, `scaled` where its
    predictions can be made less sure. One of classes says `observes = "classes"` and has `class_probs`.
    """

    observes: ClassVar[Literal["numbers", "classes"]] = "numbers"
    noise_by_input: ClassVar[bool] = False  # whether outputs of the network say how large the noise is
    has_normal_noise: ClassVar[bool] = False  # then mean and variance say all, and quantiles need no random numbers

    def parameters(self, f: Tensor) -> dict[str, Tensor]:
        """Sample the latent parameters of the likelihood itself; most have none."""
        return {}

    @abstractmethod
    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        """The distribution of the observations given outputs f (n, ...)."""

    @property
    def infers_noise(self) -> bool:
        """Whether the data say how large the noise of numbers is."""
        return False

    @property
    def leaves_from(self) -> Literal["maximum", "trained", "anew"]:
        """What a walk leaves from: the joint maximum, the network as it was trained, or networks trained with this."""
        return "trained" if self.infers_noise else "maximum"

    def fitted(self, f: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Its latent parameters as outputs f and observations y ask for, for a network without a search."""
        return {}

    def moments(self, f: Tensor, **parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the observations."""
        distribution = self.distribution(f, **parameters)
        return distribution.mean, distribution.variance

    def class_probs(self, f: Tensor, **parameters: Tensor) -> Tensor:
        """The probabilities of all classes (n, ..., C), where classes are observed."""
        raise ValueError(f"class probabilities and entropies are for classes; {type(self).__name__} has none.")

    @property
    def clean(self) -> "Likelihood":
        """The likelihood of labels without the noise that this one has; itself where it has none."""
        if self.observes == "classes":
            return self
        raise ValueError(f"clean labels are for classes; {type(self).__name__} has none: f is the output itself.")

    def scaled(self, factor: float, f: Tensor, parameters: Mapping[str, Tensor]) -> "Scaled":
        """Noise so many times as wide, or logits divided by it: the likelihood, outputs and parameters that have it."""
        if self.observes == "classes":
            return self, f / factor, parameters
        raise ValueError(f"{type(self).__name__} has no width to scale: that is for classes and for Gaussian.")

    def identified(self, f: Tensor) -> Tensor:
        """The output without what the observations cannot tell."""
        return f

    def misread(self, f: Tensor) -> str:
        """Why outputs f (n, ...) cannot be what the likelihood reads; nothing where they may be."""
        return ""

    def error_of(self, f: Tensor, y: Tensor) -> float | None:
        """How far the outputs are from observations y, in units of what a constant is; None where that says nothing."""
        if self.observes == "classes":
            probs = self.class_probs(f, **self.fitted(f, y)).flatten(0, -2)
            labels = y.flatten().long()
            share = torch.bincount(labels, minlength=probs.shape[-1]) / len(labels)
            constant = -float(torch.xlogy(share, share).sum())
            chosen = probs.gather(-1, labels[:, None]).clamp_min(torch.finfo(probs.dtype).tiny)
            return -float(chosen.log().mean()) / constant if constant > 0 else None
        spread = float((y - y.mean(0)).square().mean().sqrt())
        mean = f if f.shape == y.shape else f[..., : y.shape[-1]]
        return float((mean - y).square().mean().sqrt()) / spread if spread > 0 and self.has_normal_noise else None

    def targets(self, f: Tensor, y: Tensor) -> Tensor:
        """Check observations y against outputs f, and give them the shape of one draw."""
        check_device("y", y, f.device, "the network's output is")
        if y.shape[:1] != f.shape[:1] or y.numel() != f.numel():
            need = f"{type(self).__name__} needs one target for each output. Pass y of shape {tuple(f.shape)}."
            raise ValueError(f"y has shape {tuple(y.shape)}, but the network's output has {tuple(f.shape)}: {need}")
        return y.to(f.dtype) if y.shape == f.shape else y.to(f.dtype).reshape(f.shape)  # (n,) for (n, 1)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Real observations around the output, with one noise scale, which the data say unless you do.

    Args:
        scale: The standard deviation of the noise. None infers it: a latent site `scale` with a wide prior,
            LogNormal(-1, 1.5), for targets of about 1. Some tens of rows outweigh it. A positive number, or a tensor
            that broadcasts against the output, says the noise. A distribution is another prior.

    Example:
        >>> Gaussian(0.3).distribution(torch.zeros(5, 1)).batch_shape
        torch.Size([5])
        >>> BatchedPotential(bayesianize(nn.Linear(2, 1), Gaussian()), x, y).sites.names
        ('weight', 'bias', 'scale')
    """

    has_normal_noise = True
    scale: Any = None

    def __post_init__(self) -> None:
        if self.infers_noise:
            return
        with suppress(TypeError, RuntimeError):  # of what is no number
            scale = torch.as_tensor(self.scale, device="cpu")
            if bool(((scale > 0) & scale.isfinite()).all()):
                return
        why = "it is the noise's deviation. Pass None, or a distribution, to infer it."
        raise ValueError(f"scale must be positive, got {self.scale}: {why}")

    @property
    def infers_noise(self) -> bool:
        return self.scale is None or isinstance(self.scale, Distribution)

    def fitted(self, f: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"scale": (f - y).square().mean().sqrt()} if self.infers_noise else {}

    def parameters(self, f: Tensor) -> dict[str, Tensor]:
        if not self.infers_noise:
            return {}
        prior = dist.LogNormal(f.new_tensor(-1.0), f.new_tensor(1.5)) if self.scale is None else self.scale
        return {"scale": pyro.sample("scale", prior)}

    def scaled(self, factor: float, f: Tensor, parameters: Mapping[str, Tensor]) -> "Scaled":
        if self.infers_noise:
            return self, f, {**parameters, "scale": factor * parameters["scale"]}
        return Gaussian(factor * self.scale), f, parameters

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        scale = parameters.get("scale", self.scale)
        if not isinstance(scale, Tensor):
            scale = f.new_full((), float(scale))
        if torch.broadcast_shapes(f.shape, scale.shape) != f.shape:
            shapes = f"shape {tuple(scale.shape)}, which does not broadcast to the output's {tuple(f.shape)}"
            why = "the likelihood would count the data several times"
            raise ValueError(f"scale has {shapes}: {why}. Pass a number, or one scale an output.")
        return dist.Normal(f, scale.to(f)).to_event(f.dim() - 1)


@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """Real observations; the first half of the outputs is the mean, softplus of the second the scale.

    Example:
        >>> HeteroscedasticGaussian().distribution(torch.zeros(5, 2)).event_shape
        torch.Size([1])
    """

    has_normal_noise = True
    infers_noise = True
    noise_by_input = True
    floor: float = 1e-4  # keeps the density bounded where the network fits a point exactly

    def __post_init__(self) -> None:
        check_number("floor", self.floor, "it is the least deviation of the noise.", or_zero=True)

    def _halves(self, f: Tensor) -> tuple[Tensor, ...]:
        if f.dim() < 2 or f.shape[-1] % 2:
            need = "HeteroscedasticGaussian reads mean and raw scale. Give the last layer two outputs a target."
            raise ValueError(f"the network's output has shape {tuple(f.shape)}: {need}")
        return f.chunk(2, dim=-1)

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        mean, raw_scale = self._halves(f)
        return dist.Normal(mean, softplus(raw_scale) + self.floor).to_event(f.dim() - 1)

    def targets(self, f: Tensor, y: Tensor) -> Tensor:
        return super().targets(self._halves(f)[0], y)


def _squashed(f: Tensor) -> bool:
    """Whether all outputs lie from 0 to 1 and come near to both: logits of so many rows do not."""
    return len(f) >= FEWEST_ROWS and bool((f >= 0).all() and (f <= 1).all() and f.min() < NEAR and f.max() > 1 - NEAR)


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Class labels 0 to C - 1 from C logits.

    Example:
        >>> Categorical().distribution(torch.zeros(5, 3)).probs[0]
        tensor([0.3333, 0.3333, 0.3333])
    """

    observes = "classes"

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        return dist.Categorical(logits=f)

    def moments(self, f: Tensor, **parameters: Tensor) -> tuple[Tensor, Tensor]:
        probs = self.class_probs(f, **parameters)
        return probs, probs * (1 - probs)

    def class_probs(self, f: Tensor, **parameters: Tensor) -> Tensor:
        return f.softmax(-1)

    def misread(self, f: Tensor) -> str:
        sums = f.sum(-1)
        if _squashed(f) and not torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            return SIGMOID.format(type(self).__name__)
        if f.shape[-1] < 2 or bool((f < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            return ""
        return (
            "the network's outputs are probabilities that sum to 1 in each row: it ends in a softmax, and "
            f"{type(self).__name__} reads logits. Leave the softmax out; what was trained with it keeps its weights."
        )

    def identified(self, f: Tensor) -> Tensor:
        """Logits that sum to zero: a shift of all of them changes no probability."""
        return f - f.mean(-1, keepdim=True)

    def targets(self, f: Tensor, y: Tensor) -> Tensor:
        check_device("y", y, f.device, "the network's output is")
        if f.dim() < 2 or f.shape[-1] < 2:
            need = (
                f"{type(self).__name__} reads one logit a class. For two classes with a single logit use Bernoulli()."
            )
            raise ValueError(f"the network's output has shape {tuple(f.shape)}: {need}")
        if y.shape == (*f.shape[:-1], 1):
            y = y.squeeze(-1)
        if y.shape != f.shape[:-1]:
            need = f"{type(self).__name__} needs y of shape {tuple(f.shape[:-1])} (class numbers, not one-hot)."
            raise ValueError(f"y has shape {tuple(y.shape)}, but the network gives logits {tuple(f.shape)}: {need}")
        if y.is_floating_point():
            last = f.shape[-1] - 1
            raise ValueError(f"y is {y.dtype}: labels are whole numbers from 0 to {last}. Pass y.long() if they are.")
        return y.long()


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Zeros and ones, from one logit each.

    Example:
        >>> Bernoulli().distribution(torch.zeros(5, 1)).mean[0]
        tensor([0.5000])
    """

    observes = "classes"

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        return dist.Bernoulli(logits=f).to_event(f.dim() - 1)

    def class_probs(self, f: Tensor, **parameters: Tensor) -> Tensor:
        return torch.stack([(-f).sigmoid(), f.sigmoid()], dim=-1)

    def misread(self, f: Tensor) -> str:
        return SIGMOID.format(type(self).__name__) if _squashed(f) else ""


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts; the output is the logarithm of the rate.

    Example:
        >>> Poisson().distribution(torch.zeros(5, 1)).mean[0]
        tensor([1.])
    """

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        return dist.Poisson(f.exp()).to_event(f.dim() - 1)
