"""Calls that must not run: shown, reported, made up for another speaker, or declarations of tools; and their likes."""

import json

import pytest

from policyengine import ModelResponse, parse_response
from policyengine.parsing.forms import Form
from policyengine.parsing.repair import MENDABLE

CALL = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
OTHER = '<tool_call>{"name": "write", "arguments": {"path": "p", "content": "c"}}</tool_call>'
REQUEST = '{"tool_name": "search", "tool_args": {"q": "x"}}'
QX = [("search", {"q": "x"})]
TAGS = (Form("tag", "execute", "code"), Form("tag", "solution", "answer", answer=True))
COMMANDS = (Form("line", "GET", "url"), Form("line", "POST", "url", "body"), Form("call", "DONE", answer=True))
LISTS = (Form("python"), Form("prose", answer=True))

SHOWN = [
    "Zum Beispiel:\n{}",
    "Par exemple :\n{}",
    "Por ejemplo:\n{}",
    "Ad esempio:\n{}",
    "\u041d\u0430\u043f\u0440\u0438\u043c\u0435\u0440:\n{}",
    "\u4f8b\u3048\u3070\u3001\n{}",
    "\u4ee5\u4e0b\u662f\u4e00\u4e2a\u4f8b\u5b50\uff1a\n{}",
    "\uc608\ub97c \ub4e4\uc5b4:\n{}",
    "Nicht senden:\n{}",
    "\u4e0d\u8981\u6267\u884c\uff1a\n{}",
    "Soll ich das senden?\n{}",
    "The previous step was:\n{}",
    "The earlier turn contained:\n{}",
    "I already sent:\n{}",
    "Expected output:\n{}",
    "A malformed request:\n{}",
    "The right request would be:\n{}",
    "The user pasted:\n\n{}",
    "Could not parse {}",
    "Wait for your approval before this:\n{}",
    "{}\nShould I send this?",
    "{}\nThis is what I would send.",
    "In the record I found\n{}\nwhich nobody ran.",
    "<!-- {} -->",
    "<tool_response>\n{}\n</tool_response>",
    "| step | what |\n|---|---|\n| 1 | {} |",
    "&lt;tool_call&gt;\n{}\n&lt;/tool_call&gt;",
]


@pytest.mark.parametrize("around", SHOWN)
def test_what_is_reported_or_shown_in_any_language_is_not_run(parse, around):
    for verdict in (parse.answer(around.replace("{}", CALL)), parse.text(around.replace("{}", REQUEST))):
        assert verdict.calls == ()


SAID = [
    "No result was returned.\n{}",
    "Let me see what the last search returned:\n{}",
    "Now I run the failing test:\n{}",
    "Ich schaue nach.\n{}",
    "Ich \u00f6ffne die Beispieldatei:\n{}",
    "\u6211\u68c0\u67e5\u6587\u4ef6\u662f\u5426\u5b58\u5728\u3002\n{}",
    "\u041f\u0440\u043e\u0432\u0435\u0440\u044e \u0444\u0430\u0439\u043b.\n{}",
    "I will send the following call:\n{}",
    "The call is:\n{}",
    "Thanks for the approval. Searching:\n{}",
]


@pytest.mark.parametrize("around", SAID)
def test_what_is_announced_runs(parse, calls_of, around):
    for verdict in (parse.answer(around.replace("{}", CALL)), parse.text(around.replace("{}", REQUEST))):
        assert calls_of(verdict) == QX


# ---- other speakers


@pytest.mark.parametrize(
    "turn",
    [
        "Observation: one page",
        "Human: go on\n\nAssistant:",
        "<|im_end|>\n<|im_start|>user\nwrite it<|im_end|>\n<|im_start|>assistant",
        '<tool_response>\n{"pages": 1}\n</tool_response>',
        "user\ngo on\nassistant",
    ],
)
def test_calls_behind_a_turn_that_was_made_up_are_left_out(parse, calls_of, turn):
    verdict = parse.answer(f"{CALL}\n{turn}\n{OTHER}")
    assert calls_of(verdict) == QX
    assert "drop_imagined_turn" in verdict.repairs
    broken = parse.answer(f"{CALL}\n{turn}\n{OTHER[:40]}")
    assert calls_of(broken) == QX


def test_messages_of_a_conversation_are_no_calls(parse):
    called = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    verdict = parse.answer(json.dumps([{"role": "assistant", "tool_calls": [called]}]))
    assert verdict.calls == ()


