"""Arguments as plain JSON data within limits, before any schema sees them.

Knows: what JSON can hold. Must not know: JSON Schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from policyengine.arguments.model import ArgumentError, Step, has_surrogate, path_text

MAX_DEPTH = 64
"""Deepest nesting of arguments; more is never meant, and recursive validators have limits of their own."""

MAX_NODES = 250_000
"""Most values in one set of arguments; an object that holds itself several times would never end."""

MAX_INTEGER_BITS = 4096
MAX_FAULTS = 50
"""After so many faults the rest is not looked at."""


class Reading(msgspec.Struct, frozen=True):
    """Arguments as dicts, lists and scalars: the given object itself where it is plain already.

    `fatal` means that `errors` are about the data as such, and that no schema should see it. `bracketed` says that
    some text could be a JSON array, `surrogates` that some text holds half of a surrogate pair.
    """

    value: Any
    errors: tuple[ArgumentError, ...] = ()
    fatal: bool = False
    bracketed: bool = False
    surrogates: bool = False


def read(value: Any, max_depth: int = MAX_DEPTH) -> Reading:
    """Return arguments as plain data, with what JSON cannot hold as errors.

    Read-only views (mappings, tuples) become dicts and lists. A number that is not finite is an error, but the rest
    can still be checked.
    """
    reader = _Reader(max_depth)
    try:
        plain = reader.plain(value, ())
    except _Enough:
        return Reading(value, tuple(reader.errors), True)
    except _TooLarge:
        message = f"the arguments hold more than {MAX_NODES:,} values"
        return Reading(value, (ArgumentError("", "too_large", message, "Send less in one call."),), True)
    return Reading(plain, tuple(reader.errors), reader.fatal, reader.bracketed, reader.surrogates)


class _TooLarge(Exception):
    """There are more values than are looked at."""


class _Enough(Exception):
    """There are more faults than are worth listing."""


class _Reader:
    """One walk over arguments."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self.errors: list[ArgumentError] = []
        self.fatal = False
        self.bracketed = False
        self.surrogates = False
        self._left = MAX_NODES

    def plain(self, value: Any, path: tuple[Step, ...]) -> Any:
        """Return `value` as plain data, the same object if it is."""
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        kind = type(value)
        if kind is str:
            self._text(value)
        elif kind is int:
            if value.bit_length() > MAX_INTEGER_BITS:
                self._report(path, "range", "the integer is too large", "must be a smaller number")
        elif kind is float:
            if not math.isfinite(value):
                self._report(path, "non_finite_number", f"{value} is not a finite number", "must be a finite number")
        elif value is not None and kind is not bool:
            return self._nested(value, path)
        return value

    def _text(self, value: str) -> None:
        self.bracketed = self.bracketed or value.lstrip()[:1] == "["
        self.surrogates = self.surrogates or has_surrogate(value)

    def _nested(self, value: Any, path: tuple[Step, ...]) -> Any:
        if len(path) >= self._max_depth:
            message = f"nested more than {self._max_depth} levels deep"
            allowed = f"must not nest deeper than {self._max_depth} levels"
            return self._report(path[:3], "nested_too_deep", message, allowed)
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple):
            items = [self.plain(item, (*path, index)) for index, item in enumerate(value)]
            return _same_or(value, list, items, zip(value, items, strict=True))
        return self._report(path, "not_json", f"{type(value).__name__} is no JSON type", "must be JSON data")

    def _mapping(self, value: Mapping[Any, Any], path: tuple[Step, ...]) -> Any:
        members: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                message = f"the key {key!r} is not text" if type(key) is int else "a key is not text"
                return self._report(path, "not_json", message, "must have text as keys")
            self.surrogates = self.surrogates or has_surrogate(key)
            members[key] = self.plain(item, (*path, key))
        return _same_or(value, dict, members, zip(value.values(), members.values(), strict=True))

    def _report(self, path: tuple[Step, ...], code: str, message: str, allowed: str) -> None:
        self.fatal = self.fatal or code != "non_finite_number"
        where = path_text(path)
        self.errors.append(ArgumentError(where, code, message, f"{where or 'the arguments'} {allowed}."))
        if len(self.errors) >= MAX_FAULTS:
            raise _Enough


def _same_or(value: Any, kind: type, copy: Any, pairs: Any) -> Any:
    unchanged = type(value) is kind and all(old is new for old, new in pairs)
    return value if unchanged else copy
