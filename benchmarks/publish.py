"""Write the tables of the documents from the result files, each with the version of the walk that made it.

    python -m benchmarks publish [--out DIR]

A document says `<!-- table: NAME -->` and `<!-- end -->`; what stands between them is written by this command, by the
functions in `published.py`. A NAME such as `images/images.md` is a file that an experiment itself writes. A test fails
where a table is not what the result files say: it would be of other results, or of an earlier walk without saying so.
Every cell carries the version of the walk that made it (`pyro_metricbnn.walk.VERSION`; 1 where it does not say).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .arguments import RESULTS, parser
from .published import TABLES, Table

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- table: (?P<name>[^>]+?) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> None:
    """Write all tables of all documents."""
    arguments = parser(__doc__ or "").parse_args(argv)
    for path in documents():
        before = path.read_text()
        after = published(before, arguments.out or RESULTS)
        if after != before:
            path.write_text(after)
            print(path.relative_to(ROOT))


def documents() -> Iterator[Path]:
    """Those that may have tables."""
    yield from sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def published(text: str, results: Path) -> str:
    """A document with its tables written anew."""
    return MARKED.sub(lambda found: marked(found["name"], results), text)


def marked(name: str, results: Path) -> str:
    """A table between its marks, and what version of the walk made it."""
    table = of_file(name) if name.endswith(".md") else TABLES.get(name)
    if table is None:
        raise SystemExit(f"{name!r} is no table that can be published; there are {', '.join(TABLES)}, and files.")
    text = table.write(results).replace(" ± ", "\u00a0±\u00a0")  # which do not break
    parts = [f"<!-- table: {name} -->", text, *filter(None, [table.note(results)]), "<!-- end -->"]
    return "\n\n".join(parts)


def of_file(name: str) -> Table:
    """What an experiment wrote beside its result files."""
    files = f"{name.rpartition('/')[0]}/*.json"
    return Table(write=lambda results: (results / name).read_text().strip(), files=(files,))
