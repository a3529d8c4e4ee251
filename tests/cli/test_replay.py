"""`policyengine replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyengine.replay import ReplayReport

REPLAY = ("replay", "--policy", "demo.yaml", "--folder", "guards")


def chat(*results: str) -> list[dict[str, object]]:
    """Return a recorded chat with one call for each result."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Find the key."}]
    for number, result in enumerate(results):
        function = {"name": "look", "arguments": json.dumps({"n": number})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return [*messages, {"role": "assistant", "content": "Done."}]


@pytest.fixture
def recordings(run, tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "long.json").write_text(json.dumps({"messages": chat("a", "b", "c")}))
    (folder / "short.json").write_text(json.dumps({"messages": chat("a")}))
    (folder / "notes.txt").write_text("not a recording")
    return run


def test_a_folder_is_listed_with_totals_and_what_was_skipped(recordings):
    result = recordings(*REPLAY, "recordings")
    assert result.exit_code == 0
    assert "2 runs (0 unreadable, 1 files skipped)" in result.stdout
    assert "would refuse 1 calls that had succeeded" in result.stdout
    assert "hint by counting: counting at round 2, call 2" in result.stdout
    assert result.stderr == "recordings/notes.txt: skipped: not .json, .traj, .jsonl, .ndjson or .parquet\n"


def test_json_is_one_report_a_line_with_exactly_its_fields(recordings):
    lines = [json.loads(line) for line in recordings(*REPLAY, "recordings", "--json").stdout.splitlines()]
    assert [tuple(line) for line in lines] == [ReplayReport.__struct_fields__] * 2
    assert [line["denied_succeeded"] for line in lines] == [1, 0]
    assert [item["action"] for item in lines[0]["interventions"]] == ["hint", "deny"]


def test_a_stop_is_counted(recordings):
    policy = Path("demo.yaml").read_text()
    Path("demo.yaml").write_text(policy.replace("{hint: 2, deny: 3}", "{stop: 2}"))
    shown = recordings(*REPLAY, "recordings").stdout
    assert "would intervene in 1, would stop 1" in shown
    assert "counting: counting (observed 2, limit 2) at round 2, call 2" in shown


def test_a_recording_that_cannot_be_read_is_reported_and_the_rest_is_replayed(recordings):
    Path("recordings/broken.json").write_text('{"messages": [')
    result = recordings(*REPLAY, "recordings")
    assert result.exit_code == 1
    assert "recordings/broken.json:1: cannot be read: not JSON" in result.stderr
    assert "2 runs (1 unreadable" in result.stdout


def test_the_own_journal_is_a_recording_too(play, run):
    play("--record", "journal.jsonl")
    (line,) = run(*REPLAY, "journal.jsonl", "--json").stdout.splitlines()
    report = json.loads(line)
    assert (report["format"], report["calls"], report["outcome"]) == ("journal", 3, "final_answer")
    assert [item["action"] for item in report["interventions"]] == ["hint", "deny"]


def test_the_format_can_be_named(recordings):
    assert recordings(*REPLAY, "recordings", "--format", "openai_chat").exit_code == 0
    result = recordings(*REPLAY, "recordings", "--format", "openai-chat")
    assert result.exit_code == 1
    assert 'did you mean "openai_chat"?' in result.stderr


def test_nothing_to_read_has_its_own_exit_code(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run("replay", "empty").exit_code == 4
    assert run("replay", "empty", "--allow-empty").exit_code == 0
    assert run("replay").exit_code == 4


def test_a_path_that_does_not_exist_is_at_fault(run):
    result = run("replay", "nowhere")
    assert result.exit_code == 1
    assert "nowhere: cannot be read: no such file or folder" in result.stderr
