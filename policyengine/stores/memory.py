"""A store in this process, for tests and for what need not outlive it.

Knows: threads. Must not know: what a value means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from time import time

from policyengine.errors import UsageError
from policyengine.stores import T, Turns, check_key

WAIT_S = 10.0
"""How long a thread waits for the others."""

_Kept = tuple[bytes, float]


class MemoryStore:
    """Values in this process, gone with it. For threads, not for processes; never calls `change` again."""

    def __init__(self, *, clock: Callable[[], float] = time, wait_s: float = WAIT_S) -> None:
        self._clock = clock
        self._turns = Turns("memory:", wait_s)
        self._kinds: dict[str, dict[str, _Kept]] = {}
        self._newest: dict[str, float] = {}

    def update(self, change: Callable[[MemoryValues], T]) -> T:
        """Return what `change` returns; see `Store`."""
        with self._turns.turn():
            values = MemoryValues(self._kinds, self._newest, self._clock(), writable=True)
            kept = False
            try:
                result = change(values)
                kept = True
            finally:
                values.over = True
                if not kept:
                    values.undo()
            return result

    def read(self, look: Callable[[MemoryValues], T]) -> T:
        """Return what `look` returns; see `Store`."""
        with self._turns.turn():
            values = MemoryValues(self._kinds, self._newest, self._clock(), writable=False)
            try:
                return look(values)
            finally:
                values.over = True

    def close(self) -> None:
        """Do nothing: who holds the store holds the values."""


class MemoryValues:
    """What may be done inside `MemoryStore.update`; see `Values`."""

    def __init__(
        self, kinds: dict[str, dict[str, _Kept]], newest: dict[str, float], now: float, *, writable: bool
    ) -> None:
        self.over = False
        self._kinds = kinds
        self._newest = newest
        self._now = now
        self._writable = writable
        self._before: dict[tuple[str, str], _Kept | None] = {}

    def now(self) -> float:
        """Return the time."""
        self._check()
        return self._now

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or `None`."""
        self._check(kind, key)
        kept = self._kinds.get(kind, {}).get(key)
        return kept[0] if kept is not None else None

    def get_many(self, kind: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of the values that are there, by their keys."""
        return {key: value for key in keys if (value := self.get(kind, key)) is not None}

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value."""
        self._check(kind, key, writes=True)
        newest = self._newest[kind] = max(self._now, self._newest.get(kind, -inf))
        self._set(kind, key, (bytes(value), newest))

    def delete(self, kind: str, key: str) -> None:
        """Forget a value."""
        self._check(kind, key, writes=True)
        self._set(kind, key, None)

    def keys(self, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of a kind that start with a text, in order."""
        self._check(kind, prefix)
        return tuple(sorted(key for key in self._kinds.get(kind, {}) if key.startswith(prefix)))

    def forget(self, kind: str, before: float) -> int:
        """Forget what was written before that time."""
        self._check(kind, writes=True)
        old = [key for key, (_, written) in self._kinds.get(kind, {}).items() if written < before]
        for key in old:
            self._set(kind, key, None)
        return len(old)

    def undo(self) -> None:
        """Put everything back."""
        for (kind, key), kept in self._before.items():
            self._replace(kind, key, kept)

    def _set(self, kind: str, key: str, kept: _Kept | None) -> None:
        self._before.setdefault((kind, key), self._kinds.get(kind, {}).get(key))
        self._replace(kind, key, kept)

    def _replace(self, kind: str, key: str, kept: _Kept | None) -> None:
        if kept is not None:
            self._kinds.setdefault(kind, {})[key] = kept
        else:
            self._kinds.get(kind, {}).pop(key, None)

    def _check(self, kind: str = "", key: str = "", *, writes: bool = False) -> None:
        if self.over or (writes and not self._writable):
            raise UsageError("values of a store are used while its update runs, and written in an update only")
        check_key(kind, key)
