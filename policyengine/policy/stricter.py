"""Compare what two policies do to a run, and say of each difference whether it is tighter, looser or neither.

Knows: which direction of a setting is stricter. Must not know: files, layers, how a difference is shown or refused.

Policies are compared as they are in force: defaults, environment variables and `defaults:` included. Where it cannot
be told which of two values is stricter the difference is `other`; nothing is called tighter that might not be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Literal, Protocol

import msgspec

from policyengine.messages import UNDECLARED, ToolFacts
from policyengine.policy.globs import covers, is_pattern, overlap
from policyengine.policy.model import Exemption, Layer, Policy, Rollout, Rule, When
from policyengine.policy.problems import Position
from policyengine.policy.schema import MODES, Schema
from policyengine.policy.validator import Number
from policyengine.policy.wording import KeyPath, dotted

Verdict = Literal["tighter", "looser", "other"]

ABSENT = msgspec.UNSET
"""Stands for a value that one of the two policies does not have."""

_ON_ERROR = ("stop", "deny", "allow")
_LENIENT_EFFECTS = ("write", "poll")
_BESIDE = frozenset(
    {
        "name", "revision", "digest", "rules", "tools", "files", "provenance", "warnings", "interventions",
        "wind_down_rounds", "kill_switch",
    }
)  # fmt: skip


class Found(msgspec.Struct, frozen=True):
    """What is known about an extension: the schema of its options, and the hook points it implements."""

    options: Schema
    hooks: tuple[str, ...]


class _Registry(Protocol):
    def get(self, name: str) -> Any: ...


Look = Callable[[str], Found | None]
"""Looks an extension up by name; `None` where nobody knows it, so that options are not compared."""


def looking(registry: _Registry, *policies: Policy) -> Look:
    """Return how to look extensions up, of all packages that any of the policies lists."""
    narrow = getattr(registry, "allowing", None)
    packages = tuple(dict.fromkeys(name for policy in policies for name in policy.packages))
    allowed = narrow(packages) if callable(narrow) else registry

    def look(name: str) -> Found | None:
        found = allowed.get(name)
        return None if found is None else Found(found.cls.options, tuple(found.hooks))

    return look


class Difference(msgspec.Struct, frozen=True):
    """One difference. `before` and `after` are as they were written: a variable is `{"$env": NAME}`.

    `old` and `new` are where the two values come from; `None` where a policy says nothing about it. `keys` is the path
    in pieces. `rule` is the rule that does something else for it; empty for what is no rule's own.
    """

    path: str
    verdict: Verdict
    before: Any = ABSENT
    after: Any = ABSENT
    old: Position | None = None
    new: Position | None = None
    keys: KeyPath = ()
    rule: str = ""


class _Raw(msgspec.Struct, frozen=True):
    path: KeyPath
    verdict: Verdict
    before: Any
    after: Any
    old: Position | None = None
    new: Position | None = None
    rule: str = ""


def compare(
    before: Policy, after: Policy, look: Look, today: date, *, as_if_enforced: bool = False
) -> list[Difference]:
    """Return every difference, rules first, in the order of the newer policy.

    What a rule without effect (`shadow`, `disabled`) would do is neither tighter nor looser, unless `as_if_enforced`.
    """
    found = [*_rules(before, after, look, today, as_if_enforced), *_tools(before, after), *_settings(before, after)]
    return [_placed(raw, before, after) for raw in found]


def _placed(raw: _Raw, before: Policy, after: Policy) -> Difference:
    old_value, old = _written(before, raw.path, raw.before)
    new_value, new = _written(after, raw.path, raw.after)
    return Difference(
        dotted(raw.path), raw.verdict, old_value, new_value, raw.old or old, raw.new or new, raw.path, raw.rule
    )


def _written(policy: Policy, path: KeyPath, value: Any) -> tuple[Any, Position | None]:
    """Return a value as it was written and where, or where the nearest setting around it stands."""
    layers = policy.provenance.get(dotted(path), ())
    said = layers[-1].value if layers else ABSENT
    if _variable_in(said):
        return said, layers[-1].position
    lengths = (len(path), *range(len(path) - 1, 1, -1))
    around = next(filter(None, (policy.provenance.get(dotted(path[:length])) for length in lengths)), ())
    hidden = value is not ABSENT and bool(value) and any(map(_variable_in, _sources(policy, path, around)))
    return ("(not shown)" if hidden else value), around[-1].position if around else None


def _sources(policy: Policy, path: KeyPath, around: tuple[Layer, ...]) -> Iterator[Any]:
    """Yield as they were written the values that one may come from which has no variable in its topmost layer.

    Mappings merge, so that a part may be from a lower layer; a tool may have the facts of another pattern.
    """
    name = dotted(path)
    if path[0] == "tools" and name not in policy.provenance:
        end = name.removeprefix(dotted(path[:2]))
        for other, layers in policy.provenance.items():
            if other.startswith("tools.") and other.endswith(end):
                yield layers[-1].value
    elif len(path) > 2 and around and isinstance(around[-1].value, Mapping):
        yield from (layer.value for layer in around)
    elif not around and path[0] != "extensions":
        yield from (
            layer.value for layer in policy.provenance.get(str(path[0]), ()) if isinstance(layer.value, Mapping)
        )


def _variable_in(value: Any) -> bool:
    """Return whether a value was written with a variable anywhere in it; what the variable holds is not shown."""
    if isinstance(value, Mapping):
        return "$env" in value or any(map(_variable_in, value.values()))
    return isinstance(value, list | tuple) and any(map(_variable_in, value))


# ---- rules


def _rules(before: Policy, after: Policy, look: Look, today: date, as_if_enforced: bool) -> Iterator[_Raw]:
    old, new = ({rule.id: rule for rule in policy.rules} for policy in (before, after))
    for rule_id in dict.fromkeys([*new, *old]):
        path: KeyPath = ("extensions", rule_id)
        was, now = old.get(rule_id), new.get(rule_id)
        if was is None and now is not None:
            yield _Raw(path, "tighter" if _works(now) else "other", ABSENT, now.use, None, now.position, rule_id)
        elif was is not None and now is None:
            yield _Raw(path, "looser" if _works(was) else "other", was.use, ABSENT, was.position, None, rule_id)
        elif was is not None and now is not None and was != now:
            for raw in _rule(was, now, look, today, as_if_enforced):
                yield msgspec.structs.replace(raw, rule=rule_id)


def _works(rule: Rule) -> bool:
    """Return whether a rule can have an effect at all."""
    return rule.mode in ("enforce", "warn") and (rule.rollout is None or rule.rollout.percent > 0)


def _rule(was: Rule, now: Rule, look: Look, today: date, as_if_enforced: bool) -> Iterator[_Raw]:
    path: KeyPath = ("extensions", was.id)
    mode = _ranked(was.mode, now.mode, MODES)
    if mode:
        yield _Raw((*path, "mode"), mode, was.mode, now.mode)
    if was.locked != now.locked:
        yield _Raw((*path, "locked"), "looser" if was.locked else "tighter", was.locked, now.locked)
    inert = not as_if_enforced and {was.mode, now.mode} & {"shadow", "disabled"}
    for raw in _parts(was, now, look, today):
        yield msgspec.structs.replace(raw, verdict="other") if inert else raw


def _parts(was: Rule, now: Rule, look: Look, today: date) -> Iterator[_Raw]:
    path: KeyPath = ("extensions", was.id)
    if was.use != now.use:
        yield _Raw((*path, "use"), "other", was.use, now.use)
        return
    found = look(was.use)
    if found is not None:
        yield from _at(was, now, found.hooks)
        yield from _options(found.options, was.options, now.options, (*path, "with"))
    for selector in ("tool", "agent"):
        one, other = getattr(was.when, selector), getattr(now.when, selector)
        verdict = _selected(one, other)
        if verdict:
            yield _Raw((*path, "when", selector), verdict, list(one), list(other))
    on_error = _ranked(was.on_error, now.on_error, _ON_ERROR)
    if on_error:
        yield _Raw((*path, "on_error"), on_error, was.on_error, now.on_error)
    if was.timeout_s != now.timeout_s:
        yield _Raw((*path, "timeout"), _limit(was, now), f"{was.timeout_s:g}s", f"{now.timeout_s:g}s")
    for part in ("after", "before"):
        one, other = getattr(was, part), getattr(now, part)
        if set(one) != set(other):
            yield _Raw((*path, "order", part), "other", list(one), list(other))
    rolled = _rollout(was.rollout, now.rollout)
    if rolled:
        yield _Raw((*path, "rollout"), rolled, _shown_rollout(was.rollout), _shown_rollout(now.rollout))
    yield from _exceptions(was, now, today.isoformat())


def _limit(was: Rule, now: Rule) -> Verdict:
    """Return the verdict on another time limit. A rule that is given up may block, but loses what it counted there."""
    shorter = now.timeout_s < was.timeout_s
    blocks = {rule.on_error != "allow" for rule in (was, now)}
    if blocks == {False}:
        return "looser" if shorter else "tighter"
    return "looser" if blocks == {True} and not shorter else "other"


def _at(was: Rule, now: Rule, hooks: tuple[str, ...]) -> Iterator[_Raw]:
    one, other = set(was.at or hooks), set(now.at or hooks)
    verdict = _sets(one, other)
    if verdict:
        yield _Raw(("extensions", was.id, "at"), verdict, sorted(one), sorted(other))


def _sets(one: set[Any], other: set[Any], *, more: Verdict = "tighter", less: Verdict = "looser") -> Verdict | None:
    if one == other:
        return None
    return more if one < other else less if other < one else "other"


def _ranked(one: str, other: str, strictest_first: tuple[str, ...]) -> Verdict | None:
    if one == other:
        return None
    return "tighter" if strictest_first.index(other) < strictest_first.index(one) else "looser"


def _rollout(one: Rollout | None, other: Rollout | None) -> Verdict | None:
    was, now = one.percent if one else 100.0, other.percent if other else 100.0
    if one == other or (was == now and was in (0, 100)):
        return None
    same_draw = one is not None and other is not None and (one.by, one.salt) == (other.by, other.salt)
    if same_draw or {was, now} & {0, 100}:
        return "tighter" if now > was else "looser"
    return "other"


def _shown_rollout(rollout: Rollout | None) -> Any:
    return ABSENT if rollout is None else f"{rollout.percent:g}% by {rollout.by}, salt {rollout.salt}"


# ---- what is selected


def _selected(one: tuple[str, ...], other: tuple[str, ...]) -> Verdict | None:
    """Return what it means that a selector changed, where selecting more is tighter."""
    if set(one) == set(other):
        return None
    if _within(one, other):
        return "tighter"
    return "looser" if _within(other, one) else "other"


def _within(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether whatever the patterns `one` select is surely selected by `other`."""
    positive, others = ({pattern for pattern in patterns if pattern[:1] != "!"} for patterns in (one, other))
    negative = {pattern for pattern in other if pattern[:1] == "!"}
    return (not others or (bool(positive) and positive <= others)) and negative <= set(one)


