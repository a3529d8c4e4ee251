"""What `policyengine lint` finds, and above all what it leaves alone.

That every check finds the example of its code, and nothing in the corrected one, is in tests/cli/test_explain_error.py.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.mistakes import mistakes_of
from policyengine.plugins.registry import discover
from policyengine.policy.codes import CODES
from policyengine.policy.files import shipped_policies
from policyengine.policy.lint import CHECKS, lint
from policyengine.policy.lint.patterns import _one_slip
from policyengine.policy.load import load_policy
from policyengine.policy.problems import Problem, render

ROOT = Path(__file__).parents[2]
TODAY = date(2030, 6, 1)
REGISTRY = discover(folders=[ROOT / "examples" / "dropin"])
EXPECTED: dict[str, list[str]] = {}
"""Findings in shipped policies and examples that are meant, by file, and why: there are none."""


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Return how to lint a policy given as text, and overlays on it; other files are written beside it."""
    monkeypatch.chdir(tmp_path)

    def linted(text: str, *overlays: str, env: dict[str, str] | None = None, **files: str) -> tuple[Problem, ...]:
        for name, content in {"p": text, **files}.items():
            Path(f"{name}.yaml").write_text(f"apiVersion: policyengine/v1\nkind: Policy\nname: {name}\n{content}")
        paths = [Path(f"overlay-{number}.yaml") for number, _ in enumerate(overlays)]
        for path, content in zip(paths, overlays, strict=True):
            path.write_text(f"apiVersion: policyengine/v1\nkind: Overlay\ntarget: p\n{content}")
        policy = load_policy("p.yaml", registry=REGISTRY, overlays=paths, env=env or {}, today=TODAY)
        return lint(policy, "p.yaml", registry=REGISTRY, overlays=paths, today=TODAY)

    return linted


def codes(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.code for problem in problems]


# ---- the whole


@pytest.mark.parametrize("name", shipped_policies())
def test_nothing_is_found_in_a_shipped_policy(name):
    found = lint(load_policy(name, registry=REGISTRY), name, registry=REGISTRY)
    assert codes(found) == EXPECTED.get(name, [])


def test_nothing_is_found_in_the_policies_and_overlays_of_the_examples():
    looked = []
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if "kind: Overlay" in text:
            source, overlays = "default", [path]
        elif "kind: Policy\n" in text:
            source, overlays = str(path), []
        else:
            continue
        policy = load_policy(source, registry=REGISTRY, overlays=overlays)
        assert codes(lint(policy, source, registry=REGISTRY, overlays=overlays)) == EXPECTED.get(path.name, []), path
        looked.append(path.name)
    assert "eu-prod.yaml" in looked


def test_every_check_has_a_code_of_its_own_and_says_so_first():
    named = [str(check.__doc__).partition(":")[0] for check in CHECKS]
    assert sorted(named) == [code for code in CODES if code.startswith("L")] == sorted(mistakes_of("L"))


def test_warnings_of_loading_are_found_too_and_nothing_twice(found):
    assert codes(found("kill_switch: true\nextensions: {step_limit: {rollout: {percent: 0}}}\n")) == ["R514", "R515"]


def test_a_finding_is_at_its_place_and_says_what_to_do(found):
    (problem,) = found("parsing:\n  mode: strict\n  repair_calls: 2\nextensions: {step_limit: {}}\n")
    assert problem.full() == (
        "p.yaml:6:17: warning[L643] parsing.repair_calls: nothing is asked for again: arguments are not checked\n"
        "    6 |   repair_calls: 2\n"
        "      |                 ^\n"
        "  help: write `arguments: check` or `arguments: coerce`, or leave it out"
    )


def test_for_github_an_info_is_a_notice(found):
    problems = found("extensions: {step_limit: {on_error: allow}}\n")
    assert render(problems, "github").startswith("::notice file=p.yaml,line=4,col=37,title=L605::")


# ---- rules


@pytest.mark.parametrize(
    "second",
    [
        "{use: step_limit, mode: shadow, with: {max_steps: 60}}",  # that a looser one would not fire is worth knowing
        "{use: step_limit, when: {agent: helper}, with: {max_steps: 60}}",
        "{use: tool_call_limit, with: {calls: 60}}",
    ],
)
def test_a_rule_that_may_add_something_is_left_alone(found, second):
    first = "{use: step_limit, with: {max_steps: 40}}"
    assert codes(found(f"extensions:\n  first: {first}\n  second: {second}\n")) == []


