"""Regular expressions of a policy on texts of tools: which may be used at all, and how they are kept within bounds.

Knows: how `re` tries a pattern. Must not know: which patterns there are, what they are for.

`re` tries every way to share a text between the repeats of a pattern, and cannot be interrupted. So a pattern is
refused if that number can grow exponentially, or faster than with the third power, as far as the pattern itself tells;
and it is put to pieces of a text, so that what is left (the square or the third power) is of a short length.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from math import ceil, log
from typing import Any

_sre: Any = import_module("re._parser")  # the parser behind `re`; type checkers do not know it

MANY = 8
"""A repeat of at least so many is taken for one without end: 2 ** 8 ways are soon 100 ** 8."""

LONG = 100
"""A repeat of at least so many grows with the text; one of fewer counts as that part of it that it is (in powers)."""

SLACK = 0.35
"""What a few short repeats may add before they count: two repeats of up to three, or a choice of four."""

PIECES = {0: (100_000, 4_000_000), 1: (1_000, 128_000), 2: (200, 8_000)}
"""By the degree of a pattern: how long a piece of a text is at most, and how much of the text is looked at at all."""

_DIGIT, _WORD, _SPACE, _OTHER = range(256, 260)
"""Every character that is not in Latin-1, by what `\\d`, `\\w` and `\\s` say of it."""

_BEYOND = frozenset({_DIGIT, _WORD, _SPACE, _OTHER})
_EVERYTHING = frozenset(range(260))

_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_ZERO_WIDTH = ("AT", "ASSERT", "ASSERT_NOT")

Item = tuple[Any, Any]


def trouble_of(pattern: str) -> str | None:
    """Return why a regular expression cannot be compiled, or `None`."""
    try:
        compiled(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return str(error)
    return None


def blows_up(pattern: str) -> bool:
    """Return whether the time of a (valid) pattern may grow exponentially, or faster than with the third power.

    What is possessive or atomic is not tried again, and so may stand anywhere. What a backreference repeats is taken
    for anything.
    """
    tree = _parsed(pattern)
    return _ambiguous(tree) or degree(pattern) not in PIECES


@lru_cache(maxsize=256)
def degree(pattern: str) -> int:
    """Return with which power of the length of a text the ways grow in which it can be shared, from each place."""
    return ceil(_weight(list(_flat(_parsed(pattern)))) - SLACK)


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern; what Python may once read in another way is no reason to say anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)


def substituted(pattern: str, word: str, text: str) -> str:
    """Return a text in which what a pattern matches is replaced, in time that grows with its length and no faster.

    A longer text is looked at in pieces, which end at the end of a line where there is one; what lies beyond the last
    piece stays as it is.
    """
    size, most = PIECES.get(degree(pattern), PIECES[max(PIECES)])
    found = compiled(pattern)
    if len(text) <= size:
        return found.sub(word, text)
    return "".join([*(found.sub(word, piece) for piece in _pieces(text[:most], size)), text[most:]])


def _pieces(text: str, size: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = min(start + size, len(text))
        if end < len(text):
            line = text.rfind("\n", start, end)
            end = line + 1 if line >= 0 else end
        yield text[start:end]
        start = end


def _parsed(pattern: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return _sre.parse(pattern)


# ---- exponential: a repeat that can share its text with itself in more than one way


def _ambiguous(tree: Any) -> bool:
    for name, value in _items(tree):
        if name in _REPEATS:
            many = value[1] == _sre.MAXREPEAT or value[1] >= MANY
            if _ambiguous(value[2]) or (many and _shares(value[2], endless=value[1] == _sre.MAXREPEAT)):
                return True
        elif name == "BRANCH":
            if any(map(_ambiguous, value[1])):
                return True
        elif any(map(_ambiguous, _inner(name, value))):
            return True
    return False


def _shares(body: Any, *, endless: bool) -> bool:
    """Return whether what is repeated can be of several lengths that nothing in it tells apart."""
    items = list(_flat(body))
    for index, (name, value) in enumerate(items):
        if endless and name in _REPEATS and value[1] == _sre.MAXREPEAT:
            return True
        if name == "BRANCH" and any(_shares(part, endless=endless) for part in value[1]):
            return True
        if not _varies(name, value):
            continue
        own = _chars(name, value)
        if not own:  # nothing at all, in two ways
            return True
        others = (item for place, item in enumerate(items) if place != index)
        if not any(_least(*other) and not own & _chars(*other) for other in others):
            return True
    return False


def _varies(name: str, value: Any) -> bool:
    if name in _REPEATS:
        return bool(value[0] != value[1])
    if name != "BRANCH":
        return False
    seen: set[int] = set()
    for part in value[1]:
        first = _first(part)
        if not any(_least(*item) for item in _flat(part)) or seen & first:
            return True
        seen |= first
    return False


# ---- polynomial: repeats one after the other


def _weight(items: Sequence[Item]) -> float:
    """Return the degree of the worst stretch of items that share a text: a long repeat counts one, a short one less."""
    best = chain = 0.0
    between: list[Item] = []
    last: frozenset[int] = frozenset()
    for name, value in items:
        own_weight = _weight_of(name, value)
        if not own_weight:
            between.append((name, value))
            continue
        own = _chars(name, value)
        apart = any(_least(*item) and not (_chars(*item) & own and _chars(*item) & last) for item in between)
        chain = chain + own_weight if own & last and not apart else own_weight
        best, last, between = max(best, chain), own, []
    return best


def _weight_of(name: str, value: Any) -> float:
    if name == "BRANCH":
        choice = log(len(value[1]), LONG) if _varies(name, value) else 0.0
        return choice + max(_weight(list(_flat(part))) for part in value[1])
    if name not in _REPEATS:
        return 0.0
    least, most = int(value[0]), int(value[1])
    body = list(_flat(value[2]))
    if most >= LONG or most == _sre.MAXREPEAT:
        return 1.0 + _weight(body)
    return log(most - least + 1, LONG) + _weight(body * (most if most < MANY else 1))


# ---- the parts of a pattern


def _items(tree: Any) -> Iterator[Item]:
    for name, value in tree:
        yield str(name), value


def _inner(name: str, value: Any) -> Iterator[Any]:
    """Yield the patterns inside an item that is no repeat and no choice; not those that are never tried again."""
    if name == "SUBPATTERN":
        yield value[3]
    elif name in ("ASSERT", "ASSERT_NOT"):
        yield value[1]
    elif name == "GROUPREF_EXISTS":
        yield value[1]
        if value[2] is not None:
            yield value[2]
    elif name == "ATOMIC_GROUP":
        yield value
    elif name == "POSSESSIVE_REPEAT":
        yield value[2]


def _flat(tree: Any) -> Iterator[Item]:
    """Yield the items of a pattern in order, groups resolved; what has no width is left out."""
    for name, value in _items(tree):
        if name == "SUBPATTERN":
            yield from _flat(value[3])
        elif name not in _ZERO_WIDTH:
            yield name, value


def _least(name: str, value: Any) -> int:
    """Return how many characters an item has at least."""
    if name in (*_REPEATS, "POSSESSIVE_REPEAT"):
        return int(value[0]) and _least_of(value[2])
    if name == "BRANCH":
        return min(map(_least_of, value[1]))
    if name == "ATOMIC_GROUP":
        return _least_of(value)
    return 0 if name in ("GROUPREF", "GROUPREF_EXISTS", *_ZERO_WIDTH) else 1


def _least_of(tree: Any) -> int:
    return max((_least(*item) for item in _flat(tree)), default=0)


def _first(tree: Any) -> frozenset[int]:
    """Return the characters that a pattern may begin with."""
    found: frozenset[int] = frozenset()
    for item in _flat(tree):
        found |= _chars(*item)
        if _least(*item):
            break
    return found


def _chars(name: str, value: Any) -> frozenset[int]:
    """Return the characters that may stand in what an item matches, upper and lower case alike."""
    if name == "LITERAL":
        return _folded({_code(value)})
    if name == "NOT_LITERAL":
        return _EVERYTHING - {value} if value < 256 else _EVERYTHING
    if name == "IN":
        return _in(value)
    if name in (*_REPEATS, "POSSESSIVE_REPEAT"):
        return _chars_of(value[2])
    if name == "BRANCH":
        return frozenset().union(*map(_chars_of, value[1]))
    if name == "ATOMIC_GROUP":
        return _chars_of(value)
    return _EVERYTHING


def _chars_of(tree: Any) -> frozenset[int]:
    return frozenset().union(*(_chars(*item) for item in _flat(tree)))


def _in(members: Any) -> frozenset[int]:
    found: set[int] = set()
    for name, value in _items(members):
        if name == "LITERAL":
            found.add(_code(value))
        elif name == "RANGE":
            found.update(range(value[0], min(value[1], 255) + 1))
            if value[1] > 255:
                found |= _BEYOND
        elif name == "CATEGORY":
            found |= _category(str(value))
    if members and str(members[0][0]) == "NEGATE":
        return _EVERYTHING - (found - _BEYOND)
    return _folded(found)


@lru_cache(maxsize=16)
def _category(name: str) -> frozenset[int]:
    kind = name.removeprefix("CATEGORY_").removeprefix("UNI_")
    letter, beyond = {"DIGIT": (r"\d", {_DIGIT}), "SPACE": (r"\s", {_SPACE}), "WORD": (r"\w", {_DIGIT, _WORD})}[
        kind.removeprefix("NOT_")
    ]
    within = frozenset(code for code in range(256) if re.match(letter, chr(code))) | beyond
    return _EVERYTHING - within if kind.startswith("NOT_") else within


def _code(value: int) -> int:
    """Return the code of a character: itself, or what it counts as beyond Latin-1."""
    if value < 256:
        return value
    kinds = ((r"\d", _DIGIT), (r"\w", _WORD), (r"\s", _SPACE))
    return next((code for letter, code in kinds if re.match(letter, chr(value))), _OTHER)


def _folded(codes: set[int]) -> frozenset[int]:
    texts = [text for code in codes if code < 256 for text in (chr(code).upper(), chr(code).lower())]
    return frozenset(codes | {_code(ord(text)) for text in texts if len(text) == 1})
