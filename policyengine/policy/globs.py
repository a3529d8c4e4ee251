"""Whether two patterns can select the same name.

Knows: shell patterns (`*`, `?`, `[...]`). Must not know: what the names are of.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

_TOKENS = re.compile(r"\[!?\]?[^\]]{0,200}\]|.", re.DOTALL)
_MARKS = set("*?[")
_MORE_THAN_STARS = set("?[")


def is_pattern(text: str) -> bool:
    """Return whether a text selects more than the name it spells."""
    return bool(_MARKS & set(text))


def covers(one: str, other: str) -> bool:
    """Return whether `one` surely matches every name that `other` does; known of patterns with stars only."""
    return not _MORE_THAN_STARS & set(one) and fnmatchcase("".join(map(_token, _TOKENS.findall(other))), one)


def overlap(one: str, other: str) -> bool:
    """Return whether there may be a name that both patterns match; a character class counts as any character."""
    rows, columns = ([_token(found) for found in _TOKENS.findall(text)] for text in (one, other))
    reached = _closure({0}, columns)
    for token in rows:
        reached = _step(reached, token, columns)
    return len(columns) in reached


def _token(text: str) -> str:
    return "?" if len(text) > 1 else text


def _closure(places: set[int], tokens: list[str]) -> set[int]:
    """Return the places in a pattern that are reached without a further character."""
    found = set(places)
    for place in sorted(places):
        while place < len(tokens) and tokens[place] == "*":
            place += 1
            found.add(place)
    return found


def _step(places: set[int], token: str, tokens: list[str]) -> set[int]:
    """Return the places in a pattern after what `token` of the other pattern matches."""
    if token == "*":
        return set(range(min(places), len(tokens) + 1)) if places else set()
    moved = {place for place in places if place < len(tokens) and tokens[place] == "*"}
    moved |= {
        place + 1
        for place in places
        if place < len(tokens) and tokens[place] != "*" and (token == "?" or tokens[place] in ("?", token))
    }
    return _closure(moved, tokens)
