"""Ten scenarios that mean the same under every host: what a model does, what must come of it.

An adapter's test supplies `drive(scenario) -> Seen`, which plays the scenario through the real framework, and calls
`check(scenario, drive(scenario))` for each of `scenarios_for(host)`. `drive` makes an engine with `scenario.engine()`,
has a model say `scenario.turns` in order (one turn per request; past the end the text "over"), offers the tools of
`scenario.tools()` and lets a human say `scenario.approve`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from policyengine import Engine, Script, ScriptedCall, Turn, batch, call, say
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.hosts.host import Host
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedTools
from policyengine.testing import ListedRegistry, ManualClock

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: scenario\n"
BUILTINS = builtin_registry()
OVER = "over"


class Approval(Extension):
    """Ask about every call of `pay`, and pay at most 10."""

    name = "approval"
    messages = {"approval.ask": {"tool": "pay"}}
    templates = {"en": {"approval.ask": "May {{ tool }} be called?"}}

    def answers(self) -> dict[str, tuple[str, ...]]:
        return {"before_tool_call": ("ask",)}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return run.ask("approval", tool=call.name) if call.name == "pay" else None


class AtMostTen(Extension):
    """Lower `amount` to 10."""

    name = "at_most_ten"
    rewrites_calls = True

    def answers(self) -> dict[str, tuple[str, ...]]:
        return {"before_tool_call": ("rewrite",)}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        if call.args and call.args.get("amount", 0) > 10:
            return run.rewrite("at_most_ten", args={**call.args, "amount": 10})
        return None


REGISTRY = ListedRegistry(Approval, AtMostTen, trusted=True, others=BUILTINS)


class Seen(msgspec.Struct, frozen=True):
    """What came of a scenario under a host.

    `executed` are the calls that a tool really ran, in order, as `(tool, args)`; `refused` the tools of calls that got
    another answer, in order of the calls; `told` everything that the model was told beside results of tools that ran
    (notes, refusals), as texts in order, as far as it saw them; `requests` how often the model was asked; `status` and
    `code` those of the outcome (`code` is empty where no rule ended the run); `answered` whether every call of every
    response has exactly one answer.
    """

    executed: tuple[tuple[str, dict[str, Any]], ...]
    refused: tuple[str, ...]
    told: tuple[str, ...]
    requests: int
    status: str
    code: str = ""
    answered: bool = True


class Scenario(msgspec.Struct, frozen=True):
    """A policy, a model, a human; and what must come of them.

    `needs` are abilities of the host. `told` are parts of texts, each of which must be in what the model is told, in
    this order; `silent` must be in none of them.
    """

    name: str
    policy: str
    turns: tuple[Turn, ...]
    executed: tuple[tuple[str, dict[str, Any]], ...]
    refused: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    requests: int = 0
    status: str = "completed"
    code: str = ""
    approve: bool | None = None
    offered: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset({"deny"})

    def engine(self, **options: Any) -> Engine:
        """Return an engine with the policy, on a clock that stands still."""
        loaded = load_policy_text(HEAD + self.policy, registry=REGISTRY)
        return Engine(loaded, registry=REGISTRY, clock=ManualClock(), enforce_time=False, **options)

    def script(self) -> Script:
        """Return the model's turns as a script."""
        return Script("task", self.turns)

    def names(self) -> tuple[str, ...]:
        """Return the tools on offer."""
        used = {made.tool for turn in self.turns for made in turn.calls}
        return tuple(sorted(self.offered or used))

    def tools(self) -> dict[str, Callable[..., Any]]:
        """Return the tools as plain functions of keyword arguments; one that fails raises `RuntimeError`."""
        scripted = ScriptedTools(self.script())

        def function(name: str) -> Callable[..., Any]:
            def tool(**args: Any) -> str:
                result = scripted.answer(name, args)
                if result.status != "ok":
                    raise RuntimeError(result.text)
                return result.text

            tool.__name__ = name
            return tool

        return {name: function(name) for name in self.names()}

    def turn(self, number: int) -> Turn:
        """Return the turn with which the model answers request `number`, from 0."""
        return self.turns[number] if number < len(self.turns) else say(OVER)


def look(page: int = 1, result: str = "same") -> Turn:
    """Return a turn with one call of `look`."""
    return call("look", {"page": page}, result)


def _looks(*pages: int) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(("look", {"page": page}) for page in pages)


