"""All readers, and reading of files and folders of recordings.

Knows: which readers there are, the order in which they are asked, how a package adds one.
Must not know: any format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec

from policyengine.errors import UsageError
from policyengine.policy.wording import suggestion
from policyengine.protocols import PROTOCOLS, check_choice
from policyengine.recordings import (
    agentdojo,
    anthropic,
    bfcl,
    claude_code,
    journal,
    litellm,
    medagentbench,
    mini_swe_agent,
    mint,
    openai_chat,
    openhands_v1,
    otel_genai,
    pi,
    sweagent,
    tau2_bench,
    tau_bench,
    trae,
)
from policyengine.recordings.conversation import lacking
from policyengine.recordings.loading import Part, find, load
from policyengine.recordings.model import Document, Recording, Skipped, Unreadable
from policyengine.recordings.sidecar import NAME, Index, Indexes, count, listed

UNKNOWN = "no reader knows this format"
"""Why a file is skipped that could be a recording by its name."""

DECISION_LOG = "a decision log, which holds no events to replay; record a journal (`--record FILE`, docs/journal.md)"


def is_decision_log(value: Any) -> bool:
    """Return whether a decoded value looks like a line of the decision log."""
    return isinstance(value, dict) and {"v", "type", "ts", "run_id", "hook", "decided_by"} <= value.keys()


LOOKED_AT = 20
"""So many values of a file of lines may come before the first that tells its format."""

GROUP = "policyengine.recordings"
"""The entry point group of packages that bring readers: each entry point leads to a `Reader`."""


def _never(value: Any) -> bool:
    return False


class Reader(msgspec.Struct, frozen=True):
    """One format.

    `sniff` looks at the first value of a file and says whether the format is this one; it takes any JSON value. Of a
    file of lines it is asked about the values that follow until one is known, which then counts as the first. `read`
    yields the runs of a file that was recognised, and `Unreadable` for what it cannot understand. `run_a_line` looks at
    the first value too and says whether every line is a run of its own: such a file may be read in parts.
    """

    name: str
    sniff: Callable[[Any], bool]
    read: Callable[[Document], Iterator[Recording | Unreadable]]
    run_a_line: Callable[[Any], bool] = _never


READERS: tuple[Reader, ...] = (
    Reader(journal.NAME, journal.sniff, journal.read),
    Reader(agentdojo.NAME, agentdojo.sniff, agentdojo.read),
    Reader(tau_bench.NAME, tau_bench.sniff, tau_bench.read),
    Reader(sweagent.NAME, sweagent.sniff, sweagent.read),
    Reader(mini_swe_agent.NAME, mini_swe_agent.sniff, mini_swe_agent.read),
    Reader(trae.NAME, trae.sniff, trae.read),
    Reader(openhands_v1.NAME, openhands_v1.sniff, openhands_v1.read),
    Reader(litellm.NAME, litellm.sniff, litellm.read, litellm.run_a_line),
    Reader(mint.NAME, mint.sniff, mint.read, mint.run_a_line),
    Reader(medagentbench.NAME, medagentbench.sniff, medagentbench.read, medagentbench.run_a_line),
    Reader(bfcl.NAME, bfcl.sniff, bfcl.read, bfcl.run_a_line),
    Reader(tau2_bench.NAME, tau2_bench.sniff, tau2_bench.read),
    Reader(claude_code.NAME, claude_code.sniff, claude_code.read),
    Reader(pi.NAME, pi.sniff, pi.read),
    Reader(otel_genai.NAME, otel_genai.sniff, otel_genai.read),
    Reader(anthropic.NAME, anthropic.sniff, anthropic.read, anthropic.run_a_line),
    Reader(openai_chat.NAME, openai_chat.sniff, openai_chat.read, openai_chat.run_a_line),
)
"""The readers of this package in the order they are asked: the most specific format first."""


@cache
def installed_readers() -> tuple[Reader, ...]:
    """Return the readers of installed packages, then those of this package: who installed one wants it asked first.

    Raises:
        UsageError: an entry point cannot be loaded, leads to no reader, or two readers have one name.
    """
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    found = [(_load(entry), _package(entry)) for entry in entries]
    whose: dict[str, list[str]] = {}
    for reader, package in (*found, *((reader, "this package") for reader in READERS)):
        whose.setdefault(reader.name, []).append(package)
    for name, packages in whose.items():
        if len(packages) > 1:
            both = " and ".join(packages)
            raise UsageError(f"two readers of recordings are called {name}, of {both}; keep only one of them")
    return (*(reader for reader, _ in found), *READERS)


def readers_for(form: str = "", protocol: str = "native") -> tuple[Reader, ...]:
    """Return the readers to be asked: all, or the one of the format `form`, which then takes every file.

    Raises:
        UsageError: nobody reads the format, or it says itself how calls are written.
    """
    readers = installed_readers()
    if not form:
        return in_protocol(readers, protocol)
    names = [reader.name for reader in readers]
    if form not in names:
        raise UsageError(f"no format named {form!r}; {suggestion(form, names)}")
    found = (reader for reader in readers if reader.name == form)
    return in_protocol(tuple(msgspec.structs.replace(reader, sniff=_always) for reader in found), protocol)


def _always(value: Any) -> bool:
    return True


def in_protocol(readers: tuple[Reader, ...], protocol: str) -> tuple[Reader, ...]:
    """Return the readers, that of plain chat messages for calls that are written as `protocol` says.

    Every other format says itself how calls are written.

    Raises:
        UsageError: there is no such protocol, or none of the readers is that of chat messages.
    """
    check_choice(protocol, PROTOCOLS, "protocol")
    if protocol == "native":
        return readers
    if all(reader.name != openai_chat.NAME for reader in readers):
        raise UsageError(
            f"`protocol` is for {openai_chat.NAME} only: other formats say themselves how calls are written"
        )
    return tuple(
        msgspec.structs.replace(reader, read=openai_chat.read_texts) if reader.name == openai_chat.NAME else reader
        for reader in readers
    )


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "a package"


def _load(entry: EntryPoint) -> Reader:
    where = f"the reader of recordings {entry.name} = {entry.value} of {_package(entry)}"
    try:
        reader = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(reader, Reader):
        raise UsageError(f"{where} is no Reader")
    return reader


def read_recordings(
    paths: Iterable[str | os.PathLike[str]], readers: tuple[Reader, ...] | None = None
) -> Iterator[Recording | Skipped | Unreadable]:
    """Yield every recording of files and folders, what was skipped, and what could not be read.

    Folders are searched recursively in sorted order. One run of a file of lines, or one other file, is held in memory
    at a time. What an `index.csv` beside or above a file says of its runs (id, label, model, task) is used.
    """
    indexes = Indexes()
    for item in find(paths):
        if isinstance(item, Skipped | Unreadable):
            yield item
        else:
            yield from read_file(*item, readers=readers, indexes=indexes)


def read_file(
    path: Path,
    source: str,
    part: Part | None = None,
    *,
    readers: tuple[Reader, ...] | None = None,
    indexes: Indexes | None = None,
) -> Iterator[Recording | Skipped | Unreadable]:
    """Yield the recordings of one file, or of a part of one that has a run on every line."""
    document = load(path, source, part)
    if isinstance(document, Unreadable):
        yield document
        return
    try:
        reader = recognise(document, installed_readers() if readers is None else readers)
    except OSError as error:
        yield Unreadable(source, 0, error.strerror or type(error).__name__)
        return
    if reader is None:
        yield from document.broken
        nothing = lacking(document.first)
        known = DECISION_LOG if is_decision_log(document.first) else UNKNOWN
        yield Unreadable(source, 0, nothing) if nothing else Skipped(source, known)
        return
    indexes = indexes or Indexes()
    real = indexes.places.of(path)
    runs = _with_broken(reader, document)
    yield from _described(runs, source, real, indexes.nearest(real), whole=part is None)


def recognise(document: Document, readers: tuple[Reader, ...] = READERS) -> Reader | None:
    """Return the reader that knows the format of a file, judged by its first value.

    Of a file of lines it is the first of its first values that a reader knows; the file then begins with that one.
    """
    for number, (line, value) in enumerate(document.look(LOOKED_AT)):
        reader = next((reader for reader in readers if _knows(reader, value, document)), None)
        if reader is not None:
            if number:
                document.begin(line, value, _strange)
            return reader
    return None


def _strange(value: Any) -> str:
    return lacking(value) or UNKNOWN


def _knows(reader: Reader, value: Any, document: Document) -> bool:
    try:
        return reader.sniff(value)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
        raise UsageError(f"the reader {reader.name} cannot look at {document.source}: {failed}") from error


def _with_broken(reader: Reader, document: Document) -> Iterator[Recording | Unreadable]:
    """Yield what a reader finds, and every line that is not JSON as soon as it was met."""
    told = 0
    try:
        for run in reader.read(document):
            yield from document.broken[told:]
            told = len(document.broken)
            yield run
    except OSError as error:
        yield Unreadable(document.source, 0, error.strerror or type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a reader of another package must not end everything
        yield Unreadable(document.source, 0, f"the reader {reader.name} failed: {type(error).__name__}: {error}")
    yield from document.broken[told:]


def _described(
    runs: Iterator[Recording | Unreadable], source: str, path: Path, index: Index | None, *, whole: bool
) -> Iterator[Recording | Unreadable]:
    """Add to every run what its set says of it, and tell of runs that the set has and the file has not.

    That is not known of a file that is read in parts.
    """
    found: set[str] = set()
    unread = 0
    for run in _named(runs, path, index, whole=whole):
        unread += isinstance(run, Unreadable)
        if isinstance(run, Recording):
            found.add(run.id)
        yield run
    left = [row for row in index.of_file(path) if row.id not in found] if index is not None and whole else []
    if index is not None and len(left) > unread:
        yield Unreadable(source, 0, f"{NAME} lists {count(left)} not found in it: {listed(left)}")


def _named(
    runs: Iterator[Recording | Unreadable], path: Path, index: Index | None, *, whole: bool
) -> Iterator[Recording | Unreadable]:
    # By its whole path: what a set is called must not depend on the directory that somebody started in.
    name = Path(os.path.abspath(index.folder if index is not None else path.parent)).name
    # One run is held back, so that it is known whether it is the only one of its file.
    held: Recording | None = None
    behind: list[Unreadable] = []
    alone = whole
    for run in runs:
        if isinstance(run, Unreadable):
            behind.append(run)
            continue
        if held is not None:
            alone = False
            yield _with_row(held, path, index, name, alone=False)
        yield from behind
        behind.clear()
        held = run
    if held is not None:
        yield _with_row(held, path, index, name, alone=alone)
    yield from behind


def _with_row(run: Recording, path: Path, index: Index | None, name: str, *, alone: bool) -> Recording:
    row = index.find(path, run.id, run.line, alone=alone) if index is not None else None
    return msgspec.structs.replace(
        run,
        set=run.set or name,
        id=row.id if row else run.id,
        label=run.label if run.label is not None or row is None else row.label,
        group=row.group or run.group if row else run.group,
        task=run.task or (row.task if row else ""),
    )
