"""The shipped examples of extensions are found, keep the contract and decide."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from policyengine import Engine, ToolCall
from policyengine.cli import cli
from policyengine.plugins.registry import discover

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def acme(site):
    """Make the example package look installed, from its own project file."""
    project = tomllib.loads((EXAMPLES / "acme_guards" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = project["entry-points"]["policyengine.extensions"]
    site.install(project["name"], entry_points, project["version"], requires=project["dependencies"])
    shutil.copytree(EXAMPLES / "acme_guards" / "src", site.path, dirs_exist_ok=True)
    return project


def run_under(path: Path, rule: str, requires: str = ""):
    path.write_text(
        f"apiVersion: policyengine/v1\nkind: Policy\nname: example\n{requires}extensions:\n  {rule}\n", encoding="utf-8"
    )
    run = Engine(path, folders=[EXAMPLES / "dropin"]).start_run()
    run.start("task")
    run.begin_iteration()
    return run


def test_the_example_package_is_found_through_its_entry_point(acme):
    found = discover().get("acme.spend")
    assert (found.name, found.distribution, found.version) == ("acme.spend", acme["name"], acme["version"])
    assert found.hooks == ("before_tool_call", "after_tool_call")


def test_the_example_package_decides(acme, tmp_path):
    requires = 'requires:\n  extensions: {acme-guards: ">=0.4,<1"}\n'
    run = run_under(tmp_path / "p.yaml", "review: {use: acme.spend, with: {limit: 10}}", requires)
    decision = run.before_tool_call(ToolCall("1", "pay_invoice", args={"amount": 11}))
    assert (decision.action, decision.decided_by) == ("deny", "review")
    assert "the limit is 10" in decision.message


def test_the_example_of_a_drop_in_file_decides(tmp_path):
    run = run_under(tmp_path / "p.yaml", "careful: {use: local.no_delete}")
    assert run.before_tool_call(ToolCall("1", "delete_user", args={})).action == "deny"
    assert run.before_tool_call(ToolCall("2", "get_user", args={})).action == "allow"


def test_the_examples_pass_every_check_of_extensions(acme):
    result = CliRunner().invoke(cli, ["extensions", "check", "--strict", acme["name"], str(EXAMPLES / "dropin")])
    assert result.exit_code == 0, result.output


def test_packages_that_the_policy_does_not_list_are_not_even_imported(acme, site, tmp_path):
    site.install("stranger", {"stranger": "acme_uninvited"}, acme_uninvited="IMPORTED = True")
    requires = 'requires:\n  extensions: {acme-guards: ">=0.4,<1"}\n'
    run = run_under(tmp_path / "p.yaml", "review: {use: acme.spend, with: {limit: 10}}", requires)
    assert run.before_tool_call(ToolCall("1", "pay_invoice", args={"amount": 1})).allowed
    assert "acme_uninvited" not in sys.modules
