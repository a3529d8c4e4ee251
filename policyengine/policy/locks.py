"""Refuse layers that loosen a rule which a lower layer locked.

Knows: which differences touch a locked rule. Must not know: which direction is stricter (see `stricter`), files.

The policies that the layers below and up to a layer make are compared as they would be in force, so that there is one
check for every way in which a layer can loosen a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date

from policyengine.errors import ConfigError
from policyengine.policy.explain import shown_value
from policyengine.policy.files import LayerFile
from policyengine.policy.layers import Merged
from policyengine.policy.model import Policy, Rule
from policyengine.policy.nodes import Node, Sources
from policyengine.policy.problems import Position, Problem
from policyengine.policy.stricter import ABSENT, Difference, Look, compare
from policyengine.policy.wording import dotted

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
    # A run under way may keep an earlier day, on which an exception that has expired since still counts.
    for difference in compare(before, after, look, date.min, as_if_enforced=True) if locked else ():
        if difference.verdict == "tighter":
            continue
        rule = next((rule for rule in locked if _touches(difference, rule)), None)
        if rule is not None:
            yield _problem(difference, rule, before, layer, sources)


def _touches(difference: Difference, rule: Rule) -> bool:
    """Return whether a difference changes what a rule does."""
    if difference.rule:
        return difference.rule == rule.id
    # What a rule counts per step starts afresh with each step of a plan. The time limit of a tool is the loop's; all
    # other facts are for rules.
    return difference.keys[0] in ("kill_switch", "plan") or (
        difference.keys[0] == "tools" and difference.keys[-1] != "timeout"
    )


def _problem(difference: Difference, rule: Rule, before: Policy, layer: LayerFile, sources: Sources) -> Problem:
    lock = before.provenance[dotted(("extensions", rule.id, LOCKED))][-1].position
    position = difference.new if difference.new and difference.new.file == layer.file else Position(layer.file)
    words = {"looser": "is looser", "other": "is not surely stricter"}[difference.verdict]
    change = "" if ABSENT in (difference.before, difference.after) else _change(difference)
    message = f"the rule {rule.id} is locked at {lock}, and this {words}{change}"
    advice = "layers above a lock can only tighten its rule"
    return sources.problem("M314", message, position, path=difference.keys, help=advice)


def _change(difference: Difference) -> str:
    return f": {shown_value(difference.before)} -> {shown_value(difference.after)}"
