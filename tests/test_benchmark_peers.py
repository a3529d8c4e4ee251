"""What other guards are told of a recording, and what becomes of those that are not there."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from benchmarks.grids import BEGIN, END
from benchmarks.outcomes import Outcome
from benchmarks.peers import report
from benchmarks.peers.catalogue import MODULES, POLICIES, peers
from benchmarks.peers.drive import drive, read_sets
from benchmarks.peers.model import arguments_text, first_stop, played
from benchmarks.peers.ours import starter
from policyengine.messages import ModelResponse, ToolCall, ToolResult
from policyengine.policy.files import shipped_policies
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid

FOLDER = Path(report.__file__).parent
ROOTS = {
    "agent_loop_guard": {"loop_guard"},
    "agent_patrol": {"agent_patrol"},
    "agent_watchdog": {"agent_watchdog"},
    "aura_guard": {"aura_guard"},
    "langchain": {"langchain", "langchain_core"},
    "openhands": {"openhands"},
}
"""The packages that each module drives."""


def said(number, *calls, text=""):
    return ModelSaid(ModelResponse(text, tuple(calls), finish_reason="tool_calls"))


def call(number, args=None):
    return ToolCall(f"c{number}", "look", json.dumps(args or {}), args or {})


def answered(number, text="same", status="ok"):
    return ToolAnswered(f"c{number}", ToolResult(f"c{number}", text, status))


def recording(*events):
    return Recording("run", "file", "openai_chat", (UserSaid("Find it."), *events), "tool_result", label=False)


class Counting:
    """Ends the run at its third call."""

    def __init__(self, run):
        self.calls = 0

    def checks(self, turn):
        for _ in turn.calls:
            yield self.third

    def third(self):
        self.calls += 1
        return self.calls == 3


def test_a_guard_is_told_calls_with_their_results_and_what_the_user_said():
    run = played(
        recording(
            said(1, call(1), call(2)),
            answered(1, "fine"),
            answered(2, "broken", "error"),
            UserSaid("Go on!", injected=True),
            UserSaid("Wait."),
            said(2, call(3)),
        )
    )
    assert run.task == "Find it."
    assert [turn.said for turn in run.turns] == [("Find it.",), ("Wait.",)]
    assert [(made.text, made.failed) for made in run.turns[0].calls] == [("fine", False), ("broken", True)]
    assert (run.turns[1].calls[0].result, run.turns[1].calls[0].text) == (None, "")


def test_arguments_that_are_no_json_are_told_as_text():
    run = played(recording(said(1, ToolCall("c1", "look", "{'page': 1}", None))))
    (made,) = run.turns[0].calls
    assert made.args == {"arguments": "{'page': 1}"}
    assert json.loads(arguments_text(made)) == made.args


def test_a_guard_stops_in_the_turn_of_the_call_at_which_it_says_so():
    run = played(recording(said(1, call(1)), said(2, call(2), call(3), call(4)), said(3, call(5))))
    assert first_stop(Counting, run) == 2
    assert first_stop(Counting, played(recording(said(1, call(1))))) is None


def test_a_policy_is_a_guard_like_the_others():
    events = [event for number in range(1, 7) for event in (said(number, call(number)), answered(number))]
    assert first_stop(starter("peers/openhands"), played(recording(*events))) == 4
    assert first_stop(starter("peers/openhands"), played(recording(*events[:6]))) is None


@pytest.mark.parametrize("name", MODULES)
def test_only_its_own_module_imports_a_package_and_only_when_it_is_used(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {node.module.split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
    foreign = set().union(*ROOTS.values())
    assert not top & foreign
    others = foreign - ROOTS[name]
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert not [root for root in others if f'import_module("{root}' in text or f"from {root}" in text]


def test_every_package_is_pinned_and_its_policy_is_shipped():
    lines = (FOLDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if line and not line.startswith("#")}
    assert pinned == {peer.distribution for peer in peers()}
    assert {peer.policy for peer in peers() if peer.policy} <= set(POLICIES)
    assert sorted(POLICIES) == [name for name in shipped_policies() if name.startswith("peers/")]


def test_runs_that_policy_and_package_stop_are_told_apart():
    def stopped(after):
        return Outcome(None, 9, True, after)

    never = Outcome(None, 9, False)
    pairs = [(stopped(3), stopped(3)), (stopped(4), stopped(3)), (stopped(2), stopped(3))]
    pairs += [(stopped(3), never), (never, stopped(3)), (never, never)]
    told = [report._relation(ours, theirs) for ours, theirs in pairs]
    assert told == [name.removeprefix("#") for name in report.AGREEMENT[2:]]


@pytest.fixture
def folder(tmp_path):
    messages = [{"role": "user", "content": "Find it."}]
    for number in range(8):
        function = {"name": "look", "arguments": '{"page": 1}'}
        made = [{"id": f"c{number}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": None, "tool_calls": made})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "same"})
    own = tmp_path / "loops"
    own.mkdir()
    (own / "run.json").write_text(json.dumps({"messages": messages, "label": False}), encoding="utf-8")
    turn = {"text": [0, "", ""], "calls": [["look", "aa", "{"]], "results": [[4, "bb", False, "same"]]}
    run = {"id": "1", "group": "g", "task": "t", "success": True, "term": "", "turns": [turn] * 8}
    (tmp_path / "outlined").mkdir()
    (tmp_path / "outlined" / "compact.jsonl").write_text(json.dumps(run) + "\n", encoding="utf-8")
    return tmp_path


def test_sets_are_read_and_outlines_are_sets_of_their_own(folder):
    assert [(found.name, len(found.runs), found.outlines) for found in read_sets(folder)] == [
        ("loops", 1, False),
        ("outlined, outlines", 1, True),
    ]


def test_every_guard_is_timed_against_the_floor(folder):
    found = drive(read_sets(folder)[0].runs, {"counting": Counting, "ours": starter("peers/hermes")})
    assert found["counting"].stops == [3]
    assert found["ours"].stops == [5]
    assert all(result.cost is not None and result.cost > 0 for result in found.values())


def test_what_is_not_there_is_listed_and_never_left_out(folder, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.model.Peer.version", property(lambda peer: ""))
    assert report.main(["--recordings", str(folder), "--markdown", "--check"]) == 0
    shown = capsys.readouterr().out
    for peer in peers():
        assert f"| {peer.name} | not installed |" in shown
    assert "| peers/openhands | 1 of 1 | 0 of 0 | 0 | 4: 50.0% |" in shown
    assert "| unattended | 1 of 1 | 1 of 1 | 0 | 5: 62.5% |" in shown


def test_tables_are_written_between_the_marks_of_a_document(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.model.Peer.version", property(lambda peer: ""))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nof last time\n{END}\nafter\n", encoding="utf-8")
    assert report.main(["--recordings", str(folder), "--set", "loops", "--update", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "### loops: 1 runs" in text
    assert "of last time" not in text


def test_a_folder_without_recordings_is_no_result(tmp_path, capsys):
    assert report.main(["--recordings", str(tmp_path)]) == 2
    assert "has no such recordings" in capsys.readouterr().err
