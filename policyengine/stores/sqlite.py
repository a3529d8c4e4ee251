"""A store in one SQLite file, for many processes on one machine.

Knows: SQLite's locks, journal and errors, file modes. Must not know: what a value means.

The file has a write-ahead log, and every `update` is one transaction that takes the write lock first (BEGIN IMMEDIATE),
so two processes never read the same state and both write, and `change` is never called again. Who waits for longer than
`busy_s` is told so. A process may be killed at any point: SQLite then forgets its transaction. The file is made under
another name and linked into place when it is complete, because fifty processes may start at once.

A log that a killed process left belongs to one file only, and SQLite would apply it to whatever has that file's name by
then: the log of a file that is gone is removed when a new one is made.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import time

from policyengine.errors import UsageError
from policyengine.stores import StoreError, T, Turns, check_key, digest_of

BUSY_S = 10.0
"""How long to wait for the write lock."""

_VERSION = 2
_SCHEMA = (
    "CREATE TABLE kept (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, digest BLOB NOT NULL, "
    "updated REAL NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID",
    "CREATE INDEX written ON kept (kind, updated)",
)
_TRANSIENT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another process holds it; try again later",
    sqlite3.SQLITE_LOCKED: "another process holds it; try again later",
    sqlite3.SQLITE_PROTOCOL: "another process holds it; try again later",
    sqlite3.SQLITE_FULL: "the disk or a quota is full; make room",
    sqlite3.SQLITE_CORRUPT: "it is damaged; {remove}, then restore a backup or begin afresh",
    sqlite3.SQLITE_NOTADB: "it is no SQLite file; give another path, or remove it",
    sqlite3.SQLITE_READONLY: "the file or its directory may not be written; see to their modes and owner",
    sqlite3.SQLITE_CANTOPEN: "the file or its directory may not be used; see to their modes and owner",
    sqlite3.SQLITE_PERM: "the file or its directory may not be used; see to their modes and owner",
    sqlite3.SQLITE_IOERR: "the disk failed or is full",
}
_OPEN: dict[int, tuple[int, tuple[int, int] | None]] = {}
"""Which process opened which file, by the identity of the store."""
_LEFT: list[sqlite3.Connection] = []
"""Connections a process got by fork. They must not even be closed there: the locks are those of another process."""


class SqliteStore:
    """Values in the file `path`, which is made with mode 0600 if it is not there; its directory must be.

    Threads may share it, and processes may share the file, but each opens its own store, after it was forked. `change`
    is called once for each `update`. With `durable`, what `update` returned from outlives a power cut; without, a power
    cut may take the last transactions, and never the file.

    Raises:
        StoreError: the file cannot be opened, is damaged, or is of another version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool = True,
        busy_s: float = BUSY_S,
        clock: Callable[[], float] = time,
    ) -> None:
        self.path = os.fspath(path)
        self._where = os.path.abspath(self.path)
        self._durable = durable
        self._busy_s = busy_s
        self._clock = clock
        self._pid = os.getpid()
        self._writing = Turns(self.path, busy_s)
        self._reading = Turns(self.path, busy_s)
        self._closed = False
        self._reader: sqlite3.Connection | None = None
        with self._told("opened"):
            if not os.path.exists(self._where):
                _create(self._where, durable=durable)
            self._file = _identity(self._where)
            if any(pid != self._pid and file == self._file for pid, file in tuple(_OPEN.values())):
                raise UsageError(f"the store {self.path} is open in the parent process; open it after the fork")
            self._open = self._connect()
        try:
            self._check_version()
        except StoreError:
            self.close()
            raise
        _OPEN[id(self)] = self._pid, self._file

    def update(self, change: Callable[[SqliteValues], T]) -> T:
        """Return what `change` returns, which is called once; see `Store`."""
        self._reading.refuse_holder()
        with self._writing.turn():
            return self._transaction(self._open, change, writable=True)

    def read(self, look: Callable[[SqliteValues], T]) -> T:
        """Return what `look` returns, which sees one state of the store and is called once; see `Store`."""
        self._writing.refuse_holder()
        with self._reading.turn():
            if self._reader is None:
                self._usable()
                self._in_place()
                with self._told("opened"):
                    self._reader = self._connect()
            return self._transaction(self._reader, look, writable=False)

    def check(self) -> str:
        """Return what SQLite finds wrong with the file; empty if it is sound."""
        with self._writing.turn(), self._told("checked"):
            self._usable()
            found = [row[0] for row in self._open.execute("PRAGMA quick_check(5)")]
        return "" if found == ["ok"] else "; ".join(map(str, found))

    def close(self) -> None:
        """Let go of the file."""
        with self._writing.turn(), self._reading.turn():
            self._close()

    def __del__(self) -> None:
        """Close the file where nobody did: Python 3.13 warns of connections that are forgotten."""
        if hasattr(self, "_open"):
            with suppress(sqlite3.Error):
                self._close()

    def _close(self) -> None:
        self._closed = True
        _OPEN.pop(id(self), None)
        for opened in (self._reader, self._open):
            if opened is not None and self._pid != os.getpid():
                _LEFT.append(opened)
            elif opened is not None:
                opened.close()

    def _connect(self) -> sqlite3.Connection:
        # A URI, since a path that is gone meanwhile would be made, and would be no store.
        opened = sqlite3.connect(
            _uri(self._where, "mode=rw"),
            timeout=self._busy_s,
            isolation_level=None,
            cached_statements=16,
            check_same_thread=False,
            uri=True,
        )
        try:
            opened.execute("PRAGMA synchronous=FULL" if self._durable else "PRAGMA synchronous=NORMAL")
        except sqlite3.Error:
            opened.close()
            raise
        return opened

    def _check_version(self) -> None:
        with self._told("opened"):
            version = self._open.execute("PRAGMA user_version").fetchone()[0]
        if version == _VERSION:
            return
        if version > _VERSION:
            about = f"has version {version}, this engine reads {_VERSION}; a newer one wrote it: use that"
        else:
            remove = _rm(*_files(self._where))
            about = f"has version {version}, this engine reads {_VERSION}; it is no store, or an old one: {remove}"
        raise StoreError(f"the store {self.path} {about}")

    def _transaction(self, opened: sqlite3.Connection, work: Callable[[SqliteValues], T], *, writable: bool) -> T:
        self._usable()
        values = SqliteValues(self, opened, writable=writable)
        try:
            with self._told("locked for writing" if writable else "read"):
                opened.execute("BEGIN IMMEDIATE" if writable else "BEGIN")
            self._in_place()
            result = work(values)
            values.over = True
            with self._told("written", commits=True):
                opened.execute("COMMIT")
        finally:
            values.over = True
            if opened.in_transaction:
                with suppress(sqlite3.Error):  # the error that is on its way says more
                    opened.execute("ROLLBACK")
        if writable:
            self._in_place()
        return result

    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise UsageError(f"the store {self.path} was opened before this process was forked; open it in the child")
        if self._closed:
            raise UsageError(f"the store {self.path} is closed")

    def _in_place(self) -> None:
        """Refuse to go on with a file that nobody else will ever open: what is written there is lost."""
        if _identity(self._where) != self._file:
            raise StoreError(f"the store {self.path} was removed or replaced while it was open; open it again")

    @contextmanager
    def _told(self, doing: str, *, commits: bool = False) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._error(doing, error, commits=commits) from error
        except UnicodeDecodeError as error:  # SQLite quotes what it finds in a damaged file
            raise StoreError(f"the store {self.path} cannot be {doing}: it is damaged") from error

    def _error(self, doing: str, error: sqlite3.Error | OSError, *, commits: bool) -> StoreError:
        if isinstance(error, OSError):
            return StoreError(f"the store {self.path} cannot be {doing}: {error.strerror or error}")
        # The lower byte is the kind; a few errors of the module itself have none.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        advice = f" ({_ADVICE[code]})".format(remove=_rm(*_files(self._where))) if code in _ADVICE else ""
        # A log that was written and could not be synced may be found complete after a crash.
        unknown = commits and code == sqlite3.SQLITE_IOERR
        text = f"the store {self.path} cannot be {doing}: {error}{advice}"
        return StoreError(text, transient=code in _TRANSIENT, unknown=unknown)