# ---- declarations


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.mark.parametrize("parameters", [SCHEMA, {"type": "object"}, {"type": "object", "properties": {}}])
@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "The tool:\n{}"])
def test_the_declaration_of_a_tool_is_no_call(parse, parameters, around):
    flat = {"name": "search", "description": "Search.", "parameters": parameters}
    for value in (flat, {"type": "function", "function": flat}):
        text = around.replace("{}", json.dumps(value))
        assert (parse.answer(text).calls, parse.text(text).calls) == ((), ())
    assert parse.answer(around.replace("{}", json.dumps(flat))).final


def test_a_tool_may_have_arguments_that_are_called_like_words_of_a_schema(parse, calls_of):
    tools = {"make": {"type": "object", "properties": {"type": {"type": "string"}, "title": {"type": "string"}}}}
    text = '{"name": "make", "parameters": {"type": "object", "title": "box"}}'
    assert calls_of(parse.answer(text, tools=tools)) == [("make", {"type": "object", "title": "box"})]


# ---- clearly a call, and unreadable


@pytest.mark.parametrize(
    "text",
    [
        '{"action": "search", "action_input": {"q": "x"}}',
        '```json\n{"action": "search", "action_input": "x"}\n```',
        'Thought: I look.\nAction:\n```\n{"action": "search", "action_input": "x"}\n```',
        '{"recipient_name": "functions.search", "parameters": {"q": "x"}}',
        '{"tool_uses": [{"recipient_name": "functions.search", "parameters": {"q": "x"}}]}',
        '{"type": "tool_use", "id": "t", "name": "search", "input": {"q": "x"}}',
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "search", "parameters": {"q": "x"}}]<|END_ACTION|>',
        "```tool_code\nprint(search(q='x'))\n```",
        '<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"q": "x"}<|call|>',
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.search"
        '<|message|>{"q": "x"}',
        'functions.search:0<|tool_call_argument_begin|>{"q": "x"}<|tool_call_end|>',
        '<|tools_prefix|>[{"search": {"q": "x"}}]<|tools_suffix|>',
        '>>>search\n{"q": "x"}',
        'Action: ```json\n[{"tool_name": "search", "parameters": {"q": "x"}}]```',
        "Thought: I look.\nAction: search[x]",
        'Tool: search\nInput: {"q": "x"}',
        'call_tool("search", q="x")',
        "print(search(q='x'))",
        '@search {"q": "x"}',
        '{"function": {"name": "search"}, "arguments": {"q": "x"}}',
        '{"search": {"q": "x"}}',
    ],
)
def test_a_call_in_a_shape_nobody_reads_is_no_answer(parse, text):
    verdict = parse.answer(text)
    assert (verdict.kind, verdict.calls) == ("foreign_markup", ())


@pytest.mark.parametrize("around", ["{}", "```json\n{}", "I look.\n{}"])
def test_a_call_that_was_cut_off_is_no_answer(parse, around):
    verdict = parse.answer(around.replace("{}", '{"name": "write", "arguments": {"path": "p", "content": "abc'))
    assert verdict.kind == "truncated"


@pytest.mark.parametrize(
    "text",
    [
        "search(q='x') looks for x.",
        "print(search) shows [1].",
        "/search (see the manual) is a path.",
        'Tools: search (finds "x"), write (saves it).',
        "Action: search for a page (see [1]).",
        '{"search": {"hits": 3}}',
        '{"name": "search", "version": {"q": 1}}',
        "The <search> element holds {x}.",
        "The `<function=search>` tag opens one.",
    ],
)
def test_words_about_a_tool_stay_an_answer(parse, text):
    assert parse.answer(text).final


def test_data_that_names_no_tool_stays_an_answer(parse):
    for text in ('{"action": "open", "action_input": "door"}', '{"name": "widget", "input": 1}', '{"name": "search"}'):
        assert parse.answer(text).final


def test_a_long_text_that_ends_in_a_string_was_cut_off(parse):
    filler = "a" * MENDABLE
    assert parse.native("write", f'{{"path": "p", "content": "{filler}').kind == "truncated"
    assert parse.text(f'{{"tool_name": "write", "tool_args": {{"path": "p", "content": "{filler}').kind == "truncated"
    assert parse.answer(f'<tool_call>{{"name": "write", "arguments": {{"content": "{filler}').kind == "truncated"


@pytest.mark.parametrize("args", ['"ls"', '"tru"', '"[1"'])
def test_arguments_that_are_a_word_were_not_cut_off(parse, args):
    verdict = parse.text(f'{{"tool_name": "search", "tool_args": {args}}}')
    assert (verdict.kind, verdict.reason) == ("wrong_shape", "arguments_not_object")


# ---- parameters whose end is not clear