@pytest.mark.parametrize("extra", ["mode: warn", "mode: shadow", "rollout: {percent: 50}", "when: {agent: a}"])
def test_a_rule_that_is_not_always_in_force_masks_nothing(found, extra):
    assert (
        codes(
            found(
                "extensions:\n"
                f"  first: {{use: step_limit, {extra}, with: {{max_steps: 20}}}}\n"
                "  second: {use: step_limit, with: {max_steps: 40}}\n"
            )
        )
        == []
    )


def test_the_looser_rule_is_the_one_that_adds_nothing_wherever_it_stands(found):
    rules = [
        "  loose: {use: step_limit, with: {max_steps: 40}}\n",
        "  tight: {use: step_limit, with: {max_steps: 20}}\n",
    ]
    for ordered in (rules, rules[::-1]):
        (problem,) = found("extensions:\n" + "".join(ordered))
        assert (problem.code, problem.path) == ("L602", "extensions.loose")


def test_a_rule_with_a_rung_that_the_stricter_one_lacks_is_left_alone(found):
    tight = "  tight: {use: step_limit, with: {max_steps: 20}}\n"
    assert (
        codes(found(f"extensions:\n{tight}  two: {{use: step_limit, with: {{max_steps: 40, wind_down_at: 9}}}}\n"))
        == []
    )


def test_of_two_equal_rules_the_later_one_is_too_many(found):
    (problem,) = found("extensions:\n  one: {use: step_limit}\n  two: {use: step_limit}\n")
    assert (problem.code, problem.path) == ("L602", "extensions.two")


def test_options_without_a_direction_are_not_compared(found):
    assert (
        codes(
            found(
                "extensions:\n"
                "  one: {use: tool_call_limit, with: {calls: 5, scope: conversation}}\n"
                "  two: {use: tool_call_limit, with: {calls: 9, scope: run}}\n"
            )
        )
        == []
    )


def test_an_overlay_that_disables_a_rule_means_to(found):
    text = "extensions: {step_limit: {}, wall_clock: {with: {stop: 10m}}}\n"
    assert codes(found(text, "extensions: {wall_clock: {mode: disabled}}\n")) == []


def test_an_overlay_that_enables_a_rule_is_what_it_was_for(found):
    text = "extensions: {step_limit: {}, wall_clock: {mode: disabled, with: {stop: 10m}}}\n"
    assert codes(found(text)) == ["L601"]
    assert codes(found(text, "extensions: {wall_clock: {mode: enforce}}\n")) == []


def test_a_policy_all_in_shadow_is_no_warning(found):
    (problem,) = found("defaults: {mode: shadow}\nextensions: {step_limit: {}}\n")
    assert (problem.code, problem.severity) == ("L604", "info")


def test_rules_that_fail_open_by_default_are_told_once(found):
    text = "defaults: {on_error: allow}\nextensions: {step_limit: {}, repeat_message: {}}\n"
    assert [(one.code, one.path) for one in found(text)] == [("L605", "defaults.on_error")]
    assert codes(found("defaults: {on_error: allow}\nextensions: {step_limit: {mode: warn}}\n")) == []


# ---- patterns

SLIPS = [("send_paymnet", "send_payment"), ("raed_*", "read_*"), ("chek_job", "check_job"), ("check_jobb", "check_job")]
OTHERS = [
    ("check_jobs", "check_job"),  # a plural is another tool
    ("page_1", "page_2"),
    ("page_12", "page_1"),
    ("get", "set"),
    ("open_door", "close_door"),
    ("read_file", "read_file"),
]


@pytest.mark.parametrize(("pattern", "tool"), SLIPS)
def test_a_slip_in_the_name_of_a_tool_is_found_in_rules_and_exceptions(found, pattern, tool):
    tools, rules = f'tools: {{"{tool}": {{effect: read}}}}\n', "extensions: {stall_detector: %s}\n"
    (problem,) = found(tools + rules % f'{{when: {{tool: ["!{pattern}"]}}}}')
    assert (problem.code, problem.path) == ("L606", "extensions.stall_detector.when.tool[0]")
    assert problem.help == f'did you mean "{tool}"?'
    entry = f'when: {{tool: "{pattern}"}}, expires: "2031-01-01", owner: me, reason: why'
    assert codes(found(f"{tools}{rules % '{}'}exceptions:\n  - {{rule: stall_detector, {entry}}}\n")) == ["L606"]


