"""What differs between two generations of a policy, and whose state goes on.

Knows: snapshots. Must not know: files, runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from policyengine.extension import Extension
from policyengine.policy.model import Policy, Rule
from policyengine.policy.problems import Position
from policyengine.snapshot import PolicySnapshot

_NOWHERE = Position("")
_BESIDE_SETTINGS = frozenset({"rules", "digest", "files", "provenance", "warnings"})


class Changes(msgspec.Struct, frozen=True):
    """How a generation differs from the one before.

    `added`, `removed` and `changed` are ids of rules; `settings` are names of other settings. Of the rules that both
    generations run and that have state, `kept` go on with it in runs under way and `reset` start afresh.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    reordered: bool = False
    settings: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()

    def __str__(self) -> str:
        listed = (
            ("added", self.added),
            ("removed", self.removed),
            ("changed", self.changed),
            ("settings", self.settings),
        )
        parts = [f"{label} {', '.join(names)}" for label, names in listed if names]
        if self.reordered:
            parts.append("rules in another order")
        parts = parts or ["no rule or setting differs (comments or texts)"]
        state = (("state goes on", self.kept), ("state starts afresh", self.reset))
        return "; ".join([*parts, *(f"{label}: {', '.join(names)}" for label, names in state if names)])


def compare(before: PolicySnapshot, after: PolicySnapshot) -> Changes:
    """Return what differs. A rule that only moved within its file is the same; one whose code was edited is not."""
    common = [rule_id for rule_id in after.rules if rule_id in before.rules]
    running = [rule_id for rule_id in common if _has_state(before, rule_id) and _has_state(after, rule_id)]
    kept = [rule_id for rule_id in running if _goes_on(before, after, rule_id)]
    return Changes(
        added=_without(after.rules, before.rules),
        removed=_without(before.rules, after.rules),
        changed=tuple(rule_id for rule_id in common if _differs(before, after, rule_id)),
        reordered=common != [rule_id for rule_id in before.rules if rule_id in after.rules],
        settings=_settings(before.policy, after.policy),
        kept=tuple(kept),
        reset=_without(running, kept),
    )


def _without(ids: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    gone = set(others)
    return tuple(rule_id for rule_id in ids if rule_id not in gone)


def _differs(before: PolicySnapshot, after: PolicySnapshot, rule_id: str) -> bool:
    if _unplaced(before.rules[rule_id]) != _unplaced(after.rules[rule_id]):
        return True
    return type(before.extensions.get(rule_id)) is not type(after.extensions.get(rule_id))


def _unplaced(rule: Rule) -> Rule:
    exceptions = tuple(msgspec.structs.replace(entry, position=_NOWHERE) for entry in rule.exceptions)
    return msgspec.structs.replace(rule, position=_NOWHERE, exceptions=exceptions)


def _settings(before: Policy, after: Policy) -> tuple[str, ...]:
    def value(policy: Policy, name: str) -> object:
        found = getattr(policy, name)
        return msgspec.structs.replace(found, position=_NOWHERE) if name == "interventions" else found

    names = [name for name in before.__struct_fields__ if name not in _BESIDE_SETTINGS]
    return tuple(name for name in names if value(before, name) != value(after, name))


def _has_state(snapshot: PolicySnapshot, rule_id: str) -> bool:
    extension = snapshot.extensions.get(rule_id)
    return extension is not None and extension.state is not None


def _goes_on(before: PolicySnapshot, after: PolicySnapshot, rule_id: str) -> bool:
    """Whether a run would carry the rule's state over (see `Run`): same extension, version and owner, and it fits."""
    if before.rules[rule_id].use != after.rules[rule_id].use:
        return False
    old, new = before.extensions[rule_id], after.extensions[rule_id]
    if old.state_version != new.state_version or _of_conversation(old) != _of_conversation(new):
        return False
    assert old.state is not None
    assert new.state is not None
    return old.state is new.state or _fits(old.state, new.state)


def _of_conversation(extension: Extension) -> bool:
    return extension.state_scope() == "conversation"


def _fits(old: type[msgspec.Struct], new: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(msgspec.json.decode(msgspec.json.encode(old())), new)
    except (msgspec.ValidationError, TypeError):
        return False
    return True
