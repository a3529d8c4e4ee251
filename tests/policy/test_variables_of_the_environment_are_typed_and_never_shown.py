"""`{$env: NAME, default: VALUE}`: the schema gives the type, and the value goes nowhere but into the setting."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from policyengine import Engine
from policyengine.cli import cli
from policyengine.errors import ConfigError
from policyengine.policy.explain import explain
from policyengine.policy.load import load_policy, load_policy_text
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem, render

Load = Callable[..., Policy]
Faults = Callable[..., tuple[Problem, ...]]

LIMIT = "extensions: {call_limit: {with: {limit: {$env: LIMIT}}}}"
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: [default]\n"


def limit(policy: Policy) -> Any:
    return policy.rules[0].options["limit"]


@pytest.mark.parametrize(
    ("body", "text", "path", "value"),
    [
        (LIMIT, "40", ("rules", "limit"), 40),
        ("parsing: {text_fallback: {$env: X}}", "true", ("parsing", "text_fallback"), True),
        ("parsing: {text_fallback: {$env: X}}", "false", ("parsing", "text_fallback"), False),
        ("parsing: {max_retry: {$env: X}}", "2", ("parsing", "max_retry"), 2),
        ("reload: {settle: {$env: X}}", "2s", ("reload", "settle_s"), 2.0),
        ("language: {$env: X}", "zh", ("language",), "zh"),
        ("interventions: {max: {$env: X}}", "7", ("interventions", "max"), 7),
    ],
)
def test_the_schema_says_what_a_text_becomes(load: Load, body: str, text: str, path: Any, value: Any) -> None:
    policy = load(body, env={"X": text, "LIMIT": text})
    found: Any = policy
    for name in () if path[0] == "rules" else path:
        found = getattr(found, name)
    found = limit(policy) if path[0] == "rules" else found
    assert found == value
    assert type(found) is type(value)


def test_items_of_a_list_and_settings_of_a_rule_may_be_variables(load: Load) -> None:
    body = """extensions:
  call_limit:
    mode: {$env: MODE}
    timeout: {$env: WAIT}
    when: {tool: [{$env: TOOL}, "!b"]}
    with: {kinds: [{$env: KIND}, b]}