@pytest.mark.parametrize(("pattern", "tool"), OTHERS)
def test_the_name_of_another_tool_is_no_slip(found, pattern, tool):
    text = f"tools: {{{tool}: {{effect: read}}}}\nextensions: {{stall_detector: {{when: {{tool: {pattern}}}}}}}\n"
    assert codes(found(text)) == []


@given(st.text("abc_1*", min_size=5, max_size=9), st.text("abc_1*", min_size=5, max_size=9))
def test_a_slip_is_one_in_both_directions(one, other):
    assert _one_slip(one, other) == _one_slip(other, one)
    assert not _one_slip(one, one)


@given(st.text("abcdef", min_size=5, max_size=9), st.data())
def test_two_letters_swapped_are_always_a_slip(name, data):
    at = data.draw(st.integers(0, len(name) - 2))
    swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    assert _one_slip(name, swapped) == (name != swapped)


@pytest.mark.parametrize("pattern", ["pay_[", "pay_[ab", "{a,b}_x", "a|b", "^read", "read$", "![x"])
def test_marks_of_other_patterns_are_found(found, pattern):
    assert codes(found(f'extensions: {{stall_detector: {{when: {{tool: "{pattern}"}}}}}}\n')) == ["L607"]
    if not pattern.startswith("!"):
        assert codes(found(f'tools: {{"{pattern}": {{effect: read}}}}\nextensions: {{step_limit: {{}}}}\n')) == ["L607"]
        assert codes(found(f'models: {{"{pattern}": {{window: 999}}}}\nextensions: {{step_limit: {{}}}}\n')) == ["L607"]


@pytest.mark.parametrize("pattern", ["pay_[ab]", "!pay_[!ab]*", "[[]x", "[]]x", "fs.*", "*", "a{b}", "x$y"])
def test_patterns_that_are_what_they_seem_are_left_alone(found, pattern):
    assert codes(found(f'extensions: {{stall_detector: {{when: {{tool: "{pattern}"}}}}}}\n')) == []


# ---- days


def exception(expires: str) -> str:
    entry = f'rule: step_limit, expires: "{expires}", owner: me, reason: why'
    return f"extensions: {{step_limit: {{}}}}\nexceptions:\n  - {{{entry}}}\n"


@pytest.mark.parametrize(
    ("expires", "code", "when"),
    [
        ("2030-05-31", "R512", "has expired"),
        ("2030-06-01", "L611", "ends today"),
        ("2030-06-02", "L611", "ends tomorrow"),
        ("2030-06-15", "L611", "ends in 14 days"),
    ],
)
def test_an_exception_that_is_over_or_ends_soon_is_found(found, expires, code, when):
    (problem,) = found(exception(expires))
    assert problem.code == code
    assert when in problem.message


def test_an_exception_that_ends_later_is_left_alone(found):
    assert codes(found(exception("2030-06-16"))) == []


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("2030-01-15", ["L621"]),
        ("v7 (2030-03-02)", ["L621"]),
        ("2030-03-03", []),  # 90 days
        ("2031-01-01", []),
        ("2030-01-15 to 2030-02-15", []),  # which of the two is meant?
        ("12030-01-155", []),
        ("2030-13-45", []),
        ("7", []),
    ],
)
def test_the_age_of_a_trial_is_that_of_the_revision_and_nothing_else(found, revision, expected):
    rules = "extensions: {step_limit: {}, wall_clock: {mode: shadow, with: {stop: 10m}}}\n"
    assert codes(found(f'revision: "{revision}"\n{rules}')) == expected
    assert codes(found(rules)) == []


def test_the_revision_that_counts_is_that_of_the_file_that_set_the_mode(found):
    text = 'revision: "2029-01-01"\nextensions: {step_limit: {}, wall_clock: {with: {stop: 10m}}}\n'
    shadow = "extensions: {wall_clock: {mode: shadow}}\n"
    assert codes(found(text, shadow)) == []
    assert codes(found(text, f'revision: "2029-01-01"\n{shadow}')) == ["L621"]
    assert codes(found(text, f'revision: "2030-05-01"\n{shadow}')) == []


