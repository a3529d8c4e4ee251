"""Candidates: the policy in force with other values for its thresholds, each an overlay.

Knows: which options are thresholds, which values to try, what `--sweep` may say, how an overlay says a value.
Must not know: recordings, what a candidate is good for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import prod
from typing import Any

import msgspec
import yaml

from policyengine.errors import UsageError
from policyengine.ladder import RUNGS, is_idle
from policyengine.policy.explain import ENV
from policyengine.policy.model import Policy, Rule
from policyengine.policy.nodes import BUILT_IN
from policyengine.policy.schema import Schema
from policyengine.policy.stricter import Look
from policyengine.policy.wording import dotted, suggestion

MOST = 200
"""How many candidates there may be unless more are asked for."""

_SMALL = 12
"""Up to this value every whole number makes a difference; beyond it, shares of the value are tried."""

_LONGEST_RANGE = 10_000

_PIECE = re.compile(r'"([^"]*)"|([^."]+)')
_RANGE = re.compile(r"(?P<first>-?[\d.]{1,40}?)\.\.(?P<last>-?[\d.]{1,40}?)(?:\.\.(?P<step>[\d.]{1,40}))?")


class Threshold(msgspec.Struct, frozen=True):
    """A number that a rule compares with. `path` leads to it below the rule's `with`.

    `value` is the one in force; `UNSET` where the policy does not say one. `low` and `high` are the least and the
    largest that can make sense: the bounds of its schema, and inside a ladder the rungs before and after it.
    """

    rule: str
    path: tuple[str, ...]
    value: Any = msgspec.UNSET
    low: float | None = None
    high: float | None = None

    @property
    def name(self) -> str:
        """How `--sweep` and reports call it."""
        return dotted((self.rule, "with", *self.path))


class Change(msgspec.Struct, frozen=True):
    """One threshold with another value."""

    threshold: Threshold
    value: Any

    def __str__(self) -> str:
        return f"{self.threshold.name}={shown(self.value)}"

    @property
    def distance(self) -> float:
        """How far the value is from the one in force, as a share of it."""
        was, now = self.threshold.value, self.value
        if not _is_number(was) or not _is_number(now):
            return 1.0
        return float(abs(now - was) / (abs(was) or 1))


Changes = tuple[Change, ...]
"""What makes a candidate; nothing is the policy in force."""

Sweep = tuple[Threshold, tuple[Any, ...]]
"""A threshold and the values to try."""


def named(changes: Changes) -> str:
    """Return what a candidate is called."""
    return ", ".join(map(str, changes)) or "in force"


def shown(value: Any) -> str:
    """Return a value as one writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- thresholds of a policy


def thresholds(policy: Policy, look: Look) -> list[Threshold]:
    """Return the thresholds of all rules that have an effect, in the order of the rules.

    They are the numbers in force whose schema says which direction is stricter. Those that come from environment
    variables are left to whoever sets these.
    """
    return [found for rule in policy.rules if rule.mode == "enforce" for found in _of_rule(policy, rule, look)]


def _of_rule(policy: Policy, rule: Rule, look: Look) -> list[Threshold]:
    known = look(rule.use)
    if known is None:
        return []
    found = _in_mapping(rule.id, known.options, rule.options, ())
    return [threshold for threshold in found if not _from_environment(policy, threshold)]


def _in_mapping(rule: str, schema: Schema, options: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Threshold]:
    ladder = _ladder(schema, options)
    idle = is_idle(schema, options)
    for name, value in options.items():
        field = schema.get(name)
        if field is None:
            continue
        here = (*path, name)
        if isinstance(value, Mapping):
            yield from _below(rule, field, value, here)
        elif _is_number(value) and _direction(field) and not idle:
            yield Threshold(rule, here, value, *_bounds(field, name, ladder))


def _below(rule: str, field: Mapping[str, Any], value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Threshold]:
    if "valuesrules" in field:
        yield from _in_mapping(rule, dict.fromkeys(value, field["valuesrules"]), value, path)
    elif isinstance(field.get("schema"), Mapping):
        yield from _in_mapping(rule, field["schema"], value, path)


def _direction(field: Mapping[str, Any]) -> bool:
    return (field.get("meta") or {}).get("stricter") in ("lower", "higher")


