"""`policyengine explain`."""

from __future__ import annotations

import json
from pathlib import Path

OVERLAY = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: demo\nextensions: {counting: {with: {deny: 5}}}\n"
EXPLAIN = ("explain", "demo.yaml", "extensions.counting.with.deny", "--folder", "guards", "--overlay", "more.yaml")


def test_every_layer_of_a_value_is_shown_with_its_line(run):
    Path("more.yaml").write_text(OVERLAY)
    result = run(*EXPLAIN)
    assert result.exit_code == 0
    first, second, third = result.stdout.splitlines()
    assert first == "extensions.counting.with.deny = 5"
    assert "5  more.yaml:4:" in second
    assert second.endswith("(in force)")
    assert "3  demo.yaml:9:27" in third


def test_json_gives_the_layers_lowest_first(run):
    Path("more.yaml").write_text(OVERLAY)
    (item,) = json.loads(run(*EXPLAIN, "--json").stdout)
    assert (item["path"], item["value"], item["removed"]) == ("extensions.counting.with.deny", 5, False)
    assert [(layer["value"], layer["file"], layer["line"]) for layer in item["layers"]] == [
        (3, "demo.yaml", 9),
        (5, "more.yaml", 4),
    ]


def test_without_a_path_the_whole_policy_is_shown(run):
    shown = run("explain", "default").stdout
    assert 'defaults.mode = "enforce"' in shown
    assert "interventions.max = 10" in shown


def test_a_setting_that_does_not_exist_gets_a_suggestion_where_the_path_leaves_the_policy(run):
    result = run("explain", "default", "extensions.stall_detector.wiht.repeat")
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'did you mean "with"?' in result.stderr


def test_a_broken_policy_is_reported_instead(run):
    Path("demo.yaml").write_text("apiVersion: policyengine/v1\nkind: Policy\n")
    result = run("explain", "demo.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "S203" in result.stderr


def test_what_is_in_force_of_a_rollout_is_shown_though_nobody_wrote_it(run):
    Path("more.yaml").write_text(
        'apiVersion: policyengine/v1\nkind: Overlay\ntarget: demo\nrevision: "over"\n'
        "extensions: {counting: {rollout: {percent: 5}}}\n"
    )
    given = ("--folder", "guards", "--overlay", "more.yaml")
    shown = run("explain", "demo.yaml", "extensions.counting.rollout", *given).stdout
    assert "extensions.counting.rollout.percent = 5" in shown
    assert 'extensions.counting.rollout.by = "run_id"\n  "run_id"  default' in shown
    assert 'extensions.counting.rollout.salt = "counting"' in shown
    shown = run("explain", "demo.yaml", "revision", *given).stdout
    assert shown.startswith('revision = "over"\n  "over"  more.yaml:4:11  (in force)')
