"""Calls written in other systems' notations: read where they have one reading, unusable where they have not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import ModelResponse, parse_response

QX = [("search", {"q": "x"})]
TWO = [("search", {"q": "x"}), ("status", {})]

READ = [
    ('<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>', QX),
    ('<tool_call>\n{"name": "search", "arguments": "{\\"q\\": \\"x\\"}"}\n</tool_call>', QX),
    ('<tool_call>[{"name": "search", "arguments": {"q": "x"}}, {"name": "status", "arguments": {}}]</tool_call>', TWO),
    ('<tool_call>{"name": "search", "arguments": {"q": "x"}}\n{"name": "status", "arguments": {}}</tool_call>', TWO),
    (
        '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>\n'
        '<tool_call>{"name": "status", "arguments": {}}</tool_call>',
        TWO,
    ),
    ('<tool_calls>\n<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>\n</tool_calls>', QX),
    ('<tool_call>```json\n{"name": "search", "arguments": {"q": "x"}}\n```</tool_call>', QX),
    ('<tool_call>search{"q": "x"}</tool_call>', QX),
    ("<tool_call>search\n<arg_key>q</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", QX),
    ("<tool_call>search(q='x')</tool_call>", QX),
    ('<function=search>{"q": "x"}</function>', QX),
    ('<function=search>{"q": "x"}></function>', QX),
    ('<function=search{"q": "x"}</function>', QX),
    ('<function=search {"q": "x"}/>', QX),
    ('<function=search={"q": "x"}</function>', QX),
    ('<function=search":{"q": "x"}</function>', QX),
    ('<function(search)={"q": "x"}>', QX),
    ('<function=search>{"q": "x"}</func', QX),
    ('<function=search>{\\"q\\": \\"x\\"}</function>', QX),
    ("<function=search><parameter=q>x</parameter></function>", QX),
    ("<function=search>\n<parameter=q>\nx\n</parameter>\n</function>", QX),
    ("<tool_call>\n<function=search>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>", QX),
    ("<function=status></function>", [("status", {})]),
    ('[TOOL_CALLS] [{"name": "search", "arguments": {"q": "x"}}, {"name": "status", "arguments": {}}]', TWO),
    ('[TOOL_CALLS]search[ARGS]{"q": "x"}[TOOL_CALLS]status[ARGS]{}', TWO),
    ('[TOOL_CALLS]search[CALL_ID]ab12[ARGS]{"q": "x"}', QX),
    ('[TOOL_CALLS]search{"q": "x"}', QX),
    ('<invoke name="search"><parameter name="q">x</parameter></invoke>', QX),
    ('<function_calls>\n<invoke name="search">\n<parameter name="q">x</parameter>\n</invoke>\n</function_calls>', QX),
    ('<ns:tool_call><invoke name="search"><parameter name="q">x</parameter></invoke></ns:tool_call>', QX),
    (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"q": "x"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        QX,
    ),
    (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>"
        'search\n```json\n{"q": "x"}\n```<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>',
        QX,
    ),
    ('<|python_tag|>{"name": "search", "parameters": {"q": "x"}}', QX),
    ("<|python_tag|>search(q='x')", QX),
    ("[search(q='x'), status()]", TWO),
    ("[search(q='x')]", QX),
    ("[search(q='x')]\n[status()]", TWO),
    ("[search(q='x')], [status()]", TWO),
    ("[search(q='x')]<end_of_turn>", QX),
    ("search(q='x')", QX),
    ("```tool_code\nsearch(q='x')\n```", QX),
    ('```xml\n<invoke name="search"><parameter name="q">x</parameter></invoke>\n```', QX),
    ("<tool_call>{'name': 'search', 'arguments': {'q': 'x'}}</tool_call>", QX),
    ('<tool_call>{"name": "search", "arguments": {"q": "x"}</tool_call>', QX),
    ('<tool_call>{"name": "search", "arguments": {"q": "x"}}}</tool_call>', QX),
    ('{"name": "search", "arguments": {"q": "x"}}', QX),
    ('[{"name": "search", "arguments": {"q": "x"}}, {"name": "status", "arguments": {}}]', TWO),
]


@pytest.mark.parametrize(("text", "calls"), READ)
def test_a_whole_message_in_a_known_notation_is_read_and_no_guess(parse, calls_of, text, calls):
    verdict = parse.answer(text)
    assert (verdict.kind, calls_of(verdict), verdict.guess) == ("ok", calls, False)


@pytest.mark.parametrize(("text", "calls"), [case for case in READ if not case[0].startswith("[{")])
def test_the_text_protocol_reads_the_same_notations(parse, calls_of, text, calls):
    assert calls_of(parse.text(text)) == calls


@pytest.mark.parametrize("bar", ["\uff5c", "|", "||", "\uff5c\uff5c", "\u2016"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_dsml_is_read_with_every_kind_of_bar(parse, calls_of, bar, wrapped):
    mark = f"{bar}DSML{bar}"
    text = (
        f'<{mark}invoke name="search"><{mark}parameter name="q" string="true">x</{mark}parameter>'
        f'<{mark}parameter name="limit" string="false">3</{mark}parameter></{mark}invoke>'
    )
    if wrapped:
        text = f"<{mark}tool_calls>\n{text}\n</{mark}tool_calls>"
    verdict = parse.answer(text)
    assert (calls_of(verdict), verdict.repairs) == ([("search", {"q": "x", "limit": 3})], ("dsml_markup",))


def test_a_value_is_text_unless_the_schema_says_otherwise(parse, calls_of):
    text = (
        "<function=search><parameter=q>5</parameter><parameter=limit>5</parameter><parameter=exact>True</parameter>"
        "<parameter=tags>['a', 'b']</parameter><parameter=other>5</parameter></function>"
    )
    args = {"q": "5", "limit": 5, "exact": True, "tags": ["a", "b"], "other": "5"}
    assert calls_of(parse.answer(text)) == [("search", args)]
    untyped = {"q": "5", "limit": "5", "exact": "True", "tags": "['a', 'b']", "other": "5"}
    assert calls_of(parse.answer(text, tools={"search"})) == [("search", untyped)]


@pytest.mark.parametrize(("written", "value"), [("many", "many"), ("true", "true"), ("5.5", "5.5"), ("[5]", "[5]")])
def test_a_value_that_is_not_what_the_schema_says_stays_text_for_the_validator(parse, calls_of, written, value):
    text = f"<function=search><parameter=q>x</parameter><parameter=limit>{written}</parameter></function>"
    assert calls_of(parse.answer(text)) == [("search", {"q": "x", "limit": value})]


CONTENT = st.lists(
    st.sampled_from(["</tool_call>", "</parameter>", "</function>", "<function=", "```\n", *'{}"\\\n a'])
    | st.characters(codec="utf-8"),
    max_size=30,
).map("".join)


@given(CONTENT)
def test_a_string_may_hold_whatever_closes_its_notation(content):
    arguments = {"path": "a", "content": content}
    request = json.dumps({"name": "write", "arguments": arguments})
    for text in (
        f"<tool_call>{request}</tool_call>",
        f"<function=write>{json.dumps(arguments)}</function>",
        f"[TOOL_CALLS]write[ARGS]{json.dumps(arguments)}",
        f"[TOOL_CALLS][{request}]",
    ):
        verdict = parse_response(ModelResponse(text), tools={"write"}, mode="lenient", text_fallback=True)
        assert [call.args for call in verdict.calls] == [arguments]


@pytest.mark.parametrize(
    "value", ["a </parameter> b", "</parameter></parameter> c", "line\n\n  two\n", "<b>&lt;</b>", " x "]
)
def test_the_text_of_a_parameter_is_kept_byte_for_byte(parse, calls_of, value):
    text = f"<function=write><parameter=path>p</parameter><parameter=content>\n{value}\n</parameter></function>"
    assert calls_of(parse.answer(text)) == [("write", {"path": "p", "content": value})]
    text = f'<invoke name="search"><parameter name="q">{value}</parameter></invoke>'
    assert calls_of(parse.answer(text)) == [("search", {"q": value})]


UNREADABLE = [
    ('<tool_call>{"name": "search", "arguments": {"q": "x', "truncated"),
    ('<tool_call>{"name": "search", "arguments": {"q":', "truncated"),
    ("<tool_call>", "truncated"),
    ("<function=search>", "truncated"),
    ("<function=sea", "truncated"),
    ("<function=search><parameter=q>x", "truncated"),
    ('<invoke name="search"><parameter name="q">x', "truncated"),
    ('<invoke name="search"><parameter name="q"', "truncated"),
    ('[TOOL_CALLS]search[ARGS]{"q": "x', "truncated"),
    ("[search(q='x", "truncated"),
    ("[search(q='x'", "truncated"),
    ('<tool_call>{"name": "search", "arguments": {"q": "a "b" c"}}</tool_call>', "foreign_markup"),
    ('<tool_call>{"name": "search"}</tool_call>', "foreign_markup"),
    ("<tool_call></tool_call>", "foreign_markup"),
    ("<tool_call>please search</tool_call>", "foreign_markup"),
    ("<function=search></function>", "foreign_markup"),
    ("<function=search><parameter=q>x</parameter><parameter=q>y</parameter></function>", "foreign_markup"),
    ("<function=search><q>x</q></function>", "foreign_markup"),
    ("<invoke search><parameter name='q'>x</parameter></invoke>", "foreign_markup"),
    ("[TOOL_CALLS] now", "foreign_markup"),
    ("[search('x')]", "foreign_markup"),
    ("[search(q=x)]", "foreign_markup"),
    ("[search(q='x')]\nHuman: thanks", "foreign_markup"),
    ("[search(q='x')]\n[search(q='y", "truncated"),
    ('<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"q": "x"}<|call|>', "foreign_markup"),
    ("<search>\n<q>x</q>\n</search>", "foreign_markup"),
    ('<use_tool name="search">x</use_tool>', "foreign_markup"),
    ("<execute_tool>\nsearch\n</execute_tool>", "foreign_markup"),
    ("I think.\nAction: search\nAction Input: x", "foreign_markup"),
    ('functions.search\n{"q": "x"}', "foreign_markup"),
    ('<search q="x"/>', "foreign_markup"),
    ('commentary to=functions.search json{"q": "x"}', "foreign_markup"),
    ('<|tool_call>call:search{q:<|"|>x<|"|>}<tool_call|>', "foreign_markup"),
    ('Tool call: search({"q": "x"})', "foreign_markup"),
]


@pytest.mark.parametrize(("text", "kind"), UNREADABLE)
@pytest.mark.parametrize("fallback", [True, False])
def test_what_is_clearly_a_call_and_cannot_be_read_is_never_a_final_answer(parse, text, kind, fallback):
    verdict = parse.answer(text, text_fallback=fallback)
    assert (verdict.kind, verdict.calls) == (kind, ())


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "search", "arguments": {"q": "x"}', "<function=search><parameter=q>x</parameter>"],
)
def test_a_call_without_its_closing_tag_needs_a_message_that_the_model_ended(parse, text):
    assert parse.answer(text, finish_reason="").kind == "truncated"
    assert parse.answer(text, finish_reason="stop").usable


def test_a_complete_object_counts_although_its_closing_tag_is_missing(parse, calls_of):
    verdict = parse.answer('<function=search>{"q": "x"}', finish_reason="")
    assert (calls_of(verdict), verdict.repairs) == (QX, ("missing_closing_tag",))


@pytest.mark.parametrize("text", [text for text, _ in READ])
def test_plain_native_mode_never_promotes_text_and_never_takes_a_call_for_an_answer(parse, text):
    for mode in ("strict", "fenced", "lenient", "repair"):
        verdict = parse.answer(text, mode, text_fallback=False)
        assert (verdict.usable, verdict.calls) == (False, ())
    assert parse.answer(text, "native", text_fallback=False).final


@pytest.mark.parametrize("mode", ["strict", "fenced"])
def test_the_fallback_needs_a_mode_that_recovers(parse, mode):
    assert parse.answer(READ[0][0], mode).kind == "foreign_markup"


@pytest.mark.parametrize(
    "text",
    [
        "A plain answer.",
        '{"name": "tide-app", "version": 1}',
        'Here is the manifest:\n```json\n{"name": "search", "version": 1}\n```',
        '{"name": "unknown", "arguments": {"q": "x"}}',
        "```python\nprint(search)\n```",
        "print('x')",
        "Use search(q='x') to look for x.",
        "search(q='x') looks for x.",
        "[1] search(q='x')",
        "The <tool_call> tag wraps a call.",
        "See <b>this</b> and <search>.",
        "<function-thoughts>I can use search for that.</function-thoughts> It is ebb.",
        "f(x) = {x | x > 0} [1]",
    ],
)
def test_an_answer_is_an_answer(parse, text):
    for fallback in (True, False):
        verdict = parse.answer(text, text_fallback=fallback)
        assert (verdict.final, verdict.text) == (True, text)


@pytest.mark.parametrize("wrapped", ["{}", "I will look that up.\n\n{}", "```\n{}\n```", "Now:\n```\n{}\n```"])
def test_an_unknown_tool_in_markup_fails_only_its_call(parse, wrapped):
    verdict = parse.answer(wrapped.format('<tool_call>{"name": "nope", "arguments": {}}</tool_call>'))
    assert (verdict.kind, verdict.unknown) == ("unknown_tool", ("text-1",))


@pytest.mark.parametrize("around", ["<tools>{}</tools>", "[TOOL_REQUEST]{}[END_TOOL_REQUEST]", "<tool>\n{}\n</tool>"])
def test_a_request_in_unknown_marks_is_a_guess(parse, calls_of, around):
    verdict = parse.answer(around.replace("{}", '{"name": "search", "arguments": {"q": "x"}}'))
    assert (calls_of(verdict), verdict.guess) == (QX, True)


def test_a_name_that_is_no_name_is_a_wrong_shape(parse):
    verdict = parse.answer('<tool_call>{"name": "look it up", "arguments": {}}</tool_call>')
    assert (verdict.kind, verdict.reason) == ("wrong_shape", "malformed_name")
