"""What somebody who writes a first policy gets wrong, and the exact advice they get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policyengine.errors import ConfigError
from policyengine.plugins.registry import builtin_registry, discover
from policyengine.policy.load import load_policy, load_policy_text
from policyengine.policy.problems import Problem

Faults = Callable[..., tuple[Problem, ...]]
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\n"
BESIDE = "{} is an option of {}; options stand under `with`: `with: {{{}}}`"


def advice(body: str, code: str, **facts: Any) -> str:
    """Return the help of the one problem of a policy, which has this code."""
    with pytest.raises(ConfigError) as caught:
        load_policy_text(HEAD + body, "p.yaml", registry=builtin_registry(), **facts)
    (found,) = caught.value.problems
    assert found.code == code
    return found.help


# ---- options beside `with`


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("extensions: {step_limit: {max_steps: 3}}", BESIDE.format("max_steps", "step_limit", "max_steps: 3")),
        (
            "extensions: {early: {use: step_limit, max_step: 3}}",
            BESIDE.format("max_steps", "step_limit", "max_steps: 3"),
        ),
        (
            "extensions: {stall_detector: {repeat: {deny: 3}}}",
            BESIDE.format("repeat", "stall_detector", "repeat: {...}"),
        ),
        (
            "extensions: {parse_failures: {kinds: [misformat], with: {stop: 3}}}",
            BESIDE.format("kinds", "parse_failures", "kinds: [...]"),
        ),
        (
            "extensions: {step_limit: {max_steps: {$env: LIMIT}}}",
            BESIDE.format("max_steps", "step_limit", "max_steps: {...}"),
        ),
    ],
)
def test_an_option_beside_with_is_told_to_stand_under_it(body: str, said: str) -> None:
    assert advice(body, "S204", env={"LIMIT": "a secret"}) == said


def test_what_is_no_option_is_told_what_stands_there_and_where_options_do() -> None:
    said = "accepts: use, at, with, when, mode, on_error, timeout, order"
    assert advice("extensions: {step_limit: {zzz: 3}}", "S204").startswith(said)
    assert advice("extensions: {step_limit: {zzz: 3}}", "S204").endswith(
        "; options of the extension stand under `with`"
    )


def test_a_misspelt_key_of_a_rule_is_no_option() -> None:
    assert advice("extensions: {step_limit: {timeuot: 3s}}", "S204").startswith('did you mean "timeout"?')


def test_an_extension_that_is_not_there_has_no_options(faults: Faults) -> None:
    problems = faults("extensions: {broken.one: {zzz: 1}, nobody: {yyy: 2}}")
    said = {problem.path: problem.help for problem in problems if problem.code == "S204"}
    assert all(help.endswith("; options of the extension stand under `with`") for help in said.values())
    assert len(said) == 2


# ---- quotes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('extensions: {step_limit: {with: {max_steps: "5"}}}', "write 5 without quotes"),
        ('extensions: {context_compaction: {with: {trigger: "0.5"}}}', "write 0.5 without quotes"),
        ('parsing: {text_fallback: "true"}', "write true without quotes"),
        ('interventions: {max: "5.5"}', ""),
        ('interventions: {max: "five"}', ""),
    ],
)
def test_a_quoted_number_is_told_to_lose_its_quotes(body: str, said: str) -> None:
    assert advice(body, "S201") == said


@pytest.mark.parametrize("loader", ["c", "pure"])
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (
            "tools: {*_file: {effect: read}}",
            "Y108",
            'a pattern needs quotes: "*_file"; anything else is written out, or shared with `extends`',
        ),
        (
            "tools:\n  *_file: {effect: read}",
            "Y108",
            'a pattern needs quotes: "*_file"; anything else is written out, or shared with `extends`',
        ),
        (
            "extensions: {stall_detector: {when: {tool: [*_file, b]}}}",
            "Y108",
            'a pattern needs quotes: "*_file"; anything else is written out, or shared with `extends`',
        ),
        ("tools:\n  *.txt: {effect: read}", "Y104", 'a pattern needs quotes: "*.txt"'),
        ("tools:\n  *: {effect: read}", "Y104", 'a pattern needs quotes: "*"'),
        ("extensions: {stall_detector: {when: {tool: [*a*]}}}", "Y104", 'a pattern needs quotes: "*a*"'),
    ],
)
def test_a_pattern_without_quotes_is_told_to_get_some(body: str, code: str, said: str, loader: str) -> None:
    assert advice(body, code, yaml_loader=loader) == said


# ---- a blank that is missing


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ('tools: {"*": {effect:read}}', "M305", "put a blank after the colon: `effect: read`"),
        ("extensions: {step_limit: {with: {max_steps:40}}}", "M305", "put a blank after the colon: `max_steps: 40`"),
        ("tools:\n  ask:\n    effect:read", "S201", "put a blank after the colon"),
    ],
)
def test_a_colon_without_a_blank_is_told_to_get_one(body: str, code: str, said: str) -> None:
    assert advice(body, code) == said


def test_a_key_with_a_colon_that_is_null_for_another_reason_keeps_its_advice() -> None:
    said = "write `{}` for an empty mapping, or `{$delete: true}` to remove what a lower layer says"
    assert advice('tools: {"a:b:c": }', "M305") == said


# ---- files in the wrong place


def refused(source: str, *overlays: Path) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_policy(source, registry=builtin_registry(), overlays=overlays)
    (found,) = caught.value.problems
    return found


def test_a_directory_is_told_to_name_a_file_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    problem = refused("./rules")
    assert problem.short() == "./rules: error[E802] ./rules cannot be read: it is a directory"
    assert problem.help == "name the file in it: ./rules/policy.yaml"
    for name in ("notes.txt", "b.yaml", "a.json5", "a.test.yaml", "A.test.json"):
        (tmp_path / "rules" / name).touch()
    assert refused("./rules").help == "name the file in it: ./rules/a.json5"
    bare = refused("rules")
    assert (bare.code, bare.help) == ("M301", "rules is a directory; name the file in it: ./rules/a.json5")


def test_an_overlay_given_as_the_policy_is_told_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("eu.yaml").write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: house\nextensions: {}\n")
    problem = refused("eu.yaml")
    assert (problem.code, problem.position.line) == ("S210", 2)
    assert problem.help == "this is an overlay: give it as `--overlay eu.yaml`, on top of the policy 'house'"
    Path("eu.yaml").write_text("apiVersion: policyengine/v1\nkind: Overlay\n")
    assert refused("eu.yaml").help == "this is an overlay: give it as `--overlay eu.yaml`, on top of a policy"


def test_an_overlay_that_is_extended_is_told_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "eu.yaml").write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: mine\n")
    (tmp_path / "p.yaml").write_text(HEAD + "extends: ./eu.yaml\n")
    problem = refused(str(tmp_path / "p.yaml"))
    assert problem.help == "a policy extends policies; an overlay is given with `--overlay`"


def test_a_policy_given_as_an_overlay_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(HEAD)
    problem = refused("default", tmp_path / "p.yaml")
    assert problem.help == "this is a policy: give it as the policy; what lies on top of one is of kind Overlay"


def test_a_kind_that_does_not_exist_is_told_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(HEAD.replace("Policy", "Polcy"))
    assert refused(str(tmp_path / "p.yaml")).help == 'did you mean "Policy"? (allowed: Policy)'


# ---- drop-in extensions


def test_an_extension_of_a_folder_that_was_not_named_is_told_the_option(tmp_path: Path) -> None:
    said = "if it is a file of a drop-in folder, name the folder: `--folder DIR`"
    assert advice("extensions: {spend: {use: local.spend}}", "X401") == said
    (tmp_path / "spend.py").write_text(
        "from policyengine import Extension, hookimpl\n\n\n"
        'class Spend(Extension):\n    """Look."""\n\n    name = "local.spend"\n\n'
        '    @hookimpl\n    def after_iteration(self, run, iteration):\n        """Look."""\n'
    )
    registry = discover(entry_points=False, folders=[tmp_path])
    assert load_policy_text(HEAD + "extensions: {spend: {use: local.spend}}", registry=registry).rules
