"""Responses through the package `openai`, against a server on the loopback interface."""

from __future__ import annotations

import msgspec
import pytest

from policyengine.history.reasoning import pass_reasoning
from policyengine.messages import Message, ModelRequest, ToolCall, Usage
from tests.providers.asking import (
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
from tests.providers.wire_server import Reply, called, response, response_stream, said, serve, thought

__all__ = ["no_proxy"]
needed("openai")

STREAM = pytest.mark.parametrize("stream", [False, True])
FULL = response(
    thought("Where could it be?", "gAAA=="),
    said("Looking."),
    called("a", "look", '{"place": "here"}'),
    called("b", "look", '{"place": "there"}'),
)
OPTIONS = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}}


def at(url: str, **fields):
    return provider("openai_responses", url, **fields)


def replies(reply: Reply, stream: bool, **how) -> Reply:
    return response_stream(reply, **how) if stream else reply


@DRIVERS
@STREAM
def test_a_text_comes_back_with_usage(driver, stream):
    with serve(replies(response(said("In the drawer.")), stream)) as wire:
        answer = ask(at(wire.url, stream=stream, max_tokens=300, options=OPTIONS), driver)
    assert (answer.text, answer.finish_reason, answer.usage) == ("In the drawer.", "completed", Usage(11, 7, 18))
    sent = wire.requests[0]
    assert sent["input"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
    tool = {"type": "function", "name": "look", "description": LOOK.description, "parameters": LOOK.parameters}
    assert sent["tools"] == [{**tool, "strict": False}]
    assert (sent["max_output_tokens"], sent["store"], sent["include"]) == (300, False, OPTIONS["include"])
    assert wire.paths == ["/v1/responses"]


@DRIVERS
@STREAM
@pytest.mark.parametrize("bare_end", [False, True])
def test_calls_reasoning_and_text_are_read_from_their_items(driver, stream, bare_end):
    with serve(response_stream(FULL, bare_end=bare_end) if stream else FULL) as wire:
        answer = ask(at(wire.url, stream=stream), driver)
    assert answer.tool_calls == (
        ToolCall("a", "look", '{"place": "here"}'),
        ToolCall("b", "look", '{"place": "there"}'),
    )
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Looking.", "Where could it be?", "tool_calls")
    assert answer.raw == {"output": FULL.body["output"]}


@DRIVERS
@STREAM
def test_items_go_back_unchanged_with_their_encrypted_reasoning(driver, stream):
    with serve(replies(FULL, stream), response(said("done")), response(said("done"))) as wire:
        first = ask(at(wire.url, stream=stream), driver)
        spoken = Message("assistant", first.text, first.tool_calls, raw=first.raw)
        results = [Message("tool", f"r{id}", tool_call_id=id, name="look") for id in "ab"]
        ask(at(wire.url), driver, ModelRequest((*WEATHER.messages, spoken, *results)))
        off = ModelRequest((*WEATHER.messages, spoken, *results), thinking=False)
        ask(at(wire.url, options=OPTIONS), driver, off)
    assert wire.requests[1]["input"][2:6] == FULL.body["output"]
    assert wire.requests[1]["input"][7] == {"type": "function_call_output", "call_id": "b", "output": "rb"}
    without = wire.requests[2]["input"]
    assert [item.get("type") for item in without[2:5]] == ["message", "function_call", "function_call"]
    assert not any("id" in item for item in without)
    assert "reasoning" not in wire.requests[2]


def test_the_rule_of_the_model_says_which_reasoning_goes_back():
    calls = (ToolCall("a", "look", "{}"),)
    silent = Message("assistant", "x", raw={"output": [thought("why", "x="), said("x")]})
    calling = Message("assistant", "", calls, raw={"output": [thought("why", "x="), called("a", "look", "{}")]})
    kinds = [
        [item["type"] for item in message.raw["output"]] for message in pass_reasoning([silent, calling], "with_calls")
    ]
    assert kinds == [["message"], ["reasoning", "function_call"]]
    assert len(silent.raw["output"]) == 2


EVENTS = len(response_stream(FULL).events)


@DRIVERS
@pytest.mark.parametrize("end", ["ended", "closed", "reset"])
def test_a_stream_that_is_cut_anywhere_is_a_failure_and_never_an_answer(driver, end):
    cuts = [response_stream(FULL, sent=sent, end=end) for sent in range(EVENTS)]
    failures_of_cuts(at, driver, cuts)


@DRIVERS
@STREAM
@pytest.mark.parametrize(
    ("facts", "finish"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ({"status": "incomplete"}, "length"),
    ],
)
def test_an_answer_that_is_incomplete_says_so(driver, stream, facts, finish):
    with serve(replies(response(said("In the dr"), **facts), stream)) as wire:
        assert ask(at(wire.url, stream=stream), driver).finish_reason == finish


FILTERED = response(said("I"), status="incomplete", incomplete_details={"reason": "content_filter"})
FAILED = response(status="failed", error={"code": "server_error", "message": "The server had an error"})
FULL_WINDOW = response(status="failed", error={"code": "context_length_exceeded", "message": "too long"})


@DRIVERS
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (FILTERED, "content_filter"),
        (response_stream(FILTERED), "content_filter"),
        (FAILED, "server_error"),
        (response_stream(FAILED), "server_error"),
        (response_stream(FULL_WINDOW), "context_overflow"),
        (
            Reply(events=({"type": "error", "code": "rate_limit_exceeded", "message": "Rate limit reached"},)),
            "rate_limit",
        ),
        (Reply({"status": "completed"}), "malformed_output"),
        (Reply(b"{ not json"), "malformed_output"),
        (Reply({"error": {"message": "Rate limit reached"}}, 429), "rate_limit"),
        (Reply(end="reset"), "connection"),
    ],
)
def test_a_failed_request_is_sent_once_and_says_what_it_was(driver, reply, code):
    with serve(reply, response(said("never asked"))) as wire:
        assert failure(at(wire.url, stream=bool(reply.events)), driver).code == code
        assert len(wire.requests) == 1


