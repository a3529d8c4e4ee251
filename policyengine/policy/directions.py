"""Compare the options of a rule by what the schema of its extension says about them.

Knows: `meta` in a schema of options. Must not know: policies, layers, rules, how a difference is shown or refused.

`meta.stricter` says which direction is stricter. `meta.absent: loosest` says that without the option nothing is as
loose; where a schema does not say it, it is not known what a missing option means. `meta.surely: false` says that the
direction may be wrong for other counts of the rule. A mapping with `meta.keys: patterns` has an entry for a name: its
own, else that of the first pattern that matches; parts of an entry stand in place of the options beside the mapping,
and a part with `meta.instead` is that other part of its entry first. Nothing is called tighter that might not be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from policyengine.policy.durations import seconds
from policyengine.policy.schema import Schema
from policyengine.policy.validator import Number
from policyengine.policy.winners import pairs
from policyengine.policy.wording import KeyPath

Verdict = Literal["tighter", "looser", "other"]

ABSENT = msgspec.UNSET
"""Stands for a value that one of the two policies does not have."""


class Change(NamedTuple):
    """An option that differs."""

    path: KeyPath
    verdict: Verdict
    before: Any
    after: Any


def changes(schema: Schema, was: Mapping[str, Any], now: Mapping[str, Any], path: KeyPath) -> Iterator[Change]:
    """Yield every difference between two sets of options that their defaults were filled into."""
    for name in dict.fromkeys([*was, *now]):
        rule = schema.get(name, {})
        if "valuesrules" in rule:
            yield from _entries(rule, was, now, (*path, name))
        else:
            yield from _option(rule, was.get(name, ABSENT), now.get(name, ABSENT), (*path, name))


def sets(one: set[Any], other: set[Any], *, more: Verdict = "tighter", less: Verdict = "looser") -> Verdict | None:
    """Return the verdict on a set that became another one: it grew, shrank, or neither."""
    if one == other:
        return None
    return more if one < other else less if other < one else "other"


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the verdict on several changes together; `None` where there are none."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), None)


_WORST_FIRST: tuple[Verdict, ...] = ("looser", "other", "tighter")


def _meta(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    return rule.get("meta") or {}


def _option(rule: Mapping[str, Any], was: Any, now: Any, path: KeyPath) -> Iterator[Change]:
    if was == now and (type(was) is type(now) or (isinstance(was, Number) and isinstance(now, Number))):
        return  # 400 and 400.0 are one number; true and 1 are not
    if isinstance(was, str) and isinstance(now, str) and _number(rule, was) == _number(rule, now) is not None:
        return  # 60s and 1m are one time
    if "schema" in rule and all(value is ABSENT or isinstance(value, Mapping) for value in (was, now)):
        yield from changes(rule["schema"], {} if was is ABSENT else was, {} if now is ABSENT else now, path)
        return
    verdict = _directed(rule, was, now)
    if verdict == "tighter" and _meta(rule).get("surely") is False:
        verdict = "other"
    yield Change(path, verdict, was, now)


def _directed(rule: Mapping[str, Any], was: Any, now: Any) -> Verdict:
    """Return the verdict on a changed option whose schema says which direction is stricter."""
    stricter = _meta(rule).get("stricter")
    if was is ABSENT or now is ABSENT:
        known = stricter is not None and _meta(rule).get("absent") == "loosest"
        return "other" if not known else "tighter" if was is ABSENT else "looser"
    if stricter in ("lower", "higher"):
        one, other = (_number(rule, value) for value in (was, now))
        if one is not None and other is not None and one != other:
            return "tighter" if (other < one) == (stricter == "lower") else "looser"
    if stricter in ("subset", "superset") and isinstance(was, list | tuple) and isinstance(now, list | tuple):
        before, after = ({json.dumps(item, sort_keys=True) for item in items} for items in (was, now))
        grown: Verdict = "tighter" if stricter == "superset" else "looser"
        return sets(before, after, more=grown, less="looser" if grown == "tighter" else "tighter") or "other"
    return "other"


def _number(rule: Mapping[str, Any], value: Any) -> float | None:
    if isinstance(value, str) and rule.get("check_with") == "duration":
        return seconds(value)
    return value if isinstance(value, Number) else None  # type: ignore[return-value]


# ---- mappings with free keys


class _Side(NamedTuple):
    """An entry of one of two mappings (`ABSENT`: the name has none), and the options beside the mapping."""

    entry: Any
    beside: Mapping[str, Any]

    def part(self, name: str, rule: Mapping[str, Any]) -> tuple[str, Any]:
        """Return where a part of the entry comes from, and its value in force."""
        if self.entry is not ABSENT:
            for source in (name, _meta(rule).get("instead")):
                if source in self.entry:
                    return str(source), self.entry[source]
        general = self.beside.get(name, ABSENT)
        if isinstance(general, Mapping) and "schema" in rule:  # what an entry cannot say stays general
            general = {key: value for key, value in general.items() if key in rule["schema"]}
        return "", general


def _entries(
    rule: Mapping[str, Any], was: Mapping[str, Any], now: Mapping[str, Any], path: KeyPath
) -> Iterator[Change]:
    """Compare what is in force for every name that the keys of two mappings set apart."""
    old, new = was.get(str(path[-1])) or {}, now.get(str(path[-1])) or {}
    by_pattern = _meta(rule).get("keys") == "patterns"
    found: dict[KeyPath, list[Verdict]] = {}
    for one, other in pairs(tuple(old), tuple(new)) if by_pattern else _alike(old, new):
        first = _Side(ABSENT if one is None else old[one], was)
        second = _Side(ABSENT if other is None else new[other], now)
        if one == other:
            yield from _within_entry(rule["valuesrules"], first, second, (*path, str(one)))
            continue
        key = other if other is not None and other not in old else one if one not in new else None
        verdicts = [change.verdict for change in _within_entry(rule["valuesrules"], first, second, path)]
        if not by_pattern:  # nobody knows for which names the entry is
            verdicts.append("other")
        found.setdefault(path if key is None else (*path, key), []).extend(verdicts)
    for here, verdicts in found.items():
        verdict = worst(verdicts)
        if verdict and here == path:
            yield Change(path, verdict, "in one order", "in another order")
        elif verdict:
            yield Change(here, verdict, old.get(here[-1], ABSENT), new.get(here[-1], ABSENT))
    if not by_pattern and [key for key in old if key in new] != [key for key in new if key in old]:
        yield Change(path, "other", "in one order", "in another order")


def _alike(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str | None, str | None]]:
    for key in dict.fromkeys([*old, *new]):
        yield (key if key in old else None), (key if key in new else None)


def _within_entry(rule: Mapping[str, Any], one: _Side, other: _Side, path: KeyPath) -> Iterator[Change]:
    schema = rule.get("schema")
    if not isinstance(schema, Mapping) or "type" in schema:
        yield from _option(rule, one.entry, other.entry, path)
        return
    for name, part in schema.items():
        (source, was), (origin, now) = one.part(name, part), other.part(name, part)
        if source == origin and source != name:
            continue  # the option that both have it from is compared by itself
        written = [ABSENT if side.entry is ABSENT else side.entry.get(name, ABSENT) for side in (one, other)]
        found = list(_option(part, was, now, (*path, name)))
        if source == origin:
            yield from found
        elif verdict := worst(change.verdict for change in found):
            yield Change((*path, name), verdict, *written)
