"""`policyengine hook` beside what else there is: other hooks of ours, users' own commands, rules that print."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from policyengine.hook.dialects import DIALECTS
from policyengine.hook.settings import Entries, install
from tests.cli.test_hook import CLAUDE, HEAD, HOOK, answered, calls, event, run

LIMIT = HEAD + "extensions:\n  tool_call_limit: {with: {calls: 2}}\n"
LOOSE = HEAD + "extensions:\n  tool_call_limit: {with: {calls: 9}}\n"

NOISY = """
import os
import subprocess
from policyengine import Extension, hookimpl


class Noisy(Extension):
    name = "acme.noisy"
    messages = {"noisy.no": {}}
    templates = {"en": {"noisy.no": "no"}}

    def answers(self):
        return {"before_tool_call": ("deny",)}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        print("looking at", call.name, flush=True)
        os.write(1, b"still looking")
        subprocess.run(["echo", "a child says so"])
        return run.deny("noisy", kind="noisy.no")
"""


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def test_what_a_rule_prints_does_not_spoil_its_refusal(tmp_path, state):
    (tmp_path / "rules").mkdir(mode=0o700)
    (tmp_path / "rules" / "noisy.py").write_text(NOISY)
    policy = tmp_path / "policy.yaml"
    policy.write_text(HEAD + "extensions:\n  noisy: {use: acme.noisy}\n")
    done = run(event(), state, "--policy", policy, "--folder", tmp_path / "rules")
    assert answered(done)["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert b"looking at Bash" in done.stderr
    assert b"a child says so" in done.stderr


def test_a_process_without_standard_output_blocks(tmp_path, state):
    policy = tmp_path / "policy.yaml"
    policy.write_text(LIMIT)
    for _ in range(2):
        run(event("PostToolUse"), state, "--policy", policy)
    words = shlex.join([*HOOK, CLAUDE, "--policy", str(policy), "--state", str(state)])
    for number in range(3):
        data = json.dumps(event(number=number)).encode()
        done = subprocess.run(["sh", "-c", f"{words} 1>&-"], input=data, capture_output=True, timeout=120, check=False)
    assert done.returncode == 2, "a refusal that cannot be written"


def test_hooks_with_different_policies_judge_each_for_itself(tmp_path, state):
    loose, strict = tmp_path / "loose.yaml", tmp_path / "strict.yaml"
    loose.write_text(LOOSE)
    strict.write_text(LIMIT)
    said = []
    for number in range(4):
        for policy in (loose, strict):
            out = answered(run(event(number=number), state, "--policy", policy))
            said.append(out.get("hookSpecificOutput", {}).get("permissionDecision", ""))
            run(event("PostToolUse", number=number, tool_response=f"r{number}"), state, "--policy", policy)
    assert said == ["", "", "", "", "", "deny", "", "deny"]


def test_the_same_hook_twice_counts_a_call_once(tmp_path, state):
    policy = tmp_path / "policy.yaml"
    policy.write_text(LIMIT)
    for _ in range(2):
        assert answered(run(event(), state, "--policy", policy)) == {}
    assert calls(state) == 1


def test_another_call_under_an_id_that_is_still_open_is_judged(tmp_path, state):
    policy = tmp_path / "policy.yaml"
    policy.write_text(LIMIT)
    said = []
    for number in range(4):
        out = answered(run(event(tool_input={"command": f"rm {number}"}), state, "--policy", policy))
        said.append(out.get("hookSpecificOutput", {}).get("permissionDecision", ""))
    assert said == ["", "", "deny", "deny"]
    assert calls(state) == 4


@pytest.mark.parametrize(
    "command",
    [
        "audit.sh && policyengine hook claude-code --policy house.yaml && company-check --strict",
        "policyengine hook claude-code | tee log",
        "echo policyengine hook claude-code",
        "timeout 5 policyengine hook claude-code",
        "policyengine hook claude-code; true",
        "policyengine hook 'claude-code",
    ],
)
def test_a_command_of_the_users_that_starts_ours_is_left_alone(tmp_path, command):
    path = tmp_path / "settings.json"
    group = {"matcher": "Bash", "hooks": [{"type": "command", "command": command}]}
    path.write_text(json.dumps({"hooks": {"PreToolUse": [group]}}))
    install(str(path), Entries(DIALECTS[CLAUDE]))
    assert group in json.loads(path.read_text())["hooks"]["PreToolUse"]
    install(str(path), Entries(DIALECTS[CLAUDE]), remove=True)
    assert json.loads(path.read_text()) == {"hooks": {"PreToolUse": [group]}}


@pytest.mark.parametrize(
    "command",
    [
        "policyengine hook claude-code",
        "/opt/x/bin/policyengine hook claude-code --policy house.yaml || exit 2",
        "'/opt/my tools/python3' -P -m policyengine.hook claude-code --event Stop",
        "python -m policyengine.hook claude-code",
    ],
)
def test_what_is_ours_is_replaced_whatever_its_options(tmp_path, command):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": command}]}]}}))
    install(str(path), Entries(DIALECTS[CLAUDE]), remove=True)
    assert command not in path.read_text()


def test_the_doctor_says_that_all_hooks_are_disabled(tmp_path, state):
    from policyengine.hook.doctor import examine

    path = tmp_path / "settings.json"
    entries = Entries(DIALECTS[CLAUDE], state=str(state))
    install(str(path), entries)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({"disableAllHooks": True, **data}))
    assert any(found.level == "bad" and "disableAllHooks" in found.text for found in examine(str(path), entries))
