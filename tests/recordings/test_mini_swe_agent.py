"""mini-swe-agent trajectories: chat messages with return codes, times, and a message that tells the end."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import Usage
from policyengine.recordings.model import ModelSaid, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings

TASK = [{"role": "system", "content": "Use the shell."}, {"role": "user", "content": "Mend the clock."}]
SUBMITTED = {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}}


def asked(command, call_id="c1", at=None, **more):
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    provider = {
        "model": "small",
        "choices": [{"finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
    call = {"id": call_id, "type": "function", "function": function}
    return {
        "role": "assistant",
        "content": "Next.",
        "tool_calls": [call],
        "extra": {"response": provider, "timestamp": at},
        **more,
    }


def answered(text, code=0, call_id="c1", at=None, raised=""):
    extra = {"raw_output": text, "returncode": code, "timestamp": at, "exception_info": raised}
    return {"role": "tool", "tool_call_id": call_id, "content": text, "extra": extra}


def trajectory(*messages, status="Submitted", kind="mini-swe-agent-1.1", **info):
    config = {"model": {"model_name": "maker/small"}}
    return {
        "info": {"exit_status": status, "config": config, **info},
        "messages": list(messages),
        "trajectory_format": kind,
        "instance_id": "shop__clock-7",
    }


def read(tmp_path, value):
    path = tmp_path / "shop__clock-7.traj.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    (run,) = read_recordings([path])
    return run


def test_a_run_is_read_with_its_calls_results_and_tokens(tmp_path):
    run = read(tmp_path, trajectory(*TASK, asked("ls"), answered("a.py"), asked("submit", "c2"), SUBMITTED))
    assert (run.format, run.id, run.task, run.group) == (
        "mini_swe_agent",
        "shop__clock-7",
        "shop__clock-7",
        "maker/small",
    )
    assert (run.ended, run.error, run.label) == ("call", "", None)
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    response = run.events[1].response
    assert response.tool_calls[0].args == {"command": "ls"}
    assert (response.finish_reason, response.model, response.usage) == ("tool_calls", "small", Usage(9, 3, 12))


@pytest.mark.parametrize(("code", "raised", "status"), [(0, "", "ok"), (2, "", "error"), (-1, "too slow", "error")])
def test_a_command_failed_if_its_return_code_says_so_or_it_could_not_run(tmp_path, code, raised, status):
    run = read(tmp_path, trajectory(*TASK, asked("ls"), answered("no error", code, raised=raised)))
    result = run.events[-1].result
    assert (result.status, result.exit_code) == (status, code)
    assert (result.error.message if result.error else "") == raised


def test_times_count_from_the_first_one(tmp_path):
    messages = [asked("ls", at=1000.5), answered("x", at=1003.0), asked("ls", "c2", at=1002.0)]
    run = read(tmp_path, trajectory(*TASK, *messages))
    assert [event.at for event in run.events] == [None, 0.0, 2.5, 2.5]


@pytest.mark.parametrize(
    ("why", "injected"), [("FormatError", True), (None, True), ("UserInterruption", False), ("UserNewTask", False)]
)
def test_a_later_user_message_is_the_harness_unless_the_user_interrupted(tmp_path, why, injected):
    later = {"role": "user", "content": "go on", "extra": {"interrupt_type": why}}
    run = read(tmp_path, trajectory(*TASK, asked("ls"), answered("x"), later))
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, injected]


def test_a_run_that_never_got_an_answer_has_its_error(tmp_path):
    ended = {"role": "exit", "content": "timed out", "extra": {"exit_status": "Timeout"}}
    run = read(tmp_path, trajectory(*TASK, ended, status="Timeout", exception_str="no answer in 60 s"))
    assert (run.ended, run.error) == ("user_message", "no answer in 60 s")
    assert read(tmp_path, trajectory(*TASK, status="LimitsExceeded")).error == "LimitsExceeded"


def test_the_older_format_and_unknown_roles_are_unreadable(tmp_path):
    for broken in (trajectory(*TASK, kind="mini-swe-agent-1"), trajectory({"role": "judge"}), trajectory(5)):
        assert isinstance(read(tmp_path, broken), Unreadable)
