"""Strict JSON: what the standard readers let pass and we refuse.

Knows: JSON text. Must not know: tool calls, verdicts, repairs.

Refused are duplicate keys, NaN, infinities and numbers that overflow to them, lone surrogates (no provider accepts
them back), nesting deeper than `MAX_DEPTH`, and trailing text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec


class StrictError(ValueError):
    """Text that is not strict JSON. `reason` is a content-free machine reason; `at` the offset in characters."""

    def __init__(self, reason: str, at: int = 0) -> None:
        self.reason = reason
        self.at = at
        super().__init__(f"{reason} at {at}")


def loads(text: str) -> Any:
    """Return the value of strict JSON `text`.

    Raises:
        StrictError: with a machine reason.
    """
    try:
        value = _decode(text)
        kept: list[str] = []
        if type(value) is dict or type(value) is list:
            _collect(value, kept, 1)
        else:
            return value
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _slow(text)
    # msgspec keeps the last of duplicate keys. Every string of the text has two quotes, beside those it holds, which
    # are in the text, too, unless one is written as a number. If there are no others, no string was lost.
    quotes = text.count('"') - 2 * len(kept)
    if not quotes:
        return value
    # Looking for one character costs nothing beside looking for six.
    if quotes == "".join(kept).count('"') and ("2" not in text or _QUOTE_AS_NUMBER.search(text) is None):
        return value
    return _slow(text)


def prefix(text: str, at: int = 0, *, diagnose: bool = True) -> tuple[Any, int]:
    """Return the JSON value that begins at `at` (after white space), and the offset of what follows it.

    To tell what was cut off from what is wrong, the rest of the text has to be read; `diagnose` may spare that.

    Raises:
        StrictError: no value, or one that is not strict.
    """
    start = skip_space(text, at)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except StrictError as error:
        raise StrictError(error.reason, start) from error
    except json.JSONDecodeError as error:
        if diagnose and is_too_deep(text, start, len(text)):
            raise StrictError("nested_too_deep", start) from error
        raise StrictError("truncated" if diagnose and is_cut_off(text, start) else "not_json", error.pos) from error
    except RecursionError as error:
        raise StrictError("nested_too_deep", start) from error
    except ValueError as error:  # an integer with more digits than the interpreter converts
        raise StrictError("number_too_long", start) from error
    if is_too_deep(text, start, end):
        raise StrictError("nested_too_deep", start)
    if _SURROGATE.search(text, start, end) and any(map(LONE.search, strings(value))):
        raise StrictError("lone_surrogate", start)
    return value, end


def skip_space(text: str, at: int) -> int:
    """Return the offset of the first character from `at` on that is not JSON white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def is_too_deep(text: str, start: int, end: int) -> bool:
    """Return whether brackets nest deeper than `MAX_DEPTH` between two offsets, whatever the interpreter could read.

    Interpreters differ in how deep they read; a verdict must not.
    """
    if text.count("[", start, end) + text.count("{", start, end) <= MAX_DEPTH:
        return False
    depth = 0
    for token in _TOKEN.finditer(text, start, end):
        char = token.group()[0]
        if char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif char in "]}":
            depth -= 1
    return False


def is_cut_off(text: str, at: int = 0) -> bool:
    """Return whether `text` ends inside a string or with an open bracket: it was cut off, not merely wrong."""
    complete = _STRINGS.match(text, at)
    if complete is None or complete.end() < len(text):
        return True
    bare = _STRING.sub("", text[at:])
    return bare.count("{") + bare.count("[") > bare.count("}") + bare.count("]")


def strings(value: Any) -> Iterator[str]:
    """Yield every string of plain data, keys included."""
    todo = [value]
    for item in todo:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def dumps(value: Any) -> str:
    """Return plain data as strict JSON text."""
    try:
        return encode(value).decode()
    except (UnicodeEncodeError, OverflowError, TypeError):
        return json.dumps(value)


def _slow(text: str) -> Any:
    value, end = prefix(text)
    if skip_space(text, end) != len(text):
        raise StrictError("trailing_text", end)
    return value


def _collect(value: dict[str, Any] | list[Any], kept: list[str], depth: int) -> None:
    """Put every string of a container, keys included, into `kept`.

    Raises:
        StrictError: containers nest deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise StrictError("nested_too_deep")
    items: Iterable[Any] = value
    if type(value) is dict:
        kept += value
        items = value.values()
    for item in items:
        kind = type(item)
        if kind is str:
            kept.append(item)
        elif kind is dict or kind is list:
            _collect(item, kept, depth + 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise StrictError("duplicate_key")
    return mapping


def refuse_constant(_: str) -> Any:
    """Refuse what JSON readers call a constant: NaN and the infinities.

    Raises:
        StrictError: always.
    """
    raise StrictError("not_finite")


def finite(text: str, at: int = 0) -> float:
    """Return the number that `text` spells.

    Raises:
        StrictError: it overflows.
    """
    value = float(text)
    if value - value != 0:
        raise StrictError("not_finite", at)
    return value


MAX_DEPTH = 200
"""Deepest nesting that is read. Calls have a handful of levels; arguments may have 64."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
LONE = re.compile("[\ud800-\udfff]")
"""A surrogate code point. Python text holds pairs as one character, so any is alone."""

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRINGS = re.compile(r'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+[^"]*+', re.DOTALL)
"""Quotes that are no apostrophes, because of what stands beside them."""
_SURROGATE = re.compile("\\\\u[dD][89abcdefABCDEF]|[\ud800-\udfff]")
_QUOTE_AS_NUMBER = re.compile(r"\\u0022")
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=refuse_constant, parse_float=finite)
_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode
