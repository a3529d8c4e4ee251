"""Properties of whole policies of built-in rules over random runs: rules only tighten, order does not matter, state
survives being saved between any two events, a layer over locked rules never weakens what they answer."""

import itertools
import json
from functools import reduce

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policyengine import Batch, Engine, ModelRequest, ModelResponse, ToolCall, ToolResult, Verdict
from policyengine.actions import Hint, WindDown
from policyengine.errors import ConfigError
from policyengine.parsing.verdict import WARNING_KINDS
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.testing import ManualClock

REGISTRY = builtin_registry()
RULES = {
    "stall_detector": "{with: {repeat: {hint: 2, deny: 3, stop: 5}, cycle: {max_period: 3, hint: 2, deny: 3, stop: 4},"
    " interleaved: {hint: 3, deny: 4}, stagnation: {deny: 3, exec: {deny: 3}}, text: {hint: 2, stop: 3}}}",
    "failure_hint_injector": "{with: {levels: {hint: 1, insist: 2, deny: 3}}}",
    "repeat_message": "{}",
    "stop_unusable_response_loop": "{with: {max_consecutive_unusable_responses: 3, window: {bad: 3, of: 5}}}",
    "step_limit": "{with: {max_steps: 9}}",
    "tool_call_limit": "{with: {rounds: 7, calls: 9, tools: {'*_it': 4}}}",
    "token_budget": "{with: {run: 60, step: 40, wind_down_at: 50}}",
    "tool_failures": "{with: {stop: 3, scope: step}}",
    "parse_failures": "{with: {stop: 4}}",
    "watching": "{use: stall_detector, mode: warn, with: {repeat: {hint: 2, stop: 3}}}",
}
TOOLS = "tools: {poll_it: {effect: poll}, write_it: {effect: write}, read_it: {effect: read}}\n"
HEAD = f"apiVersion: policyengine/v1\nkind: Policy\nname: p\n{TOOLS}interventions: {{max: 8, then: stop}}\n"
_engines: dict[tuple[str, ...], Engine] = {}


def engine(names: tuple[str, ...]) -> Engine:
    if names not in _engines:
        body = "".join(f"  {name}: {RULES[name]}\n" for name in names)
        text = f"{HEAD}extensions:\n{body}" if body else f"{HEAD}extensions: {{}}\n"
        _engines[names] = Engine(load_policy_text(text, registry=REGISTRY), registry=REGISTRY, clock=ManualClock())
    return _engines[names]


calls = st.tuples(
    st.sampled_from(["read_it", "write_it", "poll_it", "do_it"]),
    st.integers(0, 1),
    st.sampled_from(["same", "other"]),
    st.sampled_from(["ok", "ok", "ok", "error"]),
)
events = st.one_of(
    st.lists(calls, min_size=1, max_size=3).map(lambda batch: ("batch", tuple(batch))),
    st.sampled_from(["prose", "empty", "truncated"]).map(lambda kind: ("unusable", kind)),
    st.sampled_from(["one", "two"]).map(lambda text: ("text", text)),
    st.just(("user", "go on")),
)
runs = st.lists(events, min_size=1, max_size=12)
subsets = st.lists(st.sampled_from(sorted(RULES)), unique=True, max_size=5).map(tuple)


def drive(run, history, save_at=None):
    """Report a run as a host does; return the control action of every decision, in order."""
    ranks = []

    def note(decision):
        ranks.append(decision.control.rank if decision.control else 0)

    note(run.start("task"))
    for number, (kind, what) in enumerate(history):
        if number == save_at:
            run, _ = run_elsewhere(run)
        if kind == "user":
            note(run.user_message(what))
            continue
        run.begin_iteration()
        note(run.before_model_call(ModelRequest(())))
        note(run.after_model_response(ModelResponse("x")))
        if kind == "unusable":
            text = "" if kind == "empty" else "words"
            note(run.after_parse(Verdict(what, (), text)))
            note(run.add_warning(WARNING_KINDS[what])[1])
            note(run.end_iteration(0, False))
        elif kind == "text":
            note(run.after_parse(Verdict("ok", (), what)))
            note(run.end_iteration(0, True))
        else:
            made = [
                ToolCall(f"{number}-{index}", tool, f'{{"x":{arg}}}', {"x": arg})
                for index, (tool, arg, _, _) in enumerate(what)
            ]
            note(run.after_parse(Verdict("ok", tuple(made))))
            for index, call in enumerate(made):
                note(run.before_tool_call(call, Batch(f"b{number}", index)))
            for call, (_, _, text, status) in zip(made, what, strict=True):
                note(run.after_tool_call(call, ToolResult(call.id, text, status))[1])
            note(run.end_iteration(len(made), True))
        run.take_notes()
    return ranks


