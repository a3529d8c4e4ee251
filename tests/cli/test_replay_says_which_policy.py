"""`replay` says under which policy it judged, where the rules stand, and that a decision log cannot be replayed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from policyengine.cli import cli as command_line


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(command_line, list(map(str, words)), prog_name="policyengine")

    return run


def test_it_names_the_policy_that_judged_and_the_one_that_was_recorded(cli, tmp_path):
    cli("run", "--policy", "unattended", "--script", "loops", "--record", "run.jsonl")
    same = cli("replay", "run.jsonl", "--policy", "unattended")
    assert "judged under unattended " in same.output
    assert "recorded under" not in same.output
    other = cli("replay", "run.jsonl", "--policy", "cautious")
    assert "judged under cautious " in other.output
    assert "; 1 recorded under unattended " in other.output


def test_every_intervention_says_where_its_rule_stands(cli, tmp_path):
    cli("run", "--policy", "unattended", "--script", "loops", "--record", "run.jsonl")
    report = json.loads(cli("replay", "run.jsonl", "--policy", "unattended", "--json").stdout)
    assert report["stop"]["at"].startswith("policy:unattended:")
    assert {item["at"].rpartition(":")[0] for item in report["interventions"]} == {"policy:unattended"}
    assert (report["policy"], report["recorded_policy"]) == (report["recorded_policy"], report["policy"])


def test_a_decision_log_is_named_as_what_it_is(cli, tmp_path):
    cli("run", "--log", "log.jsonl")
    done = cli("replay", "log.jsonl")
    assert done.exit_code == 4
    assert "a decision log, which holds no events to replay" in done.output
