"""A bench for one extension: a view of a run, and its hooks called directly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policyengine.actions import Hint, Record
from policyengine.context import RunView
from policyengine.messages import UNDECLARED, Batch, ToolCall, ToolError, ToolFacts, ToolResult
from policyengine.policy.validate import check, check_extension_schema
from policyengine.runstate import RunState


class Bench:
    """One extension with options, the run it sees, and the state a real run would keep for it."""

    def __init__(self, cls: type, options: dict[str, Any], tools: dict[str, ToolFacts] | None = None) -> None:
        self.cls = cls
        self.options = complete(cls, options)
        self.guard = cls(self.options)
        self.tools = tools or {}
        self.run = RunState("run-1", iteration=1, step=1)
        state = cls.state() if cls.state else None
        self.view = RunView(self.run, "rule", state, lambda name: self.tools.get(name, UNDECLARED))
        self.batches = 0

    @property
    def state(self) -> Any:
        return self.view.state

    def next_round(self) -> None:
        self.run.iteration += 1

    def next_step(self) -> None:
        self.run.step += 1
        if self.cls.scope == "step":
            self.view.state = self.cls.state()

    def next_run(self, run_id: str) -> None:
        """Start another run of the conversation; state of a smaller scope starts afresh."""
        self.run.run_id, self.run.iteration, self.run.step = run_id, 1, 1
        if self.guard.state_scope() != "conversation":
            self.view.state = self.cls.state()

    def reload(self, **options: Any) -> None:
        """Save the state, load it as another process would, and go on under other options."""
        self.options = complete(self.cls, options)
        self.guard = self.cls(self.options)
        self.view.state = msgspec.json.decode(msgspec.json.encode(self.state), type=self.cls.state)

    def hook(self, method: str, *payload: Any) -> Any:
        """Call one hook and return its answer; every message it names must be declared."""
        answer = getattr(self.guard, method)(self.view, *payload)
        if answer is not None and answer.kind:
            assert answer.kind in self.cls.messages
            assert set(answer.data) <= set(self.cls.messages[answer.kind])
        return answer

    def batch(self, *calls: tuple[str, ToolResult | None]) -> tuple[list[Any], list[Any]]:
        """Play one round: judge every call, then report every result; return both lists of answers."""
        self.batches += 1
        made = [ToolCall(f"c{self.batches}-{index}", name) for index, (name, _) in enumerate(calls)]
        before = [
            self.hook("before_tool_call", call, Batch(f"b{self.batches}", index)) for index, call in enumerate(made)
        ]
        after = []
        for call, (_, result), answer in zip(made, calls, before, strict=True):
            denied = answer is not None and not isinstance(answer, Hint | Record)
            shown = ToolResult(call.id, "no", "denied", ToolError("denied")) if denied else result
            after.append(self.hook("after_tool_call", call, shown))
        self.next_round()
        return before, after


def complete(cls: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with defaults filled in, after the checks that loading a policy makes."""
    assert check_extension_schema(cls.options) == []
    assert check(cls.options, options) == []
    defaults = {name: rule["default"] for name, rule in cls.options.items() if "default" in rule}
    return defaults | options


@pytest.fixture
def bench():
    def make(cls: type, tools: dict[str, ToolFacts] | None = None, **options: Any) -> Bench:
        return Bench(cls, options, tools)

    return make


@pytest.fixture
def faults():
    """Return a function that lists the option problems of a rule as `path: message`."""

    def find(cls: type, **options: Any) -> list[str]:
        return [f"{'.'.join(item.path)}: {item.message}" for item in cls.check_options(complete(cls, options))]

    return find


@pytest.fixture
def proved():
    """Return a function that proves a rule with these options through the real loop."""
    from policyengine.plugins.found import make_found
    from policyengine.prove import prove
    from policyengine.testing import policy, rule

    def run(cls: type, **options: Any) -> dict[str, str]:
        class Only:
            def get(self, name: str) -> Any:
                return make_found(cls, builtin=True) if name == cls.name else None

        entries = prove(policy(rule(cls.name, complete(cls, options))), Only())
        assert [entry.label for entry in entries if not entry.ok] == []
        return {entry.label: entry.alone for entry in entries}

    return run
