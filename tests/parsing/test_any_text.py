"""Whatever comes: one verdict, the same for every chunking, and no exception."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policyengine import ModelResponse, ToolCall, parse_response
from policyengine.parsing import WARNING_KINDS, parse_chunks
from policyengine.parsing.strict import loads

TOOLS = {"search": {"properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}, "a": {}}
MODES = ("strict", "fenced", "lenient", "repair", "native")
PIECES = st.sampled_from(
    [
        *"{}[]()<>:,\"'\\/|`~=- \n\tae1.",
        "```\n",
        "```json\n",
        "<tool_call>",
        "</tool_call>",
        "<function=search>",
        "</function>",
        "<parameter=q>",
        "</parameter>",
        '<invoke name="search">',
        '<parameter name="q">',
        "</invoke>",
        "<\uff5cDSML\uff5cinvoke ",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|tool_call_begin|>",
        "<|call|>",
        "<think>",
        "</think>",
        "search",
        "search(q=",
        "tool_name",
        '{"tool_name": "search", "tool_args": {"q": "x"}}',
        '{"name": "search", "arguments": {"q": "x"}}',
        '"arguments": {',
        "For example ",
        "True",
        "NaN",
        "\u201c",
        "\ud83d",
        "\ufeff",
        "\\u00e9",
        "// ",
        "<arg_key>q</arg_key><arg_value>",
    ]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=60)


def verdicts(text, finish_reason=""):
    response = ModelResponse(text, finish_reason=finish_reason)
    for mode in MODES:
        for tools in (TOOLS, None):
            yield parse_response(response, protocol="text", tools=tools, mode=mode)
            for fallback in (True, False):
                yield parse_response(response, tools=tools, mode=mode, text_fallback=fallback)


@settings(max_examples=300)
@given(TEXTS, st.sampled_from(["", "stop", "length"]))
@example('<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call></think>', "")
@example("```\n[search(q=", "stop")
@example('search{"tool_name": "search", "tool_args": {"q": "x"}}}```json\n', "")
def test_any_text_gets_a_verdict_whose_calls_are_whole(text, finish_reason):
    for verdict in verdicts(text, finish_reason):
        assert verdict.usable == (verdict.kind not in WARNING_KINDS)
        if not verdict.usable:
            continue
        assert not (verdict.guess and verdict.final and verdict.text == text)
        for call in verdict.calls:
            assert call.name.strip()
            assert loads(call.arguments) == call.args
            call.arguments.encode()


@settings(max_examples=300)
@given(TEXTS, st.sampled_from(["search", "searchsearch", "", "x y", "functions.a", "a<|x|>"]))
def test_any_arguments_get_a_verdict_whose_calls_are_whole(arguments, name):
    response = ModelResponse(tool_calls=(ToolCall("1", name, arguments),), finish_reason="tool_calls")
    for mode in MODES:
        for tools in (TOOLS, None):
            verdict = parse_response(response, tools=tools, mode=mode)
            for call in verdict.calls if verdict.usable else ():
                assert isinstance(call.args, dict)
                if verdict.repairs and mode == "repair":
                    assert loads(call.arguments) == call.args


@given(TEXTS, st.lists(st.integers(1, 9), max_size=9), st.sampled_from(MODES))
def test_the_verdict_is_the_same_for_every_chunking(text, sizes, mode):
    chunks, rest = [], text
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    for options in ({"protocol": "text"}, {"protocol": "native", "text_fallback": True}):
        whole = parse_response(ModelResponse(text), tools=TOOLS, mode=mode, **options)
        assert parse_chunks([*chunks, rest], tools=TOOLS, mode=mode, **options) == whole
        assert parse_chunks(list(text), tools=TOOLS, mode=mode, **options) == whole


@settings(max_examples=300)
@given(TEXTS)
def test_a_less_tolerant_mode_never_runs_something_else(text):
    found = []
    for mode in ("strict", "fenced", "lenient", "repair"):
        verdict = parse_response(ModelResponse(text), protocol="text", tools=TOOLS, mode=mode)
        if verdict.usable and verdict.calls:
            found.append([(call.name, call.args) for call in verdict.calls])
    assert all(calls == found[0] for calls in found)


def test_an_unknown_mode_is_an_error():
    with pytest.raises(KeyError):
        parse_response(ModelResponse("x"), mode="wild")