"""
    (rule,) = load(body, env={"MODE": "shadow", "WAIT": "1s", "TOOL": "pay", "KIND": "c"}).rules
    assert (rule.mode, rule.timeout_s, rule.when.tool, rule.options["kinds"]) == (
        "shadow",
        1.0,
        ("pay", "!b"),
        ["c", "b"],
    )


def test_a_default_counts_only_where_the_variable_is_not_set(load: Load) -> None:
    body = "extensions: {call_limit: {with: {limit: {$env: LIMIT, default: 7}}}}"
    assert limit(load(body, env={})) == 7
    assert limit(load(body, env={"LIMIT": "8"})) == 8


@pytest.mark.parametrize("value", ["", "x", "4.5", "0x10", "1_0", "010", " 4", "4\n", "true", "1e2", "٣", "0", "1001"])
def test_a_text_that_does_not_fit_is_an_error_that_names_the_variable_only(faults: Faults, value: str) -> None:
    (problem,) = faults(LIMIT, env={"LIMIT": value})
    assert (problem.code, str(problem.position)) == ("E809", "p.yaml:4:48")
    assert problem.path == "extensions.call_limit.with.limit"
    assert problem.message == "$env LIMIT must be a whole number, 1 to 1000"


@pytest.mark.parametrize("value", ["yes", "1", "True", "on", ""])
def test_a_boolean_is_true_or_false_and_nothing_else(faults: Faults, value: str) -> None:
    (problem,) = faults("parsing: {text_fallback: {$env: X}}", env={"X": value})
    assert (problem.code, problem.message) == ("E809", "$env X must be true or false")


def test_a_variable_that_is_not_set_is_an_error_with_its_place(faults: Faults) -> None:
    (problem,) = faults(LIMIT, env={})
    assert (problem.code, str(problem.position)) == ("E808", "p.yaml:4:48")
    assert "LIMIT is not set" in problem.message


@pytest.mark.parametrize(
    ("body", "code", "path", "said"),
    [
        ("extensions: {call_limit: {with: {limit: {$env: 5}}}}", "M308", "@.with.limit.$env", "name"),
        ("language: {$env: A B}", "M308", "language.$env", "letters"),
        ("language: {$env: A, default: [en]}", "M308", "language.default", "one value"),
        ("language: {$env: A, default: null}", "M305", "language.default", "null"),
        ("language: {$env: A, defualt: en}", "M308", "language.defualt", "{$env: NAME"),
        ("$env: A", "M308", "$env", "whole file"),
        ("extensions: {call_limit: {$env: A}}", "E810", "extensions.call_limit", "a mapping"),
        ("extensions: {call_limit: {with: {$env: A}}}", "E810", "@.with", "a mapping"),
        ("extensions: {call_limit: {with: {kinds: {$env: A}}}}", "E810", "@.with.kinds", "a list"),
        ("extensions: {x: {use: {$env: A}}}", "E811", "extensions.x.use", "made of"),
        ("extensions: {call_limit: {at: [{$env: A}]}}", "E811", "@.at[0]", "made of"),
        ("extensions: {call_limit: {order: {after: {$env: A}}}}", "E811", "@.order.after", "made of"),
        ("requires: {extensions: {x: {$env: A}}}", "E811", "requires.extensions.x", "made of"),
        ("prompts: [{$env: A}]", "E811", "prompts[0]", "made of"),
        ("extensions: {call_limit: {with: {limt: {$env: A}}}}", "S204", "@.with.limt", "limit"),
        ("language: {$env: A, default: 5}", "S201", "language", "must be a text"),
        ("extensions: {call_limit: {with: {limit: {$env: A, default: 0}}}}", "S205", "@.with.limit", "1"),
    ],
)
def test_a_variable_in_a_wrong_form_or_place_is_refused(
    faults: Faults, body: str, code: str, path: str, said: str
) -> None:
    found = faults(body, env={"A": "s3cret"})
    assert [(problem.code, problem.path) for problem in found] == [(code, path.replace("@", "extensions.call_limit"))]
    assert said in found[0].full()
    assert "s3cret" not in render(found, "json")


@pytest.mark.parametrize(
    "body",
    [
        "extensions: {call_limit: {with: {limit: {$env: A, default: s3cret}}}}",
        "extensions:\n  call_limit:\n    with:\n      limit:\n        $env: A\n        default: s3cret",
        "extensions: {x: {use: {$env: A, default: s3cret}}}",
        "extensions: {call_limit: {with: {kinds: {$env: A, default: s3cret}}}}",
        "extensions: {call_limit: {with: {limt: {$env: A, default: s3cret}}}}",
        "language: {$env: A, defualt: en, default: s3cret}",
        "log: {mask: [{$env: A, default: s3cret}]}",
        "language: {$env: A B, default: s3cret}",
        "defaults: {timeout: {$env: A, default: s3cret}}",
    ],
)
def test_no_problem_shows_the_default_of_a_variable(faults: Faults, body: str) -> None:
    found = faults(body, env={})
    assert found
    for form in ("short", "full", "json", "github"):
        assert "s3cret" not in render(found, form)


def test_a_mask_from_a_variable_is_said_to_be_a_pointer(faults: Faults) -> None:
    (problem,) = faults("log: {mask: [{$env: A}]}", env={"A": "call"})
    assert (problem.code, "JSON pointer" in problem.message) == ("E809", True)


def test_a_header_has_no_variables(faults: Faults, registry: Any, no_shipped: Path) -> None:
    text = "apiVersion: policyengine/v1\nkind: Policy\nname: {$env: A}\n"
    with pytest.raises(ConfigError) as caught:
        load_policy_text(text, registry=registry, shipped=no_shipped, env={"A": "x"})
    assert [problem.code for problem in caught.value.problems] == ["S201"]


def test_what_an_extension_says_about_its_options_does_not_show_them(faults: Faults, load: Load) -> None:
    body = "extensions: {call_limit: {with: {limit: {$env: LIMIT}, ladder: {hint: {$env: HINT}, stop: 5}}}}"
    assert [problem.code for problem in faults(body, env={"LIMIT": "5", "HINT": "77"})] == ["R510"]
    (warning,) = load(body, env={"LIMIT": "905", "HINT": "3"}).warnings
    assert "905" not in warning.full()


def test_a_prefix_in_a_list_that_never_matches_is_named_and_not_shown(faults: Faults) -> None:
    body = "tools: {a: {failure: {text_prefix: [Error, {$env: PREFIX}]}}}\nextensions: {call_limit: {}}\n"
    (problem,) = faults(body, env={"PREFIX": " s3cret"})
    assert problem.code == "R509"
    assert "$env PREFIX" in problem.message
    assert "s3cret" not in problem.full()


def test_provenance_and_explanation_show_the_variable(load: Load) -> None:
    body = "defaults: {mode: {$env: MODE, default: warn}}\n" + LIMIT.replace("LIMIT}", "LIMIT, default: 999}")
    policy = load(body, env={"LIMIT": "876"})
    texts = "\n".join(item.text() for item in explain(policy))
    assert (
        "extensions.call_limit.with.limit = $env LIMIT\n  $env LIMIT  p.yaml:5:34  (in force)\n  40  default" in texts
    )
    assert 'defaults.mode = "warn"\n  "warn"  p.yaml:4:40  (in force)\n  $env MODE  p.yaml:4:12' in texts
    assert "876" not in texts
    assert "876" not in str(policy.provenance)


def test_a_variable_replaces_a_variable_with_its_default(tmp_path: Path, registry: Any, no_shipped: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD.replace("default", "./low.yaml") + LIMIT)
    low = LIMIT.replace("{$env: LIMIT}", "{$env: OTHER, default: 3}")
    (tmp_path / "low.yaml").write_text(HEAD.replace("extends: [default]\n", "") + low)
    with pytest.raises(ConfigError):
        load_policy(tmp_path / "base.yaml", registry=registry, shipped=no_shipped, env={})
    policy = load_policy(tmp_path / "base.yaml", registry=registry, shipped=no_shipped, env={"LIMIT": "9"})
    assert limit(policy) == 9


def test_the_environment_is_read_once_per_load(load: Load) -> None:
    class Counting(dict[str, str]):
        asked: list[str] = []

        def get(self, key: str, default: Any = None) -> Any:
            self.asked.append(key)
            return super().get(key, default)

    body = "parsing: {max_retry: {$env: N}}\nwind_down: {rounds: {$env: N}}\n" + LIMIT.replace("LIMIT", "N")
    load(body, env=Counting(N="2"))
    assert Counting.asked == ["N"]


def test_another_value_is_another_policy(load: Load) -> None:
    digests = {load(LIMIT, env={"LIMIT": value}).digest for value in ("4", "5", "4")}
    assert len(digests) == 2


def test_an_engine_takes_the_variables_it_is_given_and_notices_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + "extensions: {step_limit: {with: {max_steps: {$env: STEPS}}}}\n")
    variables = {"STEPS": "12"}
    engine = Engine(path, env=variables)
    assert engine.snapshot.rules["step_limit"].options["max_steps"] == 12
    variables["STEPS"] = "13"
    assert engine.reload()
    assert engine.snapshot.rules["step_limit"].options["max_steps"] == 13
    del variables["STEPS"]
    assert not engine.reload()
    assert engine.snapshot.rules["step_limit"].options["max_steps"] == 13


def test_without_a_registry_options_stay_unread(no_shipped: Path) -> None:
    policy = load_policy_text(
        HEAD.replace("extends: [default]\n", "") + LIMIT, registry=None, shipped=no_shipped, env={"LIMIT": "s3cret"}
    )
    assert "s3cret" not in str(policy)


def test_no_verb_prints_the_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    body = "extensions: {step_limit: {with: {max_steps: {$env: STEPS}}}}\nlanguage: {$env: LANGUAGE_OF_NOTES}\n"
    Path("p.yaml").write_text(HEAD + body)
    for value, good in (("98765", True), ("s3cr3t-98765", False)):
        variables = {"STEPS": value, "LANGUAGE_OF_NOTES": "en" if good else "98765"}
        for verb in ("check p.yaml", "check p.yaml --json", "explain p.yaml", "explain p.yaml --json"):
            result = CliRunner().invoke(cli, verb.split(), env=variables)
            assert result.exit_code == (0 if good else 1), result.output
            assert "98765" not in result.output
            assert good or "$env STEPS" in result.output
    variables = {"STEPS": "9", "LANGUAGE_OF_NOTES": "en"}
    shown = json.loads(CliRunner().invoke(cli, ["explain", "p.yaml", "--json"], env=variables).output)
    assert {"$env": "STEPS"} in [item["value"] for item in shown]


@given(st.dictionaries(st.sampled_from(["A", "B"]), st.text(max_size=12)))
def test_any_environment_gives_a_policy_or_positioned_problems(
    registry: Any, no_shipped: Path, variables: Mapping[str, str]
) -> None:
    body = "extensions: {call_limit: {with: {limit: {$env: A}}}}\nreload: {settle: {$env: B, default: 1s}}\n"
    text = HEAD.replace("extends: [default]\n", "") + body
    try:
        policy = load_policy_text(text, "p.yaml", registry=registry, shipped=no_shipped, env=variables)
    except ConfigError as error:
        problems = error.problems
    else:
        problems = ()
        assert str(limit(policy)) == variables["A"]
    assert {problem.code for problem in problems} <= {"E808", "E809"}
    assert all(problem.position.line for problem in problems)
