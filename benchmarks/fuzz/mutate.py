"""Valid seeds, damaged: texts and bytes, and JSON values.

Knows: what tends to break readers. Must not know: what reads the result.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.fuzz.source import Source, happens, pick

DEEP = 100_000
"""How many brackets make a text that is too deep for everybody."""

LONG = 100_000
LONGER = (b"a", b" ", b"\n", b"9", b'"', b"\\", b"\xc3\xa9", b"`", b"ab ")

TOKENS: tuple[bytes, ...] = (
    *(b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"\n", b"\r", b"\t", b" ", b"#", b"-", b"- ", b"&a ", b"*a"),
    *(b"null", b"true", b"1e999", b"-0", b"0x10", b"NaN", b"Infinity", b"9" * 25, b"9" * 5000, b"1" + b"0" * 400),
    *(b"\\", b"\\ud800", b"\\u0000", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b[2J", b"|"),
    *(b"..", b"../../../etc/hostname", b"/etc/hostname", b"$env", b"$append", b"$delete", b"<<: *a"),
    *(b"{{ 'a' * 9 }}", b"{% for a in b %}", b"{% endfor %}", b"{{ a.__class__ }}", b"<script>", b"(a+)+$"),
    *(b"2025-02-30", b"!!python/name:os", b"\xe2\x80\xae"),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, 1e-320),
    *("", " ", "a", "\x00", "\ud800", "\u202e", "\x1b[2J", "a" * 300, "1e999", "NaN", "true", "[1]", "{", "../x", "/"),
    *("2025-02-30", "99999-01-01T00:00:00Z", "2025-05-01T10:00:00Z", "-1", "0", "~2", "/a/~1", "*", "\u0661"),
    *([], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, [{}], {"type": "text", "text": "x"}, {"role": "assistant"}),
)


def damaged(source: Source, seeds: Sequence[bytes], limit: int = 400_000) -> bytes:
    """Return a seed with a few things done to it; at most `limit` bytes or so."""
    data = pick(source, seeds)
    for _ in range(source.number(0, 6)):
        data = _once(source, data, seeds)[:limit]
    return data


def _once(source: Source, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = source.number(0, len(data))
    to = min(len(data), at + source.number(0, 40))
    what = source.number(0, 19)
    if what <= 5:
        return data[:at] + pick(source, TOKENS) + data[at:]
    if what <= 8:
        return data[:at] + data[to:]
    if what <= 11:
        return data[:at] + pick(source, TOKENS) + data[to:]
    if what <= 13:
        return data[:to] + data[at:to] * source.number(1, 5) + data[to:]
    if what == 14:
        return data[:at]
    if what == 15:
        other = pick(source, seeds)
        start = source.number(0, len(other))
        return data[:at] + other[start : start + source.number(0, 200)] + data[at:]
    if what == 16:
        return data[:at] + source.data(8) + data[at:]
    if what == 17:
        return data[:at] + source.text(6).encode("utf-8", "surrogatepass") + data[at:]
    if what == 18 and happens(source, 4):
        opener = pick(source, (b"[", b"{", b'{"a":', b"- ", b"(", b"<a>", b"\n "))
        return data[:at] + opener * (DEEP // len(opener)) + data[at:]
    if what == 19 and happens(source, 4):
        return data[:at] + pick(source, LONGER) * LONG + data[at:]
    return data[:at] + bytes([source.number(0, 255)]) + data[at + 1 :]


def altered(source: Source, value: Any, times: int = 4) -> Any:
    """Return a copy of JSON data with up to `times` of its parts replaced, removed, doubled or moved."""
    value = copy.deepcopy(value)
    for _ in range(source.number(0, times)):
        value = _alter(source, value)
    return value


def _alter(source: Source, value: Any) -> Any:
    places = list(_places(value))
    if not places:
        return copy.deepcopy(pick(source, ODD))
    holder, key = pick(source, places)
    what = source.number(0, 9)
    if what <= 4:
        holder[key] = copy.deepcopy(pick(source, ODD))
    elif what == 5:
        del holder[key]
    elif what == 6:
        other, from_ = pick(source, places)
        if from_ in (range(len(other)) if isinstance(other, list) else other) and not _within(other[from_], holder):
            holder[key] = copy.deepcopy(other[from_])
    elif what == 7 and isinstance(holder, list):
        holder += [copy.deepcopy(holder[key])] * source.number(1, 3)
    elif what == 7:
        holder[pick(source, ("", "a", "$env", "__proto__", "type", "role", "\ud800"))] = holder[key]
    elif what == 8:
        holder[key] = [holder[key]] if happens(source, 2) else {"a": holder[key]}
    else:
        holder[key] = source.text(12)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack and len(found) < 5000:
        holder = stack.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, item in items:
            found.append((holder, key))
            stack.append(item)
    return found


def _within(value: Any, holder: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is holder or any(_within(item, holder) for item in items)


def as_json(value: Any) -> bytes:
    """Return data as JSON text, lone surrogates and infinite numbers included."""
    return json.dumps(value).encode("ascii")


def either(source: Source, seeds: Sequence[Any]) -> bytes:
    """Return one of some JSON values, altered as data, as text, or both."""
    value = pick(source, seeds)
    if happens(source, 2):
        value = altered(source, value)
    data = as_json(value)
    return damaged(source, [data]) if happens(source, 2) else data
