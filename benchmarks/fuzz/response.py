"""What must hold for every answer of a provider: a response, or the failure of the request.

Knows: answers in the three protocols. Must not know: how one is read.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from benchmarks.fuzz.mutate import altered
from benchmarks.fuzz.source import Source, pick
from policyengine.agent import RequestError
from policyengine.messages import ModelResponse
from policyengine.parsing.parse import parse_response
from policyengine.providers.anthropic_messages import MessagesAdapter
from policyengine.providers.openai_chat import ChatAdapter
from policyengine.providers.openai_responses import ResponsesAdapter
from policyengine.providers.sdk import as_body
from policyengine.responses import classify_response, visible_text

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
SEEDS: dict[Any, Any] = {
    ChatAdapter: {
        "id": "r",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "x", "tool_calls": [CALL]},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}},
    },
    MessagesAdapter: {
        "id": "r",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"n": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3},
    },
    ResponsesAdapter: {
        "id": "r",
        "object": "response",
        "model": "m",
        "status": "completed",
        "output": [
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"n": 1}'},
        ],
        "usage": {"input_tokens": 1, "output_tokens": 2},
    },
}


class Case(NamedTuple):
    """An answer in a protocol."""

    adapter: Any
    body: Any


def generate(source: Source) -> Case:
    """Return a case."""
    adapter = pick(source, tuple(SEEDS))
    return Case(adapter, altered(source, SEEDS[adapter], 6))


def check(case: Case) -> None:
    """Read the answer, and the calls in it.

    Raises:
        AssertionError: what came of it is no response.
    """
    try:
        response = case.adapter().read(as_body(case.body), "m")
    except RequestError:
        return
    assert isinstance(response, ModelResponse)
    classify_response(response)
    visible_text(response)
    for protocol in ("native", "text"):
        parse_response(response, protocol=protocol)
    json.dumps(response.text)
