"""`wall_clock`: time since the run began, from the driver's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.extensions.wall_clock import WallClock
from policyengine.messages import Batch, Message, ModelRequest, ToolCall

REQUEST = ModelRequest((Message("user", "task"),))
CALL = ToolCall("c", "search")


def at(rule, now, hook="before_model_call"):
    """Judge an event at a time; return the action by name."""
    rule.run.now = now
    payload = (REQUEST,) if hook == "before_model_call" else (CALL, Batch("b"))
    answer = rule.hook(hook, *payload)
    return answer and answer.name


def began(rule, now):
    rule.run.now = now
    assert rule.hook("run_start", "task") is None
    return rule


def test_a_request_that_comes_too_late_is_not_sent(bench):
    rule = began(bench(WallClock, stop="10m"), 100.0)
    assert at(rule, 699.9) is None
    assert at(rule, 700.0) == "stop"
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.code, answer.observed, answer.limit) == ("wall_clock", 600.0, 600.0)


def test_a_call_that_comes_too_late_is_not_run(bench):
    rule = began(bench(WallClock, stop="1s", wind_down="500ms"), 0.0)
    assert at(rule, 0.9, "before_tool_call") is None
    assert at(rule, 1.0, "before_tool_call") == "stop"


def test_a_wind_down_comes_before_a_request_only(bench):
    rule = began(bench(WallClock, stop="2h", wind_down="1h"), 0.0)
    assert at(rule, 3600.0, "before_tool_call") is None
    assert at(rule, 3600.0) == "wind_down"
    assert at(rule, 7200.0) == "stop"


def test_without_a_stop_only_the_answer_is_asked_for(bench):
    rule = began(bench(WallClock, wind_down="1m"), 0.0)
    assert at(rule, 80000.0) == "wind_down"
    assert at(rule, 80000.0, "before_tool_call") is None


def test_a_recording_without_times_never_trips(bench):
    rule = began(bench(WallClock, stop="1ms"), 0.0)
    assert [at(rule, 0.0) for _ in range(50)] == [None] * 50


def test_a_host_that_does_not_report_the_start_is_timed_from_its_first_event(bench):
    rule = bench(WallClock, stop="10s")
    assert at(rule, 5000.0) is None
    assert at(rule, 5009.0, "before_tool_call") is None
    assert at(rule, 5010.0) == "stop"


@pytest.mark.parametrize("set_to", [3.0, 0.0, 1.7e9], ids=["back", "to zero", "to a calendar"])
def test_a_clock_that_was_set_adds_nothing(bench, set_to):
    rule = began(bench(WallClock, stop="10s"), 1000.0)
    assert at(rule, 1008.0) is None
    rule.reload(stop="10s")
    assert at(rule, set_to) is None
    assert at(rule, set_to + 1.5) is None
    assert at(rule, set_to + 2.5) == "stop"


def test_problems_of_options_are_told(faults):
    assert faults(WallClock) == [": set `stop`, `wind_down` or both; write `mode: disabled` to switch the rule off"]
    (problem,) = faults(WallClock, stop="60s", wind_down="1m")
    assert problem == "wind_down: must be below stop (60s), or it can never take effect"
    assert faults(WallClock, stop="61s", wind_down="1m") == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stop": "24h"}, {"stop": "fires at 1"}),
        ({"wind_down": "1ms"}, {"wind_down": "fires at 2"}),
        ({"stop": "10m", "wind_down": "8m"}, {"stop": "fires at 1", "wind_down": "fires at 2"}),
    ],
    ids=str,
)
def test_every_limit_is_proved_by_a_clock_that_nobody_waits_for(proved, options, expected):
    assert proved(WallClock, **options) == expected


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 19))
def test_the_first_event_at_or_after_the_limit_stops_also_after_a_resume(steps, resumed_at):
    import msgspec

    from policyengine.context import RunView
    from policyengine.runstate import RunState

    rule = WallClock({"stop": "100s"})
    run = RunState("r", now=7.0)
    view = RunView(run, "wall_clock", WallClock.state(), lambda name: None)
    rule.run_start(view, "task")
    for number, step in enumerate(steps):
        if number == resumed_at:
            view.state = msgspec.json.decode(msgspec.json.encode(view.state), type=WallClock.state)
        run.now += step
        assert (rule.before_model_call(view, REQUEST) is not None) == (run.now - 7.0 >= 100)
