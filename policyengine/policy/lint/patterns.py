"""Patterns that select something else than they seem to.

Knows: shell patterns. Must not know: which tools, agents and models there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from policyengine.policy.environment import is_variable
from policyengine.policy.globs import covers, overlap
from policyengine.policy.lint.subject import Subject
from policyengine.policy.nodes import Node
from policyengine.policy.problems import Problem
from policyengine.policy.wording import KeyPath

_CHOICE = re.compile(r"\{[^{}]*,[^{}]*\}")
_SHORTEST = 5
"""Names below this length differ in one character too easily."""


def likely_typos(subject: Subject) -> Iterator[Problem]:
    """L606: a selector matches no tool that the policy knows, and is one slip away from one that it does."""
    known = [pattern for pattern, _ in subject.policy.tools]
    for path, node in _selectors(subject, "tool"):
        pattern = str(node.data).removeprefix("!")
        if any(overlap(pattern, other) for other in known):
            continue
        meant = next((other for other in known if _one_slip(pattern, other)), None)
        if meant is not None:
            message = f"{pattern!r} is no tool under `tools:`, and {meant!r} is"
            yield subject.finding("L606", message, path, node=node, help=f'did you mean "{meant}"?')


def odd_patterns(subject: Subject) -> Iterator[Problem]:
    """L607: a pattern has marks that a shell pattern reads as plain characters."""
    places = [*_selectors(subject, "tool"), *_selectors(subject, "agent")]
    for section in ("tools", "models"):
        found = subject.root.get(section)
        places += [((section, key), Node(key, node.where, node.where_length)) for key, node in _fields(found)]
    for path, node in places:
        reason = _oddity(str(node.data).removeprefix("!"))
        if reason is not None:
            message, advice = reason
            yield subject.finding("L607", message, path, node=node, help=advice)


def models_out_of_reach(subject: Subject) -> Iterator[Problem]:
    """L608: an earlier pattern under `models:` matches every model that this one does."""
    earlier: list[str] = []
    for pattern, _ in subject.policy.models:
        masking = next((other for other in earlier if covers(other, pattern)), None)
        if masking is not None:
            message = f"never used: the earlier pattern {masking!r} matches the same models"
            advice = "put the more specific pattern first"
            yield subject.finding("L608", message, ("models", pattern), help=advice)
        earlier.append(pattern)


def _selectors(subject: Subject, name: str) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every pattern of selectors of that name, variables aside."""
    for rule, node in _fields(subject.root.get("extensions")):
        yield from _texts(node.get("when", name), ("extensions", rule, "when", name))
    exceptions = subject.root.get("exceptions")
    for index, node in enumerate(exceptions.items if exceptions else ()):
        yield from _texts(node.get("when", name), ("exceptions", index, "when", name))


def _texts(node: Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    if node is None or is_variable(node):
        return
    if isinstance(node.children, tuple):
        for index, item in enumerate(node.items):
            if not is_variable(item):
                yield (*path, index), item
    else:
        yield path, node


def _fields(node: Node | None) -> list[tuple[str, Node]]:
    return list(node.fields.items()) if node is not None and not is_variable(node) else []


def _oddity(pattern: str) -> tuple[str, str] | None:
    for match in re.finditer(r"\[", pattern):
        # A bracket right after the opening one is a member of the class.
        rest = pattern[match.end() :].removeprefix("!")
        if "]" not in rest[1:]:
            return "the bracket is not closed, so that it stands for itself", "close it, or write `[[]` for a bracket"
        break
    if _CHOICE.search(pattern):
        return "a pattern has no braces for choices: they stand for themselves", "write a list of patterns"
    if "|" in pattern:
        return "a pattern has no `|` for choices: it stands for itself", "write a list of patterns"
    if pattern.startswith("^") or pattern.endswith("$"):
        return "a pattern is no regular expression: `^` and `$` stand for themselves", "leave them out"
    return None


def _one_slip(one: str, other: str) -> bool:
    """Return whether one letter too many, too few, wrong or swapped with its neighbour makes one of the other."""
    if min(len(one), len(other)) < _SHORTEST or one == other:
        return False
    short, long = sorted((one, other), key=len)
    start = next((at for at, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    if len(short) == len(long):
        left, right = short[start:], long[start:]
        if left[2:] == right[2:] and left[:2] == right[1::-1]:
            return True
        return left[1:] == right[1:] and (left[0] + right[0]).isalpha()
    extra = long[start]
    # A plural, or a name with a number, may well be another tool.
    plural = extra == "s" and (start + 1 == len(long) or not long[start + 1].isalnum())
    return len(long) == len(short) + 1 and short[start:] == long[start + 1 :] and extra.isalpha() and not plural
