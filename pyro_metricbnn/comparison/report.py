"""A comparison as one page of HTML that needs nothing else: no script, no network, pictures inside.

In: a `Comparison`.  Out: HTML, in which every text of the user's is escaped.
"""

import base64
import itertools
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from .pictures import Section
from .scores import Good, Score

if TYPE_CHECKING:
    from .comparison import Comparison

GOOD: dict[Good, str] = {"low": " Lower is better.", "high": " Higher is better."}


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """A whole document around a fragment."""
    return Template(_file("report.html")).substitute(title=escape(title), body=body)


def fragment(result: "Comparison") -> str:
    """The report without the document around it, for a page or a notebook."""
    said = [(name, text) for name, texts in result.warnings.items() for text in texts]
    warnings = [f"<li><strong>{escape(name)}</strong>: {escape(text)}</li>" for name, text in said]
    parts = [
        f'<div class="metricbnn">\n<style>\n{_file("report.css")}</style>',
        f"<h1>{escape(result.title)}</h1>",
        "<h2>What was compared</h2>",
        _pairs([*result.facts.items(), *result.posteriors.items()]),
        "<h2>Figures</h2>",
        "<p>★ is the best of a row. What is within the standard errors is not a difference.</p>",
        _score_table(result.scores),
        *(["<h2>Warnings</h2>", '<ul class="warnings">', *warnings, "</ul>"] if warnings else []),
        *map(_section, result.sections),
    ]
    return "\n".join([*parts, "</div>"])


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with a text each."""
    cells = [f'<th scope="row">{escape(name)}</th><td class="text">{escape(text)}</td>' for name, text in pairs]
    rows = [f"<tr>{both}</tr>" for both in cells]
    return "\n".join(['<div class="scroll"><table class="pairs">', "<tbody>", *rows, "</tbody>", "</table></div>"])


def _score_table(scores: Sequence[Score]) -> str:
    """A row for each column of the data frame, so that the page stays narrow and each can say what it is."""
    names = list(scores[0].figures)
    by_key = {score.column.key: score for score in scores}
    beside = {score.column.error for score in scores}
    head = "<tr><th></th>" + "".join(f'<th scope="col">{escape(name)}</th>' for name in names) + "</tr>"
    body: list[str] = []
    shown = [score for score in scores if score.column.key not in beside]
    for heading, group in itertools.groupby(shown, key=lambda score: score.heading):
        said = f"<div>{escape(heading.title)}<small>{escape(heading.note)}</small></div>"
        body.append(f'<tr><th class="group" colspan="{len(names) + 1}" scope="rowgroup">{said}</th></tr>')
        body += [_row(score, by_key.get(score.column.error or "")) for score in group]
    table = ["<thead>", head, "</thead>", "<tbody>", *body, "</tbody>"]
    return '<div class="scroll"><table class="scores">\n' + "\n".join(table) + "\n</table></div>"


def _row(score: Score, error: Score | None) -> str:
    cells, column = [], score.column
    for name in score.figures:
        text = score.text(name)
        if error is not None and error.figures[name] > 0:
            text += f"<small>± {error.text(name)}</small>"
        cells.append(f'<td class="best">★ {text}</td>' if name in score.best else f"<td>{text}</td>")
    nearest = f" Nearest to {column.good:g} is best." if isinstance(column.good, float) else ""
    said = escape(column.meaning + GOOD.get(column.good, nearest))
    return f'<tr><th scope="row">{escape(column.title)}<small>{said}</small></th>{"".join(cells)}</tr>'


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", f"<p>{escape(section.text)}</p>", '<div class="pictures">']
    for picture in section.pictures:
        data = base64.b64encode(picture.png).decode("ascii")
        image = f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{data}">'
        parts.append(f"<figure><figcaption>{escape(picture.caption)}</figcaption>{image}</figure>")
    return "\n".join([*parts, "</div>"])