def _stall(rungs: str, extra: str = "") -> str:
    return f"{extra}extensions:\n  stall_detector: {{with: {{repeat: {rungs}}}}}\n"


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "the third equal call is refused and the run goes on",
        _stall("{deny: 3}"),
        (look(), look(), look(), say("done")),
        executed=_looks(1, 1),
        refused=("look",),
        told=("stall_detector",),
        requests=4,
        needs=frozenset({"deny", "hint"}),
    ),
    Scenario(
        "the third equal call ends the run before it runs",
        _stall("{stop: 3}"),
        (look(), look(), look(), say("never")),
        executed=_looks(1, 1),
        refused=("look",),
        requests=3,
        status="stopped",
        code="repeat",
        needs=frozenset({"stop"}),
    ),
    Scenario(
        "a wind-down is obeyed with a final answer",
        _stall("{wind_down: 3}"),
        (look(), look(), look(), say("what I know")),
        executed=_looks(1, 1),
        refused=("look",),
        told=("final answer",),
        requests=4,
        needs=frozenset({"wind_down", "hint"}),
    ),
    Scenario(
        "a wind-down that is not obeyed ends the run after its rounds of refusals",
        _stall("{wind_down: 3}", "wind_down: {rounds: 2}\n"),
        (look(), look(), look(), look(2), look(3), look(4), say("never")),
        executed=_looks(1, 1),
        refused=("look", "look", "look"),
        told=("final answer",),
        requests=5,
        status="stopped",
        code="repeat",
        needs=frozenset({"wind_down", "hint", "stop"}),
    ),
    Scenario(
        "a tool that fails brings a note and then another way",
        "extensions:\n  failure_hint_injector: {with: {levels: {hint: 1, deny: 2}}}\n",
        (
            call("fetch", {"n": 1}, "gone", status="error"),
            call("fetch", {"n": 2}, "gone", status="error"),
            call("fetch", {"n": 3}, "gone", status="error"),
            say("done"),
        ),
        executed=(("fetch", {"n": 1}), ("fetch", {"n": 2})),
        refused=("fetch",),
        told=("fetch", "fetch"),
        requests=4,
        needs=frozenset({"deny", "hint"}),
    ),
    Scenario(
        "a budget of three calls lets exactly three run",
        "extensions:\n  tool_call_limit: {with: {tools: {look: 3}}}\n",
        (look(1, "a"), look(2, "b"), look(3, "c"), look(4, "d"), look(5, "e"), say("done")),
        executed=_looks(1, 2, 3),
        refused=("look", "look"),
        requests=6,
    ),
    Scenario(
        "copies in one batch count each, and every call has its answer",
        _stall("{deny: 3}"),
        (batch(*(ScriptedCall("look", {"page": 1}, "same") for _ in range(4))), say("done")),
        executed=_looks(1, 1),
        refused=("look", "look"),
        requests=2,
        needs=frozenset({"deny", "batch"}),
    ),
    Scenario(
        "a human approves a call",
        "extensions:\n  approval: {}\n",
        (call("pay", {"amount": 5}, "paid"), say("done")),
        executed=(("pay", {"amount": 5}),),
        requests=2,
        approve=True,
        needs=frozenset({"ask"}),
    ),
    Scenario(
        "a human rejects a call and the other one of the batch runs",
        "extensions:\n  approval: {}\n",
        (batch(ScriptedCall("pay", {"amount": 5}, "paid"), ScriptedCall("look", {"page": 1}, "a")), say("done")),
        executed=_looks(1),
        refused=("pay",),
        requests=2,
        approve=False,
        needs=frozenset({"ask"}),
    ),
    Scenario(
        "a call runs as a rule rewrote it",
        "extensions:\n  at_most_ten: {}\n",
        (call("pay", {"amount": 500}, "paid"), say("done")),
        executed=(("pay", {"amount": 10}),),
        requests=2,
        needs=frozenset({"rewrite"}),
    ),
    Scenario(
        "a call of a tool that does not exist fails that call only",
        "extensions:\n  unknown_tools: {with: {stop: 2}}\n",
        (call("lok", {"page": 1}), look(1, "a"), say("done")),
        executed=_looks(1),
        refused=("lok",),
        requests=3,
        offered=("look",),
        needs=frozenset({"deny"}),
    ),
    Scenario(
        "a rule that only records changes nothing",
        "defaults: {mode: shadow}\n" + _stall("{deny: 2, stop: 3}"),
        (look(), look(), look(), look(), say("done")),
        executed=_looks(1, 1, 1, 1),
        requests=5,
        needs=frozenset(),
    ),
)
"""All scenarios; those that need `batch` are for hosts that tell which calls came in one response."""


def scenarios_for(host: Host, *, batches: bool = True) -> tuple[Scenario, ...]:
    """Return the scenarios that a host can do what is needed for."""
    can = host.can | ({"batch"} if batches else frozenset())
    return tuple(scenario for scenario in SCENARIOS if scenario.needs <= can)


def check(scenario: Scenario, seen: Seen) -> None:
    """Assert that what was seen is what must come of a scenario."""
    assert sorted(map(repr, seen.executed)) == sorted(map(repr, scenario.executed))
    assert seen.refused == scenario.refused
    assert (seen.status, seen.code) == (scenario.status, scenario.code)
    assert seen.requests == scenario.requests
    assert seen.answered
    rest = list(seen.told)
    for part in scenario.told:
        while rest and part not in rest[0]:
            rest.pop(0)
        assert rest, f"{part!r} is not in what the model was told: {seen.told}"
        rest.pop(0)
    for part in scenario.silent:
        assert not any(part in text for text in seen.told)
