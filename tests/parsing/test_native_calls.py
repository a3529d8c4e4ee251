"""Structured calls: names and arguments as gateways send them; what is stored is what runs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import ModelResponse, ToolCall, parse_response
from policyengine.history.build import assistant
from policyengine.parsing import as_parsed
from policyengine.parsing.strict import loads

Q = '{"q": "x"}'

MENDED = [
    ("search", Q * 3, {"q": "x"}, "dedupe_concatenated"),
    ("search", Q + "\n" + '{"q":"x"}', {"q": "x"}, "dedupe_concatenated"),
    ("search", "{}" + Q, {"q": "x"}, "drop_empty_object"),
    ("status", "{}{}", {}, "dedupe_concatenated"),
    ("status", "", {}, "empty_arguments"),
    ("status", " \n", {}, "empty_arguments"),
    ("status", "null", {}, "empty_arguments"),
    ("status", '""', {}, "unwrap_json_string empty_arguments"),
    ("search", json.dumps(Q), {"q": "x"}, "unwrap_json_string"),
    ("search", json.dumps("{'q': 'x'}"), {"q": "x"}, "unwrap_json_string single_quotes"),
    ("search", f"```json\n{Q}\n```", {"q": "x"}, "strip_fence"),
    ("search", Q + "<|call|>", {"q": "x"}, "strip_control_tokens"),
    ("search", Q + "\n</tool_call>", {"q": "x"}, "strip_control_tokens"),
    ("search", '{"q": "x"', {"q": "x"}, "close_containers"),
    ("search", '{"q": "x",}', {"q": "x"}, "trailing_comma"),
    ("search", '{"q": "x"}}', {"q": "x"}, "extra_closer"),
]


@pytest.mark.parametrize(("name", "arguments", "args", "repairs"), MENDED)
def test_arguments_are_mended_named_and_stored_as_they_run(parse, name, arguments, args, repairs):
    verdict = parse.native(name, arguments)
    assert (verdict.kind, verdict.repairs) == ("ok", tuple(repairs.split()))
    (call,) = verdict.calls
    assert call.args == args
    assert loads(call.arguments) == args
    assert parse.native(call.name, call.arguments, "strict").calls == verdict.calls


REFUSED = [
    ("search", '{"q": "x"}{"q": "y"}', "multiple", "two_objects"),
    ("status", "{}" + Q, "multiple", "two_objects"),
    ("search", "", "wrong_shape", "arguments_missing"),
    ("search", "null", "wrong_shape", "arguments_missing"),
    ("search", "[]", "wrong_shape", "arguments_missing"),
    ("search", '"x"', "wrong_shape", "arguments_not_object"),
    ("search", "[1]", "wrong_shape", "arguments_not_object"),
    ("search", "5", "wrong_shape", "arguments_not_object"),
    ("search", '{"q": "x', "truncated", "truncated"),
    ("search", Q + '{"q": "x', "truncated", "truncated"),
    ("search", '{"q": NaN}', "wrong_shape", "not_finite"),
    ("search", '{"q": 1, "q": 1}', "wrong_shape", "duplicate_key"),
    ("search", '{"q": "a "quoted" word"}', "wrong_shape", "not_json"),
    ("search", "q=x", "wrong_shape", "not_json"),
    ("", Q, "wrong_shape", "name_missing"),
    ("two words", Q, "wrong_shape", "name_missing"),
    ('search{"q":"x"}', Q, "wrong_shape", "malformed_name"),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "reason"), REFUSED)
def test_what_has_no_single_reading_is_unusable_and_nothing_runs(parse, name, arguments, kind, reason):
    verdict = parse.native(name, arguments)
    assert (verdict.kind, verdict.reason, verdict.usable) == (kind, reason, False)


@pytest.mark.parametrize("mode", ["strict", "fenced", "lenient"])
@pytest.mark.parametrize("arguments", [text for _, text, _, repairs in MENDED if repairs != "empty_arguments"])
def test_without_repairs_only_strict_arguments_run(parse, arguments, mode):
    assert not parse.native("search", arguments, mode).usable


def test_missing_brackets_are_cut_off_unless_the_model_ended_its_message_itself(parse):
    for reason in ("", "content_filter", "weird"):
        assert parse.native("search", '{"q": ["a", "b"', finish_reason=reason).kind == "truncated"
    for reason in ("stop", "tool_calls", "tool_use", "STOP"):
        assert parse.native("search", '{"q": ["a", "b"', finish_reason=reason).usable


def test_one_call_that_cannot_be_read_makes_all_of_the_response_unusable():
    calls = (ToolCall("1", "search", Q), ToolCall("2", "search", '{"q": '))
    verdict = parse_response(ModelResponse(tool_calls=calls), tools={"search"}, mode="repair")
    assert (verdict.kind, verdict.calls) == ("truncated", calls)


def test_text_beside_structured_calls_is_never_read_for_calls(parse):
    text = '<tool_call>{"name": "write", "arguments": {"path": "a", "content": "b"}}</tool_call>'
    response = ModelResponse(text, (ToolCall("1", "search", Q),))
    verdict = parse_response(response, tools=parse.tools, mode="repair", text_fallback=True)
    assert [call.name for call in verdict.calls] == ["search"]


def test_where_the_schema_is_not_known_absent_arguments_are_none(parse):
    assert parse.native("search", "", tools={"search"}).calls[0].args == {}
    assert parse.native("search", "", tools=None).calls[0].args == {}


def test_too_many_structured_calls_are_multiple():
    response = ModelResponse(tool_calls=(ToolCall("1", "search", Q), ToolCall("2", "search", Q)))
    assert parse_response(response, tools={"search"}, max_calls=1).kind == "multiple"


# ---- what history keeps


@pytest.mark.parametrize("name", ["search<|channel|>commentary", "searchsearch", "functions.search", " search "])
def test_a_mended_name_is_stored_as_it_runs(parse, name):
    response = ModelResponse(tool_calls=(ToolCall("1", name, Q),), raw={"x": 1})
    verdict = parse_response(response, tools=parse.tools, mode="repair")
    stored, same = as_parsed(response, verdict)
    assert same == verdict
    assert assistant(stored, "native").tool_calls == verdict.calls
    assert (stored.raw, stored.tool_calls[0].name) == (None, "search")


def test_what_needed_no_repair_is_stored_as_the_provider_sent_it(parse):
    response = ModelResponse(tool_calls=(ToolCall("1", "search", Q),), raw={"x": 1})
    verdict = parse_response(response, tools=parse.tools, mode="repair")
    assert as_parsed(response, verdict)[0] is response


def test_calls_from_the_text_are_stored_as_structured_calls_with_ids_of_their_own(parse):
    response = ModelResponse('Look:\n<tool_call>{"name": "nope", "arguments": {"q": "x"}}</tool_call>', raw={})
    verdict = parse_response(response, tools=parse.tools, mode="repair", text_fallback=True)
    stored, verdict = as_parsed(response, verdict, "call-3-")
    assert (stored.text, stored.raw) == ("Look:", None)
    assert [call.id for call in verdict.calls] == ["call-3-0"]
    assert (stored.tool_calls, verdict.unknown) == (verdict.calls, ("call-3-0",))


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.integers() | st.none(), min_size=1, max_size=3))
def test_an_object_repeated_or_encoded_twice_is_the_object(args):
    text = json.dumps(args)
    for arguments in (text, text * 2, f"{text}\n{json.dumps(args, indent=2)}", json.dumps(text)):
        response = ModelResponse(tool_calls=(ToolCall("1", "search", arguments),))
        assert parse_response(response, tools={"search"}, mode="repair").calls[0].args == args
