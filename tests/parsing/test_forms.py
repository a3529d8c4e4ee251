"""A policy can declare its own text protocol; what each mode reads of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import Agent, ConfigError, Engine, ModelResponse, parse_response
from policyengine.parsing import parse_chunks
from policyengine.parsing.forms import Form
from policyengine.parsing.strict import loads
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script, say
from policyengine.testing import ListedRegistry, ManualClock

TAGS = (Form("tag", "execute", "code"), Form("tag", "solution", "answer", answer=True))
COMMANDS = (Form("line", "GET", "url"), Form("line", "POST", "url", "body"), Form("call", "DONE", answer=True))
PYTHON = (Form("python"), Form("prose", answer=True))
MODES = ("strict", "fenced", "lenient", "repair")


def read(text, forms, mode="repair", **options):
    return parse_response(ModelResponse(text, **options), protocol="text", forms=forms, mode=mode)


def calls(verdict):
    return [(call.name, call.args) for call in verdict.calls] if verdict.usable else []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("text", "forms", "expected"),
    [
        ("<execute>print(1)</execute>", TAGS, ("execute", {"code": "print(1)"})),
        ("I add.\n<execute>\na = 1\nb = [a]\n</execute>", TAGS, ("execute", {"code": "a = 1\nb = [a]"})),
        ("GET http://x/y?z=1", COMMANDS, ("GET", {"url": "http://x/y?z=1"})),
        ('POST http://x\n{"a": [1]}', COMMANDS, ("POST", {"url": "http://x", "body": {"a": [1]}})),
        ("[f(a=1, b='x')]", PYTHON, ("f", {"a": 1, "b": "x"})),
        ("[m.f()]", PYTHON, ("m.f", {})),
    ],
)
def test_what_is_written_as_declared_is_a_call_in_every_mode(text, forms, expected, mode):
    verdict = read(text, forms, mode)
    assert (calls(verdict), verdict.repairs, verdict.guess) == ([expected], (), False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("text", "forms", "answer"),
    [
        ("I know.\n<solution> 42 </solution>", TAGS, "42"),
        ('DONE([1, "two"])', COMMANDS, '[1, "two"]'),
        ("Nothing fits.", PYTHON, "Nothing fits."),
    ],
)
def test_the_final_answer_is_declared_too(text, forms, answer, mode):
    verdict = read(text, forms, mode)
    assert (verdict.final, verdict.text) == (True, answer)


@pytest.mark.parametrize(
    ("text", "forms", "expected", "repair"),
    [
        ("```tool\nGET http://x\n```", COMMANDS, [("GET", {"url": "http://x"})], "strip_fence"),
        ("<execute>\n```python\na\n```\n</execute>", TAGS, [("execute", {"code": "a"})], "strip_fence"),
        ("< Execute >a</ execute>", TAGS, [("execute", {"code": "a"})], "tag_spelling"),
        (
            "<execute>a</execute>\nObservation: 1\n<execute>b</execute>",
            TAGS,
            [("execute", {"code": "a"})],
            "drop_",
        ),
        ("[f(a=1)]\nuser\n[g(b=2)]", PYTHON, [("f", {"a": 1})], "drop_"),
        ("[f(a=1)]\n[g(b=2)]", PYTHON, [("f", {"a": 1}), ("g", {"b": 2})], "several_lists"),
        ("[f(a=1)], [g()]", PYTHON, [("f", {"a": 1}), ("g", {})], "several_lists"),
        ("[f](a=true)", PYTHON, [("f", {"a": True})], "bracketed_name"),
        ("[f, a=1]", PYTHON, [("f", {"a": 1})], "missing_parentheses"),
        ("f(a=None)", PYTHON, [("f", {"a": None})], "python_call"),
    ],
)
def test_odd_spellings_are_recovered_and_named(text, forms, expected, repair):
    verdict = read(text, forms)
    assert calls(verdict) == expected
    assert any(name.startswith(repair) for name in verdict.repairs)
    if repair != "strip_fence":
        assert calls(read(text, forms, "strict")) != expected or repair.startswith("drop")


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("I look.\nGET http://x", COMMANDS),
        ("Here it is.\n\n[f(a=1)]", PYTHON),
        ("[f(a=1)]\nThat is all of it.", PYTHON),
        ("I run this:\n```\n<execute>a</execute>\n```\nDone.", TAGS),
    ],
)
def test_a_call_amid_text_that_the_protocol_does_not_allow_is_a_guess(text, forms):
    verdict = read(text, forms)
    assert len(calls(verdict)) == 1
    assert verdict.guess
    assert not calls(read(text, forms, "strict")) or forms is TAGS


@pytest.mark.parametrize(
    ("text", "forms", "kind"),
    [
        ("<execute>print(", TAGS, "truncated"),
        ("<execute>a</execute> and <execute>b", TAGS, "truncated"),
        ("<execute>a</execute><execute>b</execute>", TAGS, "multiple"),
        ("<execute>a</execute><solution>b</solution>", TAGS, "multiple"),
        ("```python\nprint(1)\n```", TAGS, "prose"),
        ("No tags at all.", TAGS, "prose"),
        ("<solution>  </solution>", TAGS, "empty"),
        ("POST http://x", COMMANDS, "wrong_shape"),
        ('POST http://x\n{"a": ', COMMANDS, "truncated"),
        ("GET http://x\nGET http://y", COMMANDS, "multiple"),
        ("GET http://x\n\nDONE([])", COMMANDS, "multiple"),
        ("DONE([1", COMMANDS, "truncated"),
        ('{"name": "GET", "arguments": {}}', COMMANDS, "prose"),
        ("[f(a=1)]\n[g(b=", PYTHON, "truncated"),
        ("[f(a='x", PYTHON, "truncated"),
        ("[f(1)]", PYTHON, "wrong_shape"),
        ("[f(a=x)]", PYTHON, "wrong_shape"),
        ("[f(a=1, a=2)]", PYTHON, "wrong_shape"),
        ("[f]", PYTHON, "wrong_shape"),
        ("[f(a=1)] and then some", PYTHON, "wrong_shape"),
        ("[f(a=1)]\nThen g(b=2) as well.", PYTHON, "wrong_shape"),
        ('[{"name": "f", "parameters": {}}]', PYTHON, "wrong_shape"),
        ("", PYTHON, "empty"),
    ],
)
def test_what_cannot_be_read_for_certain_is_no_call_and_no_answer(text, forms, kind):
    verdict = read(text, forms)
    assert (verdict.kind, verdict.usable) == (kind, False)


def test_a_call_that_is_only_shown_is_no_call():
    assert not calls(read("For example, you could write `<execute>rm()</execute>` here.", TAGS))


def test_truncation_outranks_a_declared_call():
    assert read("<execute>a</execute>", TAGS, finish_reason="length").kind == "truncated"


def test_a_tool_that_is_not_offered_fails_only_its_call():
    verdict = parse_response(ModelResponse("[f(a=1)]"), protocol="text", forms=PYTHON, tools=["g"], mode="repair")
    assert (verdict.kind, len(verdict.unknown)) == ("unknown_tool", 1)


COMMANDS_POLICY = """
apiVersion: policyengine/v1
kind: Policy
name: commands
protocol: text
parsing:
  mode: repair
  forms:
    - {form: line, word: GET, argument: url, tool: fetch}
    - {form: call, word: DONE, answer: true}
