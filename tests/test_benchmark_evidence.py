"""Evidence adds up what the backtest says and what naive rules say, and asks for what can be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import evidence, sets, tuning
from benchmarks.evidence import ALL, WATCHED, Beside, Effect
from benchmarks.sets import Set, read

NAMES = ("good", "bad")


def chat(name: str, places: list[str], label: bool) -> str:
    messages: list[dict[str, object]] = [{"role": "user", "content": f"Find {name}."}]
    for turn, place in enumerate(places):
        function = {"name": "look", "arguments": json.dumps({"place": place})}
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"{place}: nothing"})
    return json.dumps({"id": name, "task": name, "label": label, "messages": messages})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set with a run that goes on after five equal calls and one that never gets further."""
    folder = tmp_path / "demo"
    folder.mkdir()
    runs = [chat("good", ["shelf"] * 5 + ["mat"], label=True), chat("bad", ["shelf"] * 12, label=False)]
    (folder / "runs.jsonl").write_text("\n".join(runs) + "\n", encoding="utf-8")
    for module in (sets, evidence):
        monkeypatch.setattr(module, "SETS", (Set("demo", "demo"),))
    return tmp_path


def test_policies_and_naive_rules_are_counted_alike(root: Path) -> None:
    found = evidence.evidence(read(root))
    # The third equal call ends a run under `unattended`, as it does for the rule: three and nine turns are left.
    assert found.effects[WATCHED]["demo"] == Effect(2, 1, 2, 1, 1, 18, 3 + 9)
    assert found.effects["consec_same_result3"]["demo"] == Effect(2, 1, 2, 1, 1, 18, 3 + 9)
    assert found.ended == {("demo", "good"), ("demo", "bad")}
    for effects in found.effects.values():
        assert effects[ALL] == effects["demo"]


def test_a_rule_that_saves_more_and_stops_no_more_successes_is_better() -> None:
    ours = Effect(100, 50, 30, 3, 1, 1000, 200)
    better = Beside("demo", "rule", ours._replace(saved=201), ours)
    dearer = Beside("demo", "rule", ours._replace(saved=201, at_work=2), ours)
    assert (better.saves_more, better.is_no_worse) == (True, True)
    assert (dearer.saves_more, dearer.is_no_worse) == (True, False)


def test_a_set_without_runs_is_an_error(root: Path) -> None:
    (root / "demo" / "runs.jsonl").unlink()
    with pytest.raises(ValueError, match="no recordings"):
        read(root)


def test_a_line_that_cannot_be_read_is_an_error_unless_it_is_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (root / "demo" / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"messages": \n')
    with pytest.raises(ValueError, match=r"runs\.jsonl:3"):
        read(root)
    monkeypatch.setattr(sets, "SETS", (Set("demo", "demo", unreadable=1),))
    assert [run.id for run in read(root)] == list(NAMES)


def test_a_candidate_is_judged_on_both_folds_and_one_that_is_no_policy_is_refused(root: Path) -> None:
    head = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: unattended\n"
    later = head + "extensions: {stall_detector: {with: {repeat: {stop: 8}}}}\n"
    never = head + "extensions: {stall_detector: {with: {repeat: {stop: 2}}}}\n"
    tried = [
        tuning.Candidate("", "in force", ""),
        tuning.Candidate("repeat.stop", "8", later),
        tuning.Candidate("repeat.stop", "2", never),
    ]
    in_force, moved, refused = tuning.effects_of(root, "unattended", tried, workers=1)
    assert in_force is not None
    assert moved is not None
    assert refused is None
    saved = [sum(tally.turns_saved for tally in effect.folds.values()) for effect in (in_force, moved)]
    assert saved == [3 + 9, 4]
    assert in_force.decisions != moved.decisions
