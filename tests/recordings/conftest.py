"""An engine whose one rule does what the name of a tool says, and short ways to write a recording down."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
import pytest

from policyengine.engine import Engine
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.plugins.found import make_found
from policyengine.plugins.registry import Registry, Source
from policyengine.policy.model import Interventions, Policy, Rule
from policyengine.policy.problems import Position


class Counts(msgspec.Struct):
    """What the rule remembers: calls per tool, results seen, rounds and warnings."""

    calls: dict[str, int] = {}
    results: list[str] = []
    seen: list[str] = []


class ByName(Extension):
    """Answers a call `deny_x` with deny, `stop_x` with stop and so on; writes down every hook it hears."""

    name = "by_name"
    options: ClassVar = {"stop_at": {"type": "integer", "min": 1, "max": 99}}
    state = Counts
    messages: ClassVar = {
        f"by_name.{action}": {"tool": "t", "observed": 1, "limit": 1}
        for action in ("hint", "deny", "stop", "wind_down", "end_step", "ask", "retry")
    }
    templates: ClassVar = {"en": {kind: "{{ rule }} says " + kind + " to {{ tool }}\n" for kind in messages}}

    @hookimpl
    def run_start(self, run, task):
        run.state.seen.append(f"start {task}")

    @hookimpl
    def step_end(self, run, step):
        run.state.seen.append(f"step {step} ends")

    @hookimpl
    def before_model_call(self, run, request):
        run.state.seen.append(f"round {run.iteration}")
        limit = self.options.get("stop_at")
        if limit is not None and run.iteration >= limit:
            return run.stop("by_name", observed=run.iteration, limit=limit, tool="")
        return None

    @hookimpl
    def after_parse(self, run, verdict, calls):
        if verdict.text == "same again":
            return run.rewrite("by_name", kind="repeat")
        return None

    @hookimpl
    def hist_add_warning_end(self, run, warning):
        run.state.seen.append(f"warning {warning.kind}")

    @hookimpl
    def before_tool_call(self, run, call, batch):
        run.state.seen.append(f"call {call.name} {batch.index}")
        count = run.state.calls[call.name] = run.state.calls.get(call.name, 0) + 1
        action = call.name.partition("_")[0] if call.name.startswith(("hint", "deny", "stop", "ask")) else ""
        for longer in ("wind_down", "end_step"):
            action = longer if call.name.startswith(longer) else action
        return getattr(run, action)("by_name", observed=count, limit=1, tool=call.name) if action else None

    @hookimpl
    def after_tool_call(self, run, call, result):
        run.state.seen.append(f"result {result.status} {result.text}")
        if result.text == "note this":
            return run.hint("by_name", observed=run.now, tool=call.name)
        return None

    @hookimpl
    def after_iteration(self, run, iteration):
        run.state.seen.append(f"end {iteration.number} {iteration.calls} {iteration.usable}")

    @hookimpl
    def run_end(self, run, outcome):
        run.state.seen.append(f"outcome {outcome.status}")


@pytest.fixture(scope="session")
def engine() -> Callable[..., Engine]:
    """Return a maker of engines: `engine(mode="shadow", cap=3, journal=...)`."""

    def make(*, mode="enforce", cap=10, then="hand_over", stop_at=None, timeout_s=10.0, builtin=True, **options):
        parsing = options.pop("parsing", None)
        name = "by_name" if builtin else "test.by_name"
        cls = ByName if builtin else type("ByNameElsewhere", (ByName,), {"name": name})
        found = make_found(cls, builtin=builtin)
        elsewhere = [Source("a file", lambda: (found,), provides=name)]
        registry = Registry([found]) if builtin else Registry(sources=elsewhere)
        given = {} if stop_at is None else {"stop_at": stop_at}
        rule = Rule("guard", name, Position("policy.yaml", 3), options=given, mode=mode, timeout_s=timeout_s)
        policy = Policy("test", (rule,), "0" * 64, interventions=Interventions(cap, then))
        policy = policy if parsing is None else msgspec.structs.replace(policy, parsing=parsing)
        return Engine(policy, registry=registry, **options)

    return make
