"""Masks: what a policy wants hidden in the content of the decision log (`log.mask`).

Knows: lines as plain data, pointers. Must not know: how a line is made or written.

What is not of the form that a pointer expects may hold the secret anywhere, so it is hidden whole: a text or number in
which the pointer goes on, and a list of which it names a key. What is simply not there needs no mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from policyengine.policy.pointers import ANY, is_index, parts_of

MARK = "[masked]"
"""What stands in the place of what was masked."""


def masked(line: Any, pointers: Iterable[str]) -> Any:
    """Return a copy of plain data in which what the pointers mean is replaced; nothing in `line` changes."""
    for pointer in pointers:
        line = _replaced(line, parts_of(pointer))
    return line


def _replaced(value: Any, parts: tuple[str, ...]) -> Any:
    if value is None or value == "":
        return value
    if not parts:
        return MARK
    first, below = parts[0], parts[1:]
    if isinstance(value, dict):
        return {key: _replaced(item, below) if first in (ANY, key) else item for key, item in value.items()}
    if isinstance(value, list) and (first == ANY or is_index(first)):
        chosen = range(len(value)) if first == ANY else (int(first),)
        return [_replaced(item, below) if index in chosen else item for index, item in enumerate(value)]
    return MARK