class SqliteValues:
    """What may be done inside `SqliteStore.update`; see `Values`."""

    def __init__(self, store: SqliteStore, opened: sqlite3.Connection, *, writable: bool) -> None:
        self.over = False
        self._store = store
        self._open = opened
        self._writable = writable
        self._now: float | None = None
        self._stamps: dict[str, float] = {}

    def now(self) -> float:
        """Return the time."""
        self._check()
        if self._now is None:
            self._now = self._store._clock()
        return self._now

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or `None`."""
        self._check(kind, key)
        with self._store._told("read"):
            query = "SELECT value, digest FROM kept WHERE kind = ? AND key = ?"
            row = self._open.execute(query, (kind, key)).fetchone()
        if row is None:
            return None
        value: bytes = row[0]
        if not isinstance(value, bytes) or digest_of(kind, key, value) != row[1]:
            raise StoreError(f"the store {self._store.path} is damaged at {kind} {key}")
        return value

    def get_many(self, kind: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of the values that are there, by their keys."""
        return {key: value for key in keys if (value := self.get(kind, key)) is not None}

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value."""
        self._check(kind, key, writes=True)
        with self._store._told("written"):
            row = (kind, key, value, digest_of(kind, key, value), self._stamp(kind))
            self._open.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", row)

    def delete(self, kind: str, key: str) -> None:
        """Forget a value."""
        self._check(kind, key, writes=True)
        with self._store._told("written"):
            self._open.execute("DELETE FROM kept WHERE kind = ? AND key = ?", (kind, key))

    def keys(self, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of a kind that start with a text, in order."""
        self._check(kind, prefix)
        found = []
        with self._store._told("read"):
            query = "SELECT key FROM kept WHERE kind = ? AND key >= ? ORDER BY key"
            for (key,) in self._open.execute(query, (kind, prefix)):
                if not isinstance(key, str):
                    raise StoreError(f"the store {self._store.path} is damaged: a key of {kind} is no text")
                if not key.startswith(prefix):
                    break
                found.append(key)
        return tuple(found)

    def forget(self, kind: str, before: float) -> int:
        """Forget what was written before that time."""
        self._check(kind, writes=True)
        with self._store._told("written"):
            return self._open.execute("DELETE FROM kept WHERE kind = ? AND updated < ?", (kind, before)).rowcount

    def _stamp(self, kind: str) -> float:
        """Return when something of a kind is written now: never before anything of it that is kept."""
        if kind not in self._stamps:
            newest = self._open.execute("SELECT max(updated) FROM kept WHERE kind = ?", (kind,)).fetchone()[0]
            if not isinstance(newest, float | int | None):
                raise StoreError(f"the store {self._store.path} is damaged: a time of {kind} is no number")
            self._stamps[kind] = self.now() if newest is None else max(self.now(), newest)
        return self._stamps[kind]

    def _check(self, kind: str = "", key: str = "", *, writes: bool = False) -> None:
        if self.over or (writes and not self._writable):
            raise UsageError("values of a store are used while its update runs, and written in an update only")
        check_key(kind, key)


