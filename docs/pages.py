"""Run the code of a page, and store beside it what it printed and drew.

In: a Markdown page. Its Python blocks run in order, in one namespace.  Out: the page with the output of each block in
the text block below it, and the figure that was drawn in the picture below it. Blocks without either are run as well.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pyro

DOCS = Path(__file__).parent
ROOT = DOCS.parent
CELL = re.compile(
    r"```python\n(?P<code>.*?)```\n"
    r"(?P<output>\n```text\n(?P<said>.*?)```\n)?"
    r"(?P<picture>\n!\[[^\]]*\]\((?P<path>[^)]+)\)\n)?",
    re.DOTALL,
)
WIDTH, HEIGHT, DPI = 9, 4, 120  # of all pictures the width
STYLE = {
    "figure.figsize": (WIDTH, HEIGHT),
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "legend.frameon": False,
}


def guides() -> list[Path]:
    """The pages whose code is run."""
    return [DOCS / "start.md", DOCS / "how_it_works.md", *sorted((DOCS / "guides").glob("*.md"))]


def executed(page: Path) -> str:
    """The page with what its code printed and drew; the pictures are written."""
    text, names = page.read_text(), dict[str, Any](__name__="page")
    done = []
    with in_a_folder(), plt.rc_context(STYLE):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        end = 0
        for cell in CELL.finditer(text):
            done += [text[end : cell.start()], _stored(cell, names, page)]
            end = cell.end()
    return "".join([*done, text[end:]])


def run(page: Path) -> None:
    """The code alone: nothing is stored."""
    names = dict[str, Any](__name__="page")
    with in_a_folder(), plt.rc_context(STYLE):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        for cell in CELL.finditer(page.read_text()):
            exec(compile(cell["code"], page.name, "exec"), names)
            plt.close("all")


def _stored(cell: re.Match[str], names: dict[str, Any], page: Path) -> str:
    """One block with its output and picture."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(cell["code"], page.name, "exec"), names)
    parts = [f"```python\n{cell['code']}```\n"]
    if cell["output"]:
        parts.append(f"\n```text\n{printed.getvalue().rstrip()}\n```\n")
    if cell["picture"]:
        parts.append(cell["picture"])
        figure = plt.gcf()
        if figure.get_figwidth() < WIDTH:
            figure.set_size_inches(WIDTH, HEIGHT)
        figure.savefig(page.parent / cell["path"], dpi=DPI)
    plt.close("all")
    return "".join(parts)


@contextlib.contextmanager
def in_a_folder() -> Iterator[None]:
    """Files that a page writes are gone afterwards."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
