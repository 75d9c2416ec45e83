"""Results of an experiment on disk: what is there is not run again.

In: a folder and names.  Out: `Results`, a JSON file of cells, each with what it measured, the version of the walk and
which run it was part of; a run has commit, versions and time. A file is replaced as a whole, so that a run that was
stopped goes on from it, and two runs may fill one file with methods of their own.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from pyro_metricbnn.walk import VERSION as WALK

PACKAGES = (
    "torch",
    "pyro-ppl",
    "arviz",
    "laplace-torch",
    "curvlinops-for-pytorch",
    "posteriors",
    "sklearn-contrib-bde",
)
Cell = dict[str, Any]


class Results:
    """The cells of one file, by key.

    Args:
        path: The JSON file; made at the first cell.
        setting: What all cells have in common; a file of another setting is refused.
        retry: Run cells again that ended in an error.
        read_only: Take the file's setting as it is.
    """

    def __init__(self, path: Path, setting: Mapping[str, Any], *, retry: bool = False, read_only: bool = False) -> None:
        self.path = path
        self.setting = dict(setting)
        self.runs: dict[str, dict[str, Any]] = {}
        self.cells: dict[str, Cell] = {}
        self._run: str | None = None
        if path.exists():
            self._read(retry, read_only)

    def _read(self, retry: bool, read_only: bool) -> None:
        content = json.loads(self.path.read_text())
        if not read_only and content["setting"] != json.loads(json.dumps(self.setting)):
            raise SystemExit(
                f"{self.path} has results of another setting: {content['setting']}, now {self.setting}. "
                "Take another folder with --out, or delete the file."
            )
        self.runs, self.cells = content["runs"], content["cells"]
        if retry:
            self.cells = {key: cell for key, cell in self.cells.items() if "error" not in cell}

    def cell(self, key: str, measure: Callable[[], Cell]) -> Cell:
        """The cell of this key, measured if it is not there; an error is a result too."""
        if key not in self.cells:
            if self._run is None:
                run = this_run()
                self._run = f"{run['begun']} {os.getpid()}"
                self.runs[self._run] = run
            try:
                cell = measure()
            except Exception as error:
                cell = {"error": f"{type(error).__name__}: {error}"}
            self._write(key, {**cell, "walk_version": WALK, "run": self._run})
        return self.cells[key]

    def _write(self, key: str, cell: Cell) -> None:
        """Add a cell to what the file has by now."""
        self.cells[key] = cell
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock")):
            there = json.loads(self.path.read_text()) if self.path.exists() else {"runs": {}, "cells": {}}
            runs, cells = there["runs"] | self.runs, there["cells"] | {key: cell}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"setting": self.setting, "runs": runs, "cells": cells}, indent=1))
            os.replace(part, self.path)


def this_run() -> dict[str, Any]:
    """Commit, versions and time of a run that begins now."""
    return {
        "commit": _commit(),
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": {name: found for name in PACKAGES if (found := version(name)) is not None},
    }


def version(package: str) -> str | None:
    """Of an installed package; None where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
