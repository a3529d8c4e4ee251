"""Compare version numbers with ranges such as `>=0.4,<1`.

Knows: the release, pre-release, post-release and development parts of PEP 440. Must not know: packages.
Epochs are refused; a local part (`+abc`) is ignored.
"""

from __future__ import annotations

import re
from typing import Literal

Fit = Literal["ok", "too old", "too new", "excluded"]
_Key = tuple[tuple[int, ...], tuple[int, int], int, int]

_VERSION = re.compile(
    r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){0,9})(?:[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?([0-9]{0,9}))?"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?([0-9]{0,9}))?(?:[-_.]?dev[-_.]?([0-9]{0,9}))?(?:\+[a-z0-9.]+)?\Z",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\s*(~=|==|!=|<=|>=|<|>)\s*([^\s,]+)\s*\Z")
_CLAUSE_FORM = (
    r"\s*(~=|==|!=|<=|>=|<|>)\s*[vV]?[0-9]{1,9}(\.[0-9]{1,9}){0,9}(\.\*)?([-_.]?[A-Za-z]+[-_.]?[0-9]{0,9}){0,3}"
    r"(\+[A-Za-z0-9.]+)?\s*"
)
RANGE = rf"^{_CLAUSE_FORM}(,{_CLAUSE_FORM})*$"
"""Roughly what a range looks like, as a regular expression for editors."""

_PRE = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_FINAL = (3, 0)


def _key(version: str) -> _Key | None:
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    release, pre, pre_number, post, dev = match.groups()
    numbers = [int(part) for part in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    stage = (_PRE[pre.lower()], int(pre_number or 0)) if pre else _FINAL
    if dev is not None and pre is None and post is None:
        stage = (-1, 0)
    return tuple(numbers), stage, -1 if post is None else int(post or 0), 10**9 if dev is None else int(dev or 0)


def clauses(text: str) -> list[tuple[str, str]] | None:
    """Return a range as pairs of operator and version, or `None` if it cannot be read."""
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        match = _CLAUSE.match(part)
        if match is None:
            return None
        operator, version = match.groups()
        wild = version.endswith(".*") and operator in ("==", "!=")
        if _key(version.removesuffix(".*") if wild else version) is None:
            return None
        if operator == "~=" and "." not in version:
            return None
        found.append((operator, version))
    return found


def fit(version: str, wanted: list[tuple[str, str]]) -> Fit:
    """Return whether a version lies in a range, and on which side of it if not.

    A version that cannot be read is `excluded`.
    """
    key = _key(version)
    if key is None:
        return "excluded"
    for operator, bound in wanted:
        found = _fits(key, operator, bound)
        if found != "ok":
            return found
    return "ok"


def _fits(key: _Key, operator: str, bound: str) -> Fit:
    if bound.endswith(".*"):
        low, high = _span(bound.removesuffix(".*"))
        inside: Fit = "too old" if key < low else "too new" if key >= high else "ok"
        if operator == "==":
            return inside
        return "excluded" if inside == "ok" else "ok"
    limit = _key(bound)
    assert limit is not None
    if operator == "~=":
        _, high = _span(bound.rpartition(".")[0])
        return "too old" if key < limit else "too new" if key >= high else "ok"
    if operator == "!=":
        return "excluded" if key == limit else "ok"
    if key < limit:
        # 1.0rc1 is not what `<1` means to admit.
        early = operator == "<" and key[0] == limit[0] and limit[1] == _FINAL and key[1] < _FINAL
        return "too new" if early else "ok" if operator in ("<", "<=") else "too old"
    if key > limit:
        return "ok" if operator in (">", ">=") else "too new"
    return "ok" if operator in ("<=", ">=", "==") else "too new" if operator == "<" else "too old"


def _span(prefix: str) -> tuple[_Key, _Key]:
    """Return the lowest key of a release series, and the lowest one above it."""
    numbers = [int(part) for part in prefix.split(".") if part.isdigit()]
    above = [*numbers[:-1], numbers[-1] + 1]
    low = _key(".".join(map(str, numbers)) + ".dev0")
    high = _key(".".join(map(str, above)) + ".dev0")
    assert low is not None
    assert high is not None
    return low, high
