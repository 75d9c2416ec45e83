"""Ways from a trained network to predictions, a file each, in the order of the tables."""

from __future__ import annotations

import importlib

from .method import Method

FILES = (
    "map_only",
    "laplace",
    "laplace_low_rank",
    "riemannian",
    "laplace_linearised",
    "riemannian_linearised",
    "ensemble",
    "hmc",
    "nuts",
    "sgld",
    "espro",
    "swag",
    "walk_svd",
    "metric_paper",
    "metric_posterior",
    "mile",
)


def methods() -> dict[str, Method]:
    """All methods by name."""
    files = (importlib.import_module(f".{name}", __name__) for name in FILES)
    return {method.name: method for file in files for method in file.METHODS}
