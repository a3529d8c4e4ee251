"""Test doubles for extension authors and for our own tests: a registry of given classes, a policy in one line, a run.

Knows: how to put an extension into a real engine without files.
Must not know: pytest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from policyengine.agent import Agent
from policyengine.decision import Decision
from policyengine.engine import Engine
from policyengine.extension import Extension
from policyengine.messages import Message
from policyengine.outcome import Outcome
from policyengine.plugins.found import make_found
from policyengine.plugins.registry import Registry, builtin_registry
from policyengine.policy.model import Policy, Rule
from policyengine.policy.problems import Position
from policyengine.providers.scripted import ScriptedModel
from policyengine.run import Report
from policyengine.script import Script, Turn


class ManualClock:
    """A clock that stands still until told otherwise; `now` is in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@cache
def _builtins() -> Registry:
    return builtin_registry()


class ListedRegistry:
    """The built-in extensions and the given classes, which count as third-party unless `trusted`."""

    def __init__(self, *classes: type[Extension], trusted: bool = False) -> None:
        self._builtin: Registry = _builtins()
        self._listed = {cls.name: make_found(cls, builtin=trusted) for cls in classes}

    def get(self, name: str) -> Any:
        """Return the extension of this name, or `None`."""
        return self._listed.get(name) or self._builtin.get(name)

    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return (*self._listed, *self._builtin.names())


def rule(use: str, options: Mapping[str, Any] | None = None, *, id: str = "", line: int = 1, **fields: Any) -> Rule:
    """Return a rule as the loader would make it, except that `options` must be complete."""
    return Rule(id or use, use, Position("test.yaml", line, 1), options=dict(options or {}), **fields)


def policy(*rules: Rule, **fields: Any) -> Policy:
    """Return a policy of these rules."""
    return Policy("test", tuple(rules), "0" * 64, **fields)


class Played(msgspec.Struct, frozen=True):
    """What a scripted run did: its outcome, and every decision with the iteration it was made in."""

    outcome: Outcome
    reports: tuple[Report, ...]
    decisions: tuple[tuple[int, Decision], ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history at the end."""
        return self.outcome.messages

    def actions(self, hook: str = "before_tool_call") -> list[str]:
        """Return the control action of every decision at one hook point, in order."""
        return [decision.action for _, decision in self.decisions if decision.hook == hook]

    def fired(self, action: str, rule_id: str = "") -> list[int]:
        """Return the iterations in which a rule got its way with `action` (hints included)."""
        return [
            iteration
            for iteration, decision in self.decisions
            for vote in decision.votes
            for wanted in vote.effective
            if wanted.name == action and (not rule_id or vote.rule == rule_id)
        ]


def play(
    engine: Engine, turns: Sequence[Turn], *, task: str = "test", human: Callable[[Any], bool] | None = None, **run: Any
) -> Played:
    """Run a script through the real loop under `engine` and return everything that happened."""
    reports: list[Report] = []
    decisions: list[tuple[int, Decision]] = []

    def note(report: Report) -> None:
        reports.append(report)
        decisions.append((report.run.state.iteration, report.decision))

    engine.sinks.append(note)
    try:
        protocol = "text" if engine.snapshot.policy.protocol == "text" else "native"
        model = ScriptedModel(Script(task, tuple(turns), protocol=protocol))
        agent = Agent(engine, model, model.tools(), human=human, sleep=lambda seconds: None)
        outcome = agent.run(task, **run)
    finally:
        engine.sinks.remove(note)
    return Played(outcome, tuple(reports), tuple(decisions))


def assert_valid(messages: tuple[Message, ...], protocol: str = "native") -> None:
    """Assert that a history may be sent: every call answered directly after its message, once, in call order.

    Names are legal, arguments are JSON objects, no message is empty.

    Raises:
        AssertionError: the first fault.
    """
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        assert message.role != "tool", "a result without its call"
        if message.role == "assistant":
            assert message.text.strip() or message.tool_calls, "an empty assistant message"
        assert protocol == "native" or not message.tool_calls
        ids = [item.id for item in message.tool_calls]
        assert len(set(ids)) == len(ids)
        for item in message.tool_calls:
            assert item.name
            assert isinstance(json.loads(item.arguments or "{}"), dict)
        for wanted in ids:
            answer = messages[index]
            index += 1
            assert answer.role == "tool"
            assert answer.tool_call_id == wanted
            assert answer.text.strip()


__all__ = ["ListedRegistry", "ManualClock", "Played", "assert_valid", "play", "policy", "rule"]
