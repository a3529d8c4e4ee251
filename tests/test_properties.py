"""Properties of whole policies of built-in rules over random runs: rules only tighten, order does not matter, state
survives being saved between any two events."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import Batch, Engine, ModelRequest, ModelResponse, ToolCall, ToolResult, Verdict
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
