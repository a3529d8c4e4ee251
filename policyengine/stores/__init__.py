"""Where state is kept between processes: values under names, changed one transaction at a time.

Knows: the interface, what goes wrong with any store, which store a place means. Must not know: what a value means, how
one store does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Protocol, TypeVar

from policyengine.errors import PolicyEngineError, UsageError

RUNS = "run"
"""The kind under which saved runs are kept."""

T = TypeVar("T")


class StoreError(PolicyEngineError):
    """A store cannot be used: locked for too long, out of reach, damaged, full, or not to be written.

    Attributes: `transient` (the same call may go well later, without anybody mending anything), `unknown` (nobody knows
    whether the transaction was kept; everywhere else it was not).
    """

    def __init__(self, message: str, *, transient: bool = False, unknown: bool = False) -> None:
        self.transient = transient
        self.unknown = unknown
        super().__init__(message)


class Store(Protocol):
    """Values by kind and key. A value is bytes, and read back as they were written or not at all.

    `update` is the only way to write: what `change` reads and writes is one transaction, kept as a whole when `update`
    returns, and not at all if it raises or the process dies. Threads may share a store; neither `change` nor `look`
    may use the same store again.
    """

    def update(self, change: Callable[[Values], T]) -> T:
        """Return what `change` returns, alone with what it reads and writes.

        It may be called again, if somebody was faster: it has no effect but the one on its values. Raises StoreError.
        """
        raise NotImplementedError

    def read(self, look: Callable[[Values], T]) -> T:
        """Return what `look` returns, which only reads and holds up no writer; it may be called again.

        Raises StoreError.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store."""
        raise NotImplementedError


class Values(Protocol):
    """What `change` and `look` may do, as long as they run. Everything raises StoreError."""

    def now(self) -> float:
        """Return the seconds since 1970 by the clock of the store, the same in all of one transaction.

        It is the clock of everybody who shares the store, and may be set back like any other.
        """
        raise NotImplementedError

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or `None`. A damaged one raises."""
        raise NotImplementedError

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value, as written now; or when the newest of its kind was, if the clock has been set back since."""
        raise NotImplementedError

    def delete(self, kind: str, key: str) -> None:
        """Forget a value; one that is not there is forgotten already."""
        raise NotImplementedError

    def keys(self, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of a kind that start with a text, in order. In Redis, others may change them meanwhile."""
        raise NotImplementedError

    def forget(self, kind: str, before: float) -> int:
        """Forget what was written before that time; return how many values that were."""
        raise NotImplementedError


def digest_of(kind: str, key: str, value: bytes) -> bytes:
    """Return what is kept beside a value, so that neither a damaged value nor one of another key is taken for it."""
    found = sha256(value)
    found.update(f"\0{kind}\0{key}".encode("utf-8", "surrogatepass"))
    return found.digest()


def open_store(place: str) -> Store:
    """Return the store at a place: `memory:`, a path or `sqlite:PATH`, `redis://…`, `rediss://…`, `unix://…`.

    Raises:
        UsageError: the place means none, or needs an extra that is not installed.
        StoreError: the store cannot be opened.
    """
    scheme, colon, rest = place.partition(":")
    if place == "memory:":
        from policyengine.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in ("redis", "rediss", "unix") and rest.startswith("//"):
        from policyengine.stores.redis import RedisStore

        return RedisStore(place)
    path = rest if colon and scheme == "sqlite" else place
    if not path or "\0" in path or (path is place and colon and "/" not in scheme):
        wanted = "memory:, a path, sqlite:PATH, redis://, rediss:// or unix://"
        raise UsageError(f"no store is known by {place!r}; there are {wanted} (a path with a colon: sqlite:PATH)")
    from policyengine.stores.sqlite import SqliteStore

    return SqliteStore(path)


class Turns:
    """Lets one thread in at a time. Who waits for longer than `wait_s` is told so, and who waits for itself at once."""

    def __init__(self, place: str, wait_s: float) -> None:
        self._place = place
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._holder = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Return a block that other threads wait for. Raises StoreError and UsageError."""
        self.refuse_holder()
        if not self._lock.acquire(timeout=self._wait_s):
            waited = f"another thread has held it for more than {self._wait_s:g} s; try again later"
            raise StoreError(f"the store {self._place} is busy: {waited}", transient=True)
        try:
            self._holder = threading.get_ident()
            yield
        finally:
            self._holder = 0
            self._lock.release()

    def refuse_holder(self) -> None:
        """Refuse a thread whose turn it is already. Raises UsageError."""
        if self._holder == threading.get_ident():
            raise UsageError(f"the store {self._place} was used again inside its own update or read")


def check_key(kind: str, key: str) -> None:
    """Refuse a name that no store could keep. Raises UsageError."""
    try:
        kind.encode()
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{key!r} cannot be the key of a kept value: it is no Unicode text") from None