def _ladder(schema: Schema, options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the numbers of a mapping that must rise from one to the next, softest first; none where it is no ladder.

    A ladder has rungs among its fields, and lists all of its own in their order.
    """
    if sum(rung in schema for rung in RUNGS) < 2:
        return []
    rungs = [name for name, field in schema.items() if (field.get("meta") or {}).get("stricter") == "lower"]
    return [(name, options[name]) for name in rungs if _is_number(options.get(name))]


def _bounds(
    field: Mapping[str, Any], name: str, ladder: Sequence[tuple[str, Any]]
) -> tuple[float | None, float | None]:
    lows, highs = ([field[key]] if key in field else [] for key in ("min", "max"))
    place = next((index for index, (rung, _) in enumerate(ladder) if rung == name), None)
    if place is not None:
        lows += [value + 1 for _, value in ladder[max(place - 1, 0) : place]]
        highs += [value - 1 for _, value in ladder[place + 1 : place + 2]]
    return max(lows, default=None), min(highs, default=None)


def _from_environment(policy: Policy, threshold: Threshold) -> bool:
    layers = policy.provenance.get(dotted(("extensions", threshold.rule, "with", *threshold.path)), ())
    # Where a variable is not set, its default in the same file comes after it.
    latest = [layer for layer in layers[-2:] if layer.position.file == layers[-1].position.file]
    return any(isinstance(layer.value, dict) and ENV in layer.value for layer in latest)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def around(threshold: Threshold) -> tuple[Any, ...]:
    """Return a few values around the one in force that are allowed where nothing else changes."""
    value = threshold.value
    if not isinstance(value, int):
        values = [float(f"{value * share:.6g}") for share in (0.5, 0.75, 1.25, 1.5, 2)]
    elif value <= _SMALL:
        values = [*range(value // 2, value + 3), 2 * value]
    else:
        values = [value // 2, value * 3 // 4, value * 5 // 4, value * 3 // 2, 2 * value]
    low = -float("inf") if threshold.low is None else threshold.low
    high = float("inf") if threshold.high is None else threshold.high
    return tuple(sorted({one for one in values if low <= one <= high and one != value}))


# ---- what --sweep says


def sweeps(policy: Policy, look: Look, texts: Sequence[str]) -> list[Sweep]:
    """Return which thresholds are to be swept over which values; without texts all, each around its value.

    Raises:
        UsageError: a text names no option, or no values where none can be guessed.
    """
    declared = thresholds(policy, look)
    if not texts:
        return [(threshold, around(threshold)) for threshold in declared]
    found: dict[str, Sweep] = {}
    for text in texts:
        for threshold, values in _said(policy, look, declared, text):
            before = found[threshold.name][1] if threshold.name in found else ()
            found[threshold.name] = (threshold, tuple(dict.fromkeys([*before, *values])))
    return list(found.values())


def _said(policy: Policy, look: Look, declared: Sequence[Threshold], text: str) -> list[Sweep]:
    name, sign, listed = text.partition("=")
    name = name.strip().removeprefix("extensions.")
    bare = name.replace('"', "")
    if not sign:
        chosen = [one for one in declared if f"{one.name}.".replace('"', "").startswith(f"{bare}.")]
        if not chosen:
            names = [one.name for one in declared]
            raise UsageError(
                f"--sweep {text!r}: no threshold of a rule in force; {suggestion(name, names, 'thresholds')}"
            )
        return [(threshold, around(threshold)) for threshold in chosen]
    exactly = next((one for one in declared if one.name.replace('"', "") == bare), None)
    threshold = exactly or _option(policy, look, name, text)
    return [(threshold, values(listed, text))]


def _option(policy: Policy, look: Look, name: str, text: str) -> Threshold:
    """Return an option of a rule that is no declared threshold in force, but may be swept all the same."""
    rules = {rule.id: rule for rule in policy.rules}
    rule = rules.get(max((id for id in rules if name.startswith(f"{id}.with.")), key=len, default=""))
    if rule is None:
        advice = suggestion(name.partition(".with")[0], rules, "rules")
        raise UsageError(f"--sweep {text!r}: write RULE.with.PATH=VALUES with a rule of the policy; {advice}")
    known = look(rule.use)
    path = tuple(quoted or plain for quoted, plain in _PIECE.findall(name[len(rule.id) + len(".with.") :]))
    _check_path(known.options if known is not None else {}, path, text)
    options: Any = rule.options
    for key in path:
        options = options.get(key, msgspec.UNSET) if isinstance(options, Mapping) else msgspec.UNSET
    threshold = Threshold(rule.id, path, options)
    if _from_environment(policy, threshold):
        raise UsageError(f"--sweep {text!r}: the value comes from an environment variable; set that instead")
    if isinstance(options, Mapping | list | tuple):
        raise UsageError(f"--sweep {text!r}: {threshold.name} is no single value")
    return threshold


def _check_path(schema: Schema, path: tuple[str, ...], text: str) -> None:
    for place, key in enumerate(path):
        if key not in schema:
            advice = suggestion(key, schema, "options")
            raise UsageError(f"--sweep {text!r}: no option {dotted(path[: place + 1])}; {advice}")
        field = schema[key]
        if place + 1 < len(path) and "valuesrules" in field:
            schema = {path[place + 1]: field["valuesrules"]}
        else:
            inner = field.get("schema")
            schema = inner if field.get("type") == "dict" and isinstance(inner, dict) else {}


def values(listed: str, text: str) -> tuple[Any, ...]:
    """Return the values that `V1,V2,...` and `A..B..STEP` name."""
    found: list[Any] = []
    for part in (part.strip() for part in listed.split(",")):
        span = _RANGE.fullmatch(part)
        if span is not None:
            found += _range(span, text)
        elif part:
            found.append(_value(part))
    if not found:
        raise UsageError(f"--sweep {text!r}: no values; write V1,V2 or A..B or A..B..STEP")
    return tuple(dict.fromkeys(found))


def _range(span: re.Match[str], text: str) -> list[Any]:
    first, last, step = (_value(span[name] or "1") for name in ("first", "last", "step"))
    if not all(map(_is_number, (first, last, step))) or step <= 0 or last < first:
        raise UsageError(f"--sweep {text!r}: {span[0]} is no range; write A..B or A..B..STEP, upwards")
    count = int((last - first) / step + 1e-9) + 1
    if count > _LONGEST_RANGE:
        raise UsageError(f"--sweep {text!r}: {span[0]} has {count} values; give it a larger step")
    exact = [first + step * index for index in range(count)]
    return [value if isinstance(value, int) else float(f"{value:.10g}") for value in exact]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


# ---- candidates


def candidates(swept: Sequence[Sweep], *, grid: bool = False, most: int = MOST) -> list[Changes]:
    """Return every candidate: each value alone, or with `grid` each combination, those in force included.

    Raises:
        UsageError: there would be more than `most`.
    """
    others = [(threshold, [one for one in tried if not _same(one, threshold.value)]) for threshold, tried in swept]
    count = prod(len(tried) + 1 for _, tried in others) - 1 if grid else sum(len(tried) for _, tried in others)
    if count > most:
        raise UsageError(
            f"{count} candidates, and {most} are allowed: name fewer thresholds or values with --sweep, "
            f"or allow more with --most"
        )
    if not grid:
        return [(Change(threshold, value),) for threshold, tried in others for value in tried]
    lists = [[None, *(Change(threshold, value) for value in tried)] for threshold, tried in others]
    combined = (tuple(change for change in chosen if change is not None) for chosen in product(*lists))
    return [changes for changes in combined if changes]


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def overlay(policy: Policy, changes: Changes) -> str:
    """Return the overlay that makes a candidate of a policy: only what changes.

    A mapping that no layer wrote is the default of its whole; as soon as a part of it is given, nothing of the default
    counts, so it is written whole.
    """
    rules = {rule.id: rule for rule in policy.rules}
    options: dict[str, dict[str, Any]] = {}
    for change in changes:
        threshold = change.threshold
        node, in_force = options.setdefault(threshold.rule, {}), rules[threshold.rule].options
        for depth, key in enumerate(threshold.path[:-1], 1):
            in_force = in_force.get(key) or {}
            if key not in node:
                written = _written(policy, threshold.rule, threshold.path[:depth])
                node[key] = {} if written else deepcopy(dict(in_force))
            node = node[key]
        node[threshold.path[-1]] = change.value
    settings = {
        "apiVersion": "policyengine/v1",
        "kind": "Overlay",
        "target": policy.name,
        "extensions": {rule: {"with": said} for rule, said in options.items()},
    }
    return str(yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, allow_unicode=False, width=2**20))


def _written(policy: Policy, rule: str, path: tuple[str, ...]) -> bool:
    layers = policy.provenance.get(dotted(("extensions", rule, "with", *path)), ())
    return any(layer.position.file != BUILT_IN.file for layer in layers)
