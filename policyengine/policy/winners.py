"""Which entries of two mappings by pattern may hold for one and the same name.

Knows: that an exact entry wins, then the first pattern that matches. Must not know: what the entries say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from policyengine.policy.globs import covers, is_pattern, overlap


def winner(name: str, keys: Sequence[str]) -> str | None:
    """Return the entry that holds for a name, or `None`."""
    if name in keys:
        return name
    return next((key for key in keys if fnmatchcase(name, key)), None)


def pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield which entry of `old` and which of `new` may hold for one name; `None` is no entry at all.

    Names that no pattern sets apart are one. A pair may be too many where a character class is in a pattern, and none
    is missing. A pair of no entries is left out.
    """
    for name in dict.fromkeys(key for key in (*old, *new) if not is_pattern(key)):
        yield winner(name, old), winner(name, new)
    one, other = ([key for key in keys if is_pattern(key)] for keys in (old, new))
    if one == other:
        yield from ((pattern, pattern) for pattern in one)
        return
    every = list(dict.fromkeys([*one, *other]))
    taken, retaken = _taken(one, every), _taken(other, every)
    for place, was in (*enumerate(one), (len(one), None)):
        for there, now in (*enumerate(other), (len(other), None)):
            region = [pattern for pattern in (was, now) if pattern is not None]
            if (
                region
                and all(place <= taken.get(pattern, place) for pattern in region)
                and all(there <= retaken.get(pattern, there) for pattern in region)
                and (was is None or now is None or was == now or _meet(was, now))
            ):
                yield was, now


def _taken(keys: Sequence[str], every: Sequence[str]) -> Mapping[str, int]:
    """Return for patterns the place of the first key that takes all their names to itself, where one surely does."""
    found: dict[str, int] = {}
    for place, key in enumerate(keys):
        for pattern in every:
            if pattern not in found and (key == pattern or covers(key, pattern)):
                found[pattern] = place
    return found


def _meet(one: str, other: str) -> bool:
    """Return whether there may be a name for both; what they begin with is compared first, since that is quick."""
    begin, start = _beginning(one), _beginning(other)
    return (begin.startswith(start) or start.startswith(begin)) and overlap(one, other)


def _beginning(pattern: str) -> str:
    return pattern[: next(place for place, letter in enumerate(pattern) if letter in "*?[")]
