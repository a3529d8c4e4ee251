"""A stream says the same as the whole response, however it is cut into pieces; no SDK is needed to see that."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.agent import RequestError
from policyengine.providers.anthropic_messages import MessagesAdapter
from policyengine.providers.openai_chat import ChatAdapter
from policyengine.providers.openai_responses import ResponsesAdapter
from tests.providers import wire_server as wire

TEXT = st.text(min_size=1, max_size=30)
CALLS = st.lists(st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.none()), max_size=3), max_size=4)
SIZE = st.integers(1, 7)


def events_of(reply: wire.Reply) -> list[dict]:
    return [event for event in reply.events if isinstance(event, dict)]


def outcome(work):
    """Return what a function returns, or the class of the failure that it raises; anything else is raised on."""
    try:
        return work(), ""
    except RequestError as error:
        return None, error.error.code


def same(adapter, whole: wire.Reply, stream: wire.Reply) -> None:
    """Check that a stream is read as the whole response, and that no shorter one is an answer of another kind."""
    expected = adapter.read(whole.body, "m")
    events = events_of(stream)
    for sent in range(len(events) + 1):
        assembler = adapter.assembler()
        for event in events[:sent]:
            assembler.feed(event)
        if sent == len(events):
            assert adapter.read(assembler.whole(), "m") == expected
            continue
        early, code = outcome(lambda: adapter.read(assembler.whole(), "m"))  # noqa: B023 - called at once
        if early is None:
            assert code == "stream_cut"
        else:
            assert (early.text, early.tool_calls, early.raw) == (expected.text, expected.tool_calls, expected.raw)


@given(TEXT, CALLS, TEXT, SIZE)
def test_chat_completions(text, calls, reasoning, size):
    asked = [(f"id{number}", "look", json.dumps(item)) for number, item in enumerate(calls)]
    details = [{"type": "reasoning.text", "text": reasoning, "index": 0, "signature": "s=="}]
    reply = wire.chat(text, asked, reasoning_content=reasoning, reasoning_details=details)
    same(ChatAdapter(), reply, wire.chat_stream(reply, size=size))


@given(TEXT, CALLS, TEXT)
def test_responses(text, calls, reasoning):
    asked = [wire.called(f"id{number}", "look", json.dumps(item)) for number, item in enumerate(calls)]
    reply = wire.response(wire.thought(reasoning, "opaque"), wire.said(text), *asked)
    same(ResponsesAdapter(), reply, wire.response_stream(reply))
    same(ResponsesAdapter(), reply, wire.response_stream(reply, bare_end=True))


@given(TEXT, CALLS, TEXT)
def test_messages(text, calls, reasoning):
    asked = [wire.use_block(f"id{number}", "look", item) for number, item in enumerate(calls)]
    reply = wire.message(wire.thinking_block(reasoning, "s=="), wire.text_block(text), *asked)
    adapter = MessagesAdapter()
    whole, stream = adapter.read(reply.body, "m"), adapter.assembler()
    for event in events_of(wire.message_stream(reply)):
        stream.feed(event)
    streamed = adapter.read(stream.whole(), "m")
    assert (streamed.text, streamed.reasoning, streamed.raw) == (whole.text, whole.reasoning, whole.raw)
    assert [json.loads(call.arguments) for call in streamed.tool_calls] == calls


ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        *("choices", "message", "delta", "tool_calls", "function", "arguments", "index", "content", "type", "output"),
        *(
            "error",
            "usage",
            "finish_reason",
            "status",
            "response",
            "item",
            "stop_reason",
            "content_block",
            "output_index",
        ),
    ]
)
BODY = st.dictionaries(NAMES, st.one_of(ODD, st.lists(st.dictionaries(NAMES, ODD, max_size=4), max_size=3)), max_size=5)
KINDS = st.sampled_from(["response.completed", "response.output_item.done", "message_start", "content_block_delta", ""])


@pytest.mark.parametrize(
    "adapter", [ChatAdapter(), ResponsesAdapter(), MessagesAdapter()], ids=lambda item: type(item).__name__
)
@given(body=BODY, kind=KINDS)
def test_a_body_of_any_form_is_an_answer_or_a_typed_failure(adapter, body, kind):
    response, code = outcome(lambda: adapter.read(body, "m"))
    assert response is not None or code
    assembler = adapter.assembler()

    def stream():
        for _ in range(2):
            assembler.feed({**body, "type": kind} if kind else body)
        return assembler.whole()

    whole, code = outcome(stream)
    assert whole is not None or code
