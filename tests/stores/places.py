"""The three stores, as tests open them: again and again at the same place, with a clock where they take one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policyengine.stores import Store
from policyengine.stores.memory import MemoryStore
from policyengine.stores.sqlite import SqliteStore
from tests.redis_server import RedisServer

KINDS = ("memory", "sqlite", "redis")


class Place:
    """Where a store is. `open` returns it, by a handle of its own where it is shared by files or a server."""

    def __init__(self, kind: str, folder: Path, server: RedisServer | None = None, name: str = "t") -> None:
        self.kind = kind
        self.time = 1_000_000.0
        self.server = server
        self.name = name
        self.path = folder / f"{name}.sqlite"
        self._opened: list[Any] = []
        self._memory = MemoryStore(clock=lambda: self.time)

    def open(self, **options: Any) -> Store:
        """Return the store."""
        if self.kind == "memory":
            return self._memory
        if self.kind == "sqlite":
            given: dict[str, Any] = {"clock": lambda: self.time, "durable": False} | options
            store: Any = SqliteStore(self.path, **given)
        else:
            from policyengine.stores.redis import RedisStore

            assert self.server is not None
            store = RedisStore(self.server.url(self.name), **options)
        self._opened.append(store)
        made: Store = store
        return made

    def text(self) -> str:
        """Return the place as a process is told it."""
        return self.server.url(self.name) if self.server is not None else str(self.path)

    def close(self) -> None:
        """Close what was opened."""
        for store in self._opened:
            store.close()


def count(store: Store, name: str = "n", by: int = 1) -> int:
    """Add to a number in a store, and return it."""

    def change(values: Any) -> int:
        number = int(values.get("number", name) or b"0") + by
        values.put("number", name, str(number).encode())
        return number

    return store.update(change)


def get(store: Store, kind: str, key: str) -> bytes | None:
    """Return a value of a store."""
    return store.read(lambda values: values.get(kind, key))


def put(store: Store, kind: str, key: str, value: bytes) -> None:
    """Keep a value in a store."""
    store.update(lambda values: values.put(kind, key, value))
