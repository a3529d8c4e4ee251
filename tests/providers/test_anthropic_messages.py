"""Anthropic's Messages through the package `anthropic`, against a server on the loopback interface."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from policyengine.messages import Message, ModelRequest, ToolCall, Usage
from tests.providers.asking import (
    BODIES,
    DRIVERS,
    LOOK,
    WEATHER,
    ask,
    failure,
    failures_of_cuts,
    needed,
    no_proxy,
    provider,
    run_agent,
)
from tests.providers.wire_server import (
    Reply,
    message,
    message_stream,
    serve,
    text_block,
    thinking_block,
    use_block,
)

__all__ = ["no_proxy"]
needed("anthropic")

STREAM = pytest.mark.parametrize("stream", [False, True])
FULL = message(
    thinking_block("Where could it be?", "sig=="),
    {"type": "redacted_thinking", "data": "opaque"},
    text_block("Looking."),
    use_block("a", "look", {"place": "here"}),
    use_block("b", "look", {"place": "there"}),
)
THINK = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


def at(url: str, **fields):
    return provider("anthropic_messages", url, **fields)


def replies(reply: Reply, stream: bool, **how) -> Reply:
    return message_stream(reply, **how) if stream else reply


@DRIVERS
@STREAM
def test_a_text_comes_back_with_usage_that_counts_what_was_cached(driver, stream):
    with serve(replies(message(text_block("In the drawer.")), stream)) as wire:
        answer = ask(at(wire.url, stream=stream, max_tokens=300, options={"temperature": 0}), driver)
    assert (answer.text, answer.finish_reason, answer.model) == ("In the drawer.", "end_turn", "asked")
    assert answer.usage == Usage(11, 7, 18)
    sent = wire.requests[0]
    assert (sent["system"], sent["max_tokens"], sent["temperature"]) == ("Be brief.", 300, 0)
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Where is it?"}]}]
    assert sent["tools"] == [{"name": "look", "description": LOOK.description, "input_schema": LOOK.parameters}]
    assert wire.paths == ["/v1/messages"]


@DRIVERS
@STREAM
def test_calls_thinking_and_text_are_read_from_their_blocks(driver, stream):
    with serve(replies(FULL, stream)) as wire:
        answer = ask(at(wire.url, stream=stream), driver)
    assert [(call.id, call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
        ("a", "look", {"place": "here"}),
        ("b", "look", {"place": "there"}),
    ]
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Looking.", "Where could it be?", "tool_use")
    assert answer.raw == {"role": "assistant", "content": FULL.body["content"]}


@DRIVERS
@STREAM
def test_blocks_go_back_unchanged_and_results_of_one_response_in_one_message(driver, stream):
    with serve(replies(FULL, stream), message(text_block("done"))) as wire:
        first = ask(at(wire.url, stream=stream, options=THINK), driver)
        spoken = Message("assistant", first.text, first.tool_calls, raw=first.raw)
        results = [Message("tool", f"r{id}", tool_call_id=id, name="look") for id in "ab"]
        after = (*WEATHER.messages, spoken, *results, Message("user", "hurry", origin="rule:x"))
        ask(at(wire.url, options=THINK), driver, ModelRequest(after, (LOOK,)))
    sent = wire.requests[1]
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] == FULL.body["content"]
    kinds = [block["type"] for block in sent["messages"][2]["content"]]
    assert kinds == ["tool_result", "tool_result", "text"]
    assert sent["messages"][2]["content"][1] == {"type": "tool_result", "tool_use_id": "b", "content": "rb"}
    assert sent["thinking"] == THINK["thinking"]


@DRIVERS
def test_malformed_arguments_of_a_stream_are_handed_on_as_they_are(driver):
    reply = message(thinking_block("hm", "sig"), use_block("a", "look", {}))
    with serve(message_stream(reply, arguments='{"place": '), message_stream(reply, arguments="")) as wire:
        broken, none = (ask(at(wire.url, stream=True), driver) for _ in range(2))
    assert broken.tool_calls == (ToolCall("a", "look", '{"place": '),)
    assert none.tool_calls == (ToolCall("a", "look", "{}"),)
    assert broken.raw == none.raw == {"role": "assistant", "content": reply.body["content"]}


EVENTS = len(message_stream(FULL).events)


@DRIVERS
@pytest.mark.parametrize("end", ["ended", "closed", "reset"])
def test_a_stream_that_is_cut_anywhere_is_a_failure_and_never_an_answer(driver, end):
    cuts = [message_stream(FULL, sent=sent, end=end) for sent in range(EVENTS)]
    failures_of_cuts(at, driver, cuts)


@DRIVERS
@pytest.mark.parametrize("case", BODIES, ids=lambda case: case["id"])
def test_the_failures_of_the_cases_are_classified_as_they_come_through_the_sdk(driver, case):
    with serve(
        Reply(case["input"]["body"], case["input"].get("status") or 400, case["input"].get("headers") or {})
    ) as wire:
        assert failure(at(wire.url), driver).code == case["expected"]["error_class"]


def error(kind: str, text: str) -> dict:
    return {"type": "error", "error": {"type": kind, "message": text}}


@DRIVERS
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(error("rate_limit_error", "slow"), 429, {"retry-after": "7"}), "rate_limit"),
        (Reply(error("overloaded_error", "Overloaded"), 529), "overloaded"),
        (Reply(error("api_error", "Internal server error"), 500), "server_error"),
        (Reply(error("authentication_error", "invalid x-api-key"), 401), "authentication"),
        (Reply(error("overloaded_error", "Overloaded")), "overloaded"),
        (Reply(b"<html>", 200, {"content-type": "text/html"}), "malformed_output"),
        (Reply(b"{ not json"), "malformed_output"),
        (Reply({"content": None}), "malformed_output"),
        (Reply(end="reset"), "connection"),
        (message(text_block("I wo"), stop_reason="refusal"), "content_filter"),
        (message_stream(message(text_block("I wo"), stop_reason="refusal")), "content_filter"),
        (Reply(events=(*message_stream(FULL).events[:5], error("overloaded_error", "Overloaded"))), "overloaded"),
    ],
)
def test_a_failed_request_is_sent_once_and_says_what_it_was(driver, reply, code):
    with serve(reply, message(text_block("never asked"))) as wire:
        found = failure(at(wire.url, stream=bool(reply.events)), driver)
        assert len(wire.requests) == 1
    assert found.code == code
    assert found.retry_after_s == (7.0 if "retry-after" in reply.headers else None)


@DRIVERS
@STREAM
def test_a_server_that_is_silent_for_too_long_is_a_timeout(driver, stream):
    with serve(message_stream(FULL, sent=3, hold=True) if stream else Reply(hold=True)) as wire:
        assert failure(at(wire.url, stream=stream, timeout_s=0.2), driver).code == "timeout"


@pytest.mark.parametrize(
    ("changes", "fields", "thinking"),
    [
        ({}, {"max_tokens": 4000}, {"type": "enabled", "budget_tokens": 2000}),
        ({"max_tokens": 1500}, {"max_tokens": 4000}, {"type": "enabled", "budget_tokens": 1024}),
        ({"max_tokens": 500}, {"max_tokens": 4000}, None),
        ({"thinking": False}, {"max_tokens": 4000}, None),
        ({"tool_choice": "look"}, {"max_tokens": 4000}, None),
    ],
)
def test_thinking_is_asked_for_only_where_it_can_be_and_leaves_room_for_an_answer(changes, fields, thinking):
    request = msgspec.structs.replace(WEATHER, **changes)
    with serve(message(text_block("ok"))) as wire:
        ask(at(wire.url, options=THINK, **fields), "sync", request)
    assert wire.requests[0].get("thinking") == thinking


def test_without_thinking_no_thought_goes_back_and_nothing_empty_either():
    spoken = Message(
        "assistant", "Looking.", raw={"role": "assistant", "content": [*FULL.body["content"], text_block("")]}
    )
    with serve(message(text_block("ok"))) as wire:
        ask(at(wire.url), "sync", ModelRequest((*WEATHER.messages, spoken), thinking=False))
    kinds = [block["type"] for block in wire.requests[0]["messages"][1]["content"]]
    assert kinds == ["text", "tool_use", "tool_use"]


def test_messages_that_another_protocol_left_in_the_history_are_written_anew():
    calls = (ToolCall("a", "look", '{"place": "x"}'),)
    foreign = [{"role": "assistant", "content": "hi", "tool_calls": [{}]}, {"output": []}]
    for raw in foreign:
        with serve(message(text_block("ok"))) as wire:
            later = (
                Message("assistant", "hi", calls, raw=raw),
                Message("tool", "", tool_call_id="a"),
                Message("system", "s"),
            )
            ask(at(wire.url), "sync", ModelRequest((Message("user", "x"), *later)))
        assert wire.requests[0]["messages"][1:] == [
            {"role": "assistant", "content": [text_block("hi"), use_block("a", "look", {"place": "x"})]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "(empty)"}, text_block("s")],
            },
        ]


@pytest.mark.parametrize(
    ("choice", "sent"), [("", None), ("required", {"type": "any"}), ("look", {"type": "tool", "name": "look"})]
)
def test_the_choice_of_a_tool_is_sent(choice, sent):
    with serve(message(text_block("ok"))) as wire:
        ask(at(wire.url), "sync", msgspec.structs.replace(WEATHER, tool_choice=choice))
    assert wire.requests[0].get("tool_choice") == sent


@DRIVERS
@STREAM
def test_a_run_waits_out_failures_and_its_thinking_goes_back_signed(driver, stream):
    told = [
        Reply(error("overloaded_error", "Overloaded"), 529),
        replies(FULL, stream),
        replies(message(text_block("Here.")), stream),
    ]
    with serve(*told) as wire:
        outcome, waits = run_agent(at(wire.url, stream=stream, options=THINK, max_tokens=4000), driver)
    assert (outcome.status, outcome.output, len(waits)) == ("completed", "Here.", 1)
    assert wire.requests[-1]["messages"][1]["content"] == FULL.body["content"]
    assert outcome.prompt_tokens == 22


def test_a_stream_that_ends_with_an_open_block_is_cut():
    reply = message_stream(FULL)
    events = tuple(event for event in reply.events if event["type"] != "content_block_stop")
    with serve(replace(reply, events=events)) as wire:
        assert failure(at(wire.url, stream=True), "sync").code == "stream_cut"


def paused(*blocks) -> Reply:
    return message(*blocks, stop_reason="pause_turn")


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "museum"}}


@DRIVERS
@STREAM
def test_a_turn_that_the_provider_pauses_is_sent_back_and_goes_on(driver, stream):
    told = [
        paused(text_block("I search. "), SEARCH),
        paused(text_block("And again. ")),
        message(text_block("At nine.")),
    ]
    with serve(*[replies(reply, stream) for reply in told]) as wire:
        answer = ask(at(wire.url, stream=stream), driver)
    assert (answer.text, answer.finish_reason) == ("I search. And again. At nine.", "end_turn")
    assert answer.usage == Usage(33, 21, 54)
    assert [turn["role"] for turn in wire.requests[2]["messages"]] == ["user", "assistant"]
    assert [block["type"] for block in wire.requests[2]["messages"][1]["content"]] == [
        "text",
        "server_tool_use",
        "text",
    ]
    assert [block["type"] for block in answer.raw["content"]] == ["text", "server_tool_use", "text", "text"]


def test_a_turn_that_is_paused_for_ever_is_a_failure():
    with serve(*[paused(text_block("I search."))] * 20) as wire:
        assert failure(at(wire.url), "sync").code == "malformed_output"
    assert len(wire.requests) == 10


@DRIVERS
def test_what_utf_8_cannot_carry_is_replaced_before_it_is_sent(driver):
    history = (
        Message("user", "what is in caf\udce9.txt?"),
        Message("assistant", "", (ToolCall("a", "look", '{"place": "caf\udce9"}', {"place": "caf\udce9"}),)),
        Message("tool", "empty \udce9", tool_call_id="a"),
    )
    with serve(message(text_block("Nothing."))) as wire:
        assert ask(at(wire.url), driver, ModelRequest(history)).text == "Nothing."
    assert "caf\ufffd.txt" in json.dumps(wire.requests[0], ensure_ascii=False)
