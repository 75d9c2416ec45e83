"""Make what the site stores: python -m docs pictures, or python -m docs pages [NAME ...].

`pages` runs the code of the guides, of all or of those whose names are given, and stores what it printed and drew.
`pictures` draws the rest: those of the examples (on real data where METRICBNN_DATA says), the packages, and the pages
too. `sphinx-build docs site` then only lays out what is stored.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt

from . import house, ranks
from .pages import DOCS, ROOT, STYLE, executed, guides

EXAMPLES = {
    "trained_network": "trained_network",
    "banana": "banana",
    "snelson": "gap",
    "existing_pyro_model": "eight_schools",
    "inside_a_run": "inside_a_run",
}
TAKE_DATA = ("banana", "snelson")


def pages(names: list[str]) -> None:
    """Store what the guides' code prints and draws."""
    for path in guides():
        if not names or path.stem in names:
            print(f"== {path.relative_to(ROOT)}", flush=True)
            path.write_text(executed(path))


def report(target: Path) -> None:
    """What a browser shows of the report of `compare`; without Chromium the picture stays."""
    browser = shutil.which("chromium")
    if browser is None:
        print("no chromium: report.png stays as it is")
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([sys.executable, ROOT / "examples" / "compare_posteriors.py", "--out", page], check=True)
        quiet = ["--disable-gpu", "--no-first-run", "--disable-background-networking", f"--user-data-dir={folder}/own"]
        shot = ["--hide-scrollbars", "--window-size=1080,900", f"--screenshot={target}", page.as_uri()]
        subprocess.run([browser, "--headless", "--no-sandbox", *quiet, *shot], check=True, capture_output=True)


def pictures(names: list[str]) -> None:
    """Draw all pictures, or those that are named."""
    for example, picture in EXAMPLES.items():
        if not names or picture in names:
            print(f"== {picture}", flush=True)
            command = [example, "--out", str(DOCS / "pictures" / f"{picture}.png")]
            if example in TAKE_DATA and "METRICBNN_DATA" in os.environ:
                command += ["--data", os.environ["METRICBNN_DATA"]]
            with patch.object(sys, "argv", command), plt.rc_context(STYLE):
                runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="__main__")
    if not names or "report" in names:
        report(DOCS / "pictures" / "report.png")
    for picture, draw in {"house": house.draw, "ranks": ranks.draw}.items():
        if not names or picture in names:
            draw(DOCS / "pictures" / f"{picture}.png")
    if not names:
        pages([])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("pages", "pictures"):
        raise SystemExit(__doc__)
    {"pages": pages, "pictures": pictures}[sys.argv[1]](sys.argv[2:])
