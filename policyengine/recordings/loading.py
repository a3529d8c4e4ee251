"""Files to JSON values: decode one file, find the files of a folder.

Knows: JSON, JSON lines, tables whose rows are read like lines, folders.
Must not know: what the values mean.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from policyengine.recordings.model import Document, Skipped, Unreadable
from policyengine.recordings.places import Places, real_place
from policyengine.recordings.sidecar import NAME, tell, tell_above

LINES = (".jsonl", ".ndjson")
TABLE = ".parquet"
SUFFIXES = (".json", ".traj", *LINES, TABLE)

_EMPTY = "the file is empty"

NO_STDIN = "recordings are read from files, not from standard input; write them to a file first"

_BLOCK = 2**20
"""Bytes that are looked at together for the ends of lines, so that memory does not grow with the size of a part."""

_decode = msgspec.json.Decoder().decode


class NotJsonError(ValueError):
    """A text is not JSON. `line` is counted from 1 within the text."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(reason)


def decode(data: bytes | str) -> Any:
    """Return the JSON value of `data`.

    msgspec refuses lone surrogates, NaN and a byte order mark, which recorded runs do contain; the standard module
    reads them and is only asked after msgspec failed.
    """
    try:
        return _decode(data)
    except RecursionError:
        raise NotJsonError(1, "nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError):
        pass
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise NotJsonError(error.lineno, f"not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise NotJsonError(1, f"not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise NotJsonError(1, "nested too deeply") from None
    except ValueError as error:
        raise NotJsonError(1, f"not JSON: {error}") from None


class Part(NamedTuple):
    """A stretch of a file of lines: bytes from `start` to `stop`, both at the beginning of a line, numbered `line`.

    Of a table it is the groups of rows from `start` to `stop`, the first row of which is numbered `line`. `size` is in
    bytes.

    A run in it is never taken for the only one of its file, as nobody looks into the other parts.
    """

    start: int
    stop: int
    line: int
    size: int


def load(path: Path, source: str, part: Part | None = None) -> Document | Unreadable:
    """Open and decode one file, or a part of a file of lines.

    A file of lines is read as its values are asked for. One whose every line is broken is unreadable as a whole.
    """
    if is_table(path):
        return _table(path, source, part)
    try:
        if part is not None:
            return _part(path, source, part)
        if is_lines(path):
            return _lines(_read_lines(path, None), source)
        data = path.read_bytes()
    except OSError as error:
        return Unreadable(source, 0, error.strerror or type(error).__name__)
    if not data or data.isspace():
        return Unreadable(source, 0, _EMPTY)
    try:
        value = decode(data)
    except NotJsonError as error:
        if _first_line_stands_alone(data):
            return _lines(enumerate(data.split(b"\n"), start=1), source)
        return Unreadable(source, error.line, str(error))
    return Document(source, value, iter([(1, value)]))


def is_lines(path: Path) -> bool:
    """Return whether a file is one of lines by its name."""
    return path.suffix.lower() in LINES


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its name."""
    return path.suffix.lower() == TABLE


def cut(path: Path, size: int) -> list[Part]:
    """Return the parts of a file of lines or of a table, each of `size` bytes or a little more; raises `OSError`."""
    if is_table(path):
        from policyengine.recordings.parquet import groups

        return [Part(*group) for group in groups(path, size)]
    parts: list[Part] = []
    start, line = 0, 1
    with path.open("rb") as file:
        while True:
            stop, ends, block = start, 0, b"\n"
            while stop - start < size and (more := file.read(min(_BLOCK, size - (stop - start)))):
                stop, ends, block = stop + len(more), ends + more.count(b"\n"), more
            if stop == start:
                return parts
            if not block.endswith(b"\n"):
                rest = file.readline()
                stop, ends = stop + len(rest), ends + rest.count(b"\n")
            parts.append(Part(start, stop, line, stop - start))
            start, line = stop, line + ends


def _first_line_stands_alone(data: bytes) -> bool:
    first, newline, rest = data.lstrip().partition(b"\n")
    if not newline or not rest.strip():
        return False
    try:
        return isinstance(decode(first), dict | list)
    except NotJsonError:
        return False


def _read_lines(path: Path, part: Part | None) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        if part is None:
            yield from enumerate(file, start=1)
            return
        file.seek(part.start)
        left = part.stop - part.start
        for number, line in enumerate(file, start=part.line):
            if left <= 0:
                return
            left -= len(line)
            yield number, line


def _lines(lines: Iterable[tuple[int, bytes]], source: str) -> Document | Unreadable:
    broken: list[Unreadable] = []
    values = _values(lines, source, broken)
    first = next(values, None)
    if first is None:
        return broken[0] if broken else Unreadable(source, 0, _EMPTY)
    return Document(source, first[1], chain([first], values), broken, lines=True)


def _part(path: Path, source: str, part: Part) -> Document | Unreadable:
    # The format is that of the file: its first value says so, whichever part is read and whatever is at its beginning.
    head = _values(_read_lines(path, None), source, [])
    first = next(head, None)
    if first is None:
        return Unreadable(source, 0, _EMPTY)
    broken: list[Unreadable] = []
    values = _values(_read_lines(path, part), source, broken)
    return Document(source, first[1], values, broken, lines=True, part=True, head=chain([first], head))


def _table(path: Path, source: str, part: Part | None) -> Document | Unreadable:
    from policyengine.recordings.parquet import TableError, rows

    broken: list[Unreadable] = []

    def values() -> Iterator[tuple[int, Any]]:
        known = 0
        try:
            for row, value in rows(path, part.start, part.stop, part.line) if part else rows(path):
                yield row, value
                known = row
        except TableError as error:
            broken.append(Unreadable(source, known + 1 if known else 0, str(error)))

    found = values()
    head = rows(path) if part else None
    try:
        first = next(found if head is None else head, None)
    except TableError as error:
        return Unreadable(source, 0, str(error))
    if first is None:
        return broken[0] if broken else Unreadable(source, 0, "the table has no rows")
    if head is not None:
        return Document(source, first[1], found, broken, lines=True, part=True, head=chain([first], head))
    return Document(source, first[1], chain([first], found), broken, lines=True)


def _values(lines: Iterable[tuple[int, bytes]], source: str, broken: list[Unreadable]) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text or text.isspace():
            continue
        try:
            value = decode(text)
        except NotJsonError as error:
            broken.append(Unreadable(source, number, str(error)))
            continue
        yield number, value


def find(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[Path, str] | Skipped | Unreadable]:
    """Yield every file to be tried, folders searched recursively and in sorted order; no file twice.

    The second item is the file's name for messages: as it was given, or below the folder as that was given. An index of
    runs is no such file; what is wrong with one is told once.
    """
    seen: set[Path] = set()
    places = Places()
    for given in paths:
        root = Path(given)
        try:
            found = _walk(root) if stat.S_ISDIR(root.stat().st_mode) else iter([root])
        except OSError as error:
            missing = NO_STDIN if root == Path("-") else "no such file or folder"
            yield Unreadable(root.as_posix(), 0, _reason(error, missing))
            continue
        for index, problems in tell_above(real_place(root)):
            if index not in seen:
                seen.add(index)
                yield from problems
        for item in found:
            if isinstance(item, Skipped | Unreadable):
                yield item
            elif (real := places.of(item)) not in seen:
                seen.add(real)
                if item.name == NAME and os.path.isfile(item):
                    yield from tell(item)
                else:
                    yield _judge(item, explicit=item is root)


def _walk(root: Path) -> Iterator[Path | Skipped | Unreadable]:
    failed: list[OSError] = []

    def told() -> Iterator[Unreadable]:
        for error in failed:
            yield Unreadable(Path(error.filename or root).as_posix(), 0, _reason(error))
        failed.clear()

    for folder, names, files in os.walk(root, onerror=failed.append):
        yield from told()
        names.sort()
        for name in list(names):
            path = Path(folder) / name
            if name.startswith("."):
                names.remove(name)
                yield Skipped(path.as_posix(), "a hidden folder")
            elif path.is_symlink():
                names.remove(name)
                yield Skipped(path.as_posix(), "a link to a folder")
        for name in sorted(files):
            yield Path(folder) / name
    yield from told()


def _reason(error: OSError, missing: str = "") -> str:
    if missing and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return missing
    return error.strerror or type(error).__name__


def _judge(path: Path, *, explicit: bool) -> tuple[Path, str] | Skipped | Unreadable:
    source = path.as_posix()
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        wanted = explicit or path.name == NAME or (path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
        if wanted and error.errno != errno.ENOENT:
            return Unreadable(source, 0, _reason(error))
        regular = False
    if not regular:
        return Skipped(source, "not a regular file")
    if path.name.startswith(".") and not explicit:
        return Skipped(source, "a hidden file")
    if path.suffix.lower() not in SUFFIXES:
        return Skipped(source, f"not {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return path, source
