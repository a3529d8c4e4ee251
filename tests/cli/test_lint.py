"""`policyengine lint`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: odd\n"
WARNED = "parsing: {repair_calls: 1}\nextensions: {step_limit: {}}\n"
TOLD = "extensions: {step_limit: {on_error: allow}}\n"


@pytest.fixture(autouse=True)
def policies(run):
    for name, text in (("warned", WARNED), ("told", TOLD), ("broken", "extensions: {step_limits: {}}\n")):
        Path(f"{name}.yaml").write_text(HEAD + text)


def test_a_policy_without_findings_is_said_to_have_none(run):
    result = run("lint", "default", "unattended", "--strict")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "default: nothing found\nunattended: nothing found\n"


def test_a_drop_in_extension_and_an_overlay_are_looked_at_like_anywhere(run):
    assert run("lint", "demo.yaml", "--folder", "guards").exit_code == 0
    Path("over.yaml").write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: odd\nplan: {max_steps: 3}\n")
    result = run("lint", "warned.yaml", "--overlay", "over.yaml", "--format", "short")
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == [
        "over.yaml:4:19:",
        "warned.yaml:4:25:",
        "warned.yaml:",
    ]


@pytest.mark.parametrize(
    ("names", "options", "code"),
    [
        (("warned.yaml",), (), 0),
        (("warned.yaml",), ("--strict",), 3),
        (("told.yaml",), ("--strict",), 0),
        (("warned.yaml", "told.yaml"), ("--strict", "--ignore", "l643"), 0),
        (("warned.yaml", "broken.yaml"), ("--strict",), 1),
        ((), (), 4),
        ((), ("--allow-empty",), 0),
    ],
)
def test_the_exit_code_says_whether_there_are_warnings_only_if_asked(run, names, options, code):
    assert run("lint", *names, *options).exit_code == code


def test_findings_are_the_answer_and_stand_on_stdout(run):
    result = run("lint", "warned.yaml", "told.yaml")
    assert result.stderr == ""
    assert "warned.yaml:4:25: warning[L643] parsing.repair_calls: " in result.stdout
    assert "told.yaml:4:37: info[L605] extensions.step_limit.on_error: " in result.stdout
    assert "warned.yaml: 1 warning, 0 other findings\n" in result.stdout
    assert "told.yaml: 0 warnings, 1 other finding\n" in result.stdout


def test_a_policy_that_cannot_be_loaded_is_reported_on_stderr(run):
    result = run("lint", "broken.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[X401]" in result.stderr


def test_codes_are_left_out_and_a_code_that_is_none_is_refused(run):
    result = run("lint", "warned.yaml", "told.yaml", "--ignore", "L643, L605")
    assert result.stdout == "warned.yaml: nothing found\ntold.yaml: nothing found\n"
    refused = run("lint", "warned.yaml", "--ignore", "L6O5")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "--ignore: there is no code 'L6O5'" in refused.stderr


def test_for_machines_there_is_json_and_annotations(run):
    result = run("lint", "warned.yaml", "broken.yaml", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert [item["ok"] for item in answer["policies"]] == [True, False]
    assert [item["problems"][0]["code"] for item in answer["policies"]] == ["L643", "X401"]
    assert answer["policies"][0]["problems"][0]["severity"] == "warning"
    shown = run("lint", "told.yaml", "--format", "github").stdout
    assert shown.startswith("::notice file=told.yaml,line=4,col=37,title=L605::")


def test_the_present_day_and_both_spans_can_be_given(run):
    Path("dated.yaml").write_text(
        f'{HEAD}revision: "2030-05-01"\nextensions: {{step_limit: {{mode: warn}}}}\nexceptions:\n'
        '  - {rule: step_limit, expires: "2030-07-01", owner: me, reason: why}\n'
    )

    def found(*options: str) -> list[str]:
        answer = json.loads(run("lint", "dated.yaml", "--today", "2030-06-01", "--json", *options).stdout)
        return [problem["code"] for problem in answer["policies"][0]["problems"]]

    assert found() == []
    assert found("--soon", "30") == ["L611"]
    assert found("--old", "30") == ["L621"]
