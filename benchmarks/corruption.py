"""CIFAR10 under the fifteen corruptions at five severities: what the methods of `images` predict.

    python -m benchmarks corruption --data DIR [--images 500] [--quick]

The first test images alone, from the draws that `images` kept; see `corruptions` for how the images are made, frost
without photographs. Without --data it is scikit-learn's digits under two of them. Writes `corruption.json`,
`corruption.md` and `corruption.png`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from . import shifts
from .arguments import folder, parser, share
from .corruptions import CORRUPTIONS, corrupted
from .image_data import images
from .images import Place
from .results import Results

METHODS = [
    "network", "temperature scaling", "MetricBNN, last layer", "MetricBNN, last two layers",
    "MetricBNN, last two layers, scaled", "LA GN, last layer",
    "LA GN Kron, last two layers", "Riem LA, last layer", "SGLD, last two layers", "SWAG, last two layers",
    "ESPRO, last two layers",
]  # fmt: skip
SMALL = ["network", "temperature scaling", "MetricBNN, last layer"]


def each(x: Tensor, names: Sequence[str], severities: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """The images under each corruption and severity."""
    channels = x.shape[1]
    x = x.expand(-1, 3, -1, -1)
    for name in names:
        for severity in severities:
            yield f"{name}:{severity}", torch.from_numpy(corrupted(x.numpy(), name, severity))[:, :channels]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--images", type=int, default=500, help="how many of the test images")
    arguments = made.parse_args(argv)
    part, root = share(arguments), folder(arguments)
    out, name = root / "corruption", "digits" if arguments.data is None else "CIFAR10"
    names, severities = list(CORRUPTIONS), (1, 2, 3, 4, 5)
    if arguments.quick:
        names, severities = ["gaussian_noise", "contrast"], (1, 5)  # type: ignore[assignment]
    data, methods = images(arguments.data, name), METHODS if name == "CIFAR10" else SMALL
    setting = {"experiment": "corruption", "share": part, "images": arguments.images}
    results = Results(out / "corruption.json", setting, retry=arguments.retry)
    place, count = Place(root / "images", data, name, 0, part), arguments.images
    methods = shifts.measured(root, name, 0, methods)
    shifts.run(results, place, each(data.x_test[:count], names, severities), data.y_test[:count], methods)
    (out / "corruption.md").write_text(shifts.table(results, names) + "\n")
    shifts.picture(results, names, "", out / "corruption.png")


if __name__ == "__main__":
    main()
