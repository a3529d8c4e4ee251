"""OpenHands V1 event logs: actions of one response, results by action, both forms of results, broken lines."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import ToolCall, ToolResult
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings

BASH = {"kind": "ExecuteBashObservation", "output": "a.py", "error": False, "timeout": False}


def event(kind, number, source="environment", **more):
    return {"kind": kind, "id": f"e{number}", "timestamp": f"2025-05-01T10:00:{number:02}", "source": source, **more}


def message(number, text, source="user", role="user"):
    said = {"role": role, "content": [{"type": "text", "text": text}]}
    return event("MessageEvent", number, source, llm_message=said)


def action(number, call_id="c1", response="r1", thought="Next.", **arguments):
    return event(
        "ActionEvent",
        number,
        "agent",
        thought=[{"type": "text", "text": thought}] if thought else [],
        tool_name="bash",
        tool_call_id=call_id,
        tool_call={"id": call_id, "function": {"name": "bash", "arguments": json.dumps(arguments)}},
        llm_response_id=response,
    )


def observation(number, of, held=BASH, call_id="c1"):
    return event("ObservationEvent", number, action_id=f"e{of}", tool_call_id=call_id, observation=held)


PROMPT = event("SystemPromptEvent", 0, "agent", system_prompt={"text": "Be brief."}, tools=[])


def read(tmp_path, *values):
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in values), encoding="utf-8")
    return list(read_recordings([path]))


def recording(tmp_path, *values):
    (run,) = read(tmp_path, *values)
    assert isinstance(run, Recording)
    return run


def test_a_conversation_is_one_run_with_times(tmp_path):
    run = recording(tmp_path, PROMPT, message(1, "Mend it."), action(3, command="ls"), observation(4, of=3))
    assert (run.format, run.id, run.ended, run.line) == ("openhands_v1", "talk", "tool_result", 1)
    task, said, answer = run.events
    assert task == UserSaid("Mend it.", at=1.0)
    assert (said.response.text, said.at) == ("Next.", 3.0)
    assert said.response.tool_calls == (ToolCall("c1", "bash", '{"command": "ls"}', {"command": "ls"}),)
    assert answer == ToolAnswered("c1", ToolResult("c1", "a.py"), 4.0)


def test_actions_of_one_response_are_one_batch_even_if_results_stand_between(tmp_path):
    events = [
        action(1, "a"),
        observation(2, 1, call_id="a"),
        action(3, "b", thought=""),
        observation(4, 3, call_id="b"),
    ]
    run = recording(tmp_path, PROMPT, *events)
    said, first, second = run.events
    assert [call.id for call in said.response.tool_calls] == ["a", "b"]
    assert (said.response.text, first.call_id, second.call_id) == ("Next.", "a", "b")


def test_a_call_id_that_comes_again_is_made_unique_and_results_go_to_their_action(tmp_path):
    events = [action(1), action(2, response="r2"), observation(3, of=2), observation(4, of=1)]
    run = recording(tmp_path, PROMPT, *events)
    assert [event.call_id for event in run.events if isinstance(event, ToolAnswered)] == ["c1~2", "c1"]


@pytest.mark.parametrize(
    ("held", "status", "text", "code"),
    [
        ({"kind": "ThinkObservation", "content": "noted"}, "ok", "noted", None),
        ({"kind": "FinishObservation", "message": "all done"}, "ok", "all done", None),
        ({"kind": "EditObservation", "output": "edited", "error": ""}, "ok", "edited", None),
        ({"kind": "EditObservation", "output": "", "error": "no match"}, "error", "no match", None),
        ({**BASH, "error": True}, "error", "a.py", None),
        ({**BASH, "timeout": True}, "timeout", "a.py", None),
        ({**BASH, "metadata": {"exit_code": 0, "prefix": "<", "suffix": ">"}}, "ok", "<a.py>", 0),
        ({**BASH, "metadata": {"exit_code": 2}}, "error", "a.py", 2),
        ({**BASH, "metadata": {"exit_code": -1}}, "ok", "a.py", None),
        ({"kind": "Any", "content": [{"type": "text", "text": "bad"}], "is_error": True}, "error", "bad", None),
    ],
)
def test_a_result_fails_where_it_says_so(tmp_path, held, status, text, code):
    result = recording(tmp_path, PROMPT, action(1), observation(2, 1, held)).events[-1].result
    assert (result.status, result.text, result.exit_code) == (status, text, code)


def test_what_the_harness_or_the_user_answers_in_place_of_a_tool(tmp_path):
    failed = event("AgentErrorEvent", 2, "agent", tool_call_id="c1", tool_name="bash", error="no such tool")
    rejected = event("UserRejectObservation", 4, tool_call_id="c2", action_id="e3", rejection_reason="not that")
    run = recording(tmp_path, PROMPT, action(1), failed, action(3, "c2", "r2"), rejected)
    answers = [event.result for event in run.events if isinstance(event, ToolAnswered)]
    assert [(answer.status, answer.text) for answer in answers] == [("error", "no such tool"), ("denied", "not that")]


def test_the_newer_form_of_a_call_is_read(tmp_path):
    newer = {**action(1), "tool_call": {"id": "c1", "name": "bash", "arguments": '{"command": "ls"}', "origin": "x"}}
    (call,) = recording(tmp_path, PROMPT, newer).events[0].response.tool_calls
    assert (call.name, call.args) == ("bash", {"command": "ls"})


def test_messages_are_the_agents_the_users_or_the_harness_s(tmp_path):
    run = recording(
        tmp_path, message(1, "Mend it."), message(2, "Done.", "agent", "assistant"), message(3, "Sure?", "environment")
    )
    assert isinstance(run.events[1], ModelSaid)
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, True]


def test_events_about_the_conversation_are_left_out_and_its_error_is_kept(tmp_path):
    others = [event("Condensation", 1, summary="short"), event("PauseEvent", 2, "user")]
    run = recording(tmp_path, PROMPT, *others, event("ConversationErrorEvent", 3, code="X", detail="no budget"))
    assert (run.events, run.error, run.ended) == ((), "no budget", "empty")


def test_what_cannot_be_understood_is_told_and_the_rest_is_read(tmp_path):
    *problems, run = read(
        tmp_path,
        PROMPT,
        action(1),
        "{broken",
        observation(2, of=1),
        observation(3, of=1),
        observation(4, of=9),
        event("SomethingNewEvent", 5),
        "7",
        action(6, "c2", "r2"),
    )
    told = {problem.line for problem in problems if isinstance(problem, Unreadable)}
    assert told == {3, 5, 6, 7, 8}
    assert len(run.events) == 3
