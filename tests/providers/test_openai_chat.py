"""Chat completions through the package `openai`, against a server on the loopback interface."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec
import pytest

from policyengine.history.reasoning import pass_reasoning
from policyengine.messages import Message, ModelRequest, ToolCall, Usage
from policyengine.providers.errors import find_silent_overflow
from policyengine.providers.openai_chat import ChatAssembler
from policyengine.providers.registry import connect
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
from tests.providers.wire_server import Reply, chat, chat_stream, serve

__all__ = ["no_proxy"]
needed("openai")

TWO = (("a", "look", '{"place": "here"}'), ("b", "look", '{"place": "there"}'))


def at(url: str, **fields):
    return provider("openai_chat", url, **fields)


def replies(reply: Reply, stream: bool, **how) -> Reply:
    return chat_stream(reply, **how) if stream else reply


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_comes_back_with_usage_and_the_name_that_was_asked_for(driver, stream):
    with serve(replies(chat("In the drawer."), stream)) as wire:
        answer = ask(at(wire.url, stream=stream, options={"temperature": 0, "top_k": 5}), driver)
    assert (answer.text, answer.finish_reason, answer.model) == ("In the drawer.", "stop", "asked")
    assert answer.usage == Usage(11, 7, 18)
    sent = wire.requests[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it?"},
    ]
    assert sent["tools"][0]["function"] == {
        "name": "look",
        "description": LOOK.description,
        "parameters": LOOK.parameters,
    }
    assert (sent["model"], sent["temperature"], sent["top_k"]) == ("asked", 0, 5)
    assert sent.get("stream_options") == ({"include_usage": True} if stream else None)
    assert wire.paths == ["/v1/chat/completions"]


@DRIVERS
@pytest.mark.parametrize("size", [1, 3, 100])
def test_parallel_calls_are_the_same_from_a_stream(driver, size):
    with serve(chat(None, TWO), chat_stream(chat(None, TWO), size=size)) as wire:
        whole = ask(at(wire.url), driver)
        streamed = ask(at(wire.url, stream=True), driver)
    assert whole.tool_calls == (ToolCall("a", "look", '{"place": "here"}'), ToolCall("b", "look", '{"place": "there"}'))
    assert streamed.tool_calls == whole.tool_calls
    assert streamed.raw is not None
    assert streamed.raw["tool_calls"] == whole.raw["tool_calls"]


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
def test_malformed_arguments_are_handed_on_as_they_are(driver, stream):
    with serve(replies(chat(None, [("a", "look", '{"place": ')]), stream)) as wire:
        assert ask(at(wire.url, stream=stream), driver).tool_calls[0].arguments == '{"place": '


EVENTS = len(chat_stream(chat("Yes.", TWO, reasoning_content="Let me think."), size=6).events)


@DRIVERS
@pytest.mark.parametrize("end", ["ended", "closed", "reset"])
def test_a_stream_that_is_cut_anywhere_is_a_failure_and_never_an_answer(driver, end):
    reply = chat_stream(chat("Yes.", TWO, reasoning_content="Let me think."), size=6)
    cuts = [cut_after(reply, sent, end) for sent in range(EVENTS - 3)]
    for error in failures_of_cuts(at, driver, cuts):
        assert "backoff" in error.remedies


def cut_after(reply: Reply, sent: int, end: str) -> Reply:
    return replace(reply, sent=sent, end=end)


@DRIVERS
def test_a_stream_that_only_lacks_what_follows_the_answer_is_whole(driver):
    reply = chat_stream(chat("Yes."))
    with serve(cut_after(reply, len(reply.events) - 1, "ended")) as wire:
        assert ask(at(wire.url, stream=True), driver).text == "Yes."
    with serve(cut_after(reply, len(reply.events) - 2, "ended")) as wire:
        answer = ask(at(wire.url, stream=True), driver)
    assert (answer.text, answer.usage) == ("Yes.", None)


@DRIVERS
@pytest.mark.parametrize("case", BODIES, ids=lambda case: case["id"])
def test_the_failures_of_the_cases_are_classified_as_they_come_through_the_sdk(driver, case):
    status = case["input"].get("status") or 400
    with serve(Reply(case["input"]["body"], status, case["input"].get("headers") or {})) as wire:
        error = failure(at(wire.url), driver)
    assert error.code == case["expected"]["error_class"]
    for name in ("tokens", "limit"):
        if name in case["expected"]:
            assert getattr(error, name) == case["expected"][name]


@DRIVERS
@pytest.mark.parametrize(
    ("reply", "code", "wait"),
    [
        (Reply({"error": {"message": "Rate limit reached"}}, 429, {"retry-after": "7"}), "rate_limit", 7.0),
        (Reply({"error": {"message": "The server is overloaded"}}, 503), "overloaded", None),
        (Reply({"error": {"message": "Internal server error"}}, 500), "server_error", None),
        (Reply(b"<html>Bad Gateway</html>", 502, {"content-type": "text/html"}), "server_error", None),
        (Reply({"error": {"message": "Incorrect API key provided"}}, 401), "authentication", None),
        (Reply({"odd": True}, 418), "invalid_request", None),
    ],
)
def test_a_failed_request_is_sent_once_and_says_what_it_was(driver, reply, code, wait):
    with serve(reply, chat("never asked")) as wire:
        error = failure(at(wire.url), driver)
        assert len(wire.requests) == 1
    assert (error.code, error.retry_after_s) == (code, wait)
    assert error.status == reply.status


@DRIVERS
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(b"<html>Sign in</html>", 200, {"content-type": "text/html"}), "malformed_output"),
        (Reply(b"{ not json"), "malformed_output"),
        (Reply({"choices": []}), "malformed_output"),
        (Reply({"choices": None}), "malformed_output"),
        (Reply([1]), "malformed_output"),
        (Reply({"error": {"message": "The model is overloaded", "code": 503}}), "overloaded"),
        (Reply(end="reset"), "connection"),
        (Reply({"choices": []}, end="closed"), "stream_cut"),
        (chat("I think", finish_reason="content_filter"), "content_filter"),
        (chat("I think", finish_reason="error"), "malformed_output"),
    ],
)
def test_what_is_no_answer_is_a_failure_whatever_the_status_says(driver, reply, code):
    with serve(reply) as wire:
        assert failure(at(wire.url), driver).code == code


@DRIVERS
@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "Overloaded", "code": 503}}, "overloaded"),
        ({"error": {"message": "maximum context length is 8192 tokens, you requested 9000"}}, "context_overflow"),
        (b"data: {broken\n\n", "malformed_output"),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_the_failure(driver, event, code):
    start = chat_stream(chat("Yes.")).events[:2]
    with serve(Reply(events=(*start, event))) as wire:
        assert failure(at(wire.url, stream=True), driver).code == code


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_is_silent_for_too_long_is_a_timeout(driver, stream):
    reply = chat_stream(chat("Yes."), sent=2, hold=True) if stream else Reply(hold=True)
    with serve(reply) as wire:
        error = failure(at(wire.url, stream=stream, timeout_s=0.2), driver)
    assert (error.code, error.retry_same_request) == ("timeout", True)


@DRIVERS
def test_a_stream_that_drips_for_too_long_is_a_timeout(driver):
    with serve(chat_stream(chat("Yes."))) as wire:
        error = failure(at(wire.url, stream=True, stream_timeout_s=1e-9), driver)
    assert error.code == "timeout"


def test_nobody_listening_is_a_failed_connection():
    with serve() as wire:
        pass
    assert failure(at(wire.url), "sync").code == "connection"


def test_a_cancelled_request_ends_at_once_and_closes_its_stream():
    async def go(url: str) -> float:
        model = connect(at(url, stream=True))
        task = asyncio.ensure_future(model.complete(WEATHER))
        await asyncio.to_thread(wire.asked.wait, 10)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await model.aclose()
        return time.monotonic() - began

    with serve(chat_stream(chat("Yes."), sent=2, hold=True)) as wire:
        assert asyncio.run(go(wire.url)) < 5


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "facts",
    [
        {"reasoning_content": "Think of the drawer."},
        {"reasoning_content": ""},
        {"reasoning": "Think.", "reasoning_details": [{"type": "reasoning.encrypted", "data": "b64==", "index": 0}]},
        {"annotations": [], "vendor": {"cache": "hit"}},
    ],
)
def test_what_a_server_says_beside_the_answer_goes_back_unchanged(driver, stream, facts):
    reply = chat("Looking.", TWO[:1], **facts)
    with serve(replies(reply, stream), chat("done")) as wire:
        first = ask(at(wire.url, stream=stream), driver)
        spoken = Message("assistant", first.text, first.tool_calls, raw=first.raw)
        result = Message("tool", "a key", tool_call_id="a", name="look")
        ask(at(wire.url), driver, ModelRequest((*WEATHER.messages, spoken, result)))
    given = {name: item for name, item in reply.body["choices"][0]["message"].items() if item not in ("", None)}
    back = wire.requests[1]["messages"][2]
    assert {name: item for name, item in back.items() if item not in ("", None)} == given
    assert wire.requests[1]["messages"][3] == {"role": "tool", "tool_call_id": "a", "name": "look", "content": "a key"}


def test_the_rule_of_the_model_says_which_reasoning_goes_back():
    raw = {"role": "assistant", "content": "x", "reasoning_content": "why"}
    spoken = Message("assistant", "x", raw=raw)
    with serve(chat("a"), chat("b"), chat("c")) as wire:
        for messages in ([spoken], pass_reasoning([spoken], "drop")):
            ask(at(wire.url), "sync", ModelRequest((*WEATHER.messages, *messages)))
        request = ModelRequest((*WEATHER.messages, spoken), thinking=False)
        off = {"extra_body": {"thinking": {"type": "disabled"}}}
        ask(at(wire.url, options={"reasoning_effort": "high"}, thinking_off=off), "sync", request)
    kept, dropped, unthinking = wire.requests
    assert kept["messages"][2] == raw
    assert "reasoning_content" not in dropped["messages"][2]
    assert "reasoning_content" not in unthinking["messages"][2]
    assert "reasoning_effort" not in unthinking


def test_messages_that_another_protocol_left_in_the_history_are_written_anew():
    foreign = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"output": [{"type": "function_call"}]},
    ]
    calls = (ToolCall("a", "look", "{}"),)
    for raw in foreign:
        with serve(chat("ok")) as wire:
            spoken = Message("assistant", "", calls, raw=raw)
            ask(at(wire.url), "sync", ModelRequest((spoken, Message("tool", "r", tool_call_id="a"))))
        assert wire.requests[0]["messages"][0]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


@pytest.mark.parametrize(("choice", "sent"), [("", None), ("required", "required"), ("look", {"type": "function"})])
def test_the_choice_of_a_tool_and_the_lower_limit_are_sent(choice, sent):
    with serve(chat("ok")) as wire:
        request = msgspec.structs.replace(WEATHER, tool_choice=choice, max_tokens=50, model="other")
        ask(at(wire.url, max_tokens=100, max_tokens_field="max_completion_tokens"), "sync", request)
    body = wire.requests[0]
    assert (body["max_completion_tokens"], body["model"]) == (50, "other")
    assert body.get("tool_choice") == sent or body["tool_choice"] == {"type": "function", "function": {"name": "look"}}


def test_calls_of_servers_that_send_no_index_are_told_apart_by_their_ids():
    assembler = ChatAssembler()
    for id, place in (("a", "here"), ("b", "there")):
        call = {"id": id, "type": "function", "function": {"name": "look", "arguments": ""}}
        assembler.feed({"choices": [{"delta": {"tool_calls": [call]}}]})
        assembler.feed({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": place}}]}}]})
    assembler.feed({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    calls = assembler.whole()["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [("a", "here"), ("b", "there")]


def test_headers_and_the_key_are_sent(monkeypatch):
    monkeypatch.setenv("ACME_KEY", "secret-1")
    with serve(chat("ok")) as wire:
        ask(at(wire.url, api_key_env="ACME_KEY", headers={"x-team": "blue"}), "sync")
    assert wire.headers[0]["authorization"] == "Bearer secret-1"
    assert wire.headers[0]["x-team"] == "blue"


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_waits_out_failures_and_completes_with_valid_requests(driver, stream):
    told = [
        Reply({"error": {"message": "Rate limit reached"}}, 429, {"retry-after": "3"}),
        replies(chat(None, TWO, reasoning_content="hm"), stream),
        replies(chat("Here."), stream, **({"sent": 2, "end": "closed"} if stream else {})),
    ]
    told += [replies(chat("Here."), True)] if stream else []
    with serve(*told) as wire:
        outcome, waits = run_agent(at(wire.url, stream=stream), driver)
    assert (outcome.status, outcome.output) == ("completed", "Here.")
    assert waits[0] == 3.0
    assert len(waits) == (2 if stream else 1)
    last = wire.requests[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "tool"]
    assert last[1]["reasoning_content"] == "hm"


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_that_the_server_hides_is_seen_in_its_usage(driver, stream):
    short = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
    full = {"prompt_tokens": 8190, "completion_tokens": 1, "total_tokens": 8191}
    told = (chat("?", usage=short), chat("", usage=full, finish_reason="length"), chat("fine"))
    with serve(*(replies(reply, stream) for reply in told)) as wire:
        answers = [ask(at(wire.url, stream=stream), driver) for _ in told]
    found = [find_silent_overflow(a, estimated_prompt_tokens=5000, context_window=8192) for a in answers[:2]]
    assert [error and (error.code, error.message) for error in found] == [
        ("context_overflow", "prompt_cut"),
        ("context_overflow", "window_full"),
    ]
    assert find_silent_overflow(answers[2], estimated_prompt_tokens=12, context_window=8192) is None


@DRIVERS
@pytest.mark.parametrize("stream", [False, True])
def test_what_utf_8_cannot_carry_is_replaced_before_it_is_sent(driver, stream):
    history = (Message("user", "what is in caf\udce9.txt?"), Message("tool", "a \udce9", tool_call_id="a"))
    with serve(replies(chat("Nothing."), stream)) as wire:
        assert ask(at(wire.url, stream=stream), driver, ModelRequest(history)).text == "Nothing."
    assert wire.requests[0]["messages"][0]["content"] == "what is in caf\ufffd.txt?"
