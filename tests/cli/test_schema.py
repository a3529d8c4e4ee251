"""`policyengine schema`: what is sound fits the JSON Schema of policy files, and mistakes in one file do not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from policyengine.extension import Extension
from policyengine.mistakes import FAMILIES, mistakes_of
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.about import ABOUT
from policyengine.policy.files import shipped_policies
from policyengine.policy.json5text import read_json5
from policyengine.policy.jsonschema import DURATION, file_schema, options_schema
from policyengine.policy.schema import OVERLAY, POLICY
from policyengine.policy.yamltext import read_yaml
from policyengine.policytest.about import ABOUT_TESTS
from policyengine.policytest.jsonschema import suite_schema
from policyengine.policytest.shape import FILE
from policyengine.scaffold import scaffold

ROOT = Path(__file__).parents[2]
SCHEMA = file_schema(builtin_registry().all(), shipped_policies(), {"PolicyTest": suite_schema()})
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: example\n"
ON_TOP = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: example\n"

BEYOND = {
    "S208": "whether a regular expression can be compiled",
    "S210": "which kind of file is needed where: an overlay is a sound file",
}
"""The codes S2xx whose example a JSON Schema cannot refuse, and what it cannot know."""


def faults(text: str) -> list[str]:
    """Return what the JSON Schema has against a file."""
    return found(read_yaml(text.encode(), "p.yaml").root.data)


def found(data: Any) -> list[str]:
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def documents() -> list[tuple[str, str, str]]:
    """Return every sound policy or overlay of the documentation and of the examples, with its place and language."""
    held = []
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in (page for page in pages if page.name != "errors.md"):
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"((?:^<!-- .* -->\n)*)^```(yaml|json5)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            marks, language, body = match.groups()
            if "expect:" in marks or "no-test" in marks or re.search(r"^turns:", body, re.MULTILINE):
                continue
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            held.append((place, language, body if "apiVersion" in body else HEAD + body))
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        body = path.read_text(encoding="utf-8")
        if re.search(r"^kind: (Policy|Overlay|PolicyTest)$", body, re.MULTILINE):
            held.append((str(path.relative_to(ROOT)), "yaml", body))
    return held


DOCUMENTS = documents()


# ---- sound files fit


def test_the_schema_is_a_schema():
    jsonschema_rs.meta.validate(SCHEMA)


@pytest.mark.parametrize("name", shipped_policies())
def test_every_shipped_policy_fits(name):
    assert faults(shipped_policies()[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("place", "language", "text"), DOCUMENTS, ids=[place for place, _, _ in DOCUMENTS])
def test_every_policy_of_the_documentation_fits(place, language, text):
    read = read_json5(text.encode(), "p.json5") if language == "json5" else read_yaml(text.encode(), "p.yaml")
    assert found(read.root.data) == []


def test_there_are_documents_to_try():
    assert len(DOCUMENTS) > 20


def test_every_corrected_example_fits():
    for letter in FAMILIES:
        for code, example in mistakes_of(letter).items():
            for file in (file for file in example.fixed if file.name.endswith(".yaml")):
                for name, text in file.written():
                    assert faults(text) == [], (code, name)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "extends: default\nextensions: {cost_budget: {mode: warn}}",
        HEAD + "extends: [default, ./base.yaml]",
        HEAD + "tools: {a: {timeout: {$env: WAIT, default: 10s}}}",
        HEAD + "extensions: {x: {use: acme.spend, with: {anything: [1]}}}",
        ON_TOP + "extensions: {cost_budget: {with: {scope: run}}, step_limit: {$delete: true}}",
        ON_TOP + "extensions: {stall_detector: {when: {tool: {$append: [a], $remove: [b]}}}}",
        ON_TOP + "extensions: {stall_detector: {with: {repeat: {stop: {$delete: true}}, cycle: {$delete: true}}}}",
        ON_TOP + "tools: {$delete: true}\nmodels: {'gpt-*': {$delete: true}}",
        ON_TOP + "extensions: {house_rule: {mode: shadow}}",
        ON_TOP + "extensions: {house_rule: {rollout: {by: agent}}, tool_call_limit: {with: {tools: {}}}}",
        HEAD + "extends: default\nextensions: {step_limit: {rollout: {salt: a}}}",
        HEAD
        + "requires: {policyengine: '>=0.1,<1', extensions: {a: '*', b: '==1.*', c: '~=1.0rc1', d: ' > 1.post1 '}}",
        HEAD + "extensions: {step_limit: {when: {agent: ['!a', '*']}, rollout: {percent: {$env: A, default: 5}}}}",
        HEAD + "tools: {a: {failure: {text_prefix: {$env: A, default: 'error '}}}}",
        HEAD + "exceptions: [{rule: a, expires: '2096-02-29', reason: b, owner: c}]",
    ],
)
def test_what_layers_may_say_fits(text):
    assert faults(text) == []


TESTS = "apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: default\ntests:\n  - name: a\n"
TESTS += "    turns: [{calls: [{tool: look, args: [1, {a: null}]}]}]\n    expect: [%s]\n"


def test_the_tests_and_policies_of_a_new_package_fit(tmp_path):
    files = [path for path in scaffold("acme-guards", tmp_path) if path.suffix == ".yaml"]
    assert sum(path.name.endswith(".test.yaml") for path in files) == 1
    assert [fault for path in files for fault in faults(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "expect",
    [
        "{at: 3, rule: r, action: deny}",
        "{call: [3, 4], rule: r, wants: hint, code: c, tool: t}",
        "{allow: r}",
        "{allow: r, until: 3, tool: t}",
        "{error: r, at: [1]}",
        "{outcome: stopped, rule: r, code: c, executed: 0}",
    ],
)
def test_every_form_of_an_expectation_fits(expect):
    assert faults(TESTS % expect) == []


# ---- mistakes do not


@pytest.mark.parametrize(
    "expect",
    [
        "{at: 1}",
        "{rule: r, action: deny}",
        "{at: 1, call: 1, rule: r, action: deny}",
        "{at: 1, rule: r, action: deny, wants: deny}",
        "{at: 1, rule: r}",
        "{at: 0, rule: r, action: deny}",
        "{at: [], rule: r, action: deny}",
        "{at: 1, rule: r, action: denny}",
        "{allow: r, at: 3}",
        "{outcome: complete}",
        "{error: r, code: c}",
    ],
)
def test_an_expectation_that_says_too_little_or_two_things_does_not_fit(expect):
    assert faults(TESTS % expect)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("policy: default", "polcy: default"),
        ("policy: default\n", ""),
        ("tool: look", "tol: look"),
        ("calls", "times: 0, calls"),
        ("name: a\n", "name: a\n    pace: 3\n"),
        ("name: a\n", "name: a\n    today: yesterday\n"),
        ("name: a\n", "name: a\n    faults: {r: rais}\n"),
        ("name: a\n", "name: a\n    tools: {look: {efect: read}}\n"),
        ("kind: PolicyTest", "kind: Policytest"),
    ],
)
def test_a_mistake_in_tests_does_not_fit(right, wrong):
    sound = TESTS % "{allow: r}"
    assert faults(sound.replace(right, wrong)) != faults(sound) == []


@pytest.mark.parametrize("code", mistakes_of("S"))
def test_an_example_of_a_wrong_setting_does_not_fit_unless_a_json_schema_cannot_know(code):
    texts = [text for file in mistakes_of("S")[code].files for _, text in file.written()]
    assert any(map(faults, texts)) is (code not in BEYOND)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (HEAD + "extensions: {step_limit: {with: {max_step: 3}}}", "extensions.step_limit.with"),
        (HEAD + "extensions: {early: {use: step_limit, with: {max_step: 3}}}", "extensions.early.with"),
        (HEAD + "extensions: {step_limit: {use: wall_clock, with: {max_steps: 3}}}", "extensions.step_limit.with"),
        (HEAD + "extensions: {x: {use: step_limt}}", "extensions.x.use"),
        (HEAD + "extensions: {step_limit: {at: [after_tool_call]}}", "extensions.step_limit.at"),
        (HEAD + "extensions: {step_limit: {max_steps: 3}}", "extensions.step_limit"),
        (HEAD + "extensions: {cost_budget: {}}", "extensions.cost_budget"),
        (HEAD + "extensions: {budget: {use: cost_budget, with: {scope: run}}}", "extensions.budget.with"),
        (HEAD + "extensions: {'a b': {use: step_limit}}", "extensions"),
        (HEAD + "extends: defalt", "extends"),
        (HEAD + "prompts: {$env: X}", "prompts"),
        (HEAD + "parsing: {$env: X}", "parsing"),
        (HEAD + "target: default", ""),
        (ON_TOP + "name: x", ""),
        (ON_TOP + "extensions: {stall_detector: {when: {tool: {$add: [a]}}}}", "extensions.stall_detector.when.tool"),
        (ON_TOP + "extensions: {stall_detector: {$delete: true, mode: warn}}", "extensions.stall_detector"),
        (ON_TOP + "extensions: {stall_detector: {$delete: false}}", "extensions.stall_detector.$delete"),
        (
            ON_TOP + "extensions: {step_limit: {with: {max_steps: {$append: [1]}}}}",
            "extensions.step_limit.with.max_steps",
        ),
        ("apiVersion: policyengine/v1\nkind: Overlay\n", ""),
        ("kind: Policy\nname: x\n", ""),
        (HEAD + "extensions: {tool_call_limit: {with: {tools: {}}}}", "extensions.tool_call_limit.with.tools"),
        (HEAD + "extensions: {x: {use: tool_call_limit, with: {tools: {}}}}", "extensions.x.with.tools"),
        (HEAD + "extensions: {step_limit: {rollout: {}}}", "extensions.step_limit.rollout"),
        (HEAD + "extensions: {step_limit: {rollout: {by: agent}}}", "extensions.step_limit.rollout"),
        (HEAD + "kill_switch: {$env: A, default: maybe}", "kill_switch"),
        (HEAD + "language: {$env: A, default: 5}", "language"),
        (HEAD + "reload: {settle: {$env: A, default: 5}}", "reload.settle"),
        (
            ON_TOP + "extensions: {step_limit: {with: {max_steps: {$env: A, default: many}}}}",
            "extensions.step_limit.with.max_steps",
        ),
        (HEAD + "exceptions: [{rule: a, expires: '2099-02-30', reason: b, owner: c}]", "exceptions"),
        (HEAD + "exceptions: [{rule: a, expires: '2099-04-31', reason: b, owner: c}]", "exceptions"),
        (HEAD + "requires: {policyengine: abc}", "requires.policyengine"),
        (HEAD + "requires: {extensions: {acme: '~'}}", "requires.extensions.acme"),
        (HEAD + "requires: {extensions: {acme: '>=1 <2'}}", "requires.extensions.acme"),
        (HEAD + "extensions: {step_limit: {when: {agent: '!'}}}", "extensions.step_limit.when.agent"),
        (HEAD + "extensions: {step_limit: {when: {agent: [a, '!*']}}}", "extensions.step_limit.when.agent"),
        (HEAD + "tools: {a: {failure: {text_prefix: ' error'}}}", "tools.a.failure.text_prefix"),
    ],
)
def test_a_mistake_is_found_where_it_is(text, where):
    assert any(fault.split(": ")[0] == where for fault in faults(text)), faults(text)


def test_durations_have_a_unit_and_are_above_zero():
    pattern = re.compile(DURATION)
    assert all(map(pattern.search, ("250ms", "1.5s", "0.5m", "10h")))
    assert not any(map(pattern.search, ("10", "10 s", "0s", "0.00ms", "1d", "s", "-1s", "10s ")))


# ---- what editors show


def below(schema: Any) -> Any:
    """Yield the key path of every setting of a Cerberus schema."""
    for name, rule in schema.items():
        yield name
        inner = rule.get("schema") or {}
        values = rule.get("valuesrules") or (inner if "type" in inner else {})
        if rule.get("type") == "dict" and "valuesrules" not in rule:
            yield from (f"{name}.{path}" for path in below(inner))
        elif values.get("type") == "dict":
            yield from (f"{name}.*.{path}" for path in below(values["schema"]))


def keys(shape: Any) -> Any:
    """Yield the key path of every key of a file of tests."""
    for name, rule in shape.items():
        yield name
        fields = rule.get("schema") or {}
        if "valuesrules" in rule or rule.get("type") != "dict":
            inner = rule.get("valuesrules") or fields
            yield from (f"{name}.*.{path}" for path in keys(inner.get("schema") or {}))
        else:
            yield from (f"{name}.{path}" for path in keys(fields))


def test_every_setting_has_a_line_and_every_line_a_setting():
    known = {path.replace("models.*.parsing.", "parsing.") for path in (*below(POLICY), *below(OVERLAY))}
    assert known == set(ABOUT)
    assert set(keys(FILE)) == set(ABOUT_TESTS)


def test_settings_show_their_line_their_default_and_their_choices():
    settings = SCHEMA["$defs"]["settings"]
    mode = settings["parsing"]["properties"]["mode"]
    assert (mode["description"], mode["default"]) == (ABOUT["parsing.mode"], "strict")
    assert "lenient" in mode["anyOf"][0]["enum"]
    steps = SCHEMA["$defs"]["options"]["step_limit"]["properties"]["max_steps"]
    assert steps["description"] == "A whole number, 1 to 100000; lower is stricter."
    assert (steps["default"], steps["anyOf"][0]["maximum"]) == (40, 100_000)
    assert SCHEMA["$defs"]["options"]["step_limit"]["description"].startswith("Let a run take exactly")
    assert settings["defaults"]["properties"]["timeout"]["anyOf"][0]["pattern"] == DURATION


class Told(Extension):
    """Say something."""

    name = "demo.told"
    options = {
        "word": {"type": "string", "regex": r"[a-z]+\Z", "required": True, "meta": {"about": "What is said."}},
        "name": {"type": "string", "regex": r"(?P<first>a)b"},
        "kinds": {"type": ["list"], "schema": {"type": "string", "allowed": ["a", "b"]}, "default": ["a"]},
        "each": {
            "type": "dict",
            "minlength": 1,
            "keysrules": {"type": "string", "maxlength": 9},
            "valuesrules": {"type": ["integer", "string"], "min": 1, "max": 3, "maxlength": 5},
        },
    }


def test_the_options_of_one_extension_are_a_schema_of_their_own():
    schema = options_schema(Told)
    jsonschema_rs.meta.validate(schema)
    validator = jsonschema_rs.validator_for(schema)
    assert (schema["title"], schema["description"], schema["required"]) == (
        "options of demo.told",
        "Say something.",
        ["word"],
    )
    assert schema["properties"]["word"]["description"] == "What is said; a text."
    assert validator.is_valid({"word": "abc", "name": "xyz", "kinds": ["b"], "each": {"k": 3, "l": "x"}})
    for wrong in (
        {},
        {"word": "ABC"},
        {"word": "abc\n"},
        {"word": "a", "kinds": ["c"]},
        {"word": "a", "each": {}},
        {"word": "a", "each": {"k": 4}},
        {"word": "a", "each": {"a long name": 1}},
        {"word": {"$env": "X"}},
    ):
        assert not validator.is_valid(wrong), wrong


# ---- the verb


def test_the_schema_is_printed_as_json(run):
    result = run("schema")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_extensions_of_a_folder_are_in_it(run):
    made = json.loads(run("schema", "--folder", "guards").stdout)
    policy = read_yaml(Path("demo.yaml").read_bytes(), "demo.yaml").root.data
    validator = jsonschema_rs.validator_for(made)
    assert validator.is_valid(policy)
    policy["extensions"]["counting"]["with"]["hint"] = 100
    assert not validator.is_valid(policy)


def test_one_extension_and_a_file(run):
    result = run("schema", "--folder", "guards", "--extension", "demo.counting", "--output", "counting.json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    made = json.loads(Path("counting.json").read_text())
    assert made["properties"]["stop"] == {
        "description": "A whole number, 1 to 99.",
        "type": "integer",
        "minimum": 1,
        "maximum": 99,
    }


def test_an_unknown_extension_is_told_what_there_is(run):
    result = run("schema", "--extension", "step_limt")
    assert result.exit_code == 1
    assert 'did you mean "step_limit"?' in result.stderr


def test_a_broken_extension_is_left_out_and_told(run):
    Path("guards/counting.py").write_text("import no_such_module\n")
    result = run("schema", "--folder", "guards")
    assert result.exit_code == 1
    assert "left out: " in result.stderr
    assert "step_limit" in json.loads(result.stdout)["$defs"]["options"]


def test_a_file_that_cannot_be_written_is_told(run):
    result = run("schema", "--output", "no/such/folder.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be written" in result.stderr


def test_packages_that_are_not_named_are_left_alone(run):
    assert run("schema", "--package", "no-such-package").exit_code == 0