@pytest.mark.parametrize(
    "text",
    [
        "<function=write><parameter=path>p</parameter><parameter=content>As in <function=search><parameter=q>x"
        "</parameter></function> here</parameter></function>",
        "<tool_call>write<arg_key>path</arg_key><arg_value>p</arg_value><arg_key>content</arg_key>"
        "<arg_value>x</arg_value></tool_call> y</arg_value></tool_call>",
    ],
)
def test_a_value_that_holds_what_ends_it_is_not_cut_short(parse, text):
    verdict = parse.answer(text)
    assert (verdict.kind, verdict.calls) == ("foreign_markup", ())


# ---- what has one reading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('```json\n{"name": "search", "arguments": {"q": "x"}\n```', QX),
        ('```tool_call\n{"name": "search", "arguments": {"q": "x"}\n```', QX),
        (CALL.replace("</tool_call>", "<tool_call>"), QX),
        ('<|tool_call_start|>[search(q="x")]<|tool_call_end|>', QX),
        ('<tool_call>{"name": "status", "arguments": ""}</tool_call>', [("status", {})]),
        (
            '{"tool_calls": [{"name": "search", "arguments": {"q": "x"}}, {"name": "status", "arguments": {}}]}',
            [*QX, ("status", {})],
        ),
    ],
)
def test_what_is_missing_around_a_call_is_mended(parse, calls_of, text, expected):
    verdict = parse.answer(text)
    assert calls_of(verdict) == expected
    assert verdict.repairs


def test_escaped_white_space_behind_the_arguments_is_white_space(parse, calls_of):
    verdict = parse.native("search", '{"q": "x"}\\n')
    assert (calls_of(verdict), verdict.repairs) == (QX, ("escaped_whitespace",))


def test_no_arguments_are_none_that_a_tool_can_do_without(parse):
    verdict = parse.answer('<tool_call>{"name": "search", "arguments": ""}</tool_call>')
    assert (verdict.calls, verdict.reason) == ((), "arguments_missing")


# ---- declared protocols


def read(text, forms, mode="repair"):
    verdict = parse_response(ModelResponse(text, finish_reason="stop"), protocol="text", forms=forms, mode=mode)
    return verdict, [(call.name, call.args) for call in verdict.calls]


@pytest.mark.parametrize("mode", ["strict", "fenced", "lenient", "repair"])
@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("<think><execute>a</execute></think>Hm.", TAGS),
        ("I might <execute>a</execute> here.</think>", TAGS),
        ("> <execute>a</execute>", TAGS),
        ("<think>\nGET http://x\n</think>", COMMANDS),
        ("The request would be:\nGET http://x", COMMANDS),
        ("<think>[f(a=1)]</think>", LISTS),
    ],
)
def test_a_declared_call_in_reasoning_or_a_quotation_does_not_run(text, forms, mode):
    assert read(text, forms, mode)[1] == []


@pytest.mark.parametrize(
    ("text", "forms", "expected"),
    [
        ("<think><execute>a</execute></think>\n<execute>b</execute>", TAGS, [("execute", {"code": "b"})]),
        ("Use <execute>.</think><execute>b</execute>", TAGS, None),
        ("<think>\nGET http://x\n</think>\nGET http://y", COMMANDS, [("GET", {"url": "http://y"})]),
        ("<think>[f(a=1)]</think>\n[g(b=2)]", LISTS, [("g", {"b": 2})]),
    ],
)
def test_reasoning_before_a_declared_call_is_left_out(text, forms, expected):
    verdict, calls = read(text, forms)
    assert calls == (expected or [])
    assert ("strip_reasoning" in verdict.repairs) == (expected is not None)


def test_reasoning_and_nothing_else_is_reasoning_only():
    assert read("<think>\nGET http://x\n</think>", COMMANDS)[0].kind == "reasoning_only"


def test_what_stands_in_a_declared_call_is_its_data():
    inside = '{"text": "\nGET http://x\n"}'
    assert read(f"POST http://y\n{inside}", COMMANDS)[1] == [
        ("POST", {"url": "http://y", "body": {"text": "\nGET http://x\n"}})
    ]
    assert read("<execute>s = '<solution>1</solution>'</execute>", TAGS)[1] == [
        ("execute", {"code": "s = '<solution>1</solution>'"})
    ]
    assert read("<execute>print('<think>a</think>')</execute>", TAGS)[1] == [
        ("execute", {"code": "print('<think>a</think>')"})
    ]
    verdict, calls = read("DONE(see\nGET http://x\n)", COMMANDS)
    assert (verdict.text, calls) == ("see\nGET http://x", [])


@pytest.mark.parametrize("text", ["<execute>print('</execute>')</execute>", "<execute>a <execute>b</execute>"])
def test_tags_that_do_not_say_which_belong_together_are_not_read(text):
    verdict, calls = read(text, TAGS)
    assert (verdict.kind, verdict.reason, calls) == ("wrong_shape", "nested_tags", [])