@DRIVERS
@STREAM
def test_a_server_that_is_silent_for_too_long_is_a_timeout(driver, stream):
    with serve(response_stream(FULL, sent=3, hold=True) if stream else Reply(hold=True)) as wire:
        assert failure(at(wire.url, stream=stream, timeout_s=0.2), driver).code == "timeout"


def test_a_refusal_is_what_the_model_says():
    item = {**said("x"), "content": [{"type": "refusal", "refusal": "I cannot."}]}
    with serve(response(item)) as wire:
        assert ask(at(wire.url), "sync").text == "I cannot."


@pytest.mark.parametrize(
    ("choice", "sent"), [("", None), ("required", "required"), ("look", {"type": "function", "name": "look"})]
)
def test_the_choice_of_a_tool_is_sent(choice, sent):
    with serve(response(said("ok"))) as wire:
        ask(at(wire.url), "sync", msgspec.structs.replace(WEATHER, tool_choice=choice))
    assert wire.requests[0].get("tool_choice") == sent


def test_messages_that_another_protocol_left_in_the_history_are_written_anew():
    calls = (ToolCall("a", "look", ""),)
    foreign = [
        {"role": "assistant", "content": "hi", "tool_calls": [{}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]},
    ]
    for raw in foreign:
        with serve(response(said("ok"))) as wire:
            ask(at(wire.url), "sync", ModelRequest((Message("assistant", "hi", calls, raw=raw),)))
        assert wire.requests[0]["input"] == [
            {"role": "assistant", "content": "hi"},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        ]


@DRIVERS
@STREAM
def test_a_run_completes_and_its_reasoning_goes_back(driver, stream):
    with serve(replies(FULL, stream), replies(response(said("Here.")), stream)) as wire:
        outcome, _ = run_agent(at(wire.url, stream=stream), driver)
    assert (outcome.status, outcome.output, outcome.executed) == ("completed", "Here.", 2)
    assert wire.requests[-1]["input"][1:5] == FULL.body["output"]
