"""Refuse layers that loosen a rule which a lower layer locked.

Knows: which differences touch a locked rule. Must not know: which direction is stricter (see `stricter`), files.

The policies that the layers below and up to a layer make are compared as they would be in force, so that there is one
check for every way in which a layer can loosen a rule. docs/decisions/0020 says what a lock holds against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import takewhile

from policyengine.errors import ConfigError
from policyengine.policy.explain import shown_value
from policyengine.policy.files import LayerFile
from policyengine.policy.layers import Merged
from policyengine.policy.model import Policy, Rule
from policyengine.policy.nodes import Node, Sources
from policyengine.policy.problems import Position, Problem
from policyengine.policy.rules import TOOL_HOOKS
from policyengine.policy.stricter import ABSENT, Difference, Look, compare
from policyengine.policy.wording import KeyPath, dotted

LOCKED = "locked"

Build = Callable[[Merged], Policy]
"""Makes the policy of some layers; raises ConfigError where they are not complete."""


def has_locks(layers: Sequence[LayerFile]) -> bool:
    """Return whether any layer but the topmost one locks a rule; without that there is nothing to check."""
    return any(_locks(layer.settings) for layer in layers[:-1])


def broken_locks(
    layers: Sequence[LayerFile], sources: Sources, build: Build, look: Callable[[Policy], Look]
) -> list[Problem]:
    """Return a problem for every difference that a layer makes to a locked rule and that is not stricter."""
    problems: list[Problem] = []
    before: Policy | None = None
    for count in range(1, len(layers) + 1):
        merged = Merged(layers[:count], sources)
        locked = _locks(merged.root)
        if before is None and (not locked or count == len(layers)):
            continue
        try:
            after = build(merged)
        except ConfigError as error:
            if count == len(layers):
                raise
            problems.append(_incomplete(layers[count - 1], locked, error, sources))
            return problems
        if before is not None:
            problems += _loosened(before, after, layers[count - 1], sources, look(after))
        before = after
    return problems


def _locks(settings: Node) -> dict[str, Node]:
    """Return the `locked: true` of every locked rule."""
    rules = settings.fields.get("extensions")
    found = {name: rule.fields.get(LOCKED) for name, rule in (rules.fields if rules else {}).items()}
    return {name: node for name, node in found.items() if node is not None and node.data is True}


def _incomplete(layer: LayerFile, locked: dict[str, Node], error: ConfigError, sources: Sources) -> Problem:
    name, node = next(iter(locked.items()))
    first = error.problems[0]
    message = f"a locked rule needs layers that are a policy of their own, and those up to {layer.file} are not"
    note = f"{first.position}: {first.message}"
    return sources.at_value("M315", message, node, ("extensions", name, LOCKED), note=note)


def _loosened(before: Policy, after: Policy, layer: LayerFile, sources: Sources, look: Look) -> Iterator[Problem]:
    locked = [rule for rule in before.rules if rule.locked]
    if not locked:
        return
    changed = {rule.id: hooks for policy in (before, after) for rule in policy.rules if (hooks := _changed(rule, look))}
    # A run under way may keep an earlier day, on which an exception that has expired since still counts.
    for difference in compare(before, after, look, date.min, as_if_enforced=True):
        place = _in_layer(layer, difference.new) or _said(layer, difference.keys)
        hooks = changed.get(difference.rule, frozenset())
        misled = [rule for rule in locked if rule.id != difference.rule and hooks & _asked_at(rule, look)]
        touched = [rule for rule in locked if difference.verdict != "tighter" and _touches(difference, rule)]
        if misled:
            change = f"may change what it is shown, since {difference.rule} may rewrite that"
            yield _problem(misled[0], change, place, difference.keys, before, sources)
        elif touched:
            yield _problem(touched[0], _words(difference), place, difference.keys, before, sources)
    for rule in locked:
        yield from _overtaken(rule, before, after, layer, sources)


def _changed(rule: Rule, look: Look) -> frozenset[str]:
    """Return where other rules are shown what this one may have rewritten; a rewrite counts in `enforce` only."""
    found = look(rule.use)
    if found is None or rule.mode != "enforce":
        return frozenset()
    calls = TOOL_HOOKS if found.rewrites_calls else frozenset[str]()
    return calls | {_WARNED} if _WARNING in _asked_at(rule, look) else calls


_WARNING, _WARNED = "hist_add_warning.start", "hist_add_warning.end"


def _asked_at(rule: Rule, look: Look) -> frozenset[str]:
    found = look(rule.use)
    return frozenset(rule.at or (found.hooks if found else ()))


def _touches(difference: Difference, rule: Rule) -> bool:
    """Return whether a difference changes what a rule answers, or what becomes of its answers."""
    if difference.rule:
        return difference.rule == rule.id
    # What a rule counts per step starts afresh with each step of a plan. A rule may use every fact about a tool.
    return difference.keys[0] in ("kill_switch", "plan", "tools") or difference.path in _AFTER


_AFTER = ("interventions.max", "wind_down.rounds")
"""For how long a run goes on although rules refuse."""


def _overtaken(rule: Rule, before: Policy, after: Policy, layer: LayerFile, sources: Sources) -> Iterator[Problem]:
    """Report a rule that is now asked before a locked one: where both rewrite, the first of them counts."""
    now = next((other for other in after.rules if other.id == rule.id), None)
    if now is None or (now.after, now.before) != (rule.after, rule.before):
        return  # the difference of the rule itself is reported
    known = {other.id for other in _ahead(before, rule)}
    fresh = [other for other in _ahead(after, rule) if other.id not in known]
    if fresh:
        said = [other for other in fresh if layer.settings.get("extensions", other.id)]
        other = said[0] if said else fresh[0]
        change = f"puts {other.id} before it, whose rewrites would win"
        place = _said(layer, ("extensions", other.id, "order"))
        yield _problem(rule, change, place, ("extensions", other.id, "order"), before, sources)


def _ahead(policy: Policy, rule: Rule) -> Iterator[Rule]:
    """Yield the rules that are asked before a rule."""
    return takewhile(lambda other: other.id != rule.id, policy.rules)


def _in_layer(layer: LayerFile, position: Position | None) -> Position | None:
    return position if position is not None and position.file == layer.file else None


def _said(layer: LayerFile, path: KeyPath) -> Position:
    """Return where a layer speaks of a setting: at its path, under `defaults`, or at the nearest setting around it."""
    for keys in (path, ("defaults", path[-1]), path[:1], ("defaults",)):
        node, found = layer.settings.find(keys)
        deep = keys[0] == "extensions" and layer.settings.get(*keys[:2]) is not None
        if found or deep:
            return node.where
    return Position(layer.file)


def _problem(rule: Rule, change: str, position: Position, path: KeyPath, before: Policy, sources: Sources) -> Problem:
    lock = before.provenance[dotted(("extensions", rule.id, LOCKED))][-1].position
    message = f"the rule {rule.id} is locked at {lock}, and this {change}"
    advice = "layers above a lock can only tighten its rule"
    return sources.problem("M314", message, position, path=path, help=advice)


def _words(difference: Difference) -> str:
    words = "is looser" if difference.verdict == "looser" else "is not surely stricter"
    return words if ABSENT in (difference.before, difference.after) else words + _change(difference)


def _change(difference: Difference) -> str:
    return f": {shown_value(difference.before)} -> {shown_value(difference.after)}"
