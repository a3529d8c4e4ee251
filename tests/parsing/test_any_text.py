"""Whatever comes: one verdict, the same for every chunking, and no exception."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policyengine import ModelResponse, ToolCall, parse_response
from policyengine.errors import UsageError
from policyengine.parsing import WARNING_KINDS, parse_chunks
from policyengine.parsing.strict import dumps, loads, strings

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


INNER = '</think>{"tool_name": "search", "tool_args": {"q": "x"}}'
BODIES = st.lists(PIECES.filter(lambda piece: piece != "\ud83d") | st.just(INNER), max_size=6).map("".join)
WRAPPED = st.sampled_from(
    [
        ('{"tool_name": "search", "tool_args": ', "}"),
        ('<tool_call>{"name": "search", "arguments": ', "}</tool_call>"),
        ("<function=search>", "</function>"),
        ("[TOOL_CALLS]search[ARGS]", ""),
        ("<|tool_call_begin|>search\n", "<|tool_call_end|>"),
    ]
)
DAMAGE = st.sampled_from(
    [
        lambda text: text,
        lambda text: text.replace('", "', '" "'),
        lambda text: text.replace('": ', '"\uff1a'),
        lambda text: text.replace('{"', "{\u00a0'").replace('": ', "': "),
        lambda text: text.replace("}", ",}"),
        lambda text: text.replace('{"q"', "{q"),
        lambda text: text.replace('{"q"', '{// x\n"q"'),
    ]
)


def calls_in(text, tools, finish_reason, mode):
    response = ModelResponse(text, finish_reason=finish_reason)
    for options in ({"protocol": "text"}, {"protocol": "native", "text_fallback": True}):
        verdict = parse_response(response, tools=tools, mode=mode, **options)
        yield list(verdict.calls) if verdict.usable else []


@settings(max_examples=200)
@given(BODIES, BODIES, WRAPPED, DAMAGE, st.none() | st.integers(0, 200), st.sampled_from(["", "stop"]))
@example("a", INNER, ("[TOOL_CALLS]search[ARGS]", ""), lambda text: text.replace('": ', '"\uff1a'), None, "stop")
def test_a_damaged_call_is_refused_or_holds_the_strings_that_were_written(first, second, wrapped, damage, cut, reason):
    # Damage that would change what a string holds, too, is no damage to the structure.
    marked = dumps({"q": "FIRST", "n": [1, True], "z": "SECOND"}).replace(",", ", ").replace(":", ": ")
    text = damage(marked).replace("FIRST", dumps(first)[1:-1]).replace("SECOND", dumps(second)[1:-1])
    text = f"{wrapped[0]}{text}{wrapped[1]}"[:cut]
    wanted = ["q", "n", "z", first, second]
    for mode in ("strict", "lenient", "repair"):
        for tools in (TOOLS, None):
            for calls in calls_in(text, tools, reason, mode):
                for call in calls:
                    found = list(strings(call.args))
                    assert found == wanted or (cut is not None and set(found) <= set(wanted))


@given(BODIES, st.none() | st.integers(0, 200))
@example(INNER, 95)
def test_what_an_argument_in_tags_holds_is_never_a_call(body, cut):
    body = body.replace("</parameter>", "").replace("<parameter", "").replace("</arg_value>", "")
    text = f'<invoke name="search"><parameter name="q">{body}</parameter></invoke>'[:cut]
    for mode in ("lenient", "repair"):
        for calls in calls_in(text, TOOLS, "stop", mode):
            assert [call.args for call in calls] in ([], [{"q": body}])


@given(TEXTS, st.sampled_from(MODES))
def test_a_call_written_anew_is_itself_under_the_strictest_reading(text, mode):
    structured = ModelResponse(tool_calls=(ToolCall("1", "search", text),), finish_reason="stop")
    for response in (ModelResponse(text, finish_reason="stop"), structured):
        verdict = parse_response(response, tools=TOOLS, mode=mode, text_fallback=True)
        for call in verdict.calls if verdict.usable and verdict.repairs else ():
            again = ModelResponse(tool_calls=(ToolCall("1", call.name, dumps(call.args)),))
            read = parse_response(again, tools=TOOLS, mode="strict")
            assert ([(one.name, one.args) for one in read.calls], read.repairs) == ([(call.name, call.args)], ())


@pytest.mark.parametrize("finish_reason", ["", "stop"])
@pytest.mark.parametrize(
    "text",
    [
        f'[TOOL_CALLS]search[ARGS]{{"q"\uff1a"a", "z": {json.dumps(INNER)} oops}}',
        f'{{"tool_name": "search", "tool_args": {{"z": {json.dumps(chr(34) + INNER)} oops}}}}',
        f'{{"tool_name": "search", "tool_args": {{n: 1, "q": \'{INNER}\' oops}}}}',
        f'<function=search>{{"q"\uff1a\u201c{INNER}\u201d oops}}</function>',
        f"<function=search><parameter=q>{INNER}",
        f"<tool_call>search<arg_key>q</arg_key><arg_value>{INNER}",
    ],
)
def test_the_end_of_reasoning_in_an_argument_is_data_although_the_call_cannot_be_read(text, finish_reason):
    for mode in ("lenient", "repair"):
        for tools in (TOOLS, None):
            assert all(calls == [] for calls in calls_in(text, tools, finish_reason, mode))


def test_a_call_that_was_broken_off_in_reasoning_does_not_count_where_the_reasoning_is_marked():
    broken = f'I call <tool_call>{{"name": "a", oops, it doesn\'t matter: "x"{INNER}'
    marked, unmarked = calls_in(f"<think>{broken}", TOOLS, "stop", "repair"), calls_in(broken, TOOLS, "stop", "repair")
    assert [[call.args for call in calls] for calls in marked] == [[{"q": "x"}]] * 2
    # Without the opening tag nobody can tell whether the closing one is data: the model is asked again.
    assert list(unmarked) == [[], []]


def test_an_unknown_mode_is_an_error():
    with pytest.raises(UsageError, match=r"no parsing mode named .wild."):
        parse_response(ModelResponse("x"), mode="wild")
