"""The report of a backtest as Markdown.

Knows: how Markdown writes a table. Must not know: which tables there are, how figures come about.
"""

from __future__ import annotations

import re

from policyengine.backtest.figures import BacktestReport
from policyengine.backtest.grids import Grid, all_grids, summary
from policyengine.visible import clean_line

_MARKUP = re.compile(
    r"\||<(?=[A-Za-z/!?])|&(?=[#\w])|[*`]|(?<=\])\(|~(?=~)"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word an underscore means nothing
    r"|\\(?=[!-/:-@\[-`{-~])"
)


def markdown(report: BacktestReport) -> str:
    """Return the whole report."""
    parts = ["# Backtest", "", *summary(report), ""]
    for grid in all_grids(report):
        parts += [f"## {_text(grid.title)}", "", *_table(grid), ""]
    return "\n".join(parts).rstrip("\n")


def _table(grid: Grid) -> list[str]:
    head = [name.removeprefix("#") for name in grid.columns]
    rule = ["---:" if name.startswith("#") else "---" for name in grid.columns]
    rows = ([_text(cell) for cell in row] for row in (head, *grid.rows))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]


def _text(text: str) -> str:
    """Return a text in which nothing is Markdown or HTML."""
    return _MARKUP.sub(_escaped, clean_line(text))


def _escaped(match: re.Match[str]) -> str:
    found = match.group()
    entities = {"|": "&#124;", "<": "&lt;", "&": "&amp;"}
    return entities.get(found) or f"\\{found}"
