"""The benchmark of harness faults reads both forms of a run, and fails where it has to."""

from __future__ import annotations

import json

import pytest

from benchmarks import harness_faults
from benchmarks.harness_faults import main

UNANSWERED = "Error code: 400 - {'error': {'message': 'No tool output found for function call call_b7.'}}"
WITHOUT = (
    "Error code: 400 - {'message': 'messages.4: `tool_use` ids were found without `tool_result` blocks immediately "
    "after: toolu_q. Each `tool_use` block must have a corresponding `tool_result` block in the next message.'}"
)
SILENT = (
    "Error code: 400 - {'message': 'messages.2.content.0.tool_result: content cannot be empty if `is_error` is true'}"
)
CUT = "Unterminated string starting at: line 1 column 12 (char 11)"
QUOTA = "Error code: 429 - {'error': {'message': 'You exceeded your current quota', 'code': 'insufficient_quota'}}"


def step(id="", name="look", result=None, said="", error=None):
    """One step of a trajectory: a response with a call, and what is sent after it."""
    answer = {"role": "user", "content": None, "tool_result": result and {**result, "call_id": id}}
    said_next = {"role": "user", "content": said}
    call = {"call_id": id, "name": name, "arguments": {"p": id}}
    return {
        "llm_response": None if error else {"content": "", "tool_calls": [call] if id else None},
        "llm_messages": [answer] if result else [said_next],
        "error": error,
    }


GOOD = {"success": True, "result": "12 kB", "error": ""}
MUTE = {"success": False, "result": "", "error": None}


def line(*turns, error=None):
    made = [
        {"text": [0, "", ""], "calls": [[name, "aa", ""] for name in calls], "results": results}
        for calls, results in turns
    ]
    last = {"text": [0, "", ""], "calls": [], "results": []}
    return made + ([{**last, "error": error}] if error else [])


FINE = (["look"], [[5, "bb", 0, ""]])
LEFT = (["done"], [])
EMPTY = (["look"], [[0, "cc", 1, ""]])

RUNS = {
    "a/left": ("openai", "gpt-5", [step("call_a1", result=GOOD), step("call_b7", said="no patch")], UNANSWERED),
    "a/mute": ("bedrock", "claude", [step("toolu_m", result=MUTE)], SILENT),
    "a/cut": ("openai", "gpt-5", [step("call_c", result=GOOD)], CUT),
    "a/quota": ("openai", "gpt-5", [], QUOTA),
}
LINES = {
    "a/left": line(FINE, LEFT, error=UNANSWERED),
    "a/mute": line(EMPTY, error=SILENT),
    "a/cut": line(FINE, error=CUT),
    "a/quota": line(error=QUOTA),
}


def recordings(folder, runs=None, lines=None):
    place = folder / "trae_iso_bench"
    (place / "raw").mkdir(parents=True)
    first = [{"role": "system", "content": "rules"}, {"role": "user", "content": "make it fast"}]
    rows = []
    for number, (id, (provider, _, steps, error)) in enumerate((runs or RUNS).items()):
        failed = {**step(error=error), "llm_messages": first if not steps else steps[-1]["llm_messages"]}
        interactions = [{"input_messages": first}] if steps else []
        run = {"provider": provider, "llm_interactions": interactions, "agent_steps": [*steps, failed]}
        (place / "raw" / f"{number}.json").write_text(json.dumps(run), encoding="utf-8")
        rows.append(f"{id},random,raw/{number}.json\n")
    (place / "raw_selection.csv").write_text("".join(rows), encoding="utf-8")
    derived = {**LINES, "b/without": line(FINE, LEFT, error=WITHOUT)} if lines is None else lines
    groups = {"a/mute": "claude", "b/without": "claude"}
    text = "".join(
        json.dumps({"id": id, "group": groups.get(id, "gpt-5"), "turns": turns}) + "\n" for id, turns in derived.items()
    )
    (place / "compact.jsonl").write_text(text, encoding="utf-8")
    return ["--recordings", str(folder)]


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    for name, value in zip(harness_faults.ASKED, (2, 1, 1), strict=True):
        monkeypatch.setitem(harness_faults.ASKED, name, value)
    for name in harness_faults.RAW:
        monkeypatch.setitem(harness_faults.RAW, name, 1)


def test_faults_that_history_and_error_name_alike_pass(tmp_path, capsys):
    assert main([*recordings(tmp_path), "--check", "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert "| mute | anthropic | 3 | invalid_history | empty_error_result | - | 2, same | word_error | yes |" in shown
    assert "| left | openai_responses | 5 | invalid_history | missing_result | yes |" in shown
    assert "| cut | malformed_output | truncated | arguments_not_json, missing_result |" in shown
    assert "| NO |" not in shown


@pytest.mark.parametrize(
    ("id", "turns"),
    [
        ("a/left", line(FINE, FINE, error=UNANSWERED)),
        ("a/left", line(FINE, LEFT, error="Connection error.")),
        ("a/mute", line(FINE, error=SILENT)),
        ("a/cut", line(FINE, LEFT, error=CUT)),
        ("a/cut", line(FINE, error="Something nobody has read")),
        ("b/without", line(FINE, FINE, LEFT, error=WITHOUT)),
    ],
)
def test_a_derived_run_that_shows_another_fault_fails_the_check_only(tmp_path, id, turns):
    lines = {**LINES, "b/without": line(FINE, LEFT, error=WITHOUT), id: turns}
    options = recordings(tmp_path, lines=lines)
    assert main([*options, "--check"]) == 1
    assert main(options) == 0


@pytest.mark.parametrize(
    ("id", "error"),
    [
        ("a/left", UNANSWERED.replace("call_b7", "call_a1")),
        ("a/mute", SILENT.replace("messages.2", "messages.4")),
        ("a/cut", CUT.replace("column 12", "column 13")),
        ("a/quota", UNANSWERED),
    ],
)
def test_a_raw_run_whose_error_names_something_else_fails(tmp_path, id, error):
    provider, model, steps, _ = RUNS[id]
    assert main([*recordings(tmp_path, runs={**RUNS, id: (provider, model, steps, error)}), "--check"]) == 1


def test_another_number_of_runs_fails(tmp_path, monkeypatch):
    options = recordings(tmp_path)
    monkeypatch.setitem(harness_faults.ASKED, "truncated arguments", 2)
    assert main([*options, "--check"]) == 1


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main(["--recordings", str(tmp_path)]) == 2
    assert "error:" in capsys.readouterr().err
