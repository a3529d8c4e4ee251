"""What was done already: a file of lines that a later backtest goes on from.

Knows: which units of which input under which policies are in it. Must not know: what figures mean.

Every line is written when a unit is done. A last line that was cut off, as a crash leaves it, is done again. Files of
the same policies and options may be put one behind another, as those of machines that had a part of the input each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from policyengine import __version__
from policyengine.backtest.judge import Assignment, Judged
from policyengine.backtest.work import Unit
from policyengine.errors import UsageError
from policyengine.private import for_us_alone

VERSION = 1

LONGEST_HEAD = 2**24
"""No first line of such a file is longer; a longer one is not read."""

Line = TypeVar("Line")


class Head(msgspec.Struct, frozen=True):
    """What the results belong to."""

    version: int
    engine: str
    assignment: Assignment


class Done(msgspec.Struct, frozen=True):
    """One unit and what came of it."""

    unit: str
    judged: Judged


class Ledger:
    """The file. Use it with `with`; read what is `done` to the end before anything is added.

    `known` are the numbers of the units that were done already.

    Raises:
        UsageError: the file is none of these, of other policies, in use, or it cannot be written.
    """

    def __init__(self, path: Path, assignment: Assignment, units: Sequence[Unit]) -> None:
        self.known: set[int] = set()
        self._path = path
        self._keys = {unit.number: unit.key() for unit in units}
        try:
            self._file: IO[bytes] = open(path, "a+b", opener=for_us_alone)  # noqa: SIM115 - closed with the block
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        with ExitStack() as stack:
            stack.enter_context(self._file)
            _lock(self._file, path)
            self._begin(assignment)
            stack.pop_all()

    def _begin(self, assignment: Assignment) -> None:
        """Go behind the first line, which is written unless it is there; nothing else is ever overwritten."""
        own = self._head = _encoded(Head(VERSION, __version__, assignment))
        self._file.seek(0)
        line = self._file.readline(LONGEST_HEAD)
        if line == own:
            return
        if not own.startswith(line):
            self._refuse(line)
            raise UsageError(f"{self._path} is no file to resume from; it is not overwritten")
        self._file.truncate(0)
        self._file.write(own)
        self._file.flush()

    def _refuse(self, line: bytes) -> None:
        """Raise if a line says that what follows belongs to another backtest."""
        head = _decoded(line, Head)
        if head is None or head.version != VERSION:
            return
        other = "other policies or options" if head.engine == __version__ else f"version {head.engine}"
        raise UsageError(f"{self._path} was begun with {other}; take another file, or remove it")

    def done(self) -> Iterator[Judged]:
        """Yield what came of the units of this input that are in the file, then get ready for more."""
        numbers = {key: number for number, key in self._keys.items()}
        good = self._file.tell()
        for line in self._file:
            if line == self._head:
                good += len(line)
                continue
            done = _decoded(line, Done) if line.endswith(b"\n") else None
            if done is None:
                self._refuse(line)
                break
            good += len(line)
            number = numbers.pop(done.unit, None)
            if number is not None:
                self.known.add(number)
                yield msgspec.structs.replace(done.judged, number=number)
        self._file.truncate(good)
        self._file.seek(good)

    def add(self, judged: Judged) -> None:
        """Write what came of a unit."""
        self._file.write(_encoded(Done(self._keys[judged.number], judged)))
        self._file.flush()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()


def _lock(file: IO[bytes], path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another backtest writes to {path}") from None
    except OSError:
        return  # a file system without locks


def _encoded(line: Head | Done) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _decoded(line: bytes, kind: type[Line]) -> Line | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeError):
        return None
