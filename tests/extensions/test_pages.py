"""The documentation pages: each lists every option, and its example is a policy that loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policyengine.extensions import BUILTIN
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy, load_policy_text

PAGES = Path(__file__).parents[2] / "docs" / "extensions"
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: example\n"
CLASSES = [cls for cls in BUILTIN if cls.name != "stall_detector"]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_a_page_lists_every_option_and_its_example_loads(cls, tmp_path):
    page = (PAGES / f"{cls.name}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (?:integer|number|duration|mapping|list|text|`)", page, re.MULTILINE)
    assert set(cls.options) <= set(listed)
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "policy.yaml"
    path.write_text(HEAD + example, encoding="utf-8")
    policy = load_policy(path, registry=builtin_registry())
    assert [rule.use for rule in policy.rules] == [cls.name]
    assert policy.warnings == ()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_a_page_names_every_code_of_its_rule(cls):
    page = (PAGES / f"{cls.name}.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (rule,) = load_policy_text(HEAD + example, registry=builtin_registry()).rules
    codes = {proof.code for proof in cls(rule.options).proofs()}
    assert codes
    assert all(f"`{code}`" in page for code in codes)
