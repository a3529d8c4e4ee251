"""Where state is kept between processes: a few values under names, changed one transaction at a time.

Knows: the interface, and what goes wrong with any store. Must not know: what a value means, how one store does it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from policyengine.errors import PolicyEngineError

RUNS = "run"
"""The kind under which saved runs are kept."""


class StoreError(PolicyEngineError):
    """A store cannot be used: it is locked for too long, damaged, full, or may not be written."""


class Store(Protocol):
    """Values by kind and key. A value is bytes, and read back as they were written or not at all.

    `update` is the only way to read and write: who is inside it is alone with the store, and what was written there is
    kept as a whole when the block ends, and not at all if it raises or the process dies.
    """

    def update(self) -> AbstractContextManager[Values]:
        """Return a block that is alone with the store. Raises StoreError."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store."""
        raise NotImplementedError


class Values(Protocol):
    """What a block of `Store.update` may do. Everything raises StoreError."""

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or `None`. A damaged one raises."""
        raise NotImplementedError

    def put(self, kind: str, key: str, value: bytes, now: float) -> None:
        """Keep a value; `now` is in seconds since 1970."""
        raise NotImplementedError

    def delete(self, kind: str, key: str) -> None:
        """Forget a value; one that is not there is forgotten already."""
        raise NotImplementedError

    def keys(self, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of a kind that start with a text, in order."""
        raise NotImplementedError

    def forget(self, kind: str, before: float) -> int:
        """Forget what was written before that time; return how many values that were."""
        raise NotImplementedError