def test_rules_that_are_in_shadow_by_default_are_told_once(found):
    text = 'revision: "2030-01-01"\ndefaults: {mode: warn}\nextensions: {step_limit: {}, repeat_message: {}}\n'
    assert [(one.code, one.path) for one in found(text)] == [("L621", "defaults.mode")]


@pytest.mark.parametrize(("percent", "expected"), [(10, ["L622"]), (100, [])])
def test_a_rollout_that_stands_still_is_found(found, percent, expected):
    text = f'revision: "2030-01-01"\nextensions: {{step_limit: {{rollout: {{percent: {percent}}}}}}}\n'
    assert codes(found(text)) == expected


# ---- limits and settings


@pytest.mark.parametrize(
    "rules",
    [
        "step_limit: {with: {max_steps: 6}}, stop_unusable_response_loop: {with: {%s: 6}}",
        "step_limit: {mode: warn, with: {max_steps: 6}}, stop_unusable_response_loop: {with: {%s: 8}}",
        "step_limit: {when: {agent: a}, with: {max_steps: 6}}, stop_unusable_response_loop: {with: {%s: 8}}",
        "step_limit: {with: {max_steps: 6}}, stop_unusable_response_loop: {with: {%s: 8, scope: conversation}}",
        "step_limit: {with: {max_steps: 6}}, stop_unusable_response_loop: {with: {%s: 8, count: every}}",
        "step_limit: {with: {max_steps: 6}}, tool_call_limit: {with: {calls: 8}}",  # a round may have many calls
    ],
)
def test_a_limit_that_may_be_reached_is_left_alone(found, rules):
    assert codes(found(f"extensions: {{{rules.replace('%s', 'max_consecutive_unusable_responses')}}}\n")) == []


def test_a_small_limit_on_a_shipped_policy_is_no_mistake(found):
    assert codes(found("extends: [unattended]\nextensions: {step_limit: {with: {max_steps: 3}}}\n")) == []
    rules = "extensions: {step_limit: {with: {max_steps: 3}}, stop_unusable_response_loop: {}}\n"
    assert codes(found(rules)) == []


def test_rules_with_variables_are_not_compared(found):
    text = "extensions:\n  one: {use: step_limit, with: {max_steps: {$env: N}}}\n  two: {use: step_limit%s}\n"
    assert codes(found(text % "", env={"N": "40"})) == []
    assert codes(found(text % ", mode: shadow", env={"N": "40"})) == []


def test_a_plan_with_more_steps_than_rounds_is_found_where_somebody_wrote_it(found):
    rules = "extensions: {step_limit: {with: {max_steps: 10}}}\n"
    assert codes(found(f"plan: {{mode: steps, max_steps: 20}}\n{rules}")) == ["L631"]
    assert codes(found(f"plan: {{mode: steps}}\n{rules}")) == []


def test_what_a_variable_says_is_neither_judged_nor_shown(found):
    text = (
        "tools: {build: {timeout: {$env: LONG}}}\n"
        "parsing: {repair_calls: {$env: REPAIRS}}\n"
        "extensions: {wall_clock: {mode: {$env: MODE}, with: {stop: 10m}},\n"
        "  step_limit: {with: {max_steps: {$env: N}}},\n"
        "  stop_unusable_response_loop: {with: {max_consecutive_unusable_responses: 9}}}\n"
    )
    assert codes(found(text, env={"LONG": "20h", "REPAIRS": "3", "MODE": "disabled", "N": "3"})) == []


def test_what_one_model_needs_may_stand_in_general(found):
    model = 'models: {"x-*": {parsing: {mode: repair, arguments: check}}}\nextensions: {step_limit: {}}\n'
    assert codes(found(f"parsing: {{text_fallback: true, repair_calls: 1}}\n{model}")) == []
    own = 'models: {"x-*": {parsing: {text_fallback: true, repair_calls: 1}}}\nextensions: {step_limit: {}}\n'
    assert sorted(codes(found(own))) == ["L643", "L644"]
    assert codes(found(f"parsing: {{mode: lenient, arguments: check}}\n{own}")) == []


