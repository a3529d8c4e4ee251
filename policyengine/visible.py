"""Texts that are safe to print: what controls a terminal is written as an escape.

Knows: which characters move a cursor, reorder or hide text. Must not know: where a text comes from or goes to.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return a text with control, bidirectional and zero-width characters written as escapes."""
    return _CONTROL.sub(_escaped, text.replace("\r\n", "\n"))


def clean_line(text: str) -> str:
    """Return a text as `clean` does, on one line."""
    return clean(text).replace("\n", "\\n")


def _escaped(match: re.Match[str]) -> str:
    point = ord(match.group())
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"
