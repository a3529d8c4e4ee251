"""`policyengine tune`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyengine.backtest.judge import part_of
from policyengine.cli.loading import load
from policyengine.recordings.readers import read_recordings

HOUSE = """\
apiVersion: policyengine/v1
kind: Policy
name: house
extensions:
  stall_detector: {with: {repeat: {hint: 3, stop: 9}}}
"""
STOP = "stall_detector.with.repeat.stop"
TUNE = ("tune", "recorded", "--policy", "house.yaml", "--min-firings", "5", "--sweep", f"{STOP}=3..10")


def chat(name: str, task: str, repeats: int, *, label: bool) -> str:
    """Return a recorded chat with the same call `repeats` times, and then two new calls if it succeeded."""
    messages: list[dict[str, object]] = [{"role": "user", "content": task or "Find the key."}]
    places = ["shelf"] * repeats + (["drawer", "mat"] if label else [])
    for number, place in enumerate(places):
        function = {"name": "look", "arguments": json.dumps({"place": place})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"{place}: nothing"})
    return json.dumps({"id": name, "task": task, "label": label, "messages": messages})


@pytest.fixture
def recorded(tmp_path: Path):
    """Write a policy, and recordings: of 20 tasks a success with at most four equal calls, a failure with twelve."""

    def make(*, successes: int = 20, tasks: bool = True) -> None:
        (tmp_path / "house.yaml").write_text(HOUSE)
        (tmp_path / "recorded").mkdir(exist_ok=True)
        named = [f"task {number}" if tasks else "" for number in range(20)]
        lines = [chat(f"good-{n}", task, 1 + n % 4, label=True) for n, task in enumerate(named[:successes])]
        lines += [chat(f"bad-{n}", task, 12, label=False) for n, task in enumerate(named)]
        (tmp_path / "recorded" / "runs.jsonl").write_text("\n".join(lines) + "\n")

    make()
    return make


def test_the_proposal_the_front_and_what_was_refused_are_printed(run, recorded):
    result = run(*TUNE)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "40 runs" in lines[0]
    assert "7 candidates over 1 threshold: 1 refused" in lines[1]
    assert any(line.startswith(f"proposal: {STOP}=5 (in force: 9); borne out by the other fold") for line in lines)
    assert any(line.startswith("in force") and "not on the front" in line for line in lines)
    assert any(line.startswith("cross-check, chosen on fold B") and "the same proposal" in line for line in lines)
    assert any("landmarks" in line for line in lines)
    assert any(line.startswith(f"refused: {STOP}=3: R510") for line in lines)
    assert Path("house.yaml").read_text() == HOUSE


def test_the_proposal_is_written_as_an_overlay_that_says_where_it_comes_from(run, recorded):
    result = run(*TUNE, "--max-false-stops", "0", "--write", "tuned.yaml")
    assert result.exit_code == 0, result.output
    text = Path("tuned.yaml").read_text()
    assert f"# policyengine tune recorded --policy house.yaml --sweep {STOP}=3..10 --max-false-stops 0" in text
    assert "# 40 runs, " in text
    assert f"# {STOP}=5 (in force: 9)" in text
    assert "# Chosen on fold A: " in text
    assert "# Held out, fold B: " in text
    assert text.endswith("extensions:\n  stall_detector:\n    with:\n      repeat: {stop: 5}\n")
    assert load("house.yaml", ["tuned.yaml"]).policy.rules[0].options["repeat"] == {"hint": 3, "stop": 5}
    assert Path("house.yaml").read_text() == HOUSE


def test_only_a_file_that_is_as_tune_wrote_it_is_overwritten(run, recorded):
    assert run(*TUNE, "--write", "tuned.yaml").exit_code == 0
    written = Path("tuned.yaml").read_text()
    assert run(*TUNE, "--write", "tuned.yaml").exit_code == 0
    assert Path("tuned.yaml").read_text() == written
    for other in ("mine: true\n", written.replace("stop: 5", "stop: 6"), ""):
        Path("tuned.yaml").write_text(other)
        result = run(*TUNE, "--write", "tuned.yaml")
        assert result.exit_code == 1
        assert "it is not overwritten" in result.output
        assert Path("tuned.yaml").read_text() == other


def test_a_target_that_is_no_file_is_refused_before_the_work(run, recorded):
    assert "there is no folder" in run(*TUNE, "--write", "nowhere/tuned.yaml").output
    assert run(*TUNE, "--write", "recorded").exit_code == 1


def test_nothing_is_written_without_a_proposal(run, recorded):
    result = run("tune", "recorded", "--policy", "house.yaml", "--sweep", f"{STOP}=11", "--write", "tuned.yaml")
    assert result.exit_code == 0
    assert "no proposal: nothing tried is better" in result.stdout
    assert "nothing is written" in result.stderr
    assert not Path("tuned.yaml").exists()


def test_nothing_is_written_that_the_other_fold_does_not_bear_out(run, recorded, tmp_path):
    path = tmp_path / "recorded" / "runs.jsonl"
    folds = {one.task: part_of(one, "fold") for one in read_recordings([path])}
    repeats = {"A": 1, "B": 6}
    lines = [chat(f"good-{n}", task, repeats[fold], label=True) for n, (task, fold) in enumerate(folds.items())]
    lines += [chat(f"bad-{n}", task, 12, label=False) for n, task in enumerate(folds)]
    path.write_text("\n".join(lines) + "\n")
    result = run(*TUNE, "--write", "tuned.yaml")
    assert result.exit_code == 0
    assert "not borne out by the other fold" in result.stdout
    assert "the other fold does not bear the proposal out" in result.stderr
    assert not Path("tuned.yaml").exists()


def test_machine_output_has_everything(run, recorded):
    result = run(*TUNE, "--json")
    report = json.loads(result.stdout)
    assert report["runs"] == sum(report["folds"].values()) == 40
    assert report["swept"] == [{"threshold": STOP, "in_force": 9, "values": list(range(3, 11))}]
    assert [one["candidate"] for one in report["refused"]] == [f"{STOP}=3"]
    assert report["candidates"][0]["name"] == "in force"
    assert report["directions"][0]["proposal"] == f"{STOP}=5"
    proposed = next(one for one in report["candidates"] if one["name"] == f"{STOP}=5")
    assert proposed["values"] == {STOP: 5}
    assert proposed["folds"]["B"]["gain"]["turns"] == 4 * proposed["folds"]["B"]["gain"]["changed"]
    assert "kind: Overlay" in proposed["overlay"]
    assert report["held_out"]["policy"] == f"{STOP}=5"
    again = json.loads(run(*TUNE, "--json").stdout)
    assert {**again, "seconds": 0} == {**report, "seconds": 0}


def test_runs_without_a_task_are_told(run, recorded):
    recorded(tasks=False)
    assert "40 runs have no task; each counts as one of its own, by its id." in run(*TUNE).stdout


def test_without_successes_nothing_is_proposed_and_it_is_said_why(run, recorded):
    recorded(successes=0)
    result = run(*TUNE)
    assert result.exit_code == 0
    assert "no proposal: no run of fold A is labelled as successful" in result.stdout


def test_nothing_to_read_is_its_own_exit_code(run, recorded, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run("tune", "empty").exit_code == 4
    assert run("tune", "empty", "--allow-empty").exit_code == 0
    assert json.loads(run("tune", "empty", "--json").stdout)["runs"] == 0


@pytest.mark.parametrize(
    ("options", "about"),
    [
        (("--max-false-stops", "some"), "no number of runs"),
        (("--sweep", f"{STOP}=2..300"), "candidates, and 200 are allowed"),
        (("--sweep", "nobody.with.stop=3"), "with a rule of the policy"),
        (("--format", "nothing"), "no format named"),
        (("--policy", "absent.yaml"), "absent.yaml"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_code_1(run, recorded, options, about):
    result = run("tune", "recorded", "--policy", "house.yaml", *options)
    assert result.exit_code == 1
    assert about in result.output


def test_more_candidates_may_be_allowed_and_combined(run, recorded):
    assert run(*TUNE, "--most", "6").exit_code == 1
    result = run(*TUNE, "--sweep", "stall_detector.with.repeat.hint=2", "--grid", "--most", "15")
    assert result.exit_code == 0, result.output
    assert "15 candidates over 2 thresholds" in result.stdout


def test_candidates_that_stop_as_much_are_one_row_of_the_front(run, recorded):
    result = run("tune", "recorded", "--policy", "house.yaml", "--sweep", "stall_detector.with.repeat.hint=2,4,5")
    (row,) = [line for line in result.stdout.splitlines() if line.startswith(("in force ", "stall_detector"))]
    assert row.startswith("in force")
    assert "3 more that stop as much" in row
    assert "landmarks" not in result.stdout
