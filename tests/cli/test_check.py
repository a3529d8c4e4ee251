"""`policyengine check`."""

from __future__ import annotations

import json
from pathlib import Path

from policyengine.policy.files import shipped_policies

CHECK = ("check", "demo.yaml", "--folder", "guards")


def broken(line: str = "    with: {hnit: 2, deny: 3}\n") -> None:
    policy = Path("demo.yaml").read_text()
    Path("demo.yaml").write_text(policy.replace("    with: {hint: 2, deny: 3}\n", line))


def test_a_sound_policy_is_named_with_its_rules_and_digest(run):
    result = run(*CHECK)
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: demo.yaml (demo), 1 rule, digest ")
    assert result.stderr == ""


def test_the_digest_is_the_one_that_a_run_reports(run):
    listed = json.loads(run(*CHECK, "--json").stdout)["policies"][0]["digest"]
    played = run("run", "--policy", "demo.yaml", "--folder", "guards", "--script", "script.yaml", "--json").stdout
    assert json.loads(played)["policy"]["digest"] == listed


def test_all_shipped_policies_pass(run):
    names = shipped_policies()
    result = run("check", *names, "--strict")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("ok: ") == len(names)
    assert "ok: peers/openhands (peers-openhands), 1 rule" in result.stdout


def test_a_problem_is_shown_with_its_line_and_a_caret_on_stderr(run):
    broken()
    result = run(*CHECK)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "demo.yaml:9:12: error[S204]" in result.stderr
    assert "^^^^" in result.stderr


def test_every_policy_is_checked_even_if_the_first_is_broken(run):
    broken()
    result = run(*CHECK, "default")
    assert result.exit_code == 1
    assert "ok: default," in result.stdout


def test_short_is_one_line_a_problem(run):
    broken()
    assert len(run(*CHECK, "--format", "short").stderr.splitlines()) == 1


def test_annotations_for_a_pull_request_go_to_stdout(run):
    broken()
    result = run(*CHECK, "--format", "github")
    assert result.stdout.startswith("::error file=demo.yaml,line=9,col=12,title=S204::")
    assert result.exit_code == 1


def test_json_holds_every_policy_and_every_problem(run):
    broken()
    result = run(*CHECK, "default", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, answer["ok"]) == (1, "", False)
    first, second = answer["policies"]
    assert (first["source"], first["ok"], first["digest"]) == ("demo.yaml", False, None)
    assert [(problem["code"], problem["line"]) for problem in first["problems"]] == [("S204", 9)]
    assert (second["name"], second["ok"], second["problems"]) == ("default", True, [])


def test_warnings_alone_matter_only_when_strict(run):
    masked = "tools: {'*': {effect: read}, 'a*': {effect: read}}\n"
    Path("demo.yaml").write_text(Path("demo.yaml").read_text() + masked)
    relaxed, strict = run(*CHECK), run(*CHECK, "--strict")
    assert (relaxed.exit_code, strict.exit_code) == (0, 3)
    assert "warning[R508]" in relaxed.stderr


def test_an_overlay_is_checked_on_top(run):
    Path("more.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: Overlay\ntarget: demo\nextensions: {counting: {with: {deny: 0}}}\n"
    )
    result = run(*CHECK, "--overlay", "more.yaml")
    assert result.exit_code == 1
    assert "more.yaml:4:" in result.stderr


def test_without_extensions_only_the_policys_own_settings_are_checked(run):
    broken()
    assert run("check", "demo.yaml", "--no-extensions").exit_code == 0
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("with:", "wiht:"))
    result = run("check", "demo.yaml", "--no-extensions")
    assert result.exit_code == 1
    assert 'did you mean "with"?' in result.stderr


def test_without_extensions_packages_need_not_be_installed(run):
    policy = Path("demo.yaml").read_text().replace("use: demo.counting", "use: acme.spend")
    Path("demo.yaml").write_text(policy + "requires: {extensions: {acme-guards: '>=1'}}\n")
    assert run("check", "demo.yaml").exit_code == 1
    assert run("check", "demo.yaml", "--no-extensions").exit_code == 0


def test_an_extension_that_cannot_be_imported_is_a_problem_of_the_policy(run):
    Path("guards/counting.py").write_text("import no_such_module\n")
    result = run(*CHECK)
    assert result.exit_code == 1
    assert "no_such_module" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_to_check_has_its_own_exit_code(run):
    assert run("check").exit_code == 4
    assert run("check", "--allow-empty").exit_code == 0
