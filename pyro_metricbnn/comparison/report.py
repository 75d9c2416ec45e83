"""A comparison as one page of HTML that needs nothing else: no script, no network, pictures inside.

In: a `Comparison`.  Out: HTML, in which every text of the user's is escaped.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from .pictures import Picture, Section
from .scores import Column, Good, Score

if TYPE_CHECKING:
    from .comparison import Comparison

STYLE = """
.metricbnn { --ink: #1c2330; --soft: #5b6472; --line: #d5dae1; --back: #ffffff; --card: #f5f7f9; --good: #00664b;
  --warn: #8a3d00; color: var(--ink); background: var(--back); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word; }
@media (prefers-color-scheme: dark) { .metricbnn { --ink: #e6e9ee; --soft: #a3adba; --line: #3a4350; --back: #14181f;
  --card: #1d232c; --good: #4fd1a5; --warn: #ffb27a; } }
.metricbnn h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
.metricbnn h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
.metricbnn p { margin: .3rem 0 .8rem; max-width: 46rem; }
.metricbnn .soft, .metricbnn small { color: var(--soft); }
.metricbnn small { display: block; font-size: .78rem; line-height: 1.35; font-weight: normal; }
.metricbnn .scroll { overflow-x: auto; }
.metricbnn table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums;
  color: var(--ink); }
.metricbnn th, .metricbnn td { padding: .35rem .7rem; text-align: right; vertical-align: top; background: none;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
.metricbnn th:first-child, .metricbnn td.text { text-align: left; white-space: normal; }
.metricbnn .pairs th { overflow-wrap: anywhere; min-width: 6rem; max-width: 14rem; }
.metricbnn thead th { white-space: normal; overflow-wrap: break-word; min-width: 4.2rem; max-width: 11rem; }
.metricbnn .scores th:first-child { min-width: 8.5rem; max-width: 24rem; position: sticky; left: 0;
  background: var(--back); }
.metricbnn th.group div { position: sticky; left: .4rem; width: max-content; max-width: min(40rem, 100vw - 4rem); }
.metricbnn th.group { padding-top: 1.1rem; font-weight: 600; color: var(--soft); }
.metricbnn td.best { color: var(--good); font-weight: 700; }
.metricbnn .warnings { color: var(--warn); padding-left: 1.2rem; max-width: 46rem; }
.metricbnn .pictures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.metricbnn figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem; min-width: 0; }
.metricbnn img { display: block; width: 100%; max-width: 45rem; height: auto; border-radius: 3px; background: #ffffff; }
.metricbnn figcaption { padding: 0 .2rem .35rem; font-weight: 600; overflow-wrap: anywhere; }
@media (max-width: 40rem) { .metricbnn table { font-size: .85rem; }
  .metricbnn th, .metricbnn td { padding: .35rem .4rem; } }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>html {{ background: #ffffff; }} @media (prefers-color-scheme: dark) {{ html {{ background: #14181f; }} }}
body {{ margin: 0 auto; max-width: 75rem; padding: 1.2rem 1rem 3rem; }}</style>
</head>
<body>
{body}
</body>
</html>
"""
GOOD: dict[Good, str] = {"low": "Lower is better.", "high": "Higher is better."}


def page(title: str, body: str) -> str:
    """A whole document around a fragment."""
    return PAGE.format(title=escape(title), body=body)


def fragment(result: Comparison) -> str:
    """The report without the document around it, for a page or a notebook."""
    parts = [
        f'<div class="metricbnn">\n<style>{STYLE}</style>',
        f"<h1>{escape(result.title)}</h1>",
        "<h2>What was compared</h2>",
        _pairs(result.facts, result.posteriors),
        "<h2>Figures</h2>",
        "<p>★ is the best of a row. What is within the standard errors is not a difference.</p>",
        _score_table(result.scores),
    ]
    if any(result.warnings.values()):
        parts += ["<h2>Warnings</h2>", _warnings(result.warnings)]
    parts += [_section(section) for section in result.sections]
    return "\n".join([*parts, "</div>"])


def _pairs(*groups: Mapping[str, str]) -> str:
    """Names with a text each, one group after another."""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(text)}</td></tr>'
        for texts in groups
        for name, text in texts.items()
    ]
    return "\n".join(['<table class="pairs">', "<tbody>", *rows, "</tbody>", "</table>"])


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
    cells, best = [], score.best
    for name in score.figures:
        text = score.text(name)
        if error is not None and error.figures[name] > 0:
            text += f"<small>± {error.text(name)}</small>"
        cells.append(f'<td class="best">★ {text}</td>' if name in best else f"<td>{text}</td>")
    title, said = escape(score.column.title), escape(_said(score.column))
    return f'<tr><th scope="row">{title}<small>{said}</small></th>{"".join(cells)}</tr>'


def _said(column: Column) -> str:
    nearest = f"Nearest to {column.good:g} is best." if isinstance(column.good, float) else ""
    return f"{column.meaning} {GOOD.get(column.good, nearest)}".strip()


def _warnings(warnings: Mapping[str, Sequence[str]]) -> str:
    items = [
        f"<li><strong>{escape(name)}</strong>: {escape(text)}</li>"
        for name, texts in warnings.items()
        for text in texts
    ]
    return f'<ul class="warnings">\n{chr(10).join(items)}\n</ul>'


def _section(section: Section) -> str:
    figures = "\n".join(_figure(picture) for picture in section.pictures)
    head = f"<h2>{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>"
    return f'{head}\n<div class="pictures">\n{figures}\n</div>'


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    image = f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{data}">'
    return f"<figure><figcaption>{escape(picture.caption)}</figcaption>{image}</figure>"