tools: {fetch: {effect: read}}
extensions: {}
"""


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("{form: tag}", "needs its `word`"),
        ("{form: python, word: f}", "takes nothing but"),
        ("{form: prose}", "write `answer: true`"),
        ("{form: python, answer: true}", "never the final answer"),
        ("{form: tag, word: a, payload: b}", "only a form `line`"),
        ("{form: line, word: a, argument: b, payload: b}", "different names"),
        ("{form: xml, word: a}", "not allowed"),
        ("{form: tag, word: a b}", "does not have the form"),
        ("{word: a}", "the setting is missing"),
    ],
)
def test_a_form_that_contradicts_itself_is_refused_where_it_stands(form, words):
    text = f"apiVersion: policyengine/v1\nkind: Policy\nname: t\nextensions: {{}}\nparsing:\n  forms:\n    - {form}\n"
    with pytest.raises(ConfigError) as caught:
        load_policy_text(text, registry=ListedRegistry())
    (problem,) = caught.value.problems
    assert words in problem.message + problem.help
    assert problem.position.line == 7


PIECES = (
    *(
        "<execute>",
        "</execute>",
        "<solution>",
        "</solution>",
        "GET ",
        "POST x\n",
        "DONE(",
        ")",
        "[f(a=",
        "'x'",
        "1",
        ")]",
    ),
    *("\n", "user\n", "Observation: ", "```\n", '{"a": 1}', "[f]", "(", "é", "\ud83d", " ", ",", "<eos>", "x"),
)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join),
    st.sampled_from((TAGS, COMMANDS, PYTHON, TAGS + COMMANDS + PYTHON)),
    st.sampled_from(MODES),
    st.integers(1, 5),
)
def test_no_text_breaks_a_declared_protocol(text, forms, mode, size):
    verdict = read(text, forms, mode)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    assert parse_chunks(chunks, forms=forms, mode=mode) == verdict
    for call in verdict.calls:
        assert loads(call.arguments) == call.args


def test_a_policy_declares_a_protocol_and_a_run_speaks_it():
    policy = load_policy_text(COMMANDS_POLICY, registry=ListedRegistry())
    assert policy.parsing.forms == (
        Form("line", "GET", "url", tool="fetch"),
        Form("call", "DONE", answer=True),
    )

    def fetch(url: str) -> str:
        return f"content of {url}"

    seen = []

    class Model(ScriptedModel):
        def complete(self, request):
            seen.append(request)
            return super().complete(request)

    turns = (say("GET a"), say("Hm."), say("DONE(all of it)"))
    agent = Agent(Engine(policy, registry=ListedRegistry(), clock=ManualClock()), Model(Script("t", turns)), [fetch])
    outcome = agent.run("task")
    assert (outcome.executed, outcome.output) == (1, "all of it")
    assert "GET url" in seen[0].messages[0].text  # the prompt shows the forms
    assert "DONE(" in seen[2].messages[-1].text  # and so does the warning
