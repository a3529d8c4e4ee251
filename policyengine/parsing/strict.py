"""Strict JSON: what the standard readers let pass and we refuse.

Knows: JSON text. Must not know: tool calls, verdicts.
"""

from __future__ import annotations

import json
from typing import Any


class StrictError(ValueError):
    """Text that is not strict JSON. `reason` is a content-free machine reason; `at` the offset in characters."""

    def __init__(self, reason: str, at: int = 0) -> None:
        self.reason = reason
        self.at = at
        super().__init__(f"{reason} at {at}")


def loads(text: str) -> Any:
    """Return the value of strict JSON `text`.

    Duplicate keys, NaN and infinities, nesting beyond the interpreter's limit and trailing text are refused.

    Raises:
        StrictError: with a machine reason.
    """
    value, end = prefix(text)
    if text[end:].strip():
        raise StrictError("trailing_text", end)
    return value


def prefix(text: str) -> tuple[Any, int]:
    """Return the JSON value that `text` begins with, and the offset of what follows it.

    Raises:
        StrictError: no value, or one that is not strict.
    """
    start = len(text) - len(text.lstrip())
    try:
        return _DECODER.raw_decode(text, start)
    except StrictError:
        raise
    except json.JSONDecodeError as error:
        raise StrictError("truncated" if is_cut_off(text) else "not_json", error.pos) from error
    except RecursionError as error:
        raise StrictError("nested_too_deep") from error
    except ValueError as error:  # an integer with more digits than the interpreter converts
        raise StrictError("number_too_long") from error


def is_cut_off(text: str) -> bool:
    """Return whether `text` ends inside a string or with an open bracket: it was cut off, not merely wrong."""
    inside, escaped, depth = False, False, 0
    for char in text:
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
    return inside or depth > 0


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise StrictError("duplicate_key")
    return mapping


def _refuse(_: str) -> Any:
    raise StrictError("not_finite")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
