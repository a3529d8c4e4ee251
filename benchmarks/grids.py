"""Tables of figures, and what is asked of them, for people and for Markdown pages.

Knows: how a table is printed. Must not know: what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from policyengine.cli.output import table, terminal

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""Where a document holds tables."""


class Check(NamedTuple):
    """One thing that is asked of the figures."""

    asked: str
    found: str
    holds: bool


class Grid(NamedTuple):
    """A table to print; a column whose name begins with `#` holds numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def show(grid: Grid, *, markdown: bool = False) -> None:
    """Print a table."""
    if markdown:
        print(as_markdown(grid))
        return
    console = terminal()
    shown = table(*grid.columns)
    for row in grid.rows:
        shown.add_row(*row)
    console.print(f"\n{grid.title}\n", markup=False)
    console.print(shown)


def as_markdown(grid: Grid) -> str:
    """Return a table as Markdown, under its title."""
    rows = [
        [name.lstrip("#") for name in grid.columns],
        ["---:" if name.startswith("#") else "---" for name in grid.columns],
        *grid.rows,
    ]
    return f"### {grid.title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def what_is_asked(checks: Iterable[Check], title: str = "What is asked") -> Grid:
    """Return the table of what is asked."""
    rows = ((check.asked, check.found, "yes" if check.holds else "NO") for check in checks)
    return Grid(title, ("asked", "found", "holds"), tuple(rows))


def update(path: Path, grids: Iterable[Grid]) -> None:
    """Write tables between the marks of a document.

    Raises:
        ValueError: it has no marks.
    """
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{path} has no {BEGIN} and {END}")
    tables = "\n".join(map(as_markdown, grids))
    path.write_text(f"{head}{begin}\n\n{tables}\n{end}{tail}", encoding="utf-8")
