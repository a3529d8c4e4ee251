"""What hooks write of their decisions, what `hook install` refuses, and which policy `hook doctor` looks at."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from policyengine.cli import cli as command_line
from policyengine.engine import Engine
from policyengine.hook.dialects import DIALECTS
from policyengine.hook.entry import Arguments
from policyengine.hook.records import Lines
from policyengine.hook.settings import Entries, installed
from policyengine.replay import replay_journal

HOOK = [sys.executable, "-P", "-m", "policyengine.hook", "claude-code"]
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions:\n"
ACCESS = HEAD + "  tool_access: {with: {deny: [Write], ask: [Edit]}}\n"


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(ACCESS)
    return path


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    return lambda *words: CliRunner().invoke(command_line, list(map(str, words)), prog_name="policyengine")


def send(tmp_path, policy, *options, tool="Bash", number=1, name="PreToolUse", session="s"):
    call = {"tool_name": tool, "tool_input": {"command": "s3cret"}, "tool_use_id": f"t{number}"}
    data = {"session_id": session, "hook_event_name": name, "prompt": "go", **call}
    words = [*HOOK, "--state", tmp_path / "state", "--policy", policy, *options]
    done = subprocess.run([*map(str, words)], input=json.dumps(data).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return (json.loads(done.stdout) if done.stdout else {}), done.stderr.decode()


def told(reply):
    own = reply["hookSpecificOutput"]
    return own["permissionDecision"], own["permissionDecisionReason"]


def test_refusals_and_questions_end_with_the_rule_and_its_place(tmp_path, policy):
    where = f"(tool_access, {policy}:5)"
    action, text = told(send(tmp_path, policy, tool="Write")[0])
    assert (action, text.endswith(where)) == ("deny", True)
    action, text = told(send(tmp_path, policy, tool="Edit", number=2)[0])
    assert (action, text) == ("ask", f'May "Edit" be called with these arguments? {where}')


def test_a_log_and_a_journal_go_on_over_the_processes_of_a_session(tmp_path, policy):
    log, journal = tmp_path / "log.jsonl", tmp_path / "run.jsonl"
    options = ("--log", log, "--record", journal)
    send(tmp_path, policy, *options, name="UserPromptSubmit")
    for number, tool in enumerate(["Bash", "Write", "Edit"]):
        send(tmp_path, policy, *options, tool=tool, number=number)
    send(tmp_path, policy, *options, tool="Edit", number=2, name="PostToolUse")
    assert "s3cret" not in log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [(line["call"]["tool"], line["decision"]) for line in lines if line["hook"] == "before_tool_call"]
    assert calls == [("Bash", "allow"), ("Write", "deny"), ("Edit", "ask")]
    assert [line["code"] for line in lines if line["type"] == "human"] == ["approved"]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    recorded = [json.loads(line)["type"] for line in journal.read_text().splitlines()]
    assert recorded.count("run") == 1
    assert "resume" not in recorded
    assert all(then == now for then, now in replay_journal(journal, Engine(str(policy))))


def test_a_journal_that_begins_in_the_middle_begins_with_the_run_as_it_is(tmp_path, policy):
    journal = tmp_path / "run.jsonl"
    send(tmp_path, policy, tool="Bash")
    for number in (2, 3):
        send(tmp_path, policy, "--record", journal, tool="Write", number=number)
    recorded = [json.loads(line)["type"] for line in journal.read_text().splitlines()]
    assert (recorded[0], recorded.count("resume"), recorded.count("run")) == ("resume", 1, 0)
    pairs = list(replay_journal(journal, Engine(str(policy))))
    assert [now.action for _, now in pairs].count("deny") == 2
    assert all(then == now for then, now in pairs)


def test_parallel_events_leave_whole_lines(tmp_path, policy):
    log = tmp_path / "log.jsonl"

    def one(number):
        send(tmp_path, policy, "--log", log, number=number, session=f"s{number % 3}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(8)))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line["hook"] == "before_tool_call" for line in lines) == 8


def test_lines_of_many_writers_never_mix(tmp_path):
    path = tmp_path / "lines"

    def work(letter):
        file = Lines(str(path))
        for _ in range(200):
            file.write(letter * 3000 + "\n")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    lines = path.read_text().splitlines()
    assert len(lines) == 800
    assert all(line == line[0] * 3000 for line in lines)


def test_a_file_that_cannot_be_written_lets_nothing_through_and_is_said(tmp_path, policy):
    reply, said = send(tmp_path, policy, "--log", tmp_path / "no" / "log", "--record", tmp_path, tool="Write")
    assert told(reply)[0] == "deny"
    assert "decision log cannot be written" in said
    assert "journal cannot be written" in said


# ---- installing


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HEAD + "  tool_access: {with: {denny: [x]}}\n", "S204"),
        (HEAD + "  token_budget: {with: {run: 9}}\n", "R518"),
        ("nonsense", "Y117"),
    ],
)
def test_a_policy_that_cannot_be_used_is_not_installed(cli, policy, tmp_path, text, code):
    policy.write_text(text)
    done = cli("hook", "install", "claude-code", "--policy", policy)
    assert (done.exit_code, not (tmp_path / ".claude").exists()) == (1, True)
    assert code in done.output


def test_what_is_installed_can_be_removed_whatever_became_of_the_policy(cli, policy, tmp_path):
    assert cli("hook", "install", "claude-code", "--policy", policy).exit_code == 0
    policy.write_text("nonsense")
    assert cli("hook", "install", "claude-code", "--policy", policy, "--remove").exit_code == 0


def test_options_of_an_installed_command_are_read_as_they_were_written(tmp_path):
    given = Entries(
        DIALECTS["claude-code"],
        str(tmp_path / "a policy.yaml"),
        (str(tmp_path / "o.yaml"),),
        (str(tmp_path / "guards"),),
        str(tmp_path / "state"),
        str(tmp_path / "log"),
        str(tmp_path / "record"),
    )
    for event in given.dialect.installed:
        assert installed(given.command(event), Entries(DIALECTS["claude-code"])) == given
    assert installed("python -m policyengine.hook claude-code --policy", given) is None
    words = given.command("PreToolUse").partition(" || ")[0]
    assert Arguments(["claude-code", "--log", "x"]).log == "x"
    assert "--record" in words


def test_doctor_looks_at_the_policy_of_the_installed_command(cli, policy):
    cli("hook", "install", "claude-code", "--policy", policy, "--state", "state", "--log", "log.jsonl")
    done = cli("hook", "doctor")
    assert f"ok    policy: {policy}: 1 rules" in done.output
    assert "ok    log: " in done.output
    policy.write_text(HEAD + "  tool_access: {with: {denny: [x]}}\n")
    done = cli("hook", "doctor")
    assert done.exit_code == 1
    assert f"bad   policy: {policy} cannot be used, so every call is blocked: " in done.output
    assert "S204" in done.output


def test_doctor_names_files_that_cannot_be_written(cli, policy):
    cli("hook", "install", "claude-code", "--policy", policy, "--state", "state", "--record", "no/such/run.jsonl")
    done = cli("hook", "doctor")
    assert done.exit_code == 1
    assert "bad   record: " in done.output
