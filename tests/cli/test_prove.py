"""`policyengine prove`."""

from __future__ import annotations

import json
from pathlib import Path

PROVE = ("prove", "demo.yaml", "--folder", "guards")


def with_rules(text: str) -> None:
    policy = Path("demo.yaml").read_text()
    Path("demo.yaml").write_text(policy.replace("    with: {hint: 2, deny: 3}\n", text))


def test_every_rung_that_fires_is_listed(run):
    result = run(*PROVE)
    assert result.exit_code == 0
    assert "demo: 2 proven, 0 fail, 0 unproven" in result.stdout
    assert result.stdout.count("fires at 3") == 2


def test_a_rung_that_another_one_masks_fails_and_is_named(run):
    with_rules(
        "    with: {stop: 4}\n"
        "  earlier:\n    use: demo.counting\n    with: {stop: 2}\n    order: {before: [counting]}\n"
    )
    result = run(*PROVE)
    assert result.exit_code == 1
    assert "demo.yaml:7: counting stop: it fires alone, but in the whole policy: masked by earlier" in result.stdout


def test_json_is_what_was_proved(run):
    (policy,) = json.loads(run(*PROVE, "--json").stdout)
    assert policy["policy"] == "demo"
    assert [(proof["rule"], proof["action"], proof["alone"], proof["ok"]) for proof in policy["proofs"]] == [
        ("counting", "hint", "fires at 2", True),
        ("counting", "deny", "fires at 3", True),
    ]


def test_an_unproven_rule_matters_only_when_strict(run):
    with_rules("    with: {hint: 2}\n  broken: {use: demo.broken, mode: shadow}\n")
    Path("guards/counting.py").write_text(Path("guards/counting.py").read_text().replace('"self-test"', "run.id"))
    assert run(*PROVE).exit_code == 0
    assert run(*PROVE, "--strict").exit_code == 3
    assert "unproven" in run(*PROVE).stdout


def test_nothing_to_prove_has_its_own_exit_code(run):
    assert run("prove").exit_code == 4
    assert run("prove", "--allow-empty").exit_code == 0
