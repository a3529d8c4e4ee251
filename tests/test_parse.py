"""The strict parser: what is usable, what is not and why; the same verdict however the text arrives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import ModelResponse, ToolCall, parse_response
from policyengine.parsing import parse_chunks

GOOD = '{"tool_name": "search", "tool_args": {"q": "tide"}}'
ANSWER = '{"tool_name": "response", "tool_args": {"text": "done"}}'

TEXTS = [
    (GOOD, "ok"),
    (f"\n  {GOOD} \n", "ok"),
    (ANSWER, "ok"),
    ("", "empty"),
    ("   \n", "empty"),
    ("I will search now.", "prose"),
    (f"Sure: {GOOD}", "prose"),
    (f"{GOOD} That should do.", "prose"),
    (f"```json\n{GOOD}\n```", "fenced"),
    (f"Here:\n```\n{GOOD}\n```", "fenced"),
    (f"~~~\n{GOOD}\n~~~", "fenced"),
    (GOOD + GOOD, "multiple"),
    (f"{GOOD}\n{GOOD}", "multiple"),
    (GOOD[:-1], "truncated"),
    (GOOD[:-8], "truncated"),
    (GOOD + "}", "wrong_shape"),
    (f"[{GOOD}]", "wrong_shape"),
    ('{"tool_name": "search"}', "wrong_shape"),
    ('{"tool_name": " ", "tool_args": {}}', "wrong_shape"),
    ('{"tool_name": "search", "tool_args": "{}"}', "wrong_shape"),
    ('{"tool_name": "search", "tool_args": {"a": 1, "a": 2}}', "wrong_shape"),
    ('{"tool_name": "search", "tool_args": {"a": NaN}}', "wrong_shape"),
    ('{"tool_name": "response", "tool_args": {"text": " "}}', "empty"),
    ("{'tool_name': 'search', 'tool_args': {}}", "wrong_shape"),
]


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_the_verdict_on_a_text(text, kind):
    assert parse_response(ModelResponse(text), protocol="text").kind == kind


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_the_verdict_is_the_same_for_one_character_at_a_time(text, kind):
    assert parse_chunks(list(text)) == parse_response(ModelResponse(text), protocol="text")


@given(st.text(alphabet='{}[]",:\\ \nabtool_nameargs`0', max_size=80), st.lists(st.integers(1, 9), max_size=9))
def test_any_text_gets_one_verdict_for_every_chunking(text, sizes):
    chunks, rest = [], text
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    assert parse_chunks([*chunks, rest]) == parse_response(ModelResponse(text), protocol="text")


def test_a_text_call_carries_its_arguments():
    verdict = parse_response(ModelResponse(GOOD), protocol="text", tools={"search"})
    assert [(call.name, call.args) for call in verdict.calls] == [("search", {"q": "tide"})]
    assert not verdict.final


def test_the_answer_tool_is_the_final_answer():
    verdict = parse_response(ModelResponse(ANSWER), protocol="text", tools={"search"})
    assert verdict.final
    assert verdict.text == "done"


def test_deep_nesting_and_long_numbers_are_verdicts_not_crashes():
    for text in ('{"a":' * 30_000, '{"tool_name": "s", "tool_args": {"a": ' + "9" * 6000 + "}}"):
        assert not parse_response(ModelResponse(text), protocol="text").usable


def native(name="search", arguments="{}", **fields):
    return ModelResponse(tool_calls=(ToolCall("1", name, arguments),), **fields)


@pytest.mark.parametrize(
    ("response", "kind", "reason"),
    [
        (native(), "ok", ""),
        (native(arguments=""), "ok", ""),
        (native(arguments='{"a": 1'), "truncated", "truncated"),
        (native(arguments="[1]"), "wrong_shape", "arguments_not_object"),
        (native(arguments='{"a":1,"a":2}'), "wrong_shape", "duplicate_key"),
        (native(arguments='{"a":Infinity}'), "wrong_shape", "not_finite"),
        (native(name=""), "wrong_shape", "name_missing"),
        (native(name="two words"), "wrong_shape", "name_missing"),
        (native(finish_reason="length"), "truncated", "finish_reason"),
        (native(finish_reason="MALFORMED_FUNCTION_CALL"), "wrong_shape", "finish_reason"),
        (native(name="other"), "unknown_tool", ""),
        (ModelResponse("fine"), "ok", ""),
        (ModelResponse(""), "empty", ""),
        (ModelResponse("", reasoning="hm"), "reasoning_only", ""),
        (ModelResponse("cut", finish_reason="max_tokens"), "truncated", "finish_reason"),
    ],
)
def test_the_verdict_on_a_native_response(response, kind, reason):
    verdict = parse_response(response, tools={"search"})
    assert (verdict.kind, verdict.reason) == (kind, reason)


def test_an_unknown_tool_fails_only_its_own_call():
    response = ModelResponse(tool_calls=(ToolCall("1", "search", "{}"), ToolCall("2", "serach", "{}")))
    verdict = parse_response(response, tools={"search"})
    assert verdict.usable
    assert verdict.unknown == ("2",)


def test_in_a_recording_the_tools_are_not_known():
    assert parse_response(native(name="anything")).kind == "ok"


def test_arguments_that_were_executed_although_they_are_not_json_are_kept():
    call = ToolCall("1", "think", "{'thought': 'x'}", {"thought": "x"})
    assert parse_response(ModelResponse(tool_calls=(call,))).calls == (call,)


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=9), st.booleans()), max_size=4))
def test_whatever_arguments_are_sent_arrive(args):
    text = json.dumps({"tool_name": "search", "tool_args": args})
    assert parse_response(ModelResponse(text), protocol="text").calls[0].args == args


@pytest.mark.parametrize("depth", [150, 250, 990, 1100, 5000, 30_000])
def test_how_deep_nesting_is_read_does_not_depend_on_the_interpreter(depth):
    nested = "[" * depth + "]" * depth
    text = '{"tool_name": "search", "tool_args": {"q": ' + nested + "}}"
    verdict = parse_response(ModelResponse(text), protocol="text")
    assert verdict.kind == ("ok" if depth < 200 else "wrong_shape")
    cut = parse_response(ModelResponse(text[: -depth - 5]), protocol="text")
    assert cut.kind == ("truncated" if depth < 200 else "wrong_shape")


@pytest.mark.parametrize(
    "text",
    [
        '{"thoughts": [], "tool_name": "search", "tool_args": {"q": {"a": "}"}} }',
        '{"tool_args" : {"q": 1}, "tool_name": "search"}',
        '{"tool_args": {"q": {}}, "tool_name": "search"}',
        '{"tool_name": "search", "tool_args": {"tool_args": {"tool_args": {}}}}',
        '{"x": {"tool_args": {}}, "tool_name": "search", "tool_args": {"q": 1}}',
        '{"x": "tool_args", "y": {"z": 1}, "tool_name": "search", "tool\\u005fargs": {"q": 1}}',
        '{"x": {"tool_args":{}}, "tool_name": "search", "tool\\u005fargs": {"q": 1}}',
        '{"tool_name": "search", "tool_args": {"q": "\\"tool_args\\": {"}}',
    ],
)
def test_the_text_of_the_arguments_is_the_arguments_wherever_they_stand(text):
    (call,) = parse_response(ModelResponse(text), protocol="text").calls
    assert json.loads(call.arguments) == call.args == json.loads(text)["tool_args"]
