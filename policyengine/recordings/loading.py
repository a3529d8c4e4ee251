"""Files to JSON values: decode one file, find the files of a folder.

Knows: JSON, JSON lines, folders.
Must not know: what the values mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from policyengine.recordings.model import Document, Skipped, Unreadable

LINES = (".jsonl", ".ndjson")
SUFFIXES = (".json", *LINES)

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


def load(path: Path, source: str) -> Document | Unreadable:
    """Read and decode one file. A file whose every line is broken is unreadable as a whole."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return Unreadable(source, 0, error.strerror or type(error).__name__)
    if not data.strip():
        return Unreadable(source, 0, "the file is empty")
    if path.suffix.lower() in LINES:
        return _load_lines(data, source)
    try:
        return Document(source, ((1, decode(data)),))
    except NotJsonError as error:
        if _first_line_stands_alone(data):
            return _load_lines(data, source)
        return Unreadable(source, error.line, str(error))


def _first_line_stands_alone(data: bytes) -> bool:
    first, newline, rest = data.lstrip().partition(b"\n")
    if not newline or not rest.strip():
        return False
    try:
        return isinstance(decode(first), dict | list)
    except NotJsonError:
        return False


def _load_lines(data: bytes, source: str) -> Document | Unreadable:
    values: list[tuple[int, Any]] = []
    broken: list[Unreadable] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append((number, decode(line)))
        except NotJsonError as error:
            broken.append(Unreadable(source, number, str(error)))
    if not values:
        return broken[0]
    return Document(source, tuple(values), tuple(broken), lines=True)


def find(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[Path, str] | Skipped | Unreadable]:
    """Yield every file to be tried, folders searched recursively and in sorted order; no file twice.

    The second item is the file's name for messages: as it was given, or below the folder as that was given.
    """
    seen: set[Path] = set()
    for given in paths:
        root = Path(given)
        if root.is_dir():
            found = _walk(root)
        elif root.exists():
            found = iter([root])
        else:
            yield Unreadable(root.as_posix(), 0, "no such file or folder")
            continue
        for item in found:
            if isinstance(item, Skipped):
                yield item
            elif (real := item.resolve()) not in seen:
                seen.add(real)
                yield _judge(item, explicit=item is root)


def _walk(root: Path) -> Iterator[Path | Skipped]:
    for folder, names, files in os.walk(root):
        names.sort()
        for name in [name for name in names if name.startswith(".")]:
            names.remove(name)
            yield Skipped((Path(folder) / name).as_posix(), "a hidden folder")
        for name in sorted(files):
            yield Path(folder) / name


def _judge(path: Path, *, explicit: bool) -> tuple[Path, str] | Skipped:
    source = path.as_posix()
    if not path.is_file():
        return Skipped(source, "not a regular file")
    if path.name.startswith(".") and not explicit:
        return Skipped(source, "a hidden file")
    if path.suffix.lower() not in SUFFIXES:
        return Skipped(source, f"not {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return path, source
