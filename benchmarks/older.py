"""Which figures are of which walk, as the cells of the result files say.

In: the folder of results.  Out: versions by experiment and method, a note for a table, and the list of older ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from pyro_metricbnn.walk import VERSION

from .tables import markdown

SINCE = {  # which version was the last to change what is walked there, by "experiment/method"; of all others the first
    "*/MetricBNN (paper*": 2,  # the descent had half of its step before
    "sensitivity/*": 2,
    "complexity/*": 4,  # the tube of sharp posteriors
    "load/*": 4,
    "regression/MetricBNN": 3,  # normal noise that is given, 300 to 2,000 weights
    "regression/MetricBNN, validated": 3,
    "regression/MetricBNN, scaled": 3,
    "prior_scale/*": 3,
    "regression/MetricBNN, heteroscedastic": 5,  # a noise at each input: a longer approach
    "regression/*": 2,  # noise that is inferred
    "unknown_noise/*": 2,
    "last_layer/*": 5,  # units measured again where the particles are
    "spread/*": 5,
    "images/*": 2,  # minibatches
    "rotation/*": 2,
    "corruption/*": 2,
}
ALL_OURS = ("bias", "bias_100_particles", "posteriordb", "sbc", "sensitivity")  # no other method has a cell there
NOT_OURS = ("nuts.json",)
Versions = dict[tuple[str, str], Counter[int]]  # by experiment and method of ours: how many cells of each version


def since(experiment: str, method: str) -> int:
    """From which version on the walk there is that of the code."""
    return next((version for pattern, version in SINCE.items() if fnmatch(f"{experiment}/{method}", pattern)), 1)


def versions(results: Path, files: str = "*/*.json") -> Versions:
    """Of all cells of ours that a pattern finds; a file without cells is one."""
    found: Versions = {}
    for path in sorted(results.glob(files)):
        content = json.loads(path.read_text())
        experiment = path.parent.name
        if path.name in NOT_OURS or not isinstance(content, dict):
            continue
        if "cells" not in content:
            found.setdefault((experiment, path.stem), Counter())[content.get("walk_version", 1)] += 1
        for key, cell in content.get("cells", {}).items():
            method = next((part for part in key.split("|") if "MetricBNN" in part), "")
            ours = method or experiment in ALL_OURS
            if ours and "error" not in cell and not key.endswith("|tuning"):
                found.setdefault((experiment, method or "all"), Counter())[cell.get("walk_version", 1)] += 1
    return found


def older(experiment: str, method: str, count: Counter[int]) -> int:
    """How many of the cells are of a walk that the code no longer has."""
    return sum(number for version, number in count.items() if version < since(experiment, method))


def note(results: Path, files: Sequence[str], methods: Sequence[str] | None = None) -> str:
    """A sentence below a table that says which walk made it; of a table without ours, none."""
    found: Versions = {}
    for pattern in files:
        for (experiment, method), count in versions(results, pattern).items():
            if methods is None or {method, f"{experiment}/{method}"} & set(methods):
                found.setdefault((experiment, method), Counter()).update(count)
    if not found:
        return ""
    *earlier, last = map(str, sorted({version for count in found.values() for version in count}))
    made = f"{', '.join(earlier)} and {last}" if earlier else last
    before = [method for (experiment, method), count in found.items() if older(experiment, method, count)]
    if not before:
        return f"*Walk version {made}.*"
    which = "" if len(before) == len(found) else f": {'; '.join(before)}"
    return f"*Walk version {made}; of a walk that the code no longer has{which}.*"


def section(results: Path) -> str:
    """What is of an earlier walk, as a table."""
    rows = [
        [experiment, method, str(count_of_older), str(count.total())]
        for (experiment, method), count in sorted(versions(results).items())
        if (count_of_older := older(experiment, method, count))
    ]
    said = f"The walk of this code is version {VERSION}."
    if not rows:
        return f"{said} No cell is of a walk that it no longer has."
    return f"{said}\n\n" + markdown(["experiment", "method", "cells of an earlier walk", "of"], rows)
