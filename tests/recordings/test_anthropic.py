"""Messages of Anthropic's API: spellings, blocks, results, logs of requests."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import ToolCall, Usage
from policyengine.recordings import anthropic
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import READERS, read_recordings

HELLO = [{"role": "user", "content": "Good day."}, {"role": "assistant", "content": "Hello."}]


def text(words):
    return {"type": "text", "text": words}


def use(call_id="c1", **arguments):
    return {"type": "tool_use", "id": call_id, "name": "weigh", "input": arguments}


def used(content, call_id="c1", **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def model(*blocks, **more):
    return {"role": "assistant", "content": list(blocks), **more}


TALK = [user(text("Weigh it.")), model(text("Weighing."), use(parcel=7)), user(used("2 kg")), model(text("2 kg."))]


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def read(tmp_path, *lines, name="talk.jsonl"):
    return list(read_recordings([write(tmp_path / name, *lines)]))


def recording(tmp_path, value, name="talk.json"):
    (run,) = read(tmp_path, value, name=name)
    assert isinstance(run, Recording), run
    return run


def texts(run):
    return [e.response.text if isinstance(e, ModelSaid) else e.text for e in run.events if not hasattr(e, "result")]


@pytest.mark.parametrize("value", [TALK, {"messages": TALK}, [TALK], [{"messages": TALK}]])
def test_every_spelling_of_one_conversation_is_one_recording(tmp_path, value):
    run = recording(tmp_path, value)
    assert (run.format, run.task, run.ended) == ("anthropic", "Weigh it.", "final_answer")
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    assert run.events[1].response.tool_calls == (ToolCall("c1", "weigh", '{"parcel":7}', {"parcel": 7}),)
    assert (run.events[2].call_id, run.events[2].result.text) == ("c1", "2 kg")


def test_a_message_a_line_is_one_run_up_to_the_first_broken_line(tmp_path):
    problem, run = read(tmp_path, TALK[1], TALK[2], "{", TALK[3])
    assert [type(event) for event in run.events] == [ModelSaid, ToolAnswered]
    assert (problem.line, run.id) == (3, "talk")


def test_a_run_a_line_is_named_by_its_line_unless_it_has_a_name(tmp_path):
    runs = read(tmp_path, TALK, {"messages": TALK, "id": "r-9"}, {"messages": TALK})
    assert [(run.id, run.line) for run in runs] == [("talk#0", 1), ("r-9", 2), ("talk#2", 3)]
    assert anthropic.run_a_line(TALK)
    assert anthropic.run_a_line({"messages": TALK})
    assert not anthropic.run_a_line(TALK[1])


def test_a_file_that_begins_with_a_conversation_without_calls_is_read_all_the_same(tmp_path):
    first, second = read(tmp_path, {"messages": HELLO}, {"messages": TALK})
    assert (first.format, second.format) == ("openai_chat", "anthropic")
    assert [type(event) for event in second.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]


def test_an_object_around_the_messages_may_say_what_the_run_is(tmp_path):
    about = {"id": "r-1", "model": "m-1", "task": "t", "label": True, "error": "late", "system": "Be brief."}
    run = recording(tmp_path, {**about, "messages": TALK})
    assert (run.id, run.group, run.task, run.label, run.error) == ("r-1", "m-1", "t", True, "late")
    assert run.events[1].response.model == "m-1"


def test_thinking_is_reasoning_and_tools_of_the_provider_are_no_calls(tmp_path):
    server = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    (said,) = recording(tmp_path, [model(thought, server, found, text("a"), text("b"))]).events
    assert (said.response.text, said.response.reasoning, said.response.tool_calls) == ("ab", "hm", ())


def test_a_result_failed_only_if_its_block_says_so(tmp_path):
    results = user(used("Error: no scale", "c1"), used("no scale", "c2", is_error=True))
    run = recording(tmp_path, [model(use("c1"), use("c2")), results])
    assert [event.result.status for event in run.events[1:]] == ["ok", "error"]


def test_a_text_beside_a_result_is_the_harness_s_own(tmp_path):
    run = recording(tmp_path, [model(use()), user(used("2 kg"), text("Two steps left."))])
    assert isinstance(run.events[1], ToolAnswered)
    assert run.events[2] == UserSaid("Two steps left.", True)


def test_another_image_is_another_result(tmp_path):
    def shot(data):
        return [text("now: "), {"type": "image", "source": {"type": "base64", "data": data}}]

    run = recording(tmp_path, [model(use("a"), use("b"), use("c")), user(*map(used, map(shot, "xyx"), "abc"))])
    first, second, third = (event.result.text for event in run.events[1:])
    assert first == third != second
    assert first.startswith("now: [image ")


def test_tokens_in_the_cache_are_part_of_the_prompt(tmp_path):
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 4, "output_tokens": 8}
    (said,) = recording(tmp_path, [model(use(), usage=usage, stop_reason="tool_use", model="m-2")]).events
    assert (said.response.usage, said.response.finish_reason) == (Usage(7, 8, 15), "tool_use")
    assert said.response.model == "m-2"


@pytest.mark.parametrize(
    "messages",
    [
        [use()],
        [{"role": "tool", "content": "x"}],
        [model(7)],
        [model({"type": "tool_use", "name": ["f"]})],
        [{"role": "user", "content": {}}],
    ],
)
def test_what_is_no_message_makes_its_run_unreadable(tmp_path, messages):
    good, bad = read(tmp_path, TALK, messages)
    assert isinstance(good, Recording)
    assert (type(bad), bad.line) == (Unreadable, 2)


def test_plain_chats_are_left_to_their_own_reader():
    call = {"role": "assistant", "content": [text("a")], "tool_calls": []}
    for value in (HELLO, {"messages": HELLO}, [call], [{"role": "tool", "content": [used("x")]}], {}, [], [[]]):
        assert not anthropic.sniff(value)


def test_no_other_reader_claims_these_messages():
    for value in (TALK, TALK[1], {"messages": TALK, "system": "x", "model": "m"}):
        assert next(reader.name for reader in READERS if reader.sniff(value)) == "anthropic"


# ---- logs of requests


def logged(messages, response, **more):
    return {"model": "m-1", "system": "Be brief.", "messages": messages, "response": response, **more}


def response(*blocks, **more):
    return {"type": "message", "role": "assistant", "content": list(blocks), "model": "m-2", **more}


def test_requests_that_continue_each_other_are_one_run(tmp_path):
    usage = {"input_tokens": 1, "output_tokens": 2}
    first = logged(TALK[:1], response(text("Weighing."), use(parcel=7), usage=usage, stop_reason="tool_use"))
    cached = user({**text("Weigh it."), "cache_control": {"type": "ephemeral"}})
    second = logged([cached, *TALK[1:3]], response(text("2 kg."), usage=usage))
    (run,) = read(tmp_path, first, second, name="log.jsonl")
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    assert [e.response.usage for e in run.events if isinstance(e, ModelSaid)] == [Usage(1, 2, 3)] * 2
    assert (run.id, run.group, run.line, run.events[1].response.finish_reason) == ("log", "m-1", 1, "tool_use")


def test_conversations_of_one_log_are_told_apart(tmp_path):
    other = [user(text("Paint it."))]
    first, second = read(
        tmp_path,
        logged(TALK[:1], response(text("Weighing."), use(parcel=7))),
        logged(other, response(text("Painted."))),
        {"request": {"model": "m-1", "messages": TALK[:3]}, "response": response(text("2 kg."))},
    )
    assert (first.id, second.id) == ("talk#0", "talk#1")
    assert texts(first) == ["Weigh it.", "Weighing.", "2 kg."]
    assert texts(second) == ["Paint it.", "Painted."]


def test_a_response_that_its_client_dropped_is_left_out(tmp_path):
    (run,) = read(tmp_path, logged(TALK[:1], response(text("lost"))), logged(TALK[:1], response(text("kept"))))
    assert texts(run) == ["Weigh it.", "kept"]


def test_a_request_that_failed_is_no_response_and_the_last_error_stays(tmp_path):
    failed = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    (run,) = read(tmp_path, logged(TALK[:1], failed), logged(TALK[:1], response(text("done"))))
    assert (texts(run), run.error) == (["Weigh it.", "done"], "")
    (run,) = read(tmp_path, logged(TALK[:1], failed))
    assert (texts(run), run.error, run.ended) == (["Weigh it."], "busy", "user_message")


def test_an_entry_of_a_log_that_cannot_be_read_is_reported_and_the_others_are_read(tmp_path):
    good = logged(TALK[:1], response(text("a")))
    *problems, run = read(tmp_path, good, logged([user(text("b")), 3], None), {"messages": 4})
    assert [(problem.line, type(problem)) for problem in problems] == [(2, Unreadable), (3, Unreadable)]
    assert texts(run) == ["Weigh it.", "a"]