def _identity(path: str) -> tuple[int, int] | None:
    """Return which file is at a path, or `None`."""
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return None
    return seen.st_dev, seen.st_ino


def _files(path: str) -> tuple[str, str, str]:
    """Return the files that SQLite keeps for one store: a part of it may be in any of them."""
    return path, f"{path}-wal", f"{path}-shm"


def _rm(*paths: str) -> str:
    return f"remove it whole (rm -f {shlex.join(paths)})" if len(paths) == 3 else f"rm {shlex.join(paths)}"


def _uri(path: str, options: str) -> str:
    """Return a path as SQLite takes it together with options."""
    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file://{name}?{options}"


@contextmanager
def _alone(folder: str) -> Iterator[int]:
    """Be the only one who makes a file in a folder."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened
    finally:
        os.close(opened)


def _create(path: str, *, durable: bool) -> None:
    """Make the file complete under another name, then give it its own; somebody else may be faster.

    A log that was left of a file which is gone is removed before: SQLite would take it for that of the new one.
    """
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.new"
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        made = sqlite3.connect(draft, isolation_level=None)
        try:
            made.execute("PRAGMA journal_mode=WAL")
            made.execute("PRAGMA synchronous=NORMAL")
            for statement in _SCHEMA:
                made.execute(statement)
            made.execute(f"PRAGMA user_version={_VERSION}")
        finally:
            made.close()
        with _alone(os.path.dirname(path)) as folder:
            if not os.path.lexists(path):
                for name in _files(path)[1:]:
                    with suppress(FileNotFoundError):
                        os.unlink(name)
                os.link(draft, path)
            if durable:
                os.fsync(folder)
    finally:
        for name in _files(draft):
            with suppress(FileNotFoundError):
                os.unlink(name)
