"""`policyengine eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyengine.cli.eval import PAYLOADS
from policyengine.hooks import HOOKS

CALL = '{"call": {"name": "look", "args": {"place": "drawer"}}}'
EVAL = ("eval", "--policy", "demo.yaml", "--folder", "guards", "--hook", "before_tool_call")

EVENTS = {
    "run_start": {"task": "t"},
    "step_start": {"step": 2},
    "step_end": {},
    "before_model_call": {},
    "after_model_response": {"response": {"text": "x", "tool_calls": [{"name": "look"}]}},
    "after_parse": {"verdict": {"kind": "prose", "text": "x"}},
    "after_provider_error": {"error": {"code": "overloaded"}},
    "hist_add_warning.start": {"warning": {"kind": "misformat"}},
    "hist_add_warning.end": {"warning": {"kind": "empty", "data": {}}},
    "before_tool_call": {"call": {"name": "look", "arguments": '{"a": 1}'}},
    "after_tool_call": {"call": {"name": "look"}, "result": {"text": "x", "status": "error"}},
    "after_iteration": {"iteration": {"calls": 2}},
}


def test_every_hook_that_decides_can_be_asked():
    assert set(PAYLOADS) == {name for name, point in HOOKS.items() if point.decides} == set(EVENTS)


@pytest.mark.parametrize("hook", EVENTS)
def test_an_event_of_every_kind_gets_a_decision(run, hook):
    result = run("eval", "--hook", hook, "--payload", json.dumps(EVENTS[hook]), "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["hook"] == hook
    assert [item["decision"] for item in answer["evaluations"]] == ["allow"]


def test_every_rule_that_was_asked_shows_its_vote(run):
    result = run(*EVAL, "--payload", CALL)
    assert result.exit_code == 0
    assert result.stdout.startswith("allow\n")
    assert "counting  demo.yaml:7  enforce  allow   allow" in result.stdout


def test_repeating_the_event_shows_the_ladder(run):
    answer = json.loads(run(*EVAL, "--payload", CALL, "--repeat", "3", "--json").stdout)
    assert [item["decision"] for item in answer["evaluations"]] == ["allow", "allow", "deny"]
    hinted, denied = answer["evaluations"][1:]
    assert [note["text"] for note in hinted["notes"]] == ["counting.hint for look"]
    why = {name: denied[name] for name in ("decided_by", "at", "observed", "limit")}
    assert why == {"decided_by": "counting", "at": "demo.yaml:7", "observed": 3, "limit": 3}
    assert denied["rules"][0]["raw"] == denied["rules"][0]["effective"] == "deny"


def test_the_ladder_of_a_rule_that_compares_results_needs_equal_results(run):
    text = '{"call": {"name": "t", "args": {}}, "result": {"text": "same"}}'
    answer = json.loads(run("eval", "--hook", "before_tool_call", "--payload", text, "--repeat", "9", "--json").stdout)
    decisions = [item["decision"] for item in answer["evaluations"]]
    assert decisions[0] == "allow"
    assert decisions[-1] == "stop"


def test_the_number_of_the_round_can_be_chosen(run):
    rules = "extensions: {step_limit: {with: {max_steps: 5}}}\n"
    Path("short.yaml").write_text("apiVersion: policyengine/v1\nkind: Policy\nname: short\n" + rules)
    ask = ("eval", "--policy", "short.yaml", "--hook", "before_model_call", "--payload", "{}", "--json")
    for number, decision in (("5", "allow"), ("6", "stop")):
        assert json.loads(run(*ask, "--iteration", number).stdout)["evaluations"][0]["decision"] == decision


def test_shadow_shows_what_would_have_been_done(run):
    policy = Path("demo.yaml").read_text()
    Path("demo.yaml").write_text(policy.replace("{hint: 2, deny: 3}", "{deny: 1}\n    mode: shadow"))
    answer = json.loads(run(*EVAL, "--payload", CALL, "--json").stdout)["evaluations"][0]
    (vote,) = answer["rules"]
    assert (answer["decision"], vote["raw"], vote["effective"]) == ("allow", "deny", "allow")
    assert "would deny" in run(*EVAL, "--payload", CALL).stdout


def test_the_agent_decides_which_selectors_apply(run):
    policy = Path("demo.yaml").read_text()
    Path("demo.yaml").write_text(policy.replace("{hint: 2, deny: 3}", "{deny: 1}\n    when: {agent: crawler}"))
    for agent, decision in (("crawler", "deny"), ("planner", "allow")):
        answer = json.loads(run(*EVAL, "--payload", CALL, "--agent", agent, "--json").stdout)
        assert answer["evaluations"][0]["decision"] == decision


def test_the_payload_may_come_from_a_file_or_from_stdin(run):
    Path("call.json").write_text(CALL)
    direct = run(*EVAL, "--payload", CALL, "--repeat", "3").stdout
    assert run(*EVAL, "--payload", "@call.json", "--repeat", "3").stdout == direct
    assert run(*EVAL, "--payload", "-", "--repeat", "3", input=CALL).stdout == direct


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"call": }', 'payload:1:10: not JSON: Expecting value\n    1 | {"call": }\n      |          ^'),
        ("[]", "the payload is a JSON object with: call, batch, result"),
        ("{}", "call is missing"),
        ('{"cal": {}}', 'cal: unknown; did you mean "call"?'),
        ('{"call": {"nmae": "x"}}', 'call.nmae: unknown; did you mean "name"?'),
        ('{"call": {"name": 5}}', "Expected `str`, got `int` - at `call.name`"),
        ('{"call": {}}', "missing required field `name` - at `call`"),
        ('{"call": 5}', "Expected `object`, got `int` - at `call`"),
        ("@nowhere.json", "cannot read the payload nowhere.json"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_payload_at_fault_is_explained(run, text, said):
    result = run(*EVAL, "--payload", text)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("hook", "said"), [("before_tol_call", 'did you mean "before_tool_call"?'), ("run_end", "run_end is an observer")]
)
def test_a_hook_at_which_nothing_is_decided_is_refused(run, hook, said):
    result = run("eval", "--hook", hook, "--payload", "{}")
    assert result.exit_code == 1
    assert said in result.stderr
