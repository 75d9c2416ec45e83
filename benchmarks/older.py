"""Which figures are of which walk, as the cells of the result files say.

In: the folder of results.  Out: versions by experiment and method, a note for a table, and the list of older ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pyro_metricbnn.walk import VERSION

from .tables import markdown

ALL_OURS = ("bias", "bias_100_particles", "posteriordb", "sbc", "sensitivity")  # no other method has a cell there
NOT_OURS = ("nuts.json",)
Versions = dict[tuple[str, str], Counter[int]]  # by experiment and method of ours: how many cells of each version


def versions(results: Path, files: str = "*/*.json") -> Versions:
    """Of all cells of ours that a pattern finds."""
    found: Versions = {}
    for path in sorted(results.glob(files)):
        content = json.loads(path.read_text())
        if path.name in NOT_OURS or not isinstance(content, dict):
            continue
        if "cells" not in content:
            found.setdefault((path.parent.name, "all"), Counter())[content.get("walk_version", 1)] += 1
        for key, cell in content.get("cells", {}).items():
            method = next((part for part in key.split("|") if "MetricBNN" in part), "")
            ours = method or path.parent.name in ALL_OURS
            if ours and "error" not in cell and not key.endswith("|tuning"):
                found.setdefault((path.parent.name, method or "all"), Counter())[cell.get("walk_version", 1)] += 1
    return found


def note(results: Path, files: Sequence[str], methods: Sequence[str] | None = None) -> str:
    """A sentence below a table that says which walk made it; of a table without ours, none."""
    counts = [versions(results, pattern) for pattern in files]
    alone = len({experiment for of_files in counts for experiment, _ in of_files}) == 1
    by_method: dict[str, Counter[int]] = {}
    for of_files in counts:
        for (experiment, method), count in of_files.items():
            if methods is None or {method, f"{experiment}/{method}"} & set(methods):
                label = method if alone else f"{method} in {experiment}"
                by_method.setdefault(label, Counter()).update(count)
    if not by_method:
        return ""
    before = {method: min(count) for method, count in by_method.items() if min(count) < VERSION}
    if not before:
        return f"*Walk version {VERSION}.*"
    if len(before) == len(by_method):
        return f"*Of an earlier walk: version {_list(before.values())}; the code has {VERSION}.*"
    return f"*Walk version {VERSION}; of an earlier one: {'; '.join(before)}.*"


def _list(found: object) -> str:
    return " and ".join(str(one) for one in sorted(set(found)))  # type: ignore[call-overload]


def section(results: Path) -> str:
    """What is of an earlier walk, as a table."""
    rows = [
        [name, method, str(older), str(count.total())]
        for (name, method), count in sorted(versions(results).items())
        if (older := sum(number for version, number in count.items() if version < VERSION))
    ]
    said = f"The walk of this code is version {VERSION}."
    if not rows:
        return f"{said} No cell is of an earlier one."
    return f"{said}\n\n" + markdown(["experiment", "method", "cells of an earlier walk", "of"], rows)
