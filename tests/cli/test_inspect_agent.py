"""`policyengine inspect agent`, and the rules it judges by."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.cli.loading import load
from policyengine.inspection import (
    inspect_parts,
    instruction_words,
    name_findings,
    policy_findings,
    prompt_findings,
    schema_findings,
    selector_findings,
)
from policyengine.messages import ToolSpec

AGENTS = '''\
"""Agents of the test; whatever is called here says so on stdout."""
from policyengine import Agent, Engine, Tool, ToolSpec

PROMPT = (
    "You look up opening hours for visitors of the town. Call lookup with the name of one place. "
    "Never guess hours. When lookup knows nothing, say so and stop."
)
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "minLength": 1, "description": "Name of the place."}},
    "required": ["place"],
    "additionalProperties": False,
}


class Model:
    name = "mine"

    def complete(self, request):
        print("the model was called")
        raise AssertionError


def look(place: str) -> str:
    print("the tool was called")
    raise AssertionError


def made(*tools, system=PROMPT, policy="sound.yaml"):
    return Agent(Engine(policy), Model(), tools, system=system)


def sound():
    print("making it")
    return made(Tool(ToolSpec("lookup", "Look up the opening hours of a place.", SCHEMA), look))


SOUND = sound()
BARE = made(look, system="", policy="empty.yaml")
REFUSED = made(Tool(ToolSpec("look up", "Look something up.", SCHEMA), look))


async def later():
    return SOUND


def needs(thing):
    return SOUND


def raises():
    raise RuntimeError("no database")


def other():
    return 3
'''

SOUND = """\
apiVersion: policyengine/v1
kind: Policy
name: sound
extends: [default]
tools: {lookup: {effect: read, timeout: 10s}}
extensions: {wall_clock: {with: {stop: 10m}}}
"""
EMPTY = "apiVersion: policyengine/v1\nkind: Policy\nname: empty\nextensions: {repeat_message: {}}\n"


@pytest.fixture
def agents(run, monkeypatch):
    """Run `inspect agent` on something in the module `agents`."""
    Path("agents.py").write_text(AGENTS)
    Path("sound.yaml").write_text(SOUND)
    Path("empty.yaml").write_text(EMPTY)
    monkeypatch.delitem(sys.modules, "agents", raising=False)

    def invoke(name: str, *args: str):
        return run("inspect", "agent", f"agents:{name}", *args)

    return invoke


def codes(result) -> list[str]:
    return [finding["code"] for finding in json.loads(result.stdout)["findings"]]


def told(findings) -> list[str]:
    return [finding.code for finding in findings]


def policy_of(text: str, name: str = "p.yaml"):
    Path(name).write_text("apiVersion: policyengine/v1\nkind: Policy\nname: p\n" + text)
    return load(name).policy


# ---- the verb


@pytest.mark.parametrize("name", ["SOUND", "sound"])
def test_an_agent_that_lacks_nothing_passes_even_strictly(agents, name):
    result = agents(name, "--strict")
    assert (result.exit_code, result.stdout) == (
        0,
        f"agents:{name}: 1 tool, policy sound\n  nothing is missing\n",
    )


def test_nothing_of_the_agent_is_called_and_its_prints_stay_off_stdout(agents):
    result = agents("sound", "--json")
    assert json.loads(result.stdout)["ok"] is True
    assert "making it" in result.stderr
    assert "was called" not in result.output


def test_everything_that_is_missing_is_told_with_what_to_do(agents):
    result = agents("BARE", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["ok"], shown["tools"]) == (0, True, ["look"])
    assert codes(result) == [
        "no_description",
        "no_parameter_description",
        "empty_string",
        "no_effect",
        "no_timeout",
        "arguments_unchecked",
        "no_step_cap",
        "no_budget",
        "no_breaker",
        "no_stall_detector",
        "no_system_prompt",
    ]
    assert all(set(finding) == {"severity", "code", "where", "message", "help"} for finding in shown["findings"])
    assert all(finding["help"] for finding in shown["findings"])


def test_warnings_count_only_with_strict_and_errors_always(agents):
    assert agents("BARE").exit_code == 0
    assert agents("BARE", "--strict").exit_code == 3
    result = agents("REFUSED")
    assert result.exit_code == 1
    assert "error[tool_name] tool 'look up': providers refuse this name" in result.stdout


def test_another_policy_can_be_tried(agents):
    shown = json.loads(agents("SOUND", "--policy", "empty.yaml", "--json").stdout)
    assert shown["policy"]["name"] == "empty"
    assert {"no_effect", "no_step_cap"} <= {finding["code"] for finding in shown["findings"]}
    assert agents("SOUND", "--policy", "nowhere").exit_code == 1
    assert "need a --policy" in agents("SOUND", "--overlay", "x.yaml").stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other", "agents:other is no Agent and no function that returns one, but int"),
        ("PROMPT", "is no Agent and no function that returns one, but str"),
        ("needs", "cannot be called without arguments: missing a required argument: 'thing'"),
        ("later", "is asynchronous"),
        ("raises", "agents:raises failed: RuntimeError: no database"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_no_agent_is_told(agents, name, reason):
    result = agents(name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert reason in result.stderr


def test_a_reference_without_a_colon_is_told(run):
    assert "an agent is given as module:object, not 'agents'" in run("inspect", "agent", "agents").stderr


# ---- names


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("look_up", "find-2"), []),
        (("look up",), ["tool_name"]),
        (("",), ["tool_name"]),
        (("größe",), ["tool_name"]),
        (("a.b",), ["tool_name"]),
        (("x" * 64,), []),
        (("x" * 65,), ["tool_name"]),
        (("2nd",), ["tool_name_start"]),
        (("look", "look"), ["duplicate_tool"]),
        (("look_up", "lookUp"), ["similar_names"]),
        (("response",), []),
    ],
)
def test_names_that_providers_refuse_or_nobody_can_tell_apart(names, found):
    assert told(name_findings([ToolSpec(name) for name in names])) == found


def test_the_name_of_the_answer_is_reserved_in_the_text_protocol():
    assert told(name_findings([ToolSpec("response")], text_protocol=True)) == ["reserved_name"]


# ---- schemas


def parameter(schema, *, required=True):
    """Return the codes found for one parameter with this schema."""
    whole = {"type": "object", "properties": {"x": schema}, "additionalProperties": False}
    return told(schema_findings(ToolSpec("t", "Does it.", {**whole, "required": ["x"] if required else []})))


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, []),
        ({"type": "integer"}, ["no_range"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["no_range"]),
        ({"type": ["integer", "null"], "minimum": 0}, ["no_range"]),
        ({"type": "integer", "enum": [1, 2]}, []),
        ({"type": "string"}, ["empty_string"]),
        ({"type": "string", "minLength": 1}, []),
        ({"type": "string", "minLength": 0}, ["empty_string"]),
        ({"type": "string", "pattern": "^a"}, []),
        ({"type": "string", "format": "date"}, []),
        ({"type": "string", "enum": ["a"]}, []),
        ({"type": "array", "items": {"type": "boolean"}}, ["no_bounds"]),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 5}, []),
        ({"type": "array", "maxItems": 5}, ["no_items"]),
        ({"type": "array", "maxItems": 5, "items": {"type": "integer"}}, ["no_range"]),
        ({}, ["no_type"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["no_range"]),
        ({"type": "object"}, ["open_object"]),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, []),
        ({"type": "boolean"}, []),
    ],
)
def test_what_a_parameter_leaves_open(schema, found):
    assert parameter({"description": "Some x.", **schema}) == found


def test_a_text_that_may_be_left_out_may_be_empty():
    assert parameter({"type": "string", "description": "x"}, required=False) == []


def test_a_parameter_of_a_parameter_is_named_by_its_path():
    inner = {"type": "object", "properties": {"n": {"type": "integer", "description": "n"}}}
    items = {"type": "array", "maxItems": 3, "description": "rows", "items": inner}
    schema = {"type": "object", "properties": {"rows": items}, "additionalProperties": False}
    found = list(schema_findings(ToolSpec("t", "Does it.", schema)))
    assert [(finding.code, finding.where) for finding in found] == [
        ("open_object", "tool 't', parameter rows[]"),
        ("no_range", "tool 't', parameter rows[].n"),
    ]


@pytest.mark.parametrize(
    ("schema", "code", "severity"),
    [
        ({}, "no_schema", "warning"),
        ({"type": "array"}, "not_object", "error"),
        ({"properties": {}}, "not_object", "error"),
        ({"type": "objekt"}, "invalid_schema", "error"),
        (
            {"type": "object", "properties": {"ab": {}}, "required": ["abc"], "additionalProperties": False},
            "unknown_required",
            "error",
        ),
    ],
)
def test_a_schema_that_cannot_work_is_an_error(schema, code, severity):
    found = {f.code: f.severity for f in schema_findings(ToolSpec("t", "Does it.", schema))}
    assert found[code] == severity


# ---- the policy


def test_an_effect_that_is_written_counts_even_if_it_is_exec(run):
    policy = policy_of('tools: {"run_*": {effect: exec}, "sh*": {timeout: 3s}}\nextensions: {step_limit: {}}\n')
    found = [(f.code, f.where) for f in policy_findings([ToolSpec("run_x"), ToolSpec("shell")], policy)]
    assert ("no_effect", "tool 'run_x'") not in found
    assert ("no_effect", "tool 'shell'") in found
    assert ("no_timeout", "tool 'run_x'") in found
    assert ("no_timeout", "tool 'shell'") not in found


def test_a_guard_that_is_not_enforced_is_no_guard(run):
    policy = policy_of("extensions: {step_limit: {mode: shadow}, stall_detector: {}}\n")
    found = {f.code: f for f in policy_findings([], policy)}
    assert "rule 'step_limit' is in mode shadow" in found["no_step_cap"].message
    assert "no_stall_detector" not in found


def test_selectors_that_select_no_tool_are_found_with_what_may_have_been_meant(run):
    policy = policy_of(
        "tools: {lookupp: {effect: read}}\n"
        "extensions:\n"
        "  step_limit: {with: {max_steps: 5}}\n"
        '  stall_detector: {when: {tool: ["!sleep", "look*"]}, with: {tools: {fetch: {repeat: {}}}}}\n'
    )
    found = [(f.where, f.help) for f in selector_findings([ToolSpec("lookup")], policy)]
    assert found == [
        ("policy, tools.lookupp", "did you mean 'lookup'?"),
        ("policy, extensions.stall_detector.when.tool", "the agent has: lookup"),
        ("policy, extensions.stall_detector.with.tools", "the agent has: lookup"),
    ]


# ---- the system prompt


@pytest.mark.parametrize(
    ("system", "found"),
    [
        ("", ["no_system_prompt"]),
        (" \n", ["no_system_prompt"]),
        ("You are a helpful assistant.", ["vague_prompt"]),
        ("You are an expert. Act as a friend! Be concise.", ["vague_prompt"]),
        ("Call lookup for one place at a time. Never guess. Stop when lookup knows nothing.", []),
        (
            "You are the agent that answers questions on opening hours with lookup and never guesses what it has not.",
            [],
        ),
        ("你是一个助手。", ["vague_prompt"]),
        ("每次只查询一个地点的开放时间，不要猜测任何信息，如果查不到就直接说明并停止。", []),
        (
            "Call lookup for one place of {town} at a time. Never guess. Stop when lookup knows nothing.",
            ["placeholder"],
        ),
        ('Reply with JSON like {"place": 1}. TODO: say when to stop, what to do, and what not to do.', ["placeholder"]),
    ],
)
def test_a_prompt_is_judged_by_a_rule_that_can_be_checked_by_hand(system, found):
    assert told(prompt_findings(system)) == found


def test_words_about_the_role_do_not_count():
    assert instruction_words("You are a pirate. Say ahoy.") == 2
    assert instruction_words("# Role\nYou are a pirate.") == 1


def test_an_agent_without_tools_is_judged_too(run):
    policy = policy_of("extends: [default]\n")
    assert told(inspect_parts([], policy, "")) == ["no_budget", "no_system_prompt"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "array", "string", "integer", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "items", "anyOf", "$defs", "enum", "x", "description"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "items", "anyOf", "$defs"]), JSON))
def test_no_schema_breaks_the_inspection(schema):
    assert all(finding.help for finding in schema_findings(ToolSpec("t", "Does it.", schema)))
