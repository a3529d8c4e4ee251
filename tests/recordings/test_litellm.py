"""LiteLLM completion logs: the last answer stands apart from the conversation, failures by OpenHands' own texts."""

from __future__ import annotations

import json

import pytest

from policyengine.recordings import openai_chat
from policyengine.recordings.litellm import CONTINUE, sniff
from policyengine.recordings.model import ModelSaid, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings


def called(call_id="c1", name="execute_bash", arguments='{"command": "ls"}'):
    return {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": name, "arguments": arguments}}]}


def answered(text, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": [{"type": "text", "text": text}]}


def completion(*messages, answer=None, **more):
    task = {"role": "user", "content": [{"type": "text", "text": "Mend it."}]}
    choice = {"finish_reason": "tool_calls", "index": 0, "message": answer or called("c9", "finish", "{}")}
    response = {"model": "proxy/big", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    return {"messages": [task, *messages], "response": response, "args": [], "kwargs": {}, "cost": 0.1, **more}


def read(tmp_path, value, name="shop__clock-7.json"):
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return list(read_recordings([path]))


def test_the_last_response_is_taken_from_the_answer(tmp_path):
    (run,) = read(tmp_path, completion(called(), answered("a.py")))
    assert (run.format, run.id, run.task, run.group) == ("litellm", "shop__clock-7", "shop__clock-7", "proxy/big")
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    last = run.events[-1].response
    assert (last.tool_calls[0].name, last.finish_reason, run.ended) == ("finish", "tool_calls", "call")
    assert last.usage is None


def test_an_answer_without_choices_adds_nothing(tmp_path):
    (run,) = read(tmp_path, {**completion(called()), "response": {"choices": []}})
    assert sum(isinstance(event, ModelSaid) for event in run.events) == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("out\n[Command finished with exit code 0]", "ok"),
        ("out\n[Command finished with exit code 127]", "error"),
        ("out\n[Error occurred in processing last action]", "error"),
        ("ERROR:\nno such path", "error"),
        ("the log says ERROR: and exit code 1", "ok"),
        ("[Command finished with exit code 1]\nand more", "ok"),
    ],
)
def test_a_result_failed_if_the_harness_s_own_sentence_says_so(tmp_path, text, status):
    (run,) = read(tmp_path, completion(called(), answered(text)))
    assert run.events[2].result.status == status


def test_what_the_harness_says_in_the_user_s_name_is_marked(tmp_path):
    spoken = [{"role": "assistant", "content": "Done?"}, {"role": "user", "content": f"{CONTINUE}\nGo on."}]
    (run,) = read(tmp_path, completion(*spoken, {"role": "user", "content": "Please hurry."}))
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, True, False]


def test_every_line_of_a_file_of_lines_is_a_run(tmp_path):
    lines = "\n".join(json.dumps(completion()) for _ in range(2))
    assert [run.id for run in read(tmp_path, lines, "logs.jsonl")] == ["logs#1", "logs#2"]


def test_it_is_asked_before_plain_chat_messages_which_claim_it_too(tmp_path):
    assert sniff(completion())
    assert openai_chat.sniff(completion())
    assert not sniff({"messages": []})


def test_a_completion_of_the_wrong_shape_is_unreadable(tmp_path):
    for broken in ([5], [{"message": 5}]):
        (item,) = read(tmp_path, {**completion(), "response": {"choices": broken}})
        assert isinstance(item, Unreadable)