def run_elsewhere(run):
    for made in _engines.values():
        if made.snapshot is run.snapshot:
            return made.resume_run(run.save())
    raise AssertionError("no engine has this snapshot")


@settings(max_examples=80, deadline=None)
@given(runs, subsets, st.sampled_from(sorted(RULES)))
def test_adding_any_rule_never_loosens_any_decision_of_a_run(history, names, more):
    fewer = drive(engine(names).start_run(), history)
    if more not in names:
        all_of_them = drive(engine((*names, more)).start_run(), history)
        assert len(fewer) == len(all_of_them)
        assert all(strict >= loose for strict, loose in zip(all_of_them, fewer, strict=True))


@settings(max_examples=25, deadline=None)
@given(runs, subsets.filter(lambda names: len(names) in (2, 3)))
def test_the_order_of_rules_never_changes_a_control_action(history, names):
    outcomes = {tuple(drive(engine(order).start_run(), history)) for order in itertools.permutations(names)}
    assert len(outcomes) == 1


@settings(max_examples=60, deadline=None)
@given(runs, st.integers(0, 11))
def test_state_that_was_saved_and_loaded_decides_the_same(history, at):
    names = tuple(sorted(RULES))
    assert drive(engine(names).start_run(), history, at) == drive(engine(names).start_run(), history)


# ---- locks

LOCKABLE = {name: text.replace("{", "{locked: true, ", 1) for name, text in RULES.items()}
LOCKABLE["watching"] = LOCKABLE["watching"].replace("mode: warn", "mode: enforce")
FACTS = "tools: {poll_it: {effect: poll}, write_it: {effect: write}, read_it: {effect: read, result_mask: [xyz]}}\n"
NUMBERS = {
    "stall_detector": [
        *(("repeat", rung) for rung in ("hint", "deny", "wind_down", "stop")),
        *(("cycle", rung) for rung in ("hint", "deny", "stop", "max_period")),
        *(("interleaved", rung) for rung in ("hint", "deny", "max_gap")),
        *(("stagnation", rung) for rung in ("hint", "deny")),
        *(("stagnation", "exec", rung) for rung in ("deny", "stop")),
        *(("tools", tool, "repeat", rung) for tool in ("do_it", "read_it") for rung in ("deny", "stop")),
        ("tools", "do_it", "poll", "deny"),
    ],
    "failure_hint_injector": [("levels", rung) for rung in ("hint", "insist", "deny")],
    "stop_unusable_response_loop": [
        ("max_consecutive_unusable_responses",), ("window", "bad"), ("window", "of"),
    ],
    "step_limit": [("max_steps",), ("wind_down_at",)],
    "tool_call_limit": [("rounds",), ("calls",), ("tools", "*_it"), ("tools", "do_it")],
    "token_budget": [("run",), ("step",), ("wind_down_at",)],
    "tool_failures": [("stop",)],
    "parse_failures": [("stop",)],
    "watching": [("repeat", "hint"), ("repeat", "stop")],
    "repeat_message": [("min_length",)],
}  # fmt: skip
DELETE = {"$delete": True}
FIELDS = {
    "mode": ["enforce", "warn", "shadow", "disabled"],
    "when": [{"tool": ["read_it"]}, {"tool": ["!read_it"]}, {"tool": ["*", "!x"]}, {"agent": ["a*"]}, DELETE],
    "at": ["before_tool_call", "after_tool_call", DELETE],
    "rollout": [{"percent": 0}, {"percent": 50}, {"percent": 100}],
    "locked": [False, True],
    "order": [{"before": "stall_detector"}, {"after": "stall_detector"}],
}
SETTINGS = [
    *({"interventions": {"max": number}} for number in (1, 4, 7, 9, 50)),
    {"defaults": {"mode": "shadow"}},
    {"kill_switch": True},
    {"plan": {"mode": "steps"}},
    {"exceptions": [{"rule": "stall_detector", "expires": "2099-01-01", "owner": "o", "reason": "r"}]},
    *({"tools": {name: {"effect": kind}}} for name in ("do_it", "read_it", "*") for kind in ("read", "write", "poll")),
    {"tools": {"poll_it": {"effect": "exec"}}},
    {"tools": {"write_it": {"effect": "exec"}}},
    {"tools": {"*_it": {"result_mask": ["same", "other"]}}},
    {"tools": {"read_it": {"result_mask": DELETE}}},
    {"tools": {"write_it": {"failure": {"text_prefix": ["same"]}}}},
    {"extensions": {"more": {"use": "tool_call_limit", "with": {"calls": 2}}}},
    {"extensions": {"more": {"use": "stall_detector", "order": {"before": "step_limit"}}}},
    {"extensions": {"more": {"use": "failure_hint_injector", "mode": "warn"}}},
]


