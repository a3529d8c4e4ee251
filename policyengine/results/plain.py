"""Any Python value as bounded, strictly valid JSON data.

Knows: Python values, what JSON cannot say, limits of size.
Must not know: tools, failures, who reads the data.

Whatever a tool returns ends up here: values that contain themselves, shared parts that would unfold to gigabytes,
numbers that are none, text that no UTF-8 can carry, objects whose own methods raise. The result is always data that
`json.dumps(..., allow_nan=False).encode()` accepts, in bounded time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

MAX_DEPTH = 60
MAX_NODES = 200_000
MAX_CHARS = 1_000_000
MAX_INTEGER_BITS = 12_000
"""Below the 4300 digits beyond which the interpreter refuses to write an integer."""
MAX_NOTES = 20
LONGEST_PATH = 120
SHOWN_BYTES = 32
MAX_EARLY_CHARS = 2000
"""Longest text that is kept before other members because of its name."""

CONTAINERS = (list, tuple, dict, set, frozenset)
"""What may hold parts of itself several times, so that its text has no bound."""

LEFT_OUT = "(left out: the result is too large)"


class Plain(NamedTuple):
    """A value as JSON data.

    `notes` say what could not be kept, each with the place (`stats.mean: ...`); `truncated` whether something was left
    out; `not_finite` whether a number was none; `converted` the names of the types that JSON has no form for.
    """

    value: Any
    notes: tuple[str, ...] = ()
    truncated: bool = False
    not_finite: bool = False
    converted: tuple[str, ...] = ()


def plain(value: Any, first: Collection[str] = ()) -> Plain:
    """Return a value as JSON data.

    `first` names members of the value itself that are kept before others where not all of them fit.
    """
    walk = _Walk(first)
    found = _attempt(lambda: walk.any(value, "", 0))
    return Plain(found, tuple(walk.notes), walk.truncated, walk.not_finite, tuple(dict.fromkeys(walk.converted)))


def dumped(value: Any) -> str:
    """Return JSON data (of `plain`) as text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def encodable(text: str) -> str:
    """Return a text that UTF-8 can carry: the same one, unless it holds lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Through UTF-16, so that two halves of one character that were read apart find each other again.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of a foreign object, `None` where there is none or reading it fails."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - properties of foreign objects run foreign code
        return None


def is_a(value: Any, kinds: Any) -> bool:
    """Return whether a foreign object is of one of `kinds`; one that refuses to say what it is, is of none."""
    try:
        return isinstance(value, kinds)
    except Exception:  # noqa: BLE001 - `__class__` of a proxy is foreign code
        return False


def type_name(value: Any) -> str:
    """Return the name of a value's type as text that can be shown."""
    return encodable(type(value).__name__)[:80]


def text_of(value: Any) -> str:
    """Return what an object says of itself; a plain remark where even that fails."""
    try:
        if issubclass(type(value), BaseException) and any(isinstance(item, CONTAINERS) for item in value.args):
            # It would write out what it was given: without an end where parts of that are shared.
            given = plain(value.args)
            if given.truncated:
                return dumped(given.value)
        return str.__str__(str(value))
    except Exception as error:  # noqa: BLE001 - `__str__` of a foreign object is foreign code
        return f"({type_name(value)} that cannot be shown: {type_name(error)})"


