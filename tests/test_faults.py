"""A broken extension yields exactly the documented outcome, in every mode, and never stops the others."""

import asyncio
import threading

import msgspec
import pytest

from policyengine import Batch, Extension, ModelRequest, ToolCall, ToolResult, hookimpl
from policyengine.run import Run
from policyengine.runstate import RunState
from policyengine.snapshot import build_snapshot
from policyengine.testing import ListedRegistry, policy, rule

CALL = ToolCall("1", "search", '{"q":1}', {"q": 1})
release = threading.Event()


class Broken(Extension):
    """Fails in the way its option says."""

    name = "test.broken"
    options = {"how": {"type": "string", "default": "raise"}}

    def fail(self):
        how = self.options.how
        if how == "raise":
            raise RuntimeError("boom")
        if how == "exit":
            raise SystemExit(3)
        if how == "base":
            raise GeneratorExit
        if how == "overrun":
            release.wait(30)
            return None
        if how == "coroutine":
            return self.later()
        return {"false": False, "zero": 0, "text": "deny"}[how]

    async def later(self):
        return None

    @hookimpl
    def before_tool_call(self, run, call, batch):
        """Fail."""
        return self.fail()

    @hookimpl
    def after_iteration(self, run, iteration):
        """Fail."""
        return self.fail()


class Unknown(Extension):
    """Returns an action that the hook does not accept."""

    name = "test.unknown"
    messages = {"x.retry": {}}
    templates = {"en": {"x.retry": "again"}}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        """Return something that is no answer here."""
        return run.retry("x")


class Counting(Extension):
    """A healthy neighbour."""

    name = "test.counting"

    class state(msgspec.Struct):  # noqa: N801
        """Calls seen."""

        seen: int = 0

    @hookimpl
    def before_tool_call(self, run, call, batch):
        """Count."""
        run.state.seen += 1


HOW = ["raise", "exit", "base", "overrun", "false", "zero", "text", "coroutine"]


def start(*rules):
    registry = ListedRegistry(Broken, Unknown, Counting)
    run = Run(build_snapshot(policy(*rules), registry), RunState("r"))
    run.start("task")
    run.begin_iteration()
    return run


@pytest.fixture(autouse=True)
def _released():
    release.clear()
    yield
    release.set()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("on_error", "mode", "expected"),
    [
        ("deny", "enforce", "deny"),
        ("stop", "enforce", "stop"),
        ("allow", "enforce", "allow"),
        ("deny", "warn", "allow"),
        ("stop", "warn", "allow"),
        ("deny", "shadow", "allow"),
        ("stop", "shadow", "allow"),
    ],
)
def test_a_fault_before_a_call_gets_on_error_capped_by_the_mode(how, on_error, mode, expected):
    broken = rule("test.broken", {"how": how}, on_error=on_error, mode=mode, timeout_s=0.02)
    run = start(rule("test.counting", id="first"), broken, rule("test.counting", id="last"))
    decision = run.before_tool_call(CALL, Batch("b"))
    assert decision.action == expected
    faulty = next(vote for vote in decision.votes if vote.rule == "test.broken")
    assert faulty.error
    assert bool(decision.notes) is (mode == "warn")
    assert run._views["first"].state.seen == run._views["last"].state.seen == 1


@pytest.mark.parametrize("how", ["raise", "false"])
def test_a_disabled_rule_is_never_called(how):
    run = start(rule("test.broken", {"how": how}, mode="disabled"))
    assert run.before_tool_call(CALL).action == "allow"


@pytest.mark.parametrize("how", ["raise", "false", "exit"])
def test_on_a_hook_that_cannot_deny_the_third_fault_in_a_row_stops(how):
    run = start(rule("test.broken", {"how": how}))
    actions = []
    for _ in range(3):
        actions.append(run.end_iteration(0, True).action)
        run.begin_iteration()
    assert actions == ["allow", "allow", "stop"]


def test_allow_only_records_however_often_it_fails():
    run = start(rule("test.broken", {"how": "raise"}, on_error="allow"))
    for _ in range(5):
        decision = run.end_iteration(0, True)
        assert decision.action == "allow"
        assert decision.votes[0].raw[0].name == "record"


def test_an_action_that_the_hook_does_not_accept_is_a_fault():
    decision = start(rule("test.unknown")).before_tool_call(CALL)
    assert decision.action == "deny"
    assert "does not accept 'retry'" in decision.votes[0].error


def test_an_interrupt_by_the_user_is_not_swallowed():
    class Interrupting(Extension):
        name = "interrupting"

        @hookimpl
        def before_model_call(self, run, request):
            raise KeyboardInterrupt

    run = Run(build_snapshot(policy(rule("interrupting")), ListedRegistry(Interrupting, trusted=True)), RunState("r"))
    run.start("task")
    with pytest.raises(KeyboardInterrupt):
        run.before_model_call(ModelRequest(()))


def test_an_overrunning_rule_leaves_no_trace_in_its_state():
    class Slow(Extension):
        name = "test.slow"
        state = Counting.state

        @hookimpl
        def before_tool_call(self, run, call, batch):
            run.state.seen += 1
            if run.state.seen > 1:
                release.wait(30)

    run = Run(build_snapshot(policy(rule("test.slow", timeout_s=0.05)), ListedRegistry(Slow)), RunState("r"))
    run.start("task")
    assert run.before_tool_call(CALL).action == "allow"
    assert run.before_tool_call(CALL).votes[0].error == "timeout"
    release.set()
    assert run._views["test.slow"].state.seen == 1


def test_third_party_rules_cannot_change_what_others_see():
    class Meddling(Extension):
        name = "test.meddling"

        @hookimpl
        def before_tool_call(self, run, call, batch):
            call.args["q"] = "changed"

    run = Run(build_snapshot(policy(rule("test.meddling")), ListedRegistry(Meddling)), RunState("r"))
    run.start("task")
    assert run.before_tool_call(CALL).action == "deny"
    assert CALL.args == {"q": 1}


def test_a_fault_after_a_call_keeps_the_result():
    class Failing(Extension):
        name = "test.failing"

        @hookimpl
        def after_tool_call(self, run, call, result):
            raise ValueError("boom")

    run = Run(build_snapshot(policy(rule("test.failing")), ListedRegistry(Failing)), RunState("r"))
    run.start("task")
    run.before_tool_call(CALL)
    result, decision = run.after_tool_call(CALL, ToolResult("1", "fine"))
    assert result.text == "fine"
    assert decision.action == "allow"


def test_a_sink_that_raises_changes_nothing_for_the_run_and_the_next_one_is_told():
    told = []

    def failing(report):
        raise OSError("disk full")

    run = start(rule("test.counting"))
    run.sinks = (failing, told.append)
    for _ in range(2):
        assert run.before_tool_call(CALL).action == "allow"
    assert [report.hook for report in told] == ["before_tool_call"] * 2
    assert run.sinks == (told.append,)


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_sink_raises_the_run_goes_on_and_only_an_interrupt_ends_it(raised):
    def failing(report):
        raise raised

    def interrupted(report):
        raise KeyboardInterrupt

    run = start(rule("test.counting"))
    run.sinks = (failing,)
    assert run.before_tool_call(CALL).action == "allow"
    assert run.sinks == ()
    run.sinks = (interrupted,)
    with pytest.raises(KeyboardInterrupt):
        run.before_tool_call(CALL)