def _covered(exception: Exemption, others: list[Exemption]) -> bool:
    """Return whether everything that one exception excepts is excepted by a single other one."""
    return any(
        exception.expires <= other.expires
        and _within(exception.when.tool, other.when.tool)
        and _within(exception.when.agent, other.when.agent)
        for other in others
    )


def _exceptions(was: Rule, now: Rule, today: str) -> Iterator[_Raw]:
    old, new = ([entry for entry in rule.exceptions if entry.expires >= today] for rule in (was, now))
    for entry in new:
        if not _covered(entry, old):
            yield _Raw(("exceptions",), "looser", ABSENT, _shown_exception(now.id, entry), None, entry.position)
    for entry in old:
        if not _covered(entry, new):
            yield _Raw(("exceptions",), "tighter", _shown_exception(was.id, entry), ABSENT, entry.position)


def _shown_exception(rule: str, entry: Exemption) -> str:
    when = _shown_when(entry.when)
    return f"{rule}{when}, until {entry.expires}"


def _shown_when(when: When) -> str:
    parts = [
        f"{name} {' '.join(patterns)}" for name, patterns in (("tool", when.tool), ("agent", when.agent)) if patterns
    ]
    return f" for {' and '.join(parts)}" if parts else ""


# ---- options


def _options(schema: Schema, was: Mapping[str, Any], now: Mapping[str, Any], path: KeyPath) -> Iterator[_Raw]:
    for name in dict.fromkeys([*was, *now]):
        rule = schema.get(name, {})
        if "valuesrules" in rule:
            yield from _open(rule["valuesrules"], was, now, (*path, name))
        else:
            yield from _option(rule, was.get(name, ABSENT), now.get(name, ABSENT), (*path, name))


