"""Rotated MNIST, 0 to 90 degrees: what the methods of `images` predict, from the draws that it kept.

    python -m benchmarks rotation --data DIR [--seeds 3] [--quick]

Writes `rotation.json`, `rotation.md` and `rotation.png`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import shifts
from .arguments import folder, parser, share
from .image_data import images
from .images import Place
from .results import Results

DEGREES = tuple(range(0, 91, 15))
METHODS = [
    "network", "temperature scaling", "MetricBNN, last layer", "MetricBNN, dense layers", "LA GN, last layer",
    "LA GN Kron, dense layers", "Riem LA, last layer", "SGLD, dense layers", "SWAG, dense layers",
    "ESPRO, dense layers", "ensemble of 5", "MetricBNN, 4 networks",
]  # fmt: skip


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Images (n, 1, H, W) turned about their middle; what comes in is black."""
    from torchvision.transforms.functional import InterpolationMode, rotate

    return rotate(x, degrees, InterpolationMode.BILINEAR)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write table and picture."""
    made = parser(__doc__ or "")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--images", type=int, default=10_000, help="how many of the test images")
    arguments = made.parse_args(argv)
    part, root = share(arguments), folder(arguments)
    out, name = root / "rotation", "digits" if arguments.data is None else "MNIST"
    data = images(arguments.data, name)
    results = Results(
        out / "rotation.json",
        {"experiment": "rotation", "share": part, "images": arguments.images},
        retry=arguments.retry,
    )
    methods = METHODS[:4] if arguments.quick else METHODS
    x, y = data.x_test[: arguments.images], data.y_test[: arguments.images]
    degrees = DEGREES[::6] if arguments.quick else DEGREES
    for seed in range(1 if arguments.quick else arguments.seeds):
        place = Place(root / "images", data, name, seed, part)
        there = shifts.measured(root, name, seed, methods)
        shifts.run(results, place, ((f"{d}", rotated(x, d)) for d in degrees), y, there)
    groups = [f"{d}" for d in degrees]
    (out / "rotation.md").write_text(shifts.table(results, groups) + "\n")
    shifts.picture(results, groups, "degrees", out / "rotation.png")


if __name__ == "__main__":
    main()
