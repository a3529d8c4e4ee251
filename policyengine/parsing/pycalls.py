"""Calls written as Python: `[search(query="tide"), close()]`.

Knows: keyword calls and lists of them. Must not know: what stands around them.

Only keyword arguments are read: which parameter a positional value is meant for is not in the text.
"""

from __future__ import annotations

import re
from typing import Any

from policyengine.parsing.found import Found, Reading, Terms, Unread
from policyengine.parsing.names import resolve
from policyengine.parsing.repair import MENDABLE, mend
from policyengine.parsing.strict import StrictError

MAX_CALLS = 64
"""Most calls that are read from one text."""


def read_python(text: str, at: int, terms: Terms) -> Reading:
    """Return the calls at `at`: one, or a list of them. Nothing else may stand on their last line.

    Only registered names count: `print(...)` in prose is no call.
    """
    start = at
    listed = text[at : at + 1] == "["
    at = skip(text, at + listed)
    calls: list[Found] = []
    try:
        while len(calls) < MAX_CALLS:
            call = _call(text, at, terms)
            if call is None:
                break
            calls.append(call)
            at = skip(text, call.end)
            if not listed or text[at : at + 1] != ",":
                break
            at = skip(text, at + 1)
    except StrictError as error:
        return Unread(start, at, error.reason, "python")
    if not calls:
        return None
    if listed:
        if text[at : at + 1] != "]":
            return Unread(start, at, "truncated" if at >= len(text) else "python_call", "python")
        at += 1
    end = at if listed else calls[-1].end
    return [call._replace(start=start, end=end) for call in calls]


def _call(text: str, at: int, terms: Terms) -> Found | None:
    header = _HEADER.match(text, at)
    if header is None:
        return None
    name = resolve(header.group(1), terms.tools)
    if not terms.tools.registered(name.text):
        return None
    args, end, repairs = arguments_at(text, header.end(), ")")
    return Found(at, end, name.text, args, ("python_call", *repairs, *name.repairs), "python", name.legal)


def arguments_at(text: str, at: int, closer: str) -> tuple[dict[str, Any], int, tuple[str, ...]]:
    """Return the keyword arguments that begin at `at`, the offset after `closer`, and what was repaired in them.

    Raises:
        StrictError: they are cut off, positional, doubled, or not literals.
    """
    args: dict[str, Any] = {}
    repairs: dict[str, None] = {}
    place = skip(text, at)
    while text[place : place + 1] != closer:
        key = _KEYWORD.match(text, place)
        if key is None:
            raise StrictError("truncated" if place >= len(text) else "python_call", place)
        if key.group(1) in args:
            raise StrictError("duplicate_key", place)
        plain = _PLAIN.match(text, key.end()) if len(text) <= MENDABLE else None
        if plain is not None:  # most values are: no need for whoever reads damaged ones
            end, quoted = plain.end(), plain.group(1) is None
            args[key.group(1)] = plain.group()[1:-1] if quoted else int(plain.group())
        else:
            part = mend(text, key.end())
            if part.open:
                raise StrictError("truncated" if part.end >= len(text) else "python_call", part.end)
            args[key.group(1)], end = part.value, part.end
            repairs.update(dict.fromkeys(part.repairs))
        place = skip(text, end)
        if text[place : place + 1] == ",":
            place = skip(text, place + 1)
        elif text[place : place + 1] != closer:
            raise StrictError("truncated" if place >= len(text) else "python_call", place)
    for known in ("single_quotes", "python_literals", "trailing_comma"):
        repairs.pop(known, None)
    return args, place + 1, tuple(repairs)


def skip(text: str, at: int) -> int:
    """Return the offset of the first character from `at` on that is no white space of any kind."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


_SPACE = re.compile(r"\s*")
_HEADER = re.compile(r"([A-Za-z_][\w.]{0,200})\s{0,20}\(")
_PLAIN = re.compile(
    "(?:\"[^\"\\\\\x00-\x1f\ud800-\udfff]*\"|'[^'\\\\\x00-\x1f\ud800-\udfff]*'|(-?(?:0|[1-9][0-9]{0,17})))"
    r"(?=\s*[,)\]])"
)
"""A string without escapes, or a whole number, and what may follow a value."""
_KEYWORD = re.compile(r"([A-Za-z_]\w{0,100})\s{0,20}=\s{0,20}(?![=])")