def bytes_text(data: bytes) -> str:
    """Return bytes as text: decoded where they are UTF-8, else their number and how they begin."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        more = " ..." if len(data) > SHOWN_BYTES else ""
        return f"({len(data)} bytes of binary data: {data[:SHOWN_BYTES].hex(' ')}{more})"


def _attempt(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - containers and conversions of foreign types run foreign code
        return f"(a value that cannot be shown: {type_name(error)})"


class _Walk:
    """One pass over a value, with what is left of its limits."""

    def __init__(self, first: Collection[str] = ()) -> None:
        self.first = first
        self.nodes = MAX_NODES
        self.chars = MAX_CHARS
        self.notes: list[str] = []
        self.truncated = False
        self.is_full = False
        self.not_finite = False
        self.converted: list[str] = []
        self.inside: set[int] = set()

    def any(self, value: Any, path: str, depth: int) -> Any:
        """Return the JSON form of a value that stands at `path`."""
        self.nodes -= 1
        self.chars -= 2
        if value is None or value is True or value is False:
            return value
        kind = type(value)  # not `isinstance`: a proxy may pose as text or a number, or refuse to say what it is
        if issubclass(kind, str):
            return self.text(value, path)
        if issubclass(kind, int):
            return self.integer(value, path)
        if issubclass(kind, float):
            return self.number(value, path)
        return self.within(value, path, depth)

    def text(self, value: str, path: str) -> str:
        text = str.__str__(value)
        if len(text) > self.chars:
            self.truncated = True
            left = len(text) - max(self.chars, 0)
            self.note(path, f"{left} characters are left out")
            text = text[: max(self.chars, 0)] + f" ({left} characters left out)"
        self.chars -= len(text)
        good = encodable(text)
        if good is not text:
            self.note(path, "characters that are no text were replaced")
        return good

    def integer(self, value: int, path: str) -> int | str:
        number = int.__add__(value, 0)
        self.chars -= min(number.bit_length(), MAX_INTEGER_BITS) // 3
        if number.bit_length() <= MAX_INTEGER_BITS:
            return number
        self.truncated = True
        self.note(path, "an integer too long to be written")
        return f"(an integer of {number.bit_length()} bits)"

    def number(self, value: float, path: str) -> float | None:
        number = float.__add__(value, 0.0)
        if number - number == 0.0:
            return float.__float__(value)
        self.not_finite = True
        name = "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
        self.note(path, f"{name} is no JSON number; it is given as null")
        return None

    def within(self, value: Any, path: str, depth: int) -> Any:
        """Return the JSON form of something that may contain others."""
        if depth >= MAX_DEPTH:
            self.truncated = True
            self.chars -= len(LEFT_OUT)
            self.note(path, f"what is nested deeper than {MAX_DEPTH} levels is left out")
            return LEFT_OUT
        if id(value) in self.inside:
            self.note(path, "the value contains itself; it is shown once")
            return "(the value contains itself)"
        self.inside.add(id(value))
        try:
            if type(value) is dict:
                return self.mapping(value, path, depth)
            if type(value) in (list, tuple):
                return self.items(value, path, depth)
            return _attempt(lambda: self.foreign(value, path, depth))
        finally:
            self.inside.discard(id(value))

    def mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        early = self.early(value) if depth == 0 and self.first else {}
        for key, item in islice(value.items(), MAX_NODES):
            if type(key) is str and key in early:
                made[key] = early.pop(key)
                continue
            if self.nodes <= 0 or self.chars <= 0:
                self.cut(path)
                made[LEFT_OUT] = True
                break
            name = self.key(key, path)
            while name in made:
                name = f"{name} ({len(made)})"
            made[name] = self.any(item, _below(path, name), depth + 1)
        return {**made, **early}

    def early(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the members that come first, without long texts, which would leave no room for others."""
        found = {name: value[name] for name in self.first if name in value}
        return {
            name: self.any(item, name, 1)
            for name, item in found.items()
            if not isinstance(item, str) or len(item) <= MAX_EARLY_CHARS
        }

    def items(self, value: Iterable[Any], path: str, depth: int) -> list[Any]:
        made: list[Any] = []
        for index, item in enumerate(value):
            if self.nodes <= 0 or self.chars <= 0:
                self.cut(path)
                made.append(LEFT_OUT)
                break
            made.append(self.any(item, _below(path, f"[{index}]"), depth + 1))
        return made

    def key(self, key: Any, path: str) -> str:
        """Return a key as JSON writes it (`true`, `null`, `1`); other keys as they call themselves."""
        if isinstance(key, str):
            return self.text(key, path)
        if key is None or isinstance(key, bool | int | float):
            return self.text(json.dumps(self.any(key, path, MAX_DEPTH)), path)
        self.converted.append(f"key {type_name(key)}")
        return self.text(text_of(key), path)

    def foreign(self, value: Any, path: str, depth: int) -> Any:
        """Return the JSON form of what is no JSON type: by its members where it has some, else as its text."""
        if isinstance(value, Enum):
            return self.any(value.value, path, depth + 1)
        if isinstance(value, Mapping):
            return self.mapping(value, path, depth)
        if isinstance(value, list | tuple | deque):
            return self.items(value, path, depth)
        self.converted.append(type_name(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self.text(bytes_text(bytes(value)), path)
        if isinstance(value, AbstractSet):
            # Sets have no order of their own; the result must not depend on the process.
            return sorted(self.items(value, path, depth), key=dumped)
        if hasattr(value, "dtype") and hasattr(value, "tolist"):
            return self.any(value.tolist(), path, depth + 1)
        members = _members(value)
        if members is not None:
            return self.mapping(members, path, depth)
        return self.text(text_of(value), path)

    def cut(self, path: str) -> None:
        if not self.is_full:
            self.note(path, "from here on items are left out, because the result is too large")
        self.truncated = self.is_full = True

    def note(self, path: str, text: str) -> None:
        note = f"{encodable(path)}: {text}" if path else text
        if len(self.notes) < MAX_NOTES and note not in self.notes:
            self.notes.append(note)


def _below(path: str, name: str) -> str:
    """Return the place of a member. Places stay short, or long keys over many items would cost more than the items."""
    if len(path) > LONGEST_PATH:
        return path
    return f"{path}.{name[:40]}" if path and name[:1] != "[" else f"{path}{name[:40]}"


def _members(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a record type, or `None`."""
    if isinstance(value, type):
        return None
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    dump = getattr(value, "model_dump", None)
    members = dump() if callable(dump) else None
    return members if isinstance(members, Mapping) else None
