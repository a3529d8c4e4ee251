"""Where state is kept between processes: values under names, changed one transaction at a time.

Knows: the interface, what goes wrong with any store, which store a place means. Must not know: what a value means, how
one store does it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from time import monotonic
from typing import Protocol, TypeVar

from policyengine.errors import PolicyEngineError, UsageError
from policyengine.masking import without_secrets

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

    def get_many(self, kind: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of the values that are there, by their keys: what `get` does for each, asked for at once."""
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
        raise UsageError(
            f"no store is known by {without_secrets(place)!r}; there are {wanted} (a path with a colon: sqlite:PATH)"
        )
    from policyengine.stores.sqlite import SqliteStore

    return SqliteStore(path)


class Turns:
    """Lets one thread in at a time, in the order in which they came.

    Who waits is told so if one turn takes longer than `wait_s`, however long the line is, and who waits for itself at
    once.
    """

    def __init__(self, place: str, wait_s: float) -> None:
        self._place = place
        self._wait_s = wait_s
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._taken = False
        self._since = 0.0
        self._holder = 0
        self._lock = threading.Lock()
        self._line: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Return a block that other threads wait for. Raises StoreError and UsageError."""
        self.refuse_holder()
        self._take()
        try:
            self._holder = threading.get_ident()
            yield
        finally:
            self._holder = 0
            self._pass_on()

    def _take(self) -> None:
        if self._pid != os.getpid():
            self._begin()  # what threads of the parent process hold is never given back here
        with self._lock:
            if not self._taken:
                self._taken, self._since = True, monotonic()
                return
            ours = threading.Lock()
            ours.acquire()
            self._line.append(ours)
        try:
            while not ours.acquire(timeout=max(0.0, self._since + self._wait_s - monotonic())):
                with self._lock:
                    if ours in self._line and monotonic() - self._since >= self._wait_s:
                        waited = f"another thread has held it for more than {self._wait_s:g} s; try again later"
                        raise StoreError(f"the store {self._place} is busy: {waited}", transient=True)
        except BaseException:
            with self._lock:
                waits = ours in self._line
                if waits:
                    self._line.remove(ours)
            if not waits:
                self._pass_on()  # the turn came, and whoever waited for it was interrupted
            raise

    def _pass_on(self) -> None:
        with self._lock:
            self._since = monotonic()
            if self._line:
                self._line.popleft().release()
            else:
                self._taken = False

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
