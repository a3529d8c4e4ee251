"""What a set says about its runs beside the recordings: ids, labels, models and tasks from an `index.csv`.

Knows: an index with the columns `id` and `file` (relative to the index; `file:N` names line N from 0), and optionally
`success` (`True` or `False`, empty where nobody judged), `group` (the model or the series of runs) and `task`.
Must not know: formats of recordings.

A row without `file` is of a run that is not there. Of two rows for one run the first counts.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from errno import ENOENT, ENOTDIR
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from policyengine.recordings.model import ShapeError, Skipped, Unreadable
from policyengine.recordings.places import Places

NAME = "index.csv"

_COLUMNS = ("id", "file")
_LABELS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "": None}
_SHOWN = 3
_LONGEST = 40
_MARK = re.compile("[#/]")


class Row(msgspec.Struct, frozen=True):
    """What an index says about one run; `file` is its file, with the number of its line if that is named."""

    id: str
    file: str = ""
    label: bool | None = None
    group: str = ""
    task: str = ""


class Index:
    """One `index.csv`: the rows it has for each file, and what is wrong with it (lines and reasons)."""

    def __init__(self, folder: Path, rows: Sequence[Row], problems: Sequence[tuple[int, str]] = ()) -> None:
        self.folder = folder
        self.problems = tuple(problems)
        self._rows: dict[str, list[Row]] = {}
        self._of_file: dict[str, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row.file, []).append(row)
            self._of_file.setdefault(_without_line(row.file), []).append(row)
        self._latest: tuple[Path, str] = folder, ""

    @cached_property
    def _by_id(self) -> dict[tuple[str, str], Row]:
        return {(row.file, row.id): row for rows in self._rows.values() for row in rows}

    @cached_property
    def _by_end(self) -> dict[tuple[str, str], Row]:
        """The rows by what a reader may know of an id to which the set has put a name of its own."""
        ends = [
            ((row.file, row.id[mark.end() :]), row)
            for rows in self._rows.values()
            for row in rows
            for mark in _MARK.finditer(row.id)
        ]
        times = Counter(key for key, _ in ends)
        return {key: row for key, row in ends if times[key] == 1}

    def find(self, path: Path, own: str, line: int, *, alone: bool) -> Row | None:
        """Return the row of a run whose reader calls it `own`.

        `line` is the run's line in the file from 1, `alone` whether it is the file's only run.
        """
        file = self._named(path)
        at_line = self._rows.get(f"{file}:{line - 1}", [])
        if len(at_line) == 1:
            return at_line[0]
        for key in (f"{file}:{line - 1}", file) if at_line else (file,):
            row = self._by_id.get((key, own)) or self._by_end.get((key, own))
            if row is not None:
                return row
        rows = self._rows.get(file, [])
        return rows[0] if alone and len(rows) == 1 else None

    def of_file(self, path: Path) -> list[Row]:
        """Return the rows of all runs of a file."""
        return self._of_file.get(self._named(path), [])

    def _named(self, path: Path) -> str:
        """Return a file as rows name it; the runs of one file follow each other."""
        if path is not self._latest[0]:
            self._latest = path, path.relative_to(self.folder).as_posix()
        return self._latest[1]

    def gone(self) -> dict[str, list[Row]]:
        """Return the rows of runs whose file is not there ("") or cannot be looked at, by the reason."""
        missing = cache(lambda file: _missing(os.path.join(self.folder, file)))
        found: dict[str, list[Row]] = {}
        for file, rows in self._rows.items():
            reasons = [missing(name) for name in dict.fromkeys((_without_line(file), file))]
            if None not in reasons:
                found.setdefault(max(filter(None, reasons), default=""), []).extend(rows)
        return found


def listed(rows: Sequence[Row]) -> str:
    """Return the ids of the first of some rows."""
    names = ", ".join(row.id for row in rows[:_SHOWN])
    return names if len(rows) <= _SHOWN else f"{names}, ..."


def _missing(path: str) -> str | None:
    """Return nothing for a file that is there, an empty text for one that is not, or why nobody can tell."""
    try:
        os.stat(path)
    except OSError as error:
        return "" if error.errno in (ENOENT, ENOTDIR) else error.strerror or type(error).__name__
    except ValueError:  # a name that no file can have
        return ""
    return None


def label_of(value: Any) -> bool | None:
    """Return what a label says, written as in JSON or as in an index; raises `ShapeError` for what is none."""
    text = value.strip().lower() if isinstance(value, str) else "" if value is None else str(value).lower()
    if text in _LABELS and not isinstance(value, list | dict):
        return _LABELS[text]
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    raise ShapeError(f"label is {shown}, not true, false, 1 or 0; the run is read without it")


def _without_line(file: str) -> str:
    name, colon, number = file.rpartition(":")
    return name if colon and number.isdecimal() else file


class Indexes:
    """Finds the nearest index of a file, reading each index once. `places` knows where files really are."""

    def __init__(self) -> None:
        self.places = Places()
        self._known: dict[Path, Index | None] = {}

    def nearest(self, path: Path) -> Index | None:
        """Return the index in the file's folder or the closest folder above it that has one."""
        folders = path.parents
        for depth, folder in enumerate(folders):
            if folder not in self._known:
                self._known[folder] = _usable(folder)
            index = self._known[folder]
            if index is not None:
                for below in folders[:depth]:
                    self._known[below] = index
                return index
        return None


