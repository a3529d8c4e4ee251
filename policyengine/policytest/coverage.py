"""What of a policy its tests reach: every rule, and every threshold from below, at it and above it.

Knows: rules, options, played tests. Must not know: how an extension uses its options, how coverage is shown.

A threshold is any number among a rule's options. That a test reaches the number N cannot be seen from outside, but it
can be tried: the test is played again with N moved by one, and has reached N if the rule then answers differently. So
`at` means that the tests would notice N + 1 in the place of N, `below` that they would notice N - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from policyengine.ladder import is_idle
from policyengine.policy.model import Rule
from policyengine.policy.validate import rule_at
from policyengine.policy.wording import KeyPath, dotted
from policyengine.policytest.model import Case, CaseResult, Suite, SuiteResult
from policyengine.policytest.play import hooks_of, judged, run_case
from policyengine.policytest.stand_in import with_options
from policyengine.snapshot import PolicySnapshot
from policyengine.testing import Played
from policyengine.workers import call_with_limit

Trace = tuple[Any, ...]


class ThresholdCoverage(msgspec.Struct, frozen=True):
    """Which side of a threshold the tests reach; `None` where nothing can be on that side.

    That is where the schema leaves no number there, or where the next rung of a ladder takes over at once.
    """

    option: str
    value: float
    below: bool | None
    at: bool | None
    above: bool | None

    @property
    def goals(self) -> tuple[bool, ...]:
        """What can be reached, and whether it is."""
        return tuple(side for side in (self.below, self.at, self.above) if side is not None)


class RuleCoverage(msgspec.Struct, frozen=True):
    """In how many tests a rule was asked, had something against the run, had nothing, and failed."""

    rule: str
    at: str
    evaluated: int
    tripped: int
    not_tripped: int
    errored: int
    thresholds: tuple[ThresholdCoverage, ...]

    @property
    def goals(self) -> tuple[bool, ...]:
        """What can be reached, and whether it is; that a rule fails is nothing to reach."""
        own = (self.evaluated > 0, self.tripped > 0, self.not_tripped > 0)
        return (*own, *(goal for threshold in self.thresholds for goal in threshold.goals))


class Coverage(msgspec.Struct, frozen=True):
    """What the tests of one policy reach of it."""

    policy: str
    digest: str
    rules: tuple[RuleCoverage, ...]

    @property
    def reached(self) -> int:
        """How many goals are reached."""
        return sum(sum(rule.goals) for rule in self.rules)

    @property
    def total(self) -> int:
        """How many goals there are."""
        return sum(len(rule.goals) for rule in self.rules)


def percent(coverages: Iterable[Coverage]) -> float:
    """Return the share of goals that are reached, of all policies together; a policy without rules is covered."""
    found = list(coverages)
    total = sum(item.total for item in found)
    return 100.0 * sum(item.reached for item in found) / total if total else 100.0


def coverage(results: Iterable[SuiteResult]) -> tuple[Coverage, ...]:
    """Return the coverage of every policy that these tests are about."""
    groups: dict[str, list[SuiteResult]] = {}
    for result in results:
        groups.setdefault(result.suite.engine.snapshot.digest, []).append(result)
    return tuple(_coverage(group) for group in groups.values())


def _coverage(results: list[SuiteResult]) -> Coverage:
    snapshot = results[0].suite.engine.snapshot
    pairs = [(result.suite, case) for result in results for case in result.cases]
    rules = tuple(_rule(rule, snapshot, pairs) for rule in snapshot.policy.rules if rule.id in snapshot.extensions)
    return Coverage(snapshot.policy.name, snapshot.digest, rules)


def _rule(rule: Rule, snapshot: PolicySnapshot, pairs: list[tuple[Suite, CaseResult]]) -> RuleCoverage:
    hooks = hooks_of(snapshot, rule.id)
    asked: list[tuple[Suite, CaseResult]] = []
    tripped = errored = 0
    for suite, result in pairs:
        own = judged(result.played.answers, rule, hooks)
        failed = any(answer.vote.error for answer in result.played.answers if answer.vote.rule == rule.id)
        errored += failed
        if own and not failed:
            asked.append((suite, result))
            tripped += any(answer.tripped for answer in own)
    schema: Any = type(snapshot.extensions[rule.id]).options
    return RuleCoverage(
        rule=rule.id,
        at=f"{rule.position.file}:{rule.position.line}",
        evaluated=len(asked),
        tripped=tripped,
        not_tripped=len(asked) - tripped,
        errored=errored,
        thresholds=tuple(
            _threshold(rule, path, value, rule_at(schema, path), asked)
            for path, value in numbers(rule.options)
            if not is_idle(rule_at(schema, path[:-1]).get("schema") or {}, _around(rule.options, path))
        ),
    )


def numbers(options: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, float]]:
    """Yield every number among options with its path."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from numbers(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, key), value


def _threshold(
    rule: Rule, path: KeyPath, value: float, bounds: Mapping[str, Any], asked: list[tuple[Suite, CaseResult]]
) -> ThresholdCoverage:
    # Of a number with a fraction, a tenth of it is the step.
    step = 1 if float(value).is_integer() else value / 10
    moved = {offset: value + offset * step for offset in (-1, 1, 2)}
    lowest, highest = bounds.get("min", float("-inf")), bounds.get("max", float("inf"))
    possible = {offset for offset, number in moved.items() if lowest <= number <= highest}
    sides: dict[str, bool | None] = {
        "below": False if -1 in possible else None,
        "at": False if 1 in possible else None,
        "above": False if {1, 2} <= possible and value + step not in _beside(rule.options, path) else None,
    }
    for suite, result in asked:
        if not any(side is False for side in sides.values()):
            break
        tried = {0: trace(result.played, rule.id)}
        for side, (one, other) in {"below": (-1, 0), "at": (0, 1), "above": (1, 2)}.items():
            if sides[side] is False:
                for offset in (one, other):
                    if offset not in tried:
                        options = _with(rule.options, path, moved[offset])
                        tried[offset] = _tried(suite, result.case, rule.id, options)
                sides[side] = tried[one] != tried[other]
    return ThresholdCoverage(dotted(path), value, **sides)


def _beside(options: Mapping[str, Any], path: KeyPath) -> list[float]:
    """Return the numbers beside an option: where the next rung takes over at once, nothing is above this one."""
    return [value for (key, *below), value in numbers(_around(options, path)) if not below and key != path[-1]]


def _around(options: Mapping[str, Any], path: KeyPath) -> Mapping[str, Any]:
    """Return the mapping that an option stands in."""
    for key in path[:-1]:
        options = options[str(key)]
    return options


def _tried(suite: Suite, case: Case, rule: str, options: Mapping[str, Any]) -> Trace:
    """Return what a rule answers with other options; an extension that cannot be made with them answers nothing."""
    _, snapshot, fault = call_with_limit(partial(with_options, suite.engine.snapshot, rule, options), None)
    return () if fault else trace(run_case(suite, case, snapshot), rule)


def trace(played: Played, rule: str) -> Trace:
    """Return everything a rule answered in a run, without the numbers that it gave."""
    return tuple(
        (answer.iteration, answer.hook, answer.call, tuple((action.name, action.code) for action in answer.vote.raw))
        for answer in played.answers
        if answer.vote.rule == rule and answer.vote.raw
    )


def _with(options: Mapping[str, Any], path: KeyPath, value: float) -> dict[str, Any]:
    changed = dict(options)
    key = str(path[0])
    changed[key] = value if len(path) == 1 else _with(changed[key], path[1:], value)
    return changed
