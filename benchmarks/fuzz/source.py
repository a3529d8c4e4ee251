"""Where the choices of a case come from: a random generator, or the bytes that a fuzzer grows.

Knows: choices. Must not know: what is made of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol


class Source(Protocol):
    """What all sources have. One that runs dry answers with the least, so every recursion has its end there."""

    def number(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`."""

    def text(self, limit: int) -> str:
        """Return any text of at most `limit` characters, lone surrogates included."""

    def data(self, limit: int) -> bytes:
        """Return at most `limit` bytes."""


class Chance:
    """Choices of a seeded random generator."""

    def __init__(self, seed: object) -> None:
        self._random = random.Random(str(seed))

    def number(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`."""
        return self._random.randint(low, high)

    def text(self, limit: int) -> str:
        """Return any text; most of its characters are of the common kinds."""
        ranges = ((32, 126), (32, 126), (0, 255), (0x2000, 0x206F), (0xD800, 0xDFFF), (0, 0x10FFFF))
        count = self._random.randint(0, limit)
        return "".join(chr(self._random.randint(*self._random.choice(ranges))) for _ in range(count))

    def data(self, limit: int) -> bytes:
        """Return at most `limit` bytes."""
        return self._random.randbytes(self._random.randint(0, limit))


class Grown:
    """Choices read from the bytes of `atheris`."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def number(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`."""
        return int(self._provider.ConsumeIntInRange(low, high))

    def text(self, limit: int) -> str:
        """Return any text of at most `limit` characters."""
        return str(self._provider.ConsumeUnicode(self.number(0, limit)))

    def data(self, limit: int) -> bytes:
        """Return at most `limit` bytes."""
        return bytes(self._provider.ConsumeBytes(self.number(0, limit)))


def pick(source: Source, items: Sequence[Any]) -> Any:
    """Return one of `items`; the first where the source is dry."""
    return items[source.number(0, len(items) - 1)]


def some(source: Source, items: Sequence[Any], limit: int) -> list[Any]:
    """Return at most `limit` of `items`, in any order and number."""
    return [pick(source, items) for _ in range(source.number(0, limit))]


def happens(source: Source, one_in: int) -> bool:
    """Return whether something happens that does so once in `one_in` times."""
    return source.number(1, one_in) == one_in


def strings(value: Any) -> list[str]:
    """Return every string of plain data in its order, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *strings(item))]
    return [text for item in value for text in strings(item)] if isinstance(value, list | tuple) else []
