"""`policyengine extensions list`."""

from __future__ import annotations

import json
from pathlib import Path


def test_built_in_and_drop_in_extensions_are_listed(run):
    result = run("extensions", "list", "--folder", "guards")
    assert result.exit_code == 0
    assert "stall_detector" in result.stdout
    assert "demo.counting" in result.stdout
    assert "Counts calls: hints, refuses and stops" in result.stdout


def test_json_says_where_each_comes_from_and_what_it_implements(run):
    listed = json.loads(run("extensions", "list", "--folder", "guards", "--json").stdout)
    by_name = {item["name"]: item for item in listed["extensions"]}
    assert by_name["step_limit"]["builtin"] is True
    assert by_name["step_limit"]["distribution"] == "agent-policyengine"
    demo = by_name["demo.counting"]
    assert (demo["origin"], demo["builtin"], demo["distribution"]) == ("guards/counting.py", False, "")
    assert (demo["hooks"], demo["options"]) == (["before_tool_call"], ["ask", "deny", "hint", "stop"])
    assert listed["broken"] == []


def test_a_broken_source_is_listed_with_the_reason(run):
    Path("guards/worse.py").write_text("import no_such_module\n")
    result = run("extensions", "list", "--folder", "guards", "--json")
    assert result.exit_code == 1
    (broken,) = json.loads(result.stdout)["broken"]
    assert "no_such_module" in broken["reason"]
    assert "guards/worse.py:1" in broken["origin"]
    assert "no_such_module" in run("extensions", "list", "--folder", "guards").stderr
