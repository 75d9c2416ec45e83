"""All benchmarks under one command: python -m benchmarks NAME --help."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

COMMANDS = (
    *("uci", "regression", "snelson", "banana", "complexity", "sensitivity", "pca", "fidelity", "bias"),
    *(
        "latent",
        "throughput",
        "load",
        "cold_start",
        "effort",
        "reference",
        "pyro_models",
        "posteriordb",
        "sbc",
        "unknown_noise",
        "scaling",
        "images",
        "rotation",
        "corruption",
        "last_layer",
        "spread",
        "prior_scale",
        "publish",
    ),
)


def overview() -> str:
    """The commands, each with the first line of its docstring."""
    lines = ["usage: python -m benchmarks NAME [--help] ...", ""]
    for name in COMMANDS:
        source = (Path(__file__).parent / f"{name}.py").read_text()
        lines.append(f"  {name:<12} {(ast.get_docstring(ast.parse(source)) or '').splitlines()[0]}")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Run one of them."""
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return
    if argv[0] not in COMMANDS:
        raise SystemExit(f"{argv[0]!r} is no benchmark.\n{overview()}")
    importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
