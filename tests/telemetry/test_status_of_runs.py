"""What `status` says of runs: their phases, what was decided in them, the last stop, lines that were dropped."""

from __future__ import annotations

import io

import msgspec
import pytest

from policyengine import (
    Agent,
    Engine,
    Extension,
    ModelRequest,
    ModelResponse,
    ToolCall,
    ToolResult,
    call,
    hookimpl,
    say,
)
from policyengine.providers.scripted import ScriptedModel
from policyengine.run import Run
from policyengine.runstate import StopReason
from policyengine.script import Script
from policyengine.status import MOST_RUNS, RunStatus
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.testing import ListedRegistry, ManualClock, play, policy, rule

LOOK = ToolCall("1", "look", "{}")


def look() -> str:
    return "same"


class Asks(Extension):
    """Asks a human about calls of one tool."""

    name = "asks"
    messages = {"asks.ask": {}}
    templates = {"en": {"asks.ask": "s3cret"}}

    @hookimpl
    def before_tool_call(self, run, call):
        return run.ask("asks", observed=1, limit=1) if call.name == "ask" else None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    made = policy(rule("asks"))
    return Engine(made, registry=ListedRegistry(Asks, trusted=True), clock=clock, wall_clock=clock)


def only(engine: Engine) -> RunStatus:
    (found,) = engine.status().runs
    return found


def asked(run: Run) -> None:
    run.stopped(run.before_tool_call(ToolCall("2", "ask", "{}")), call=1)


def test_a_run_under_way_is_told_with_its_phase(engine: Engine, clock: ManualClock) -> None:
    run = engine.start_run(run_id="r", agent="helper")
    assert only(engine).phase == "new"
    run.start("task")
    assert only(engine).phase == "deciding"
    run.begin_iteration()
    run.before_model_call(ModelRequest(()))
    clock.now += 3
    assert only(engine) == RunStatus("r", "helper", "model", iteration=1, step=1, calls=0, silent_s=3.0)
    run.after_model_response(ModelResponse("", (LOOK,)))
    assert only(engine).phase == "deciding"
    run.before_tool_call(LOOK)
    assert (only(engine).phase, only(engine).calls) == ("tools", 1)
    asked(run)
    assert only(engine).phase == "human"
    run.human_answered(ToolCall("2", "ask", "{}"), "approved", "asks")
    assert only(engine).phase == "tools"
    run.after_tool_call(LOOK, ToolResult("1", "ok"))
    assert only(engine).phase == "deciding"


def test_runs_that_have_been_silent_for_longest_come_first_and_only_so_many(engine: Engine, clock: ManualClock) -> None:
    runs = []
    for number in range(MOST_RUNS + 5):
        runs.append(engine.start_run(run_id=str(number)))
        runs[-1].start("task")
        clock.now += 1
    status = engine.status()
    assert [run.run_id for run in status.runs] == [str(number) for number in range(MOST_RUNS)]
    assert status.runs_active == MOST_RUNS + 5


def test_decisions_are_counted_by_action_whether_or_not_there_are_sinks() -> None:
    counts = []
    for sinks in ([], [DecisionLog(io.StringIO())]):
        engine = Engine(sinks=sinks)
        Agent(engine, ScriptedModel(Script("t", (call("look"),) * 8)), [look]).run("task")
        counts.append(engine.status().decisions)
    assert counts[0] == counts[1]
    assert (counts[0]["deny"], counts[0]["stop"]) == (2, 1)
    assert "allow" not in counts[0]


def test_the_last_stop_is_told_without_its_text(engine: Engine, clock: ManualClock) -> None:
    assert engine.status().last_stop is None
    run = engine.start_run(run_id="r")
    run.start("task")
    run.begin_iteration()
    asked(run)
    clock.now += 5
    last = engine.status().last_stop
    assert last is not None
    assert (last.run_id, last.code, last.rule, last.action, last.observed, last.limit) == (
        "r",
        "asks",
        "asks",
        "ask",
        1,
        1,
    )
    assert (last.age_s, last.iteration) == (5.0, 1)
    assert "s3cret" not in msgspec.json.encode(engine.status()).decode()


def test_lines_that_decision_logs_could_not_write_are_counted() -> None:
    closed = io.StringIO()
    closed.close()
    engine = Engine(sinks=[DecisionLog(closed), DecisionLog(closed), lambda report: None])
    engine.start_run().start("task")
    assert engine.status().log_dropped == 4


def test_a_stop_of_a_run_that_ended_is_still_told() -> None:
    engine = Engine()
    reason = play(engine, [call("look")] * 8 + [say("done")]).outcome.stop
    last = engine.status().last_stop
    assert isinstance(reason, StopReason)
    assert last is not None
    assert (last.code, last.rule, last.at) == (reason.code, reason.rule, reason.at)
    assert engine.status().runs == ()


def test_names_of_a_host_are_cut_so_that_a_status_is_bounded(engine: Engine) -> None:
    run = engine.start_run(run_id="r" * 10**6, agent="a" * 10**6)
    run.start("task")
    run.begin_iteration()
    asked(run)
    assert len(msgspec.json.encode(engine.status())) < 5_000
