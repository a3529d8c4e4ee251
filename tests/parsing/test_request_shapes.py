"""The table of request shapes: which name, which arguments, which action; and other systems' shapes."""

import json

import pytest

NAMES = ("search", "write")


@pytest.mark.parametrize("mode", ["strict", "fenced", "lenient", "repair"])
@pytest.mark.parametrize(
    ("request_object", "name", "args"),
    [
        ({"tool_name": "search", "tool": "write", "tool_args": {"q": 1}}, "search", {"q": 1}),
        ({"tool_name": "", "tool": "search", "args": {"q": 1}}, "search", {"q": 1}),
        ({"tool_name": 5, "tool": "search", "args": {"q": 1}}, "search", {"q": 1}),
        ({"tool": "search", "args": {"q": 1}}, "search", {"q": 1}),
        ({"type": "function", "name": "search", "parameters": {"q": 1}}, "search", {"q": 1}),
        ({"tool_name": "search", "tool_args": {"q": 1}, "args": {"q": 2}}, "search", {"q": 1}),
        ({"tool_name": "search", "tool_args": "x", "args": {"q": 2}}, "search", {"q": 2}),
        ({"tool_name": "search", "type": "function", "parameters": {"q": 3}}, "search", {"q": 3}),
        ({"tool_name": "search", "tool_args": {}}, "search", {}),
        ({"tool_name": "search:fast", "tool_args": {"q": 1}}, "search", {"q": 1, "action": "fast"}),
        ({"tool_name": "search:a:b", "tool_args": {}}, "search", {"action": "a:b"}),
        ({"tool_name": "search", "tool_args": {"method": "m"}}, "search", {"method": "m", "action": "m"}),
        ({"tool_name": "search:s", "tool_args": {"method": "m"}}, "search", {"method": "m", "action": "s"}),
        (
            {"tool_name": "search:s", "tool_args": {"action": "a", "method": "m"}},
            "search",
            {"action": "a", "method": "m"},
        ),
        (
            {"tool_name": "search", "tool_args": {"action": "a", "method": "m"}},
            "search",
            {"action": "a", "method": "m"},
        ),
        ({"tool_name": "search", "tool_args": {"method": ""}}, "search", {"method": ""}),
        ({"actions": [{"tool_name": "search", "tool_args": {"q": 1}}]}, "search", {"q": 1}),
        ({"actions": [{"tool": "write", "args": {}}], "tool_name": "search", "tool_args": {}}, "search", {}),
    ],
)
def test_t14_the_table_of_names_arguments_and_actions(parse, calls_of, request_object, name, args, mode):
    assert calls_of(parse.text(json.dumps(request_object), mode, tools=NAMES)) == [(name, args)]


@pytest.mark.parametrize("mode", ["strict", "fenced", "lenient", "repair"])
@pytest.mark.parametrize(
    "request_object",
    [
        {"tool_name": "search"},
        {"tool_name": "search", "tool_args": []},
        {"tool_name": "   ", "tool_args": {}},
        {"tool_name": "", "tool_args": {}},
        {"tool_name": None, "tool_args": {}},
        {"tool_args": {"q": 1}},
        {"name": "search"},
        {"tool_name": "search:", "tool_args": {}},
        {"tool_name": ":search", "tool_args": {}},
        {"tool_name": "search: ", "tool_args": {}},
        {"actions": []},
        {"actions": [{"tool_name": "search", "tool_args": {}}] * 2},
        {"actions": {"tool_name": "search", "tool_args": {}}},
        {"actions": ["search"]},
        {"thoughts": ["later"], "headline": "nothing yet"},
    ],
)
def test_t14_everything_else_is_a_wrong_shape(parse, request_object, mode):
    verdict = parse.text(json.dumps(request_object), mode)
    assert (verdict.kind, verdict.calls) == ("wrong_shape", ())


def test_t14_a_suffix_that_an_explicit_action_overrules_is_reported(parse):
    text = '{"tool_name": "search:s", "tool_args": {"action": "a"}}'
    assert parse.text(text, "strict").repairs == ("name_suffix_ignored",)


def test_t14_a_registered_name_with_a_colon_is_not_split(parse, calls_of):
    text = '{"tool_name": "mcp:search", "tool_args": {"q": 1}}'
    assert calls_of(parse.text(text, "strict", tools=("mcp:search", "mcp"))) == [("mcp:search", {"q": 1})]


@pytest.mark.parametrize(
    ("request_object", "repairs"),
    [
        ({"name": "search", "arguments": {"q": "x"}}, ()),
        ({"name": "search", "parameters": {"q": "x"}}, ()),
        ({"name": "search", "arguments": '{"q": "x"}'}, ("unwrap_json_string",)),
        ({"tool_name": "search", "tool_args": '{"q": "x"}'}, ("unwrap_json_string",)),
        ({"type": "function", "function": {"name": "search", "arguments": {"q": "x"}}}, ("unwrap_function_envelope",)),
        ({"tool_call": {"name": "search", "arguments": {"q": "x"}}}, ("unwrap_tool_call_envelope",)),
        (
            {"tool_calls": [{"id": "1", "function": {"name": "search", "arguments": '{"q": "x"}'}}]},
            ("unwrap_tool_calls", "unwrap_function_envelope", "unwrap_json_string"),
        ),
    ],
)
def test_other_systems_shapes_are_read_where_recovery_is_allowed(parse, calls_of, request_object, repairs):
    text = json.dumps(request_object)
    assert parse.text(text, "strict").kind == "wrong_shape"
    for mode in ("lenient", "repair"):
        verdict = parse.text(text, mode)
        assert (calls_of(verdict), verdict.repairs) == ([("search", {"q": "x"})], repairs)


@pytest.mark.parametrize(
    "request_object",
    [
        {"name": "search", "arguments": {"q": "x"}, "parameters": {"q": "y"}},
        {"name": "search", "arguments": "q=x"},
        {"name": "search", "arguments": '["x"]'},
        {"tool_calls": [{"name": "search", "arguments": {}}] * 2},
    ],
)
def test_what_could_be_read_in_two_ways_is_not_read(parse, request_object):
    assert parse.text(json.dumps(request_object)).kind == "wrong_shape"
