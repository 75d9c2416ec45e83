"""The last layers of an image network as a network of their own, whose inputs the layers before give once.

In: a trained network and images.  Out: `Head`: the part that is inferred, the features of any images, and a `Task` for
the baselines.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pyro_metricbnn import BatchedPotential, Categorical
from pyro_metricbnn.predictions.prediction import Prediction

from .datasets import Problem
from .image_data import Images
from .methods.sgld import minibatches
from .task import Task

ROWS_AT_ONCE = 1000
BATCH = 256
DENSE, LAST = ("7", "9", "11"), ("11",)  # of LeNet
RESNET_TAIL, RESNET_LAST = ("1.layer4.1.conv2", "1.fc"), ("1.fc",)


class ImageTask(Task):
    """A task whose energy is estimated from batches: all images at once are too many for a gradient."""

    def potential(self, num_calls: int) -> BatchedPotential:
        return minibatches(self, num_calls, BATCH)


class Tail(nn.Module):
    """ResNet18's last two layers where the image is a single pixel by then: of each kernel the middle alone counts.

    Takes the last convolution's input and what is added to its result, side by side. Batch normalisation is a fixed
    scale and shift.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, net: Any) -> None:
        super().__init__()
        block, last = net.layer4[1], net.fc
        self.conv2 = nn.Linear(512, 512, bias=False)
        self.conv2.weight.data.copy_(block.conv2.weight.detach()[:, :, 1, 1])
        self.fc = copy.deepcopy(last)
        scale = block.bn2.weight / (block.bn2.running_var + block.bn2.eps).sqrt()
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", (block.bn2.bias - block.bn2.running_mean * scale).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        h, identity = x.chunk(2, dim=-1)
        logits: Tensor = self.fc((self.conv2(h) * self.scale + self.shift + identity).relu())
        return logits


@dataclass(frozen=True)
class Head:
    """A part of a network that ends it.

    Args:
        net: The part.
        features: Images -> what the part takes.
        sites: Names of the part's parameters by those of the whole network's.
    """

    net: nn.Module
    features: Callable[[Tensor], Tensor]
    sites: Mapping[str, str]
    _last: dict[str, Tensor] = field(default_factory=dict)

    def of(self, x: Tensor) -> Tensor:
        """Features of many images; those of the last ones are kept, for the next method."""
        if self._last.get("x") is not x:
            with torch.no_grad():
                features = torch.cat([self.features(rows) for rows in x.split(ROWS_AT_ONCE)])
            self._last.update(x=x, features=features)
        return self._last["features"]

    def forget(self) -> None:
        """The kept features: who is timed computes their own."""
        self._last.clear()

    def task(self, data: Images, share: float, num_images: int | None = None) -> Task:
        """For the baselines, on features; of so many images alone, then with the energy of them all at once."""
        x, y = data.x[:num_images], data.y[:num_images]
        features = (self.of(part) for part in (x, data.x_test[:1], data.x_valid))
        x, x_test, x_valid = features
        problem = Problem("images", x, y, x_test, data.y_test[:1], x_valid, data.y_valid)
        made = Task if num_images is not None else ImageTask
        return made(problem=problem, net=self.net, likelihood=Categorical(), hidden=(), share=share)

    def own(self, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Draws by the whole network's sites, by the part's names; of wide kernels the middle."""
        shapes = {name: value.shape for name, value in self.net.named_parameters()}
        found = {own: draws[name] for name, own in self.sites.items()}
        # Copies: a view would be kept with all that it is a view of.
        return {name: (v if v.shape[1:] == shapes[name] else v[..., 1, 1]).clone() for name, v in found.items()}

    def predict(self, weights: Mapping[str, Tensor], features: Tensor) -> Prediction:
        """What draws (S, ...) by the part's names predict."""
        with torch.no_grad():
            run = vmap(lambda w, rows: functional_call(self.net, w, (rows,)), in_dims=(0, None))
            f = torch.cat([run(dict(weights), rows) for rows in features.split(ROWS_AT_ONCE)], dim=1)
        return Prediction(f=f, likelihood=Categorical(), parameters={})


def heads(net: nn.Sequential) -> dict[str, Head]:
    """The last layer, and the dense layers or the last two."""
    if len(net) == 2:
        whole: Any = net[1]

        def last_input(x: Tensor) -> Tensor:
            return torch.flatten(whole.avgpool(whole.layer4(before(x))), 1)

        def before(x: Tensor) -> Tensor:
            x = whole.maxpool(whole.relu(whole.bn1(whole.conv1(net[0](x)))))
            found: Tensor = whole.layer3(whole.layer2(whole.layer1(x)))
            return found

        def tail_input(x: Tensor) -> Tensor:
            identity, block = whole.layer4[0](before(x)), whole.layer4[1]
            h = block.relu(block.bn1(block.conv1(identity)))
            return torch.cat([h.flatten(1), identity.flatten(1)], dim=1)

        last = Head(copy.deepcopy(whole.fc), last_input, {f"1.fc.{part}": part for part in ("weight", "bias")})
        own = ("conv2.weight", "fc.weight", "fc.bias")
        names = {f"1.layer4.1.{name}" if name.startswith("conv2") else f"1.{name}": name for name in own}
        return {"last layer": last, "last two layers": Head(Tail(whole), tail_input, names)}
    return {
        label: Head(copy.deepcopy(net[first:]), net[:first], {name: name for name, _ in net[first:].named_parameters()})
        for label, first in (("last layer", 11), ("dense layers", 7), ("all layers", 0))
    }
