"""Pieces of error messages: key paths, values, suggestions.

Knows: how a path or a value is written in a message. Must not know: what the message is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

KeyPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$*?!@/+-]+\Z")
_LISTED = 12


def dotted(path: KeyPath) -> str:
    """Return a key path in one piece: `extensions.spend.with.limits[0]`, keys with dots or blanks in quotes."""
    parts: list[str] = []
    for key in path:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        else:
            written = key if _PLAIN_KEY.match(key) else json.dumps(key, ensure_ascii=not key.isprintable())
            parts.append(f".{written}" if parts else written)
    return "".join(parts)


def shown(value: Any, limit: int = 60) -> str:
    """Return a value as one short line of JSON."""
    if isinstance(value, Mapping):
        text = "a mapping" if value else "{}"
    elif isinstance(value, list | tuple):
        text = "a list" if value else "[]"
    else:
        printable = not isinstance(value, str) or value.isprintable()
        text = json.dumps(value[: limit + 1] if isinstance(value, str) else value, ensure_ascii=not printable)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def listed(names: Iterable[str]) -> str:
    """Return names as `a, b, c`, cut after a dozen."""
    known = list(names)
    return ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")


def closest(word: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that was most likely meant."""
    by_fold = {name.casefold().replace("-", "_"): name for name in names}
    from difflib import get_close_matches  # a policy without mistakes needs no advice

    found = get_close_matches(word[:200].casefold().replace("-", "_"), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def suggestion(word: str, names: Iterable[str], accepts: str = "known") -> str:
    """Return `did you mean "x"? (accepts: x, y)`, or only the list, or nothing where there is nothing to choose."""
    known = list(names)
    near = closest(word, known)
    choice = f"{accepts}: {listed(known)}" if known else ""
    if near is None:
        return choice
    return f'did you mean "{near}"? ({choice})'
