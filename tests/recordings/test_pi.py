"""Sessions of pi: aborted responses, broken lines, what the harness says itself."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import ToolCall, Usage
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings

HEAD = {"type": "session", "id": "s-1", "timestamp": "2025-12-01T10:00:00.000Z", "cwd": "/w", "modelId": "m-1"}
EPOCH_MS = 1764583200000


def text(words):
    return [{"type": "text", "text": words}]


def message(role, content, second=0, **more):
    held = {"role": role, "content": content, "timestamp": EPOCH_MS + 1000 * second, **more}
    return {"type": "message", "timestamp": "2025-12-01T10:00:00.000Z", "message": held}


def said(content, stop="stop", **more):
    return message("assistant", content, stopReason=stop, model="m-2", **more)


CALL = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a.py"}}
TASK = message("user", text("Mend a.py."))
RESULT = message("toolResult", text("x = 1"), 2, toolCallId="c1", toolName="read", isError=False)


def read(tmp_path, *lines):
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in lines), encoding="utf-8")
    return list(read_recordings([path]))


def recording(tmp_path, *lines):
    (run,) = read(tmp_path, HEAD, *lines)
    assert isinstance(run, Recording)
    return run


def test_a_session_is_one_run_with_times(tmp_path):
    usage = {"input": 3, "output": 4, "cacheRead": 10, "cacheWrite": 0, "totalTokens": 17}
    thought = {"type": "thinking", "thinking": "hm"}
    call = said([thought, *text("Reading."), CALL], "toolUse", usage=usage, second=1)
    run = recording(tmp_path, TASK, call, RESULT, said(text("Done."), second=3))
    assert (run.format, run.id, run.group, run.task, run.line) == ("pi_sessions", "s-1", "m-1", "Mend a.py.", 1)
    assert [event.at for event in run.events] == [0.0, 1.0, 2.0, 3.0]
    response = run.events[1].response
    assert (response.text, response.reasoning, response.finish_reason) == ("Reading.", "hm", "toolUse")
    assert response.tool_calls == (ToolCall("c1", "read", '{"path":"a.py"}', {"path": "a.py"}),)
    assert (response.usage, response.model) == (Usage(13, 4, 17), "m-2")
    assert (run.events[2].call_id, run.events[2].result.text) == ("c1", "x = 1")
    assert (run.ended, run.label) == ("final_answer", None)


@pytest.mark.parametrize("stop", ["aborted", "error"])
def test_a_response_that_was_broken_off_before_it_said_anything_is_left_out(tmp_path, stop):
    thought = [{"type": "thinking", "thinking": "hm"}]
    run = recording(tmp_path, TASK, said([], stop, errorMessage="e"), said(thought, stop), said(text(" "), stop))
    assert [type(event) for event in run.events] == [UserSaid]


def test_what_a_broken_off_response_had_said_is_kept(tmp_path):
    run = recording(tmp_path, said(text("Half a"), "aborted"), said([CALL], "aborted"))
    assert [event.response.finish_reason for event in run.events] == ["aborted", "aborted"]
    assert run.ended == "call"


def test_a_response_that_the_model_ended_without_a_word_is_kept(tmp_path):
    run = recording(tmp_path, TASK, said([]))
    assert run.ended == "empty"
    assert isinstance(run.events[-1], ModelSaid)


def test_the_error_of_the_last_response_is_that_of_the_run(tmp_path):
    overloaded = said([], "error", errorMessage="overloaded")
    assert recording(tmp_path, TASK, overloaded).error == "overloaded"
    assert recording(tmp_path, TASK, said([], "aborted")).error == "aborted"
    assert recording(tmp_path, TASK, overloaded, said(text("Done."))).error == ""


def test_a_result_failed_if_it_says_so(tmp_path):
    failed = message("toolResult", text("no such file"), toolCallId="c1", toolName="read", isError=True)
    assert recording(tmp_path, said([CALL]), failed).events[-1].result.status == "error"


def test_commands_of_the_user_and_changes_of_the_model_are_left_out(tmp_path):
    run = recording(
        tmp_path,
        {"type": "model_change", "modelId": "m-9"},
        {"type": "thinking_level_change", "thinkingLevel": "high"},
        {"type": "message", "message": {"role": "bashExecution", "command": "ls", "output": "a.py"}},
        TASK,
    )
    assert len(run.events) == 1
    assert run.group == "m-1"


def test_summaries_and_messages_of_extensions_are_the_harness_s_own(tmp_path):
    run = recording(
        tmp_path,
        TASK,
        {"type": "compaction", "summary": "so far so good"},
        {"type": "custom_message", "content": "note"},
        message("custom", "mind the tests"),
    )
    assert [(event.text, event.injected) for event in run.events] == [
        ("Mend a.py.", False),
        ("so far so good", True),
        ("note", True),
        ("mind the tests", True),
    ]


def test_a_line_with_two_objects_is_reported_and_reading_goes_on(tmp_path):
    two = json.dumps(said(text("a"))) + json.dumps(TASK)
    problem, run = read(tmp_path, HEAD, TASK, two, "", said(text("b")), "")
    assert isinstance(problem, Unreadable)
    assert problem.line == 3
    assert [event.response.text for event in run.events if isinstance(event, ModelSaid)] == ["b"]


def test_a_line_that_is_no_message_is_reported_and_reading_goes_on(tmp_path):
    problem, run = read(tmp_path, HEAD, {"type": "message", "message": {"role": "robot"}}, said([CALL]), RESULT)
    assert (problem.line, problem.reason) == (2, "a message has the role 'robot'")
    assert isinstance(run.events[-1], ToolAnswered)