def nested(path, value):
    return reduce(lambda inner, key: {key: inner}, reversed(path), value)


def merged(one, other):
    if not (isinstance(one, dict) and isinstance(other, dict)) or "$delete" in {*one, *other}:
        return other
    shared = {key: merged(one[key], other[key]) for key in one if key in other}
    return {**one, **other, **shared}


stubborn = st.lists(st.tuples(events, st.integers(3, 9)), min_size=1, max_size=3).map(
    lambda drawn: [event for event, times in drawn for _ in range(times)]
)
"""Runs in which the same happens again and again, so that rules have something to say."""


def changes_of(name):
    number = st.tuples(st.sampled_from(NUMBERS[name]), st.integers(1, 12) | st.just(DELETE))
    field = st.sampled_from([{key: value} for key, values in FIELDS.items() for value in values])
    inside = number.map(lambda drawn: {"with": nested(*drawn)})
    return st.one_of(inside, inside, inside, field).map(lambda change: {"extensions": {name: change}})


@st.composite
def layers(draw):
    names = draw(st.lists(st.sampled_from(sorted(LOCKABLE)), unique=True, min_size=1, max_size=3))
    changes = [
        draw(st.sampled_from(SETTINGS) if draw(st.booleans()) else changes_of(draw(st.sampled_from(names))))
        for _ in range(draw(st.integers(1, 2)))
    ]
    return names, reduce(merged, changes)


def answers(policy, history):
    """Return the hook points of a run in order, each with how strict every rule's answer and the decision were."""
    told = []
    made = Engine(policy, registry=REGISTRY, clock=ManualClock(), sinks=[told.append])
    drive(made.start_run(run_id="r", agent="a"), history)

    def rank(actions):
        return max((0.5 if isinstance(action, Hint) else action.rank for action in actions), default=0)

    return [
        (
            report.hook,
            {vote.rule: rank(vote.effective) for vote in report.decision.votes},
            report.decision.control.rank if report.decision.control else 0,
        )
        for report in told
    ]


def stricter_anywhere(tmp_path, names, layer, history, rules=LOCKABLE):
    """Assert that no locked rule answers weaker with the layer than without; return whether the layer is allowed."""
    body = "".join(f"  {name}: {rules[name]}\n" for name in names)
    base = f"apiVersion: policyengine/v1\nkind: Policy\nname: p\n{FACTS}interventions: {{max: 8}}\nextensions:\n{body}"
    over = tmp_path / "over.json"
    over.write_text(json.dumps({"apiVersion": "policyengine/v1", "kind": "Overlay", "target": "p", **layer}))
    try:
        changed = load_policy_text(base, registry=REGISTRY, overlays=[over])
    except ConfigError:
        return False
    before, after = (answers(policy, history) for policy in (load_policy_text(base, registry=REGISTRY), changed))
    assert [hook for hook, _, _ in before] == [hook for hook, _, _ in after]
    for (hook, votes, decided), (_, now, decision) in zip(before, after, strict=True):
        for rule, rank in votes.items():
            assert now.get(rule, 0) >= rank, (hook, rule)
        assert decision >= decided
        if decision >= WindDown.rank:
            break  # what comes after the end of the run is no event of it
    return True


@pytest.mark.parametrize(
    "layer",
    [
        {"kill_switch": True},
        {"tools": {"read_it": {"effect": "poll"}}},
        {"extensions": {"stall_detector": {"with": {"repeat": {"deny": DELETE}}}}},
        {"extensions": {"stall_detector": {"when": {"tool": ["!read_it"]}}}},
    ],
)
def test_what_a_lock_refuses_does_weaken_answers_where_nothing_is_locked(tmp_path, layer):
    history = [("batch", (("read_it", 0, "same", "ok"),))] * 6
    assert not stricter_anywhere(tmp_path, ["stall_detector"], layer, history)
    with pytest.raises(AssertionError, match="stall_detector"):
        stricter_anywhere(tmp_path, ["stall_detector"], layer, history, RULES)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers(), stubborn)
def test_under_any_layer_that_is_allowed_no_locked_rule_answers_weaker(tmp_path, drawn, history):
    stricter_anywhere(tmp_path, *drawn, history)
