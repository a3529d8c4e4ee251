"""Read `exceptions:`: which rule has no effect for which events, and until when.

Knows: how an exception is written, which can never apply. Must not know: files, layers, how an answer is capped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import msgspec

from policyengine.policy.days import day
from policyengine.policy.model import Exemption, Rule, When
from policyengine.policy.nodes import Node, Sources
from policyengine.policy.problems import Problem
from policyengine.policy.rules import TOOL_HOOKS, texts
from policyengine.policy.wording import KeyPath, suggestion


class Exceptions(msgspec.Struct, frozen=True):
    """The exceptions of each rule in written order, and every problem found on the way."""

    of: dict[str, tuple[Exemption, ...]] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []


def read_exceptions(
    node: Node,
    ids: Sequence[str],
    rules: Sequence[Rule],
    hooks: Mapping[str, tuple[str, ...]],
    today: date,
    sources: Sources,
) -> Exceptions:
    """Return the exceptions of every rule. `ids` are the rules of the policy, `rules` those that could be read."""
    found = Exceptions({}, [], [])
    known, written = {rule.id for rule in rules}, frozenset(ids)
    for index, entry in enumerate(node.items):
        path: KeyPath = ("exceptions", index)
        name = entry.fields["rule"]
        if name.data not in written:
            message = f"there is no rule {name.data!r}"
            advice = suggestion(name.data, ids, "rules")
            found.problems.append(sources.at_value("R503", message, name, (*path, "rule"), help=advice))
        elif name.data in known:
            exemption = _exemption(entry)
            found.of[name.data] = (*found.of.get(name.data, ()), exemption)
            found.warnings.extend(_warnings(entry, exemption, hooks[name.data], today, path, sources))
    return found


def _exemption(entry: Node) -> Exemption:
    data = entry.data
    when = When(tool=texts(entry.get("when", "tool")), agent=texts(entry.get("when", "agent")))
    return Exemption(data["expires"], data["owner"], data["reason"], entry.fields["rule"].at, when)


def _warnings(
    entry: Node, exemption: Exemption, hooks: tuple[str, ...], today: date, path: KeyPath, sources: Sources
) -> list[Problem]:
    found: list[Problem] = []
    last = day(exemption.expires)
    if last is not None and last < today:
        message = "the exception has expired and does not apply"
        place = (*path, "expires")
        found.append(sources.at_value("R512", message, entry.fields["expires"], place, severity="warning"))
    nothing = any(pattern in ("!", "!*") for pattern in (*exemption.when.tool, *exemption.when.agent))
    if nothing or (exemption.when.tool and not TOOL_HOOKS.intersection(hooks)):
        reason = "its selector excludes everything" if nothing else "none of the rule's hook points has a tool"
        message = f"the exception never applies: {reason}"
        found.append(sources.at_value("R513", message, entry.fields["when"], (*path, "when"), severity="warning"))
    return found
