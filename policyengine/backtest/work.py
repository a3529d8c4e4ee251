"""The input of a backtest, cut into units that can be worked on apart.

Knows: files, parts of files of lines, what changes what is read of them.
Must not know: policies, what becomes of a unit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from policyengine.backtest.facts import digest, plain
from policyengine.recordings.loading import Part, cut, find, is_lines, is_table, load
from policyengine.recordings.model import Skipped, Unreadable
from policyengine.recordings.places import Places, real_place
from policyengine.recordings.readers import Reader, installed_readers, recognise
from policyengine.recordings.sidecar import NAME as INDEX

PART_BYTES = 4 * 2**20
"""Files with a run on every line or row are cut into parts of about this size, large ones into larger parts."""

MOST_PARTS = 256
"""No file is cut into more parts than this: each is planned, and counted on its own."""

BATCH_BYTES = 2 * 2**20
"""Small files are put together until they are this large, so that handing them out costs little."""

Unread = TypeVar("Unread", Skipped, Unreadable)


class Piece(msgspec.Struct, frozen=True):
    """A file, or a part of one. `indexes` are sizes and times of the indexes that may say something about its runs."""

    path: Path
    source: str
    size: int
    modified_ns: int
    indexes: tuple[int, ...] = ()
    part: Part | None = None


class Unit(msgspec.Struct, frozen=True):
    """Pieces that one worker takes at a time; `number` is its place in the input."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return sum(piece.size for piece in self.pieces)

    def key(self) -> str:
        """Return what tells this unit from any other input; a file that was changed is another input.

        So is one whose index was changed.
        """
        return digest(
            repr((piece.source, piece.size, piece.modified_ns, piece.indexes, tuple(piece.part or ())))
            for piece in self.pieces
        )


def written(item: Unread) -> Unread:
    """Return what was not read in texts that can be written, whatever bytes a file name has."""
    return msgspec.structs.replace(item, source=plain(item.source), reason=plain(item.reason))


def plan(
    paths: Iterable[str | os.PathLike[str]], readers: tuple[Reader, ...] | None = None, without: Path | None = None
) -> tuple[list[Unit], list[Skipped], list[Unreadable]]:
    """Return the units of the input in order, and what takes no part in it; `without` is no input wherever it is."""
    left_out = None if without is None else real_place(without)
    skipped: list[Skipped] = []
    unreadable: list[Unreadable] = []
    units: list[Unit] = []
    batch: list[Piece] = []
    size = 0
    indexes: dict[Path, tuple[int, ...]] = {}
    places = Places()

    def close() -> None:
        nonlocal size
        if batch:
            units.append(Unit(len(units), tuple(batch)))
            batch.clear()
            size = 0

    seen: set[Path] = set()
    for given in paths:
        if os.path.isdir(given):
            close()  # so that the units of a folder are the same whatever is given before it
        for item in find([given]):
            if isinstance(item, Skipped):
                if left_out is None or real_place(Path(item.source)) != left_out:
                    skipped.append(written(item))
            elif isinstance(item, Unreadable):
                unreadable.append(written(item))
            elif (real := places.of(item[0])) not in seen and real != left_out:
                seen.add(real)
                for piece in _pieces(*item, readers, indexes, places, unreadable):
                    batch.append(piece)
                    size += piece.size
                    if size >= BATCH_BYTES:
                        close()
    close()
    return units, skipped, unreadable


def _pieces(
    path: Path,
    source: str,
    readers: tuple[Reader, ...] | None,
    indexes: dict[Path, tuple[int, ...]],
    places: Places,
    unreadable: list[Unreadable],
) -> Iterator[Piece]:
    try:
        found = path.stat()
        whole = Piece(path, source, found.st_size, found.st_mtime_ns, _indexes(places.of(path).parent, indexes))
        if found.st_size <= PART_BYTES or not _has_parts(path) or not _run_a_line(path, source, readers):
            yield whole
            return
        parts = cut(path, max(PART_BYTES, found.st_size // MOST_PARTS))
        if len(parts) == 1:
            yield whole
            return
        for part in parts:
            yield msgspec.structs.replace(whole, size=part.size, part=part)
    except OSError as error:
        unreadable.append(written(Unreadable(source, 0, error.strerror or type(error).__name__)))


def _indexes(folder: Path, known: dict[Path, tuple[int, ...]]) -> tuple[int, ...]:
    """Return size and time of every index in a folder and above it, each folder looked at once."""
    if folder not in known:
        above = _indexes(folder.parent, known) if folder != folder.parent else ()
        try:
            found = (folder / INDEX).stat()
            known[folder] = (found.st_size, found.st_mtime_ns, *above)
        except OSError:
            known[folder] = above
    return known[folder]


def _has_parts(path: Path) -> bool:
    return is_lines(path) or is_table(path)


def _run_a_line(path: Path, source: str, readers: tuple[Reader, ...] | None) -> bool:
    document = load(path, source)
    if isinstance(document, Unreadable):
        return False
    reader = recognise(document, installed_readers() if readers is None else readers)
    return reader is not None and reader.run_a_line(document.first)
