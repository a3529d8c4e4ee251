"""What the checks look at, and how a finding is made of it.

Knows: a policy as it is in force beside its files as they were written. Must not know: any check.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import msgspec

from policyengine.policy.environment import is_variable
from policyengine.policy.files import LayerFile
from policyengine.policy.model import Policy, Rule
from policyengine.policy.nodes import Node, Sources
from policyengine.policy.problems import Problem, Severity
from policyengine.policy.stricter import Look
from policyengine.policy.wording import KeyPath, dotted


class Subject(msgspec.Struct, frozen=True):
    """A policy and its files.

    `root` are the settings of all layers together as they were written: without defaults, a variable as
    `{$env: NAME}`. `soon` and `old` are numbers of days.
    """

    policy: Policy
    layers: tuple[LayerFile, ...]
    root: Node
    sources: Sources
    look: Look
    today: date
    soon: int
    old: int

    def written(self, *path: str | int) -> Node | None:
        """Return the value at a path if somebody wrote it and it is no variable."""
        node = self.root.get(*path)
        return None if node is None or is_variable(node) else node

    def finding(
        self,
        code: str,
        message: str,
        path: KeyPath,
        *,
        help: str,
        severity: Severity = "warning",
        node: Node | None = None,
        note: str = "",
    ) -> Problem:
        """Return a finding at a path, or at the nearest setting around it that was written."""
        place = node or self.root.find(path)[0]
        if place is self.root:
            own = self.layers[-1].root
            return self.sources.at_key(code, message, own, path, help=help, severity=severity, note=note)
        return self.sources.at_value(code, message, place, path, help=help, severity=severity, note=note)

    def layer(self, path: KeyPath) -> LayerFile | None:
        """Return the file that says what is in force at a path; `None` for a built-in default."""
        said = self.policy.provenance.get(dotted(path), ())
        file = said[-1].position.file if said else ""
        return next((layer for layer in self.layers if layer.file == file), None)

    def rules(self, *uses: str) -> Iterator[Rule]:
        """Yield the rules that are made of one of these extensions and are asked in every run."""
        for rule in self.policy.rules:
            if rule.use in uses and asked(rule) and self.mode_is_written(rule):
                yield rule

    def mode_is_written(self, rule: Rule) -> bool:
        """Return whether the mode of a rule is no variable's, which a finding must not give away."""
        own = self.root.get("extensions", rule.id, "mode")
        node = own if own is not None else self.root.get("defaults", "mode")
        return node is None or not is_variable(node)

    def option(self, rule: Rule, *path: str) -> Any:
        """Return an option of a rule; `None` where there is none, or where a variable may be behind it."""
        value: Any = rule.options
        if rule.variables:
            return None
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def asked(rule: Rule) -> bool:
    """Return whether a rule has an effect in some runs."""
    return rule.mode in ("enforce", "warn") and (rule.rollout is None or rule.rollout.percent > 0)


def always(rule: Rule) -> bool:
    """Return whether a rule has its full effect for every event of every run."""
    when = rule.when.tool or rule.when.agent
    return rule.mode == "enforce" and rule.rollout is None and not rule.exceptions and not when
