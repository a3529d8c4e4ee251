"""trae-agent trajectories: steps with responses and results, failed requests, calls that never ran."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import Usage
from policyengine.recordings.model import ModelSaid, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings

START = "2025-05-01T10:00:00.000000"


def called(call_id="c1", **arguments):
    return {"call_id": call_id, "name": "bash", "arguments": arguments, "id": f"i-{call_id}"}


def answered(call_id="c1", success=True, result: str | None = "ok", error: str | None = ""):
    return {"call_id": call_id, "success": success, "result": result, "error": error}


def said(*calls, content=""):
    usage = {"input_tokens": 7, "output_tokens": 2}
    calls = list(calls) or None
    return {"content": content, "model": "big-1", "finish_reason": "stop", "usage": usage, "tool_calls": calls}


def step(response=None, results=None, messages=(), second=1, error=None):
    calls = response and response["tool_calls"] if results is not None else None
    return {
        "step_number": second,
        "timestamp": f"2025-05-01T10:00:{second:02}.000000",
        "state": "completed",
        "llm_messages": list(messages),
        "llm_response": response,
        "tool_calls": calls,
        "tool_results": results,
        "reflection": None,
        "error": error,
    }


def trajectory(*steps, **more):
    return {
        "task": "Make it fast.",
        "start_time": START,
        "model": "big",
        "llm_interactions": [],
        "agent_steps": list(steps),
        "success": False,
        "final_result": None,
        **more,
    }


def read(tmp_path, value):
    path = tmp_path / "run-3.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    (run,) = read_recordings([path])
    return run


def test_a_run_is_read_step_by_step_with_times(tmp_path):
    sent = [{"role": "user", "content": None, "tool_result": answered()}]
    run = read(
        tmp_path, trajectory(step(said(called(command="ls")), [answered()], sent), step(said(content="fast now")))
    )
    assert (run.format, run.id, run.group, run.ended) == ("trae", "run-3", "big", "final_answer")
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    assert [event.at for event in run.events] == [0.0, 1.0, 1.0, 1.0]
    assert run.events[0].text == "Make it fast."
    response = run.events[1].response
    assert response.tool_calls[0].args == {"command": "ls"}
    assert (response.usage, response.model) == (Usage(7, 2, 9), "big-1")


def test_that_the_agent_declared_itself_done_is_no_label(tmp_path):
    assert read(tmp_path, trajectory(success=True)).label is None


@pytest.mark.parametrize(
    ("success", "result", "error", "status", "text"),
    [
        (True, "out", "warning", "ok", "out\nwarning"),
        (False, None, "no such file", "error", "no such file"),
        (False, "", "", "error", ""),
        (True, "", None, "ok", ""),
    ],
)
def test_a_result_says_whether_its_call_succeeded(tmp_path, success, result, error, status, text):
    run = read(tmp_path, trajectory(step(said(called()), [answered("c1", success, result, error)])))
    assert (run.events[-1].result.status, run.events[-1].result.text) == (status, text)


def test_results_of_a_batch_go_to_their_calls(tmp_path):
    run = read(tmp_path, trajectory(step(said(called("a"), called("b")), [answered("b", result="B"), answered("a")])))
    assert [(event.call_id, event.result.text) for event in run.events[2:]] == [("b", "B"), ("a", "ok")]


def test_a_failed_request_is_no_response_but_the_error_of_the_run(tmp_path):
    run = read(
        tmp_path, trajectory(step(error="401"), step(said(called()), [answered()]), step(error="Error code: 400"))
    )
    assert sum(isinstance(event, ModelSaid) for event in run.events) == 1
    assert run.error == "Error code: 400"


def test_a_call_that_never_ran_has_no_result_and_the_reminder_after_it_is_the_harness(tmp_path):
    sent = [{"role": "user", "content": "The patch is empty."}]
    run = read(tmp_path, trajectory(step(said(called("d")), None, sent), step(error="400", messages=sent)))
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, UserSaid]
    assert (run.events[2].text, run.events[2].injected, run.ended) == ("The patch is empty.", True, "user_message")


def test_what_the_last_step_lists_was_sent_before_it(tmp_path):
    sent = [{"role": "user", "content": "Call a tool."}]
    run = read(tmp_path, trajectory(step(said(content="well"), None, sent), step(said(content="done"), None, sent)))
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, UserSaid, ModelSaid]


def test_a_trajectory_of_the_wrong_shape_is_unreadable(tmp_path):
    for broken in (trajectory(5), trajectory(step([])), trajectory(step(said(5))), trajectory(task=["x"])):
        assert isinstance(read(tmp_path, broken), Unreadable)
