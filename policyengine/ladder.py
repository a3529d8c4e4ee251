"""The escalation ladder of options: rungs with numbers, softest first.

Knows: the names and order of rungs, and the number at which each is reached.
Must not know: what is counted, who counts it, policies.

An option that is a ladder maps rungs to numbers, for example `{hint: 3, deny: 5, stop: 8}`. All rungs are optional;
a ladder without rungs switches its rule off. A rung's number is the ordinal of the event being judged, and a rung is
reached from that number on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from policyengine.extension import OptionProblem

__all__ = ["NEVER", "RUNGS", "Ladder", "ladder_option", "ladder_problems"]

RUNGS: tuple[str, ...] = ("hint", "deny", "end_step", "wind_down", "stop")
"""All rungs, softest first."""

NEVER = 1 << 30
"""The number of a rung that is not configured: larger than anything counted."""


_RUNG = {"stricter": "lower", "absent": "loosest"}
# The end of a step may clear the counts that a later rung, or another ladder, would be reached by.
_ENDS_STEP = {"stricter": "lower", "surely": False}


class Ladder(msgspec.Struct, frozen=True):
    """The rungs of one option as `(number, rung)`, ascending. `first` is the lowest number, or `NEVER`."""

    steps: tuple[tuple[int, str], ...] = ()
    first: int = NEVER

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Ladder:
        """Read the rungs of an option; other keys beside them are left alone."""
        found = options or {}
        return _sorted((found[rung], rung) for rung in RUNGS if found.get(rung) is not None)

    def number(self, rung: str) -> int:
        """Return the number of a rung, or `NEVER`."""
        return next((number for number, name in self.steps if name == rung), NEVER)

    def reached(self, ordinal: int) -> tuple[str, int] | None:
        """Return the highest rung reached at `ordinal`, with its number."""
        if ordinal < self.first:
            return None
        return next((name, number) for number, name in reversed(self.steps) if number <= ordinal)

    def without(self, *rungs: str) -> Ladder:
        """Return the ladder without some rungs."""
        return _sorted(step for step in self.steps if step[1] not in rungs)


def _sorted(steps: Iterable[tuple[int, str]]) -> Ladder:
    ordered = tuple(sorted(steps, key=lambda step: step[0]))
    return Ladder(ordered, ordered[0][0] if ordered else NEVER)


def ladder_option(
    default: Mapping[str, Any] | None = None,
    *,
    rungs: Sequence[str] = RUNGS,
    minimum: int = 2,
    maximum: int = 1000,
    **fields: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the Cerberus schema of a ladder. `fields` are the schemas of further keys beside the rungs.

    The default is that of the whole ladder, so a ladder given in a policy replaces it whole. Numbers below 2 make no
    sense where repetition is counted, because a first call always runs; a breaker may allow 1.
    """
    number = {"type": "integer", "min": minimum, "max": maximum}
    numbers = {rung: {**number, "meta": dict(_ENDS_STEP if rung == "end_step" else _RUNG)} for rung in rungs}
    schema: dict[str, Any] = {"type": "dict", "schema": {**numbers, **fields}}
    if default is not None:
        schema["default"] = dict(default)
    return schema


def is_idle(fields: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether a mapping with these fields is a ladder without rungs, so that nothing beside them matters."""
    return sum(rung in fields for rung in RUNGS) > 1 and all(options.get(rung) is None for rung in RUNGS)


def ladder_problems(options: Mapping[str, Any] | None, path: Sequence[str]) -> list[OptionProblem]:
    """Return a problem for every rung that can never be reached because a stricter one does not come later."""
    problems: list[OptionProblem] = []
    below: tuple[str, int] | None = None
    for rung in RUNGS:
        number = (options or {}).get(rung)
        if number is None:
            continue
        if below is not None and number <= below[1]:
            text = f"{rung}: {number} must be greater than {below[0]}: {below[1]}, or {below[0]} is never used"
            problems.append(OptionProblem((*path, rung), text))
        below = (rung, number)
    return problems
