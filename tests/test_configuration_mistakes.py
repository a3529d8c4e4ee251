"""Mistakes that other systems swallow are errors here, and the message says what was meant.

Use before initialisation, names that do not exist, keys that nobody reads: each is told where it is made, and none is
taken for something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from policyengine import (
    Agent,
    ConfigError,
    Engine,
    ModelResponse,
    Outcome,
    Script,
    ToolCall,
    ToolResult,
    UsageError,
    call,
    parse_response,
    say,
)
from policyengine.cli.loading import load
from policyengine.parsing import parse_chunks
from policyengine.providers.scripted import ScriptedModel, load_script

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"
TURNS = (call("look", {"n": 1}), say("done"))


def model() -> ScriptedModel:
    return ScriptedModel(Script("t", TURNS))


def problem(text: str, *overlays: str, folder: Path) -> str:
    """Return the one problem of a policy as it is printed."""
    (folder / "p.yaml").write_text(HEAD + text)
    paths = []
    for number, overlay in enumerate(overlays):
        paths.append(folder / f"overlay-{number}.yaml")
        paths[-1].write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: p\n" + overlay)
    with pytest.raises(ConfigError) as caught:
        load(str(folder / "p.yaml"), [str(path) for path in paths])
    (found,) = caught.value.problems
    return found.full()


# ---- use before initialisation, and after the end

REPORTS = {
    "user_message": lambda run: run.user_message("x"),
    "begin_iteration": lambda run: run.begin_iteration(),
    "after_model_response": lambda run: run.after_model_response(ModelResponse("x")),
    "after_parse": lambda run: run.after_parse(parse_response(ModelResponse("x"))),
    "add_warning": lambda run: run.add_warning("misformat"),
    "before_tool_call": lambda run: run.before_tool_call(ToolCall("c", "look", "{}")),
    "after_tool_call": lambda run: run.after_tool_call(ToolCall("c", "look", "{}"), ToolResult("c", "ok")),
    "end_iteration": lambda run: run.end_iteration(),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_run_that_was_not_started_takes_no_reports(report):
    run = Engine("default").start_run(run_id="r-1")
    with pytest.raises(UsageError, match=r"run 'r-1' was not started; call start\(task\) first"):
        report(run)
    run.start("t")
    report(run)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_run_that_has_ended_takes_no_reports(report):
    run = Engine("default").start_run(run_id="r-1")
    run.start("t")
    run.end(Outcome("completed"))
    with pytest.raises(UsageError, match="run 'r-1' has ended; start a new one"):
        report(run)


def test_a_run_is_started_once():
    run = Engine("default").start_run(run_id="r-1")
    run.start("t")
    with pytest.raises(UsageError, match="run 'r-1' was started already"):
        run.start("t")


def test_a_run_that_never_began_may_be_ended():
    run = Engine("default").start_run()
    run.end(Outcome("cancelled"))
    assert run.state.ended


@pytest.mark.parametrize("engine", [None, "default", model()], ids=["nothing", "a name", "a model"])
def test_an_agent_without_an_engine_is_refused_when_it_is_made(engine):
    with pytest.raises(UsageError, match="an agent needs an Engine first, not "):
        Agent(engine, model(), [])


@pytest.mark.parametrize(
    "wrong", [None, "gpt", lambda request: ModelResponse("x")], ids=["nothing", "a name", "a function"]
)
def test_an_agent_without_a_model_is_refused_when_it_is_made(wrong):
    with pytest.raises(UsageError, match="a model has a `name` and a method `complete`"):
        Agent(Engine("default"), wrong)


def test_a_loop_that_was_not_begun_cannot_be_driven():
    agent = Agent(Engine("default"), model(), model().tools())
    with pytest.raises(UsageError):
        agent.drive(agent.start())


# ---- protocols and modes that do not exist


@pytest.mark.parametrize(("wrong", "meant"), [("tekst", "text"), ("nativ", "native"), ("Text", "text")])
def test_an_unknown_protocol_is_refused_everywhere_with_the_one_that_was_meant(wrong, meant):
    agent = Agent(Engine("default"), model(), model().tools())
    told = f'no protocol named {wrong!r}; did you mean "{meant}"?'
    for use in (
        lambda: agent.start(protocol=wrong),
        lambda: agent.run("t", protocol=wrong),
        lambda: agent.engine.start_run(protocol=wrong),
        lambda: parse_response(ModelResponse("x"), protocol=wrong),
        lambda: parse_chunks(["x"], protocol=wrong),
    ):
        with pytest.raises(UsageError) as caught:
            use()
        assert told in str(caught.value)


def test_a_protocol_that_resembles_none_is_told_what_there_is():
    with pytest.raises(UsageError, match=r"no protocol named 'xml'; known: native, text"):
        parse_response(ModelResponse("x"), protocol="xml")
    with pytest.raises(UsageError, match=r"no protocol named None; known: native, text"):
        parse_response(ModelResponse("x"), protocol=None)


def test_an_unknown_mode_is_refused_whatever_the_response():
    cut = ModelResponse("x", finish_reason="length")
    clean = ModelResponse(tool_calls=(ToolCall("c", "look", "{}"),))
    for response in (cut, clean, ModelResponse("x")):
        with pytest.raises(UsageError, match="no parsing mode named 'leniant'; did you mean \"lenient\""):
            parse_response(response, mode="leniant")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("protocol: nativ\n", "native"),
        ("parsing: {mode: leniant}\n", "lenient"),
        ("interventions: {then: handover}\n", "hand_over"),
    ],
)
def test_an_unknown_value_in_a_policy_is_refused_with_the_one_that_was_meant(tmp_path, text, told):
    shown = problem(text + "extensions: {step_limit: {}}\n", folder=tmp_path)
    assert "error[S202]" in shown
    assert told in shown


# ---- keys that nobody reads


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("protocoll: text\n", "protocol"),
        ("interventions: {maximum: 3}\n", "max"),
        ("tools: {look: {efect: read}}\n", "effect"),
        ("extensions: {step_limit: {wiht: {max_steps: 3}}}\n", "with"),
        ("extensions: {step_limit: {with: {max_step: 3}}}\n", "max_steps"),
        ('models: {"x-*": {parsing: {mod: strict}}}\n', "mode"),
    ],
)
def test_an_unknown_key_is_refused_in_a_policy_and_in_an_overlay(tmp_path, text, told):
    rules = "" if text.startswith("extensions") else "extensions: {step_limit: {}}\n"
    for shown in (
        problem(text + rules, folder=tmp_path),
        problem("extensions: {step_limit: {}}\n", text, folder=tmp_path),
    ):
        assert "error[S204]" in shown
        assert f'did you mean "{told}"?' in shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("task: t\nturn: []\nturns: []\n", "there is no 'turn' here; did you mean \"turns\"?"),
        ("task: t\nturns: [{txt: x}]\n", "turns[1]: there is no 'txt' here; did you mean \"text\"?"),
        (
            "task: t\nturns: [{text: x}, {calls: [{tool: a, arg: {}}]}]\n",
            "turns[2].calls[1]: there is no 'arg' here; did you mean \"args\"?",
        ),
        (
            "task: t\nturns: [{calls: [{tool: a, error: {code: x, retriable: no}}]}]\n",
            "turns[1].calls[1].error: there is no 'retriable' here; did you mean \"retryable\"?",
        ),
        (
            "task: t\nturns: [{text: x, usage: {promt_tokens: 3}}]\n",
            "turns[1].usage: there is no 'promt_tokens' here; did you mean \"prompt_tokens\"?",
        ),
        ("task: t\nprotocol: tekst\nturns: []\n", "no protocol named 'tekst'; did you mean \"text\"?"),
    ],
)
def test_an_unknown_key_in_a_script_is_refused_with_its_place(tmp_path, text, told):
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_script(str(path))
    assert told in str(caught.value)


def test_arguments_and_descriptions_of_tools_may_have_any_name(tmp_path):
    path = tmp_path / "script.yaml"
    path.write_text("task: t\ntools: {anything: x}\nturns: [{calls: [{tool: anything, args: {txt: {arg: 1}}}]}]\n")
    assert load_script(str(path)).turns[0].calls[0].args == {"txt": {"arg": 1}}


def test_an_unknown_script_is_told_with_the_one_that_was_meant():
    with pytest.raises(UsageError, match="no script named 'recover'; did you mean \"recovers\""):
        load_script("recover")


# ---- templates that change no message


def prompts(folder: Path, *names: str) -> str:
    for name in names:
        path = folder / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Something else.\n")
    return "prompts: [./texts]\nextensions: {repeat_message: {}}\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("en/warning.misfromat.txt", "warning.misformat"),
        ("en/stall.hnit.txt", "stall.hint"),
        ("en/deneid.txt", "denied"),
    ],
)
def test_a_template_of_an_unknown_kind_is_refused_with_the_one_that_was_meant(tmp_path, name, told):
    shown = problem(prompts(tmp_path, name), folder=tmp_path)
    assert f"there is no message of the kind {Path(name).stem!r}" in shown
    assert f'did you mean "{told}"?' in shown


def test_a_template_for_a_built_in_rule_that_is_not_used_is_fine(tmp_path):
    (tmp_path / "p.yaml").write_text(HEAD + prompts(tmp_path, "en/max_steps.stop.txt", "en/warning.empty.txt"))
    assert load(str(tmp_path / "p.yaml")).snapshot.templates.overridden() == ("max_steps.stop", "warning.empty")


def test_a_template_for_a_drop_in_rule_that_is_not_used_is_fine(tmp_path):
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards" / "mine.py").write_text(
        '"""A guard."""\n'
        "from policyengine import Extension, hookimpl\n\n\n"
        "class Mine(Extension):\n"
        '    """Say something."""\n\n'
        '    name = "local.mine"\n'
        '    messages = {"mine.hint": {}}\n'
        '    templates = {"en": {"mine.hint": "x"}}\n\n'
        "    @hookimpl\n"
        "    def after_iteration(self, run, iteration):\n"
        '        """Do nothing."""\n'
    )
    (tmp_path / "p.yaml").write_text(HEAD + prompts(tmp_path, "en/mine.hint.txt"))
    load(str(tmp_path / "p.yaml"), folders=[str(tmp_path / "guards")])
    with pytest.raises(ConfigError, match=r"there is no message of the kind 'mine\.hint'"):
        load(str(tmp_path / "p.yaml"))


# ---- names that do not exist


def test_two_tools_of_one_name_are_refused():
    def look() -> str:
        return "x"

    with pytest.raises(UsageError, match="two tools are named 'look'"):
        Agent(Engine("default"), model(), [look, look])


def test_a_policy_an_extension_and_a_hook_that_do_not_exist_are_told_with_what_was_meant(tmp_path):
    with pytest.raises(ConfigError, match="defualt"):
        Engine("defualt")
    assert 'did you mean "step_limit"?' in problem("extensions: {step_limits: {}}\n", folder=tmp_path)
    wrong = "extensions: {step_limit: {at: before_model_cal}}\n"
    assert 'did you mean "before_model_call"?' in problem(wrong, folder=tmp_path)
