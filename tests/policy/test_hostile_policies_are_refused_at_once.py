"""Policies that would take for ever to check or to obey, and names that mean another file than they say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from policyengine import ConfigError, Engine
from policyengine.patterns import blows_up
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy, load_policy_text
from policyengine.policy.validate import MAX_UNKNOWN, MAX_UNKNOWN_IN_ALL
from policyengine.templates import Templates

HEADER = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"
RULE = "extensions: {step_limit: {}}\n"


def problems(text: str):
    with pytest.raises(ConfigError) as caught:
        load_policy_text(HEADER + text, registry=builtin_registry())
    return caught.value.problems


def keys(number: int, indent: str = "") -> str:
    return "".join(f"{indent}k{index}: 1\n" for index in range(number))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (RULE + keys(4000), ""),
        ("extensions:\n  step_limit:\n" + keys(4000, "    "), "extensions.step_limit"),
        ("extensions:\n  step_limit:\n    with:\n" + keys(4000, "      "), "extensions.step_limit.with"),
        (RULE + "reload:\n" + keys(4000, "  "), "reload"),
    ],
)
def test_a_flood_of_unknown_settings_is_one_problem_and_found_at_once(text, path):
    began = time.process_time()
    found = problems(text)
    assert time.process_time() - began < 5
    assert [(problem.code, problem.path) for problem in found] == [("S204", path)]
    assert '4000 unknown settings, from "k0" to "k3999"' in found[0].message


def test_a_flood_over_many_mappings_is_one_problem_and_found_at_once():
    text = RULE + "tools:\n" + "".join(f"  t{index}: {{effct: read}}\n" for index in range(2000))
    began = time.process_time()
    found = problems(text)
    assert time.process_time() - began < 5
    assert [(problem.code, problem.path) for problem in found] == [("S204", "tools.t0")]


def test_fewer_unknown_settings_are_listed_one_by_one():
    assert len(problems(RULE + keys(MAX_UNKNOWN))) == MAX_UNKNOWN
    tools = "".join(f"  t{index}: {{effct: read}}\n" for index in range(MAX_UNKNOWN_IN_ALL))
    assert len(problems(RULE + "tools:\n" + tools)) == MAX_UNKNOWN_IN_ALL


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+$", "(a*)*", "(?:a|b+)*c", "(a+?)+", "((ab)+c*){2,}", "(?=(a+)+)", "(?:(a+)+)*+"),
        *("(a{1,3})+", "(a+){3}"),
    ],
)
def test_a_repeat_that_can_blow_up_is_refused(pattern):
    found = problems(RULE + f"tools: {{f: {{result_mask: ['{pattern}']}}}}\n")
    assert [(problem.code, problem.path) for problem in found] == [("S208", "tools.f.result_mask[0]")]
    assert "may take for ever" in found[0].message


@pytest.mark.parametrize(
    "pattern",
    [
        *("took \\d+ lines", "a+b+", "(a+){2}", "(\\d+\\.){3}\\d+"),
        *("(?:a++)+", "(?>a+)+", "(?:\\d++\\.)+", "[a-z]+(?:,|;)*"),
    ],
)
def test_other_repeats_may_stand(pattern):
    assert not blows_up(pattern)
    load_policy_text(HEADER + RULE + f"tools: {{f: {{result_mask: ['{pattern}']}}}}\n", registry=builtin_registry())


def test_a_file_cannot_take_the_place_of_a_shipped_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("default").write_text(HEADER + "extensions: {step_limit: {mode: disabled}}\n")
    assert load_policy("default", registry=builtin_registry()).files == ("policy:default",)
    assert Engine("default").snapshot.policy.files == ("policy:default",)
    assert load_policy("./default", registry=builtin_registry()).name == "p"


def test_a_file_without_a_suffix_is_named_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text(HEADER + RULE)
    with pytest.raises(ConfigError) as caught:
        load_policy("mine", registry=builtin_registry())
    assert caught.value.problems[0].code == "M301"
    assert "./mine" in caught.value.problems[0].help


@pytest.mark.parametrize("linked", ["file", "language"])
def test_templates_that_lead_out_of_their_directory_are_refused(tmp_path, linked):
    prompts, outside = tmp_path / "prompts", tmp_path / "outside"
    outside.mkdir()
    (outside / "denied.txt").write_text("secret")
    if linked == "file":
        (prompts / "en").mkdir(parents=True)
        (prompts / "en" / "denied.txt").symlink_to(outside / "denied.txt")
    else:
        prompts.mkdir()
        (prompts / "en").symlink_to(outside)
    templates = Templates(directories=[prompts])
    assert [problem.partition(": ")[2] for problem in templates.problems] == ["leads out of the directory of templates"]
    assert "secret" not in templates.render("denied", {"tool": "f", "rule": "r"})


def test_templates_may_be_links_within_their_directory(tmp_path):
    """A mounted volume shows its files as links into a hidden directory beside them."""
    (tmp_path / "real" / "..data" / "en").mkdir(parents=True)
    (tmp_path / "real" / "..data" / "en" / "denied.txt").write_text("refused")
    (tmp_path / "real" / "en").symlink_to(tmp_path / "real" / "..data" / "en")
    (tmp_path / "prompts").symlink_to(tmp_path / "real")
    templates = Templates(directories=[tmp_path / "prompts"])
    assert templates.problems == ()
    assert templates.render("denied", {}) == "refused"
