"""Whatever stands where a format promises something: a reader yields a recording or says what it cannot read."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.recordings import (
    anthropic,
    claude_code,
    litellm,
    mini_swe_agent,
    openhands_v1,
    otel_genai,
    pi,
    sweagent,
    tau2_bench,
    trae,
)
from policyengine.recordings.model import Document, Recording, Unreadable
from policyengine.recordings.readers import READERS

CALL = {"id": "c1", "call_id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
BLOCKS = [{"type": "text", "text": "look there"}]
EVENT = {"id": "e1", "timestamp": "2025-05-01T10:00:00", "source": "agent"}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {"n": 1}}
USED = {"type": "tool_result", "tool_use_id": "c1", "content": [*BLOCKS, {"type": "image", "source": {"data": "x"}}]}
LINE = {"uuid": "u1", "parentUuid": None, "sessionId": "s1", "isSidechain": False, "timestamp": "2025-05-01T10:00:00Z"}
PARTS = [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {"n": 1}}]

SAMPLES: dict[Any, list[Any]] = {
    sweagent: [
        {
            "trajectory": [{"action": "ls", "observation": "a", "response": "ls", "execution_time": 1.0}],
            "history": [{"role": "user", "content": BLOCKS}],
            "info": {"exit_status": "submitted"},
        }
    ],
    mini_swe_agent: [
        {
            "trajectory_format": "mini-swe-agent-1.1",
            "instance_id": "i",
            "info": {"exit_status": "x", "exception_str": "y", "config": {"model": {"model_name": "m"}}},
            "messages": [
                {"role": "user", "content": "go", "extra": {"interrupt_type": "x", "timestamp": 1}},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [CALL],
                    "extra": {"response": {"model": "m", "choices": [{"finish_reason": "stop"}], "usage": {}}},
                },
                {
                    "role": "tool",
                    "tool_call_id": "c1",
                    "content": "x",
                    "extra": {"returncode": 1, "exception_info": "", "timestamp": 2},
                },
            ],
        }
    ],
    trae: [
        {
            "task": "t",
            "start_time": "2025-05-01T10:00:00",
            "model": "m",
            "llm_interactions": [],
            "agent_steps": [
                {
                    "timestamp": "2025-05-01T10:00:01",
                    "llm_response": {
                        "content": "c",
                        "model": "m",
                        "finish_reason": "f",
                        "usage": {"input_tokens": 1},
                        "tool_calls": [{"call_id": "c1", "name": "bash", "arguments": {"command": "ls"}}],
                    },
                    "tool_results": [{"call_id": "c1", "success": False, "result": "r", "error": "e"}],
                    "llm_messages": [{"role": "user", "content": "m"}],
                    "error": None,
                },
                {"error": "e"},
            ],
        }
    ],
    openhands_v1: [
        {**EVENT, "kind": "MessageEvent", "llm_message": {"role": "user", "content": BLOCKS}},
        {
            **EVENT,
            "kind": "ActionEvent",
            "thought": BLOCKS,
            "tool_call_id": "c1",
            "tool_call": CALL,
            "llm_response_id": "r1",
        },
        {
            **EVENT,
            "kind": "ObservationEvent",
            "action_id": "e1",
            "tool_call_id": "c1",
            "observation": {
                "output": "o",
                "error": False,
                "timeout": False,
                "metadata": {"exit_code": 1, "suffix": "s"},
            },
        },
        {**EVENT, "kind": "ConversationErrorEvent", "code": "c", "detail": "d"},
    ],
    anthropic: [
        {
            "model": "m",
            "system": BLOCKS,
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, USE]},
                {"role": "user", "content": [{**USED, "is_error": True}, *BLOCKS]},
            ],
            "response": {"type": "message", "content": BLOCKS, "stop_reason": "end_turn", "usage": {"input_tokens": 1}},
        }
    ],
    claude_code: [
        {**LINE, "type": "user", "isMeta": False, "message": {"role": "user", "content": "go"}},
        {**LINE, "type": "assistant", "uuid": "u2", "message": {"id": "m1", "model": "m", "content": [USE]}},
        {
            **LINE,
            "type": "user",
            "uuid": "u3",
            "message": {"role": "user", "content": [USED]},
            "toolUseResult": {"durationMs": 5},
        },
        {**LINE, "type": "system", "uuid": "u4"},
    ],
    pi: [
        {"type": "session", "id": "s1", "timestamp": "2025-05-01T10:00:00Z", "cwd": "/w", "modelId": "m"},
        {"type": "message", "timestamp": "x", "message": {"role": "user", "content": BLOCKS, "timestamp": 1}},
        {
            "type": "message",
            "message": {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "toolCall", "id": "c1", "name": "look", "arguments": {"n": 1}},
                ],
                "stopReason": "aborted",
                "errorMessage": "e",
                "usage": {"input": 1, "output": 2, "totalTokens": 3},
            },
        },
        {
            "type": "message",
            "message": {
                "role": "toolResult",
                "toolCallId": "c1",
                "toolName": "look",
                "content": BLOCKS,
                "isError": True,
            },
        },
        {"type": "compaction", "summary": "s"},
    ],
    tau2_bench: [
        {
            "info": {"agent_info": {"llm": "m"}},
            "tasks": [],
            "simulations": [
                {
                    "id": "s1",
                    "task_id": "t1",
                    "termination_reason": "agent_error",
                    "reward_info": {"reward": 1.0},
                    "messages": [
                        {"role": "user", "content": "go", "tool_calls": None, "timestamp": "2025-05-01T10:00:00"},
                        {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [{"id": "c1", "name": "look", "arguments": {"n": 1}}],
                            "raw_data": {"finish_reason": "stop"},
                            "usage": {"prompt_tokens": 1},
                        },
                        {"role": "tool", "id": "c1", "content": "x", "error": True, "requestor": "assistant"},
                    ],
                }
            ],
        }
    ],
    otel_genai: [
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {
                            "spans": [
                                {
                                    "traceId": "t1",
                                    "spanId": "s1",
                                    "parentSpanId": "",
                                    "startTimeUnixNano": "1700000000000000000",
                                    "endTimeUnixNano": 1700000001000000000,
                                    "status": {"code": 2, "message": "m"},
                                    "attributes": [
                                        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                                        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3"}},
                                        {
                                            "key": "gen_ai.output.messages",
                                            "value": {
                                                "arrayValue": {"values": [{"role": "assistant", "parts": PARTS}]}
                                            },
                                        },
                                    ],
                                    "events": [
                                        {"name": "gen_ai.choice", "attributes": [{"key": "index", "value": {}}]}
                                    ],
                                }
                            ]
                        }
                    ]
                }
            ]
        },
        {
            "context": {"trace_id": "0xt1", "span_id": "0xs2"},
            "start_time": "2025-05-01T10:00:00Z",
            "attributes": {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.call.id": "c1",
                "gen_ai.tool.call.result": {"kg": 2},
            },
        },
    ],
    litellm: [
        {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": BLOCKS},
            ],
            "response": {"model": "m", "choices": [{"finish_reason": "stop", "message": {"content": "done"}}]},
        }
    ],
}

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=9),
        st.sampled_from(["", "c1", "e1", "user", "ActionEvent"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def places(value, at=()):
    """Yield the way to everything inside a value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def put(value, place, new):
    """Return a value with something else at a place."""
    if not place:
        return new
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return value


