"""Text that means a value: JSON containers, numbers, true and false.

Knows: which spellings leave no doubt. Must not know: JSON Schema.
"""

from __future__ import annotations

import math
import re
from typing import Any

from policyengine.arguments.plain import read
from policyengine.parsing.strict import StrictError, loads

MAX_TEXT = 1_000_000
"""Longest text that is read as JSON, in characters."""

_INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]{0,307}))(?:\.0{1,20})?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,400})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,5})?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False}


def container(text: str) -> Any:
    """Return the object or array that strict JSON `text` holds, or `None`."""
    if not looks_like_container(text) or len(text) > MAX_TEXT:
        return None
    try:
        value = loads(text)
    except StrictError:
        return None
    return None if read(value).errors else value


def looks_like_container(text: str) -> bool:
    """Return whether `text` begins as an object or array does."""
    return text.lstrip()[:1] in ("{", "[")


def boolean(text: str) -> bool | None:
    """Return the truth value that `text` spells, or `None`. Only `true` and `false` do, in any case."""
    return _BOOLEANS.get(text.lower()) if len(text) <= 5 else None


def integer(text: str) -> int | None:
    """Return the integer that `text` spells as JSON does, or `None`: no plus, no leading zero, no separators."""
    match = _INTEGER.fullmatch(text)
    return int(match.group(1)) if match else None


def number(text: str) -> int | float | None:
    """Return the finite number that `text` spells as JSON does, or `None`."""
    if (whole := integer(text)) is not None and "." not in text:
        return whole
    if _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def is_not_finite(text: str) -> bool:
    """Return whether `text` spells a number that is not finite, or too large to be."""
    if _NOT_FINITE.fullmatch(text):
        return True
    return _NUMBER.fullmatch(text) is not None and not math.isfinite(float(text))