def test_a_text_protocol_has_no_fallback(found):
    text = "protocol: text\nparsing: {mode: repair, text_fallback: true}\nextensions: {step_limit: {}}\n"
    assert codes(found(text)) == ["L644"]


def test_a_plan_that_is_switched_off_keeps_its_settings(found):
    assert codes(found('plan: {mode: "off", max_steps: 10}\nextensions: {step_limit: {}}\n')) == []
    assert codes(found("plan: {max_steps: 10}\nextensions: {step_limit: {}}\n", "plan: {mode: steps}\n")) == []


# ---- secrets

SECRETS = {
    "openai": "sk-" + "proj-" + "a1B2" * 6,
    "github": "ghp_" + "a1B2" * 9,
    "aws": "AKIA" + "A1B2" * 4,
    "slack": "xoxb-" + "123456789012-abcdef",
    "google": "AIza" + "a1B2c" * 7,
    "jwt": "eyJ" + "hbGciOiJI" + "." + "eyJ" + "zdWIiOiIx" + "." + "SflKxwRJSMe",
    "key": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "stripe": "sk_" + "live_" + "a1B2" * 6,
    "stripe restricted": "rk_" + "live_" + "a1B2" * 6,
    "npm": "npm_" + "a1B2" * 9,
    "hugging face": "hf_" + "a1B2" * 9,
    "sendgrid": "SG." + "a1B2" * 5 + "." + "c3D4" * 10,
    "pypi": "pypi-" + "AgEIcHlwaS5vcmc" + "a1B2" * 10,
    "slack app": "xapp-" + "1-A0123456789-abcdef",
    "docker": "dckr_" + "pat_" + "a1B2" * 7,
    "google access": "ya29" + ".a0" + "a1B2" * 8,
    "azure": "AccountKey" + "=" + "a1B2" * 20 + "==",
    "url": "postgres://service:" + "tr0ub4dor" + "@db.example/main",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "text",
    [
        'revision: "%s"\nextensions: {step_limit: {}}\n',
        'tools: {look: {failure: {text_prefix: ["Authorization: %s"]}}}\nextensions: {step_limit: {}}\n',
        'extensions: {step_limit: {rollout: {percent: 50, salt: {$env: SALT, default: "%s"}}}}\n',
    ],
)
def test_a_well_known_secret_is_found_anywhere_and_never_shown(found, text, secret):
    problems = found(text % secret)
    assert codes(problems) == ["L651"]
    for form in ("short", "full", "json", "github"):
        assert secret not in render(problems, form)
    assert "$env" in problems[0].help


def test_other_findings_on_the_line_of_a_secret_do_not_show_it_either(found):
    secret = SECRETS["aws"]
    problems = found(f'extensions: {{step_limit: {{on_error: allow, rollout: {{percent: 9, salt: "{secret}"}}}}}}\n')
    assert sorted(codes(problems)) == ["L605", "L651"]
    assert secret not in render(problems, "full")


@pytest.mark.parametrize("name", sorted(set(SECRETS) - {"azure", "url", "key", "jwt", "sendgrid", "google access"}))
def test_a_secret_that_is_the_name_of_something_is_found_and_never_shown(found, name):
    secret = SECRETS[name]
    texts = (
        f"extensions:\n  {secret}:\n    use: step_limit\n    mode: disabled\n",
        f"extensions:\n  {secret}: {{use: step_limit}}\n  other: {{use: step_limit}}\n",
        f'tools:\n  "{secret}*": {{effect: read}}\nextensions: {{step_limit: {{}}}}\n',
    )
    for text, expected in zip(texts, ({"L601", "L651"}, {"L602", "L651"}, {"L651"}), strict=True):
        problems = found(text)
        assert set(codes(problems)) == expected
        for form in ("short", "full", "json", "github"):
            assert secret not in render(problems, form)


@pytest.mark.parametrize(
    "text",
    ["https://user:password@host.example", "https://user:${PASSWORD}@host.example", "https://host.example:8080/a@b"],
)
def test_an_address_without_a_password_is_no_secret(found, text):
    assert codes(found(f'revision: "{text}"\nextensions: {{step_limit: {{}}}}\n')) == []