def _option(rule: Mapping[str, Any], was: Any, now: Any, path: KeyPath) -> Iterator[_Raw]:
    if was == now and type(was) is type(now):
        return
    if "schema" in rule and all(value is ABSENT or isinstance(value, Mapping) for value in (was, now)):
        yield from _options(rule["schema"], {} if was is ABSENT else was, {} if now is ABSENT else now, path)
        return
    yield _Raw(path, _directed((rule.get("meta") or {}).get("stricter"), was, now), was, now)


def _directed(stricter: str | None, was: Any, now: Any) -> Verdict:
    """Return the verdict on a changed option whose schema says which direction is stricter."""
    if stricter in ("lower", "higher"):
        if was is ABSENT or now is ABSENT:  # a limit that is not there limits nothing
            return "tighter" if was is ABSENT else "looser"
        if isinstance(was, Number) and isinstance(now, Number):
            smaller: bool = now < was  # type: ignore[operator]
            return "tighter" if smaller == (stricter == "lower") else "looser"
    if stricter in ("subset", "superset") and isinstance(was, list | tuple) and isinstance(now, list | tuple):
        one, other = ({json.dumps(item, sort_keys=True) for item in items} for items in (was, now))
        grown: Verdict = "tighter" if stricter == "superset" else "looser"
        return _sets(one, other, more=grown, less="looser" if grown == "tighter" else "tighter") or "other"
    return "other"


