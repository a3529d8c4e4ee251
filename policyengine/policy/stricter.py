"""Compare what two policies do to a run, and say of each difference whether it is tighter, looser or neither.

Knows: which direction of a setting is stricter. Must not know: files, layers, how a difference is shown or refused.

Policies are compared as they are in force: defaults, environment variables and `defaults:` included. Where it cannot
be told which of two values is stricter the difference is `other`; nothing is called tighter that might not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any, Protocol

import msgspec

from policyengine.errors import ExtensionError
from policyengine.extension import Extension
from policyengine.messages import UNDECLARED, ToolFacts
from policyengine.plugins.blocks import BLOCKED
from policyengine.policy.directions import ABSENT as ABSENT
from policyengine.policy.directions import Verdict as Verdict
from policyengine.policy.directions import changes, sets, worst
from policyengine.policy.model import Exemption, Layer, Policy, Rollout, Rule, When
from policyengine.policy.problems import Position
from policyengine.policy.schema import MODES, Schema
from policyengine.policy.winners import pairs
from policyengine.policy.wording import KeyPath, dotted

_ON_ERROR = ("stop", "deny", "allow")
_LENIENT_EFFECTS = ("write", "poll")
_BESIDE = frozenset(
    {
        "name", "revision", "digest", "rules", "tools", "files", "provenance", "warnings", "interventions",
        "wind_down_rounds", "kill_switch", "blocks",
    }
)  # fmt: skip


class Found(msgspec.Struct, frozen=True):
    """What is known about an extension: the schema of its options, its hook points, whether it rewrites calls.

    `scope` is how long its state lives; empty where its options choose that.
    """

    options: Schema
    hooks: tuple[str, ...]
    rewrites_calls: bool = False
    scope: str = ""


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
        try:
            found = allowed.get(name)
        except ExtensionError as error:
            if error.code != BLOCKED:
                raise
            found = None
        if found is None:
            return None
        fixed = found.cls.state_scope is Extension.state_scope
        scope = found.cls.scope if fixed else ""
        return Found(found.cls.options, tuple(found.hooks), found.cls.rewrites_calls, scope)

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
        elif was is not None and now is not None:  # equal rules may still have patterns in another order
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
        for change in changes(found.options, was.options, now.options, (*path, "with")):
            yield _Raw(*change)
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
    rolled = _rollout(was, now, found)
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
    verdict = sets(one, other, more="other")
    if verdict:
        yield _Raw(("extensions", was.id, "at"), verdict, sorted(one), sorted(other))


def _ranked(one: str, other: str, strictest_first: tuple[str, ...]) -> Verdict | None:
    if one == other:
        return None
    return "tighter" if strictest_first.index(other) < strictest_first.index(one) else "looser"


def _rollout(rule: Rule, changed: Rule, found: Found | None) -> Verdict | None:
    one, other = rule.rollout, changed.rollout
    was, now = one.percent if one else 100.0, other.percent if other else 100.0
    if one == other or (was == now and was in (0, 100)):
        return None
    same_draw = one is not None and other is not None and (one.by, one.salt) == (other.by, other.salt)
    if not (same_draw or {was, now} & {0, 100}):
        return "other"
    if now < was:
        return "looser"
    # Where runs share what is counted, another run that takes part may end what is counted in a row.
    together = was == 0 or (one is not None and one.by == "conversation")
    return "tighter" if together or not _shares(rule, found) else "other"


def _shares(rule: Rule, found: Found | None) -> bool:
    """Return whether several runs may share the state of a rule, for all that is known."""
    scope = (found.scope or rule.options.get("scope")) if found is not None else None
    return scope not in ("run", "step", "iteration")


def _shown_rollout(rollout: Rollout | None) -> Any:
    return ABSENT if rollout is None else f"{rollout.percent:g}% by {rollout.by}, salt {rollout.salt}"


# ---- what is selected


def _selected(one: tuple[str, ...], other: tuple[str, ...]) -> Verdict | None:
    """Return what it means that a selector changed. More events are not surely tighter: what is counted in a row
    begins anew with an event of another kind."""
    if set(one) == set(other):
        return None
    return "looser" if _within(other, one) and not _within(one, other) else "other"


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


# ---- tools and other settings


def _tools(before: Policy, after: Policy) -> Iterator[_Raw]:
    old, new = dict(before.tools), dict(after.tools)
    found: dict[tuple[KeyPath, Verdict], _Raw] = {}
    moved: list[Verdict] = []
    for one, other in pairs(tuple(old), tuple(new)):
        was = UNDECLARED if one is None else old[one]
        now = UNDECLARED if other is None else new[other]
        name = other if other is not None and other not in old else one if one == other or one not in new else None
        for raw in _tool(was, now, ("tools", name or "")) if was != now else ():
            if name is None:
                moved.append(raw.verdict)
            else:
                found.setdefault((raw.path, raw.verdict), raw)
    yield from found.values()
    verdict = worst(moved)
    if verdict:
        yield _Raw(("tools",), verdict, "in one order", "in another order")


def _tool(was: ToolFacts, now: ToolFacts, path: KeyPath) -> Iterator[_Raw]:
    if was.effect != now.effect:
        # A rule may count polls apart, so that another effect of a polling tool is not surely tighter.
        lenient = [effect in _LENIENT_EFFECTS for effect in (was.effect, now.effect)]
        kept = lenient[0] == lenient[1] or was.effect == "poll"
        verdict: Verdict = "other" if kept else "looser" if lenient[1] else "tighter"
        yield _Raw((*path, "effect"), verdict, was.effect, now.effect)
    if was.timeout_s != now.timeout_s:
        limits = [float("inf") if facts.timeout_s is None else facts.timeout_s for facts in (was, now)]
        shown = [ABSENT if facts.timeout_s is None else f"{facts.timeout_s:g}s" for facts in (was, now)]
        yield _Raw((*path, "timeout"), "tighter" if limits[1] < limits[0] else "looser", shown[0], shown[1])
    if was.result_mask != now.result_mask:
        # Masks are applied one after the other, so that a further one may keep another from matching.
        masks = sets(set(was.result_mask), set(now.result_mask), more="other") or "other"
        yield _Raw((*path, "result_mask"), masks, list(was.result_mask), list(now.result_mask))
    one, other = was.failure.text_prefix, now.failure.text_prefix
    # Of two results that differ by masked text alone, a further prefix may make one a failure.
    failing = sets(set(one), set(other), more="other")
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
    was, now = ({block.pattern for block in policy.blocks} for policy in (before, after))
    blocked = sets(was, now)
    if blocked:
        yield _Raw(("requires", "block"), blocked, sorted(was), sorted(now))
    for name in before.__struct_fields__:
        if name not in _BESIDE and getattr(before, name) != getattr(after, name):
            values = [getattr(policy, name) for policy in (before, after)]
            texts = [value if isinstance(value, str) else ABSENT for value in values]
            yield _Raw((_SPELLED.get(name, name),), "other", texts[0], texts[1])


_SPELLED = {"packages": "requires"}