def test_a_secret_that_a_layer_above_replaces_is_still_in_its_file(found):
    text = f'tools: {{look: {{failure: {{text_prefix: "{SECRETS["aws"]}"}}}}}}\nextensions: {{step_limit: {{}}}}\n'
    assert codes(found(text, "tools: {look: {failure: {text_prefix: error}}}\n")) == ["L651"]


@pytest.mark.parametrize(
    "text",
    [
        "task-force-for-the-2030-summer-season",
        "ask-before-you-spend-100-dollars",
        "AKIA",
        "sk-something-with-words-only",
    ],
)
def test_words_are_no_secrets(found, text):
    assert codes(found(f'revision: "{text}"\nextensions: {{step_limit: {{}}}}\n')) == []


VAULT = '''"""A guard that asks a service."""
from policyengine import Extension, hookimpl


class Vault(Extension):
    """Ask a service."""

    name = "local.vault"
    options = {name: {"type": "string"} for name in ("api_key", "db_password", "auth-token", "tokenizer", "note")}

    @hookimpl
    def after_iteration(self, run, iteration):
        """Do nothing here."""
'''


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("api_key", "r4nD0m-8fk2Lq9Zx7", ["L652"]),
        ("db_password", "r4nD0m-8fk2Lq9Zx7", ["L652"]),
        ("auth-token", "r4nD0m-8fk2Lq9Zx7", ["L652"]),
        ("tokenizer", "r4nD0m-8fk2Lq9Zx7", []),
        ("note", "r4nD0m-8fk2Lq9Zx7", []),
        ("api_key", "filled-in-by-deployment", []),
        ("api_key", "xxxxxxxx1111", []),
        ("api_key", "see page 12 of the manual", []),
    ],
)
def test_a_key_with_the_name_of_a_secret_must_hold_what_looks_random(tmp_path, monkeypatch, key, value, expected):
    monkeypatch.chdir(tmp_path)
    Path("guards").mkdir()
    Path("guards/vault.py").write_text(VAULT)
    rule = f'local.vault: {{with: {{{key}: "{value}"}}}}'
    Path("p.yaml").write_text(f"apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {{{rule}}}\n")
    registry = discover(folders=[Path("guards")])
    problems = lint(load_policy("p.yaml", registry=registry), "p.yaml", registry=registry)
    assert codes(problems) == expected
    assert value not in render(problems, "full")


# ---- layers


def test_a_diamond_of_two_files_is_no_chain_that_is_too_deep(found):
    shared, rules = "extends: [./base.yaml]\n", "extensions: {repeat_message: {}}\n"
    files = {"base": rules, "one": f"{shared}defaults: {{timeout: 1s}}\n", "two": f"{shared}reload: {{pin: run}}\n"}
    assert codes(found("extends: [./one.yaml, ./two.yaml]\nlanguage: zh\n", **files)) == []
    assert codes(found("extends: [./base.yaml, ./one.yaml]\nlanguage: zh\n", **files)) == ["L661"]


def test_the_policy_itself_may_only_extend(found):
    assert codes(found("extends: [default]\n")) == []


def test_a_policy_may_hold_on_to_a_value_of_what_it_extends(found):
    assert codes(found("extends: [default]\nextensions: {step_limit: {with: {max_steps: 250}}}\n")) == []


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ("interventions: {max: 10, then: hand_over}\n", ["L664"]),
        ("interventions: {max: 10, then: stop}\n", []),
        ("extensions: {step_limit: {with: {max_steps: 250}}}\n", ["L664"]),
        ("extensions: {step_limit: {locked: true, with: {max_steps: 250}}}\n", []),
        ("requires: {policyengine: '>=0.1'}\n", []),
    ],
)
def test_an_entry_of_an_overlay_that_changes_nothing_is_found(found, overlay, expected):
    assert codes(found("extends: [default]\nrequires: {policyengine: '>=0.1'}\n", overlay)) == expected


def test_the_same_overlay_twice_is_told_once(found):
    overlay = "extensions: {step_limit: {with: {max_steps: 9}}}\n"
    (problem,) = found("extensions: {step_limit: {}}\n", overlay, overlay)
    assert (problem.code, problem.position.file) == ("L663", "overlay-1.yaml")
    assert problem.message == "the overlay overlay-1.yaml says the same as overlay-0.yaml"
