"""Advice that needs more than one setting to be seen.

Knows: the key path of a problem, rules and the names of their extensions' options.
Must not know: how a problem was found, where extensions come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from policyengine.policy.nodes import Node
from policyengine.policy.problems import Problem
from policyengine.policy.schema import RULE
from policyengine.policy.wording import closest, dotted, shown


def advise(problems: Sequence[Problem], rules: Node, options_of: Callable[[str], Sequence[str]]) -> list[Problem]:
    """Return the problems; those of options that stand beside `with` instead of under it say so."""
    unknown = {problem.path for problem in problems if problem.code == "S204"}
    places: dict[str, str] = {}
    for name, rule in rules.fields.items() if unknown else ():
        use = rule.fields.get("use")
        for key, node in rule.fields.items():
            path = dotted(("extensions", name, key))
            if path in unknown:
                places[path] = _under_with(key, node, str(use.data) if use else name, options_of)
    return [replace(item, help=places[item.path]) if places.get(item.path) else item for item in problems]


def _under_with(key: str, node: Node, use: str, options_of: Callable[[str], Sequence[str]]) -> str:
    options = options_of(use)
    meant = key if key in options else closest(key, options) if closest(key, RULE) is None else None
    if meant is None:
        return ""
    data = node.data
    value = "{...}" if isinstance(data, dict) else "[...]" if isinstance(data, list) else shown(data)
    return f"{meant} is an option of {use}; options stand under `with`: `with: {{{meant}: {value}}}`"