def _open(rule: Mapping[str, Any], was: Mapping[str, Any], now: Mapping[str, Any], path: KeyPath) -> Iterator[_Raw]:
    """Compare a mapping with free keys. Its entries often stand in place of the options beside it (`tools:`)."""
    old, new = was.get(str(path[-1])) or {}, now.get(str(path[-1])) or {}
    for key in dict.fromkeys([*old, *new]):
        one, other, here = old.get(key, ABSENT), new.get(key, ABSENT), (*path, key)
        if one is not ABSENT and other is not ABSENT:
            yield from _option(rule, one, other, here)
            continue
        verdict: Verdict = "other"
        schema = rule.get("schema")
        if isinstance(schema, Mapping) and "type" not in schema:
            entry = other if one is ABSENT else one
            general = {name: value for name, value in (was if one is ABSENT else now).items() if name in entry}
            lower, upper = (general, entry) if one is ABSENT else (entry, general)
            if any(raw.verdict == "looser" for raw in _options(dict(schema), lower, upper, here)):
                verdict = "looser"
        elif other is ABSENT and (rule.get("meta") or {}).get("stricter") in ("lower", "higher"):
            verdict = "looser"
        yield _Raw(here, verdict, one, other)


# ---- tools and other settings


def _tools(before: Policy, after: Policy) -> Iterator[_Raw]:
    old, new = [name for name, _ in before.tools], [name for name, _ in after.tools]
    found: dict[tuple[KeyPath, Verdict], _Raw] = {}
    for name in dict.fromkeys([*new, *old]):
        pairs = [(_facts(before, name), _facts(after, name))]
        if name not in old:
            pairs += [(facts, after.tool(name)) for facts in _hidden(name, after.tools, before)]
        elif name not in new:
            pairs += [(before.tool(name), facts) for facts in _hidden(name, before.tools, after)]
        for was, now in pairs:
            for raw in _tool(was, now, ("tools", name)) if was != now else ():
                found.setdefault((raw.path, raw.verdict), raw)
    yield from found.values()
    if [name for name in old if name in new] != [name for name in new if name in old]:
        yield _Raw(("tools",), "other", "in one order", "in another order")


