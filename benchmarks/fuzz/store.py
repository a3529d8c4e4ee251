"""What must hold for every store file, and every row in one: values as they were written, or a `StoreError`.

Knows: a file that is sound, kept runs. Must not know: how either is read.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from benchmarks.fuzz.mutate import damaged
from benchmarks.fuzz.place import folder, written
from benchmarks.fuzz.source import Source, happens
from policyengine.stores import StoreError, Values
from policyengine.stores.sqlite import SqliteStore

KEPT = {f"r{number}": b"value %d " % number * 40 for number in range(20)}
SIDES = ("", "-wal", "-shm")


class Case(NamedTuple):
    """A store file, and the log beside it."""

    data: bytes
    log: bytes


@cache
def seed() -> bytes:
    """Return a store file with a few values."""
    path = folder() / "seed.sqlite"
    store = SqliteStore(path)

    def fill(values: Values) -> None:
        for key, value in KEPT.items():
            values.put("run", key, value)

    store.update(fill)
    store.close()
    return path.read_bytes()


def generate(source: Source) -> Case:
    """Return a case."""
    log = source.data(200) if happens(source, 4) else b""
    return Case(damaged(source, [seed()]), log)


def check(case: Case) -> None:
    """Open the store, read what is there, write a value.

    Raises:
        AssertionError: a value is another one than was written.
    """
    for side in SIDES:
        (folder() / f"case.sqlite{side}").unlink(missing_ok=True)
    path = written("case.sqlite", case.data)
    if case.log:
        written("case.sqlite-wal", case.log)
    try:
        store = SqliteStore(path, busy_s=0.5)
    except StoreError:
        return
    try:
        for key in KEPT:
            try:
                found = store.read(lambda values, key=key: values.get("run", key))  # type: ignore[misc]
            except StoreError:
                continue
            assert found is None or found in KEPT.values(), "a value that nobody wrote"
        store.read(lambda values: values.keys("run"))
        store.update(lambda values: values.put("run", "new", b"x"))
        store.update(lambda values: values.forget("run", 1.0))
    except StoreError:
        return
    finally:
        store.close()