def read(reader, values):
    document = Document("x.json", values[0], enumerate(values, start=1))
    return list(reader.read(document))


@pytest.mark.parametrize("reader", SAMPLES, ids=lambda reader: reader.NAME)
def test_the_sample_itself_is_one_recording_of_its_format_alone(reader):
    (run,) = read(reader, SAMPLES[reader])
    assert isinstance(run, Recording)
    claimed = [known.name for known in READERS if known.sniff(SAMPLES[reader][0])]
    assert claimed[0] == reader.NAME
    assert set(claimed) <= {reader.NAME, "openai_chat"}


@pytest.mark.parametrize("reader", SAMPLES, ids=lambda reader: reader.NAME)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_raises_whatever_stands_in_the_place_of_anything(reader, data):
    sample = SAMPLES[reader]
    spoilt = put(sample, data.draw(st.sampled_from([place for place in places(sample) if place])), data.draw(JSON))
    found = read(reader, spoilt)
    assert found
    assert all(isinstance(item, Recording | Unreadable) for item in found)
    assert all(isinstance(item.reason, str) for item in found if isinstance(item, Unreadable))


@pytest.mark.parametrize("reader", SAMPLES, ids=lambda reader: reader.NAME)
@given(value=JSON)
@settings(max_examples=50, deadline=None)
def test_no_format_is_seen_in_any_value_that_has_nothing_of_it(reader, value):
    assert not reader.sniff(value)
    json.dumps(read(reader, [value]), default=str)