def _facts(policy: Policy, name: str) -> ToolFacts:
    """Return the facts about a tool, or about every tool of a pattern that no other pattern takes to itself."""
    if name in dict(policy.tools) or not is_pattern(name):
        return policy.tool(name)
    return next((facts for other, facts in policy.tools if covers(other, name)), UNDECLARED)


def _hidden(pattern: str, tools: Sequence[tuple[str, ToolFacts]], other: Policy) -> Iterator[ToolFacts]:
    """Yield the facts that `other` has for tools which `pattern` takes to itself, because it comes first in `tools`."""
    names = [name for name, _ in tools]
    for name, facts in other.tools if is_pattern(pattern) else ():
        later = name not in names or names.index(name) > names.index(pattern)
        if later and is_pattern(name) and overlap(pattern, name):
            yield facts


def _tool(was: ToolFacts, now: ToolFacts, path: KeyPath) -> Iterator[_Raw]:
    if was.effect != now.effect:
        lenient = [effect in _LENIENT_EFFECTS for effect in (was.effect, now.effect)]
        verdict: Verdict = "other" if lenient[0] == lenient[1] else "looser" if lenient[1] else "tighter"
        yield _Raw((*path, "effect"), verdict, was.effect, now.effect)
    if was.timeout_s != now.timeout_s:
        limits = [float("inf") if facts.timeout_s is None else facts.timeout_s for facts in (was, now)]
        shown = [ABSENT if facts.timeout_s is None else f"{facts.timeout_s:g}s" for facts in (was, now)]
        yield _Raw((*path, "timeout"), "tighter" if limits[1] < limits[0] else "looser", shown[0], shown[1])
    if was.result_mask != now.result_mask:
        # Masks are applied one after the other, so that a further one may keep another from matching.
        masks = _sets(set(was.result_mask), set(now.result_mask), more="other") or "other"
        yield _Raw((*path, "result_mask"), masks, list(was.result_mask), list(now.result_mask))
    one, other = was.failure.text_prefix, now.failure.text_prefix
    failing = _sets(set(one), set(other))
    if failing:
        yield _Raw((*path, "failure", "text_prefix"), failing, list(one), list(other))


def _settings(before: Policy, after: Policy) -> Iterator[_Raw]:
    if before.kill_switch != after.kill_switch:
        verdict: Verdict = "looser" if after.kill_switch else "tighter"
        yield _Raw(("kill_switch",), verdict, before.kill_switch, after.kill_switch)
    for path, one, other in (
        (("interventions", "max"), before.interventions.max, after.interventions.max),
        (("wind_down", "rounds"), before.wind_down_rounds, after.wind_down_rounds),
    ):
        if one != other:
            yield _Raw(path, "tighter" if other < one else "looser", one, other)
    if before.interventions.then != after.interventions.then:
        yield _Raw(("interventions", "then"), "other", before.interventions.then, after.interventions.then)
    for name in before.__struct_fields__:
        if name not in _BESIDE and getattr(before, name) != getattr(after, name):
            values = [getattr(policy, name) for policy in (before, after)]
            texts = [value if isinstance(value, str) else ABSENT for value in values]
            yield _Raw((_SPELLED.get(name, name),), "other", texts[0], texts[1])


_SPELLED = {"packages": "requires"}