def _usable(folder: Path) -> Index | None:
    path = folder / NAME
    if not os.path.exists(path):  # most folders have none, and to ask costs less than to fail
        return None
    index = read_index(path)
    return index if isinstance(index, Index) else None


def read_index(path: Path) -> Index | Skipped | Unreadable | None:
    """Read an index: nothing if there is none, `Skipped` if the file is something else of that name."""
    source = path.as_posix()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(path.parent, source, csv.reader(file, strict=True))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unreadable(source, 0, error.strerror or type(error).__name__)
    except UnicodeDecodeError as error:
        return Unreadable(source, 0, f"not UTF-8 (byte {error.start})")


def _read(folder: Path, source: str, table: Any) -> Index | Skipped | Unreadable:
    rows: list[Row] = []
    problems: list[tuple[int, str]] = []
    known: set[tuple[str, str]] = set()
    try:
        header = [name.strip() for name in next(table, [])]
        missing = [f"`{name}`" for name in _COLUMNS if name not in header]
        if missing:
            return Skipped(source, f"no index of runs: it has no column {' and '.join(missing)}")
        for cells in table:
            if len(cells) not in (0, len(header)):
                problems.append((table.line_num, f"the row has {len(cells)} cells, the header {len(header)}"))
            row, wrong = _row(dict(zip(header, cells, strict=False)), known)
            if row is not None:
                rows.append(row)
            if wrong:
                problems.append((table.line_num, wrong))
    except csv.Error as error:
        problems.append((table.line_num, f"not CSV: {error}"))
    return Index(folder, rows, problems)


def _row(cells: Mapping[str, str], known: set[tuple[str, str]]) -> tuple[Row | None, str]:
    """Return what a row says of a run, and what is wrong with it."""
    name, file = cells.get("id", ""), cells.get("file", "")
    if not file:
        return None, ""
    if "//" in f"/{file}/" or "/./" in f"/{file}/":
        file = PurePosixPath(file).as_posix()
    if not name:
        return None, "the row has no id"
    if (file, name) in known:
        return None, f"the run {name} is listed twice"
    known.add((file, name))
    success = cells.get("success", "").strip().lower()
    row = Row(name, file, _LABELS.get(success), cells.get("group", ""), cells.get("task", ""))
    return row, "" if success in _LABELS else f"success is {success!r}, not True, False or empty"


def tell(path: Path) -> Iterator[Skipped | Unreadable]:
    """Yield what is wrong with the index of a set that is read as a whole, files that are not there included."""
    index = read_index(path)
    if isinstance(index, Skipped | Unreadable):
        yield index
    elif index is not None:
        yield from _problems(index)
        for reason, gone in index.gone().items():
            if reason:
                told = f"it lists {count(gone)} of files that cannot be read ({reason}): {listed(gone)}"
                yield Unreadable(path.as_posix(), 0, told)
            else:
                yield Skipped(path.as_posix(), f"it lists {count(gone)} of files that are not there: {listed(gone)}")


def tell_above(path: Path) -> Iterator[tuple[Path, list[Unreadable]]]:
    """Yield the index that says something about a file or folder, if one does, and what is wrong with it.

    One beside a file that cannot be read is told; one further above that is none is not this set's.
    """
    for depth, folder in enumerate(path.parents):
        index = read_index(folder / NAME)
        if isinstance(index, Index):
            yield folder / NAME, [*_problems(index)]
            return
        if isinstance(index, Unreadable) and depth == 0 and path.is_file():
            yield folder / NAME, [index]


def _problems(index: Index) -> Iterator[Unreadable]:
    source = (index.folder / NAME).as_posix()
    return (Unreadable(source, line, reason) for line, reason in index.problems)


def count(rows: Sequence[Row]) -> str:
    """Return how many runs there are, as a text."""
    return f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
