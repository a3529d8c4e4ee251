"""`--format`: one problem in four forms, for every verb that loads a policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyengine.policy.problems import Position, Problem, render

LOADING = {
    "check": ("check", "demo.yaml", "--folder", "guards"),
    "explain": ("explain", "demo.yaml", "--folder", "guards"),
    "prove": ("prove", "demo.yaml", "--folder", "guards"),
    "run": ("run", "--policy", "demo.yaml", "--folder", "guards", "--script", "script.yaml"),
    "eval": ("eval", "--policy", "demo.yaml", "--folder", "guards", "--hook", "run_start", "--payload", "{}"),
    "replay": ("replay", "--policy", "demo.yaml", "--folder", "guards", "runs.jsonl"),
    "inspect agent": ("inspect", "agent", "desk:make", "--policy", "demo.yaml", "--folder", "guards"),
}
SHORT = "demo.yaml:9:12: error[S204] extensions.counting.with.hnit: unknown setting"
DESK = """\
from policyengine import Agent, Engine, Script, say
from policyengine.providers.scripted import ScriptedModel


def make():
    return Agent(Engine("default"), ScriptedModel(Script("t", (say("x"),))), [], system="Say where things are.")
"""


@pytest.fixture
def told(run):
    """Run a verb under a policy with a mistake, in a form of `--format`."""

    def told(verb: str, form: str):
        policy = Path("demo.yaml").read_text()
        Path("demo.yaml").write_text(policy.replace("{hint: 2,", "{hnit: 2,"))
        Path("runs.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
        Path("desk.py").write_text(DESK)
        option = "--problem-format" if verb == "replay" else "--format"  # whose --format is that of recordings
        return run(*LOADING[verb], option, form)

    return told


@pytest.mark.parametrize("verb", LOADING)
def test_short_is_one_line_on_stderr(told, verb):
    result = told(verb, "short")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"{SHORT}\n"


@pytest.mark.parametrize("verb", LOADING)
def test_full_has_the_source_line_and_the_advice(told, verb):
    result = told(verb, "full")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{SHORT}\n    9 |     with: ")
    assert 'help: did you mean "hint"?' in result.stderr


@pytest.mark.parametrize("verb", LOADING)
def test_github_is_one_annotation_on_stdout(told, verb):
    result = told(verb, "github")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("::error file=demo.yaml,line=9,col=12,title=S204::extensions.counting.with.hnit: ")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("verb", LOADING)
def test_json_is_one_object_on_stdout(told, verb):
    result = told(verb, "json")
    assert (result.exit_code, result.stderr) == (1, "")
    answer = json.loads(result.stdout)
    problems = answer["policies"][0]["problems"] if verb == "check" else answer["problems"]
    assert answer["ok"] is False
    assert [(found["code"], found["file"], found["line"], found["column"]) for found in problems] == [
        ("S204", "demo.yaml", 9, 12)
    ]


@pytest.mark.parametrize("form", ["short", "json", "github"])
def test_diff_reports_each_policy_that_cannot_be_used_and_ends_as_it_does(run, form):
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2,", "{hnit: 2,"))
    result = run("diff", "default", "demo.yaml", "--folder", "guards", "--format", form)
    assert result.exit_code == 2
    told = result.stderr if form == "short" else result.stdout
    assert told.count("S204") == 1


def test_json_of_a_verb_keeps_its_meaning(run):
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2,", "{hnit: 2,"))
    result = run("explain", "demo.yaml", "--folder", "guards", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "S204" in result.stderr


@pytest.mark.parametrize("form", ["short", "json", "github"])
def test_an_extension_that_is_broken_without_a_position_is_a_problem_too(run, form):
    Path("guards").rename("elsewhere")
    result = run("explain", "demo.yaml", "--folder", "guards", "--format", form)
    assert result.exit_code == 1
    assert "X406" in (result.stderr if form == "short" else result.stdout)


def test_a_sound_policy_is_not_concerned(run):
    result = run("explain", "demo.yaml", "interventions.max", "--folder", "guards", "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("interventions.max = 10")


def test_an_unknown_form_is_a_usage_error(run):
    assert run("explain", "default", "--format", "xml").exit_code == 1


def test_annotations_escape_what_ends_a_property_or_a_line():
    position = Position("a:b,c%.yaml", 3, 7)
    problem = Problem("S204", "100% of\r\nit", position, "x.y", "warning", help="a, b: c")
    assert render([problem], "github") == (
        "::warning file=a%3Ab%2Cc%25.yaml,line=3,col=7,title=S204::x.y: 100%25 of%0D%0Ait%0Ahelp: a, b: c"
    )
    assert render([Problem("E802", "gone", Position("p.yaml"))], "github") == "::error file=p.yaml,title=E802::gone"
