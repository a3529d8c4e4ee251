"""All readers, and reading of files and folders of recordings.

Knows: which readers there are, and the order in which they are asked.
Must not know: any format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from policyengine.recordings import agentdojo, journal, openai_chat, tau_bench
from policyengine.recordings.loading import find, load
from policyengine.recordings.model import Document, Recording, Skipped, Unreadable
from policyengine.recordings.sidecar import Index, Indexes


class Reader(msgspec.Struct, frozen=True):
    """One format: `sniff` looks at the first value of a file, `read` yields the runs of a file it recognised."""

    name: str
    sniff: Callable[[Any], bool]
    read: Callable[[Document], Iterator[Recording | Unreadable]]


READERS: tuple[Reader, ...] = (
    Reader(journal.NAME, journal.sniff, journal.read),
    Reader(agentdojo.NAME, agentdojo.sniff, agentdojo.read),
    Reader(tau_bench.NAME, tau_bench.sniff, tau_bench.read),
    Reader(openai_chat.NAME, openai_chat.sniff, openai_chat.read),
)
"""The readers in the order they are asked: the most specific format first."""


def read_recordings(
    paths: Iterable[str | os.PathLike[str]], readers: tuple[Reader, ...] = READERS
) -> Iterator[Recording | Skipped | Unreadable]:
    """Yield every recording of files and folders, what was skipped, and what could not be read.

    Folders are searched recursively in sorted order. One file at a time is held in memory. Where an `index.csv`
    beside or above a file names its runs, those names are the ids.
    """
    indexes = Indexes()
    for item in find(paths):
        if isinstance(item, Skipped | Unreadable):
            yield item
            continue
        path, source = item
        document = load(path, source)
        if isinstance(document, Unreadable):
            yield document
            continue
        reader = recognise(document, readers)
        if reader is None:
            yield Skipped(source, "no reader knows this format")
            continue
        yield from document.broken
        yield from _named(reader.read(document), path.resolve(), indexes)


def recognise(document: Document, readers: tuple[Reader, ...] = READERS) -> Reader | None:
    """Return the reader that knows the format of a file, judged by its first value."""
    first = document.values[0][1]
    return next((reader for reader in readers if reader.sniff(first)), None)


def _named(runs: Iterator[Recording | Unreadable], path: Path, indexes: Indexes) -> Iterator[Recording | Unreadable]:
    index = indexes.nearest(path)
    # One run is held back, so that it is known whether it is the only one of its file.
    held = next(runs, None)
    alone = True
    for run in runs:
        alone = False
        if held is not None:
            yield _rename(held, path, index, alone=False)
        held = run
    if held is not None:
        yield _rename(held, path, index, alone=alone)


def _rename(run: Recording | Unreadable, path: Path, index: Index | None, *, alone: bool) -> Recording | Unreadable:
    if index is None or isinstance(run, Unreadable):
        return run
    name = index.id_of(path, run.id, run.line, alone=alone)
    return run if name == run.id else msgspec.structs.replace(run, id=name)
