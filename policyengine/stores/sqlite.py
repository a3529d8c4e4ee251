"""A store in one SQLite file, for many processes on one machine.

Knows: SQLite's locks and journal, file modes. Must not know: what a value means.

The file has a write-ahead log, and every block of `update` is one transaction that takes the write lock first (BEGIN
IMMEDIATE), so two processes never read the same state and both write. Who waits for longer than `busy_s` is told so.
A process may be killed at any point: SQLite then forgets its transaction. The file is made under another name and
linked into place when it is complete, because fifty processes may start at once.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from policyengine.stores import StoreError

BUSY_S = 10.0
"""How long to wait for the write lock."""

_VERSION = 1
_SCHEMA = (
    "CREATE TABLE kept (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, digest BLOB NOT NULL, "
    "updated REAL NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID"
)


class SqliteStore:
    """Values in the file `path`, which is made with mode 0600 if it is not there; its directory must be.

    Not for several threads at once.

    Raises:
        StoreError: the file cannot be opened, is damaged, or is of another version.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float = BUSY_S) -> None:
        self.path = os.fspath(path)
        self._busy_s = busy_s
        with self._told("opened"):
            if not os.path.exists(self.path):
                _create(self.path)
            self._open = sqlite3.connect(self.path, timeout=busy_s, isolation_level=None, cached_statements=16)
        try:
            with self._told("opened"):
                # The log is written through by the system; a power cut may lose the last events, and never the file.
                self._open.execute("PRAGMA synchronous=NORMAL")
                version = self._open.execute("PRAGMA user_version").fetchone()[0]
            if version != _VERSION:
                about = f"has version {version}, this engine reads {_VERSION}; remove it"
                raise StoreError(f"the store {self.path} {about}")
        except StoreError:
            self.close()
            raise

    @contextmanager
    def update(self) -> Iterator[SqliteValues]:
        """Return a block that is alone with the store; see `Store`."""
        with self._told("locked for writing"):
            self._open.execute("BEGIN IMMEDIATE")
        kept = False
        try:
            yield SqliteValues(self)
            with self._told("written"):
                self._open.execute("COMMIT")
            kept = True
        finally:
            if not kept:
                with suppress(sqlite3.Error):  # the error that is on its way says more
                    self._open.execute("ROLLBACK")

    def check(self) -> str:
        """Return what SQLite finds wrong with the file; empty if it is sound."""
        with self._told("checked"):
            found = [row[0] for row in self._open.execute("PRAGMA quick_check(5)")]
        return "" if found == ["ok"] else "; ".join(map(str, found))

    def close(self) -> None:
        """Let go of the file."""
        self._open.close()

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"the store {self.path} cannot be {doing}: {error}") from error


class SqliteValues:
    """What may be done inside `SqliteStore.update`; see `Values`."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._open = store._open

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or `None`."""
        with self._store._told("read"):
            query = "SELECT value, digest FROM kept WHERE kind = ? AND key = ?"
            row = self._open.execute(query, (kind, key)).fetchone()
        if row is None:
            return None
        value: bytes = row[0]
        if not isinstance(value, bytes) or hashlib.sha256(value).digest() != row[1]:
            raise StoreError(f"the store {self._store.path} is damaged at {kind} {key}")
        return value

    def put(self, kind: str, key: str, value: bytes, now: float) -> None:
        """Keep a value."""
        with self._store._told("written"):
            row = (kind, key, value, hashlib.sha256(value).digest(), now)
            self._open.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", row)

    def delete(self, kind: str, key: str) -> None:
        """Forget a value."""
        with self._store._told("written"):
            self._open.execute("DELETE FROM kept WHERE kind = ? AND key = ?", (kind, key))

    def keys(self, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of a kind that start with a text, in order."""
        with self._store._told("read"):
            query = "SELECT key FROM kept WHERE kind = ? AND substr(key, 1, ?) = ? ORDER BY key"
            return tuple(row[0] for row in self._open.execute(query, (kind, len(prefix), prefix)))

    def forget(self, kind: str, before: float) -> int:
        """Forget what was written before that time."""
        with self._store._told("written"):
            return self._open.execute("DELETE FROM kept WHERE kind = ? AND updated < ?", (kind, before)).rowcount


def _create(path: str) -> None:
    """Make the file complete under another name, then give it its own; somebody else may be faster."""
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.new"
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        made = sqlite3.connect(draft, isolation_level=None)
        try:
            made.execute("PRAGMA journal_mode=WAL")
            made.execute("PRAGMA synchronous=NORMAL")
            made.execute(_SCHEMA)
            made.execute(f"PRAGMA user_version={_VERSION}")
        finally:
            made.close()
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        for name in (draft, f"{draft}-wal", f"{draft}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(name)
