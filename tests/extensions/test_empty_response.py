"""`empty_response`: silence is an answer where a tool spoke, and ends with the policy's words where it lasts."""

from __future__ import annotations

import pytest

from policyengine import Agent, Engine, Extension, Script, Turn, call, hookimpl, say
from policyengine.extensions.empty_response import EmptyResponse
from policyengine.loop.state import Begin
from policyengine.messages import Failure, ToolCall, ToolFacts, ToolResult
from policyengine.parsing.verdict import ANSWERED, FALLBACK, Verdict
from policyengine.plans import Plan, Step
from policyengine.providers.scripted import ScriptedModel
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, play, policy, rule

SORRY = "I could not come up with an answer."
SENT = call("send_mail", {"to": "a"}, "sent")


def verdicts(bench, *items, tools=None, **options):
    """Play verdict kinds, and calls given as results, and return the kind and reason of every judged verdict."""
    made = bench(EmptyResponse, tools, **options)
    found = []
    for item in items:
        if isinstance(item, tuple):
            made.hook("after_tool_call", ToolCall("1", item[0]), item[1])
            continue
        verdict = Verdict(item, text="text" if item in ("ok", "prose") else "")
        answer = made.hook("after_parse", verdict, ())
        new = answer.changes["verdict"] if answer else verdict
        found.append(new.reason or new.kind)
        made.next_round()
    return found


def ran(tool="send_mail", status="ok", text="sent", **facts):
    return tool, ToolResult("1", text, status, **facts)


@pytest.mark.parametrize("kind", ["empty", "reasoning_only"])
def test_silence_after_a_tool_that_answers_is_the_end(bench, kind):
    assert verdicts(bench, kind, ran(), kind, answered_by=["send_*"]) == [kind, ANSWERED]


@pytest.mark.parametrize("kind", ["ok", "prose", "truncated", "wrong_shape", "repeat"])
def test_anything_but_silence_is_judged_by_others(bench, kind):
    assert verdicts(bench, ran(), kind, answered_by=["*"], fallback=SORRY, after=1) == [kind]


@pytest.mark.parametrize(
    "call",
    [
        ran("look"),
        ran(status="error"),
        ran(status="timeout"),
        ran(status="denied"),
        ran(status="not_run"),
        ran(exit_code=2),
        ran(text="ERROR: no such address"),
    ],
    ids=["another tool", "error", "timeout", "denied", "not run", "exit code", "declared failure"],
)
def test_only_a_successful_call_of_such_a_tool_is_an_answer(bench, call):
    tools = {"send_mail": ToolFacts(failure=Failure(("ERROR:",)))}
    assert verdicts(bench, call, "empty", tools=tools, answered_by=["send_*"]) == ["empty"]


def test_other_calls_in_between_do_not_take_the_answer_back(bench):
    assert verdicts(bench, ran(), ran("look"), "empty", answered_by=["send_*"]) == [ANSWERED]


def test_a_new_step_wants_an_answer_of_its_own(bench):
    made = bench(EmptyResponse, answered_by=["send_*"])
    made.hook("after_tool_call", ToolCall("1", "send_mail"), ToolResult("1", "sent"))
    made.next_step()
    assert made.hook("after_parse", Verdict("empty"), ()) is None


def test_the_text_of_the_policy_comes_after_so_many_empty_responses_in_a_row(bench):
    options = {"fallback": SORRY, "after": 2}
    assert verdicts(bench, "empty", "reasoning_only", **options) == ["empty", FALLBACK]
    assert verdicts(bench, "empty", "prose", "empty", "empty", **options) == ["empty", "prose", "empty", FALLBACK]
    assert verdicts(bench, *["empty"] * 5, answered_by=["send_*"]) == ["empty"] * 5


def test_the_answer_of_a_tool_comes_before_the_text_of_the_policy(bench):
    assert verdicts(bench, ran(), "empty", answered_by=["send_*"], fallback=SORRY, after=1) == [ANSWERED]


def test_state_survives_a_restart(bench):
    made = bench(EmptyResponse, fallback=SORRY, after=2)
    made.hook("after_parse", Verdict("empty"), ())
    made.reload(fallback=SORRY, after=2)
    assert made.hook("after_parse", Verdict("empty"), ()).observed == 2


def test_options_that_leave_nothing_to_do_are_refused(faults):
    assert faults(EmptyResponse) == [
        ": set `answered_by` or `fallback`; write `mode: disabled` to switch the rule off",
    ]
    assert faults(EmptyResponse, fallback=" \n ") == ["fallback: is empty but for white space"]
    assert faults(EmptyResponse, answered_by=["send_*"]) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"answered_by": ["send_*", "x"]}, {"answered_by": "fires at 2"}),
        ({"fallback": SORRY}, {"fallback": "fires at 3"}),
        (
            {"answered_by": ["a?c"], "fallback": SORRY, "after": 1},
            {"answered_by": "fires at 2", "fallback": "fires at 1"},
        ),
    ],
)
def test_every_rung_is_proved_through_the_loop(proved, options, expected):
    assert proved(EmptyResponse, **options) == expected


def test_a_pattern_that_no_plain_name_fits_has_no_proof(bench):
    assert list(bench(EmptyResponse, answered_by=["[ab]"]).guard.proofs()) == []


# ---- through the loop


def engine(*others, **options):
    made = policy(rule("empty_response", {"answered_by": [], "after": 3, **options}), *(rule(o.name) for o in others))
    return Engine(made, registry=ListedRegistry(*others, trusted=True), clock=ManualClock())


@pytest.mark.parametrize("silence", [say(""), Turn(reasoning="All is said.")], ids=["empty", "reasoning"])
def test_a_run_that_a_tool_answered_is_completed_without_a_further_word(silence):
    played = play(engine(answered_by=["send_*"]), [SENT, silence])
    outcome = played.outcome
    assert (outcome.status, outcome.output, outcome.stop, outcome.iterations) == ("completed", "", None, 2)
    assert [message.role for message in played.messages] == ["user", "assistant", "tool"]
    assert_valid(played.messages)


def test_what_the_model_said_last_is_the_output():
    spoken = Turn(SENT.calls, text="I have written to them.")
    outcome = play(engine(answered_by=["send_*"]), [spoken, say("")]).outcome
    assert (outcome.status, outcome.output) == ("completed", "I have written to them.")


def test_without_the_rule_the_same_silence_is_warned_about():
    played = play(engine(answered_by=["other"]), [SENT, say(""), say("done")])
    assert any(message.origin == "warning:empty" for message in played.messages)
    assert played.outcome.output == "done"


def test_a_text_of_the_policy_is_never_reported_as_the_models_own_words():
    heard = []

    class Listening(Extension):
        name = "listening"

        @hookimpl
        def on_stop(self, run, stop):
            heard.append(stop)

    made = engine(Listening, fallback=SORRY, after=2)
    heard.clear()  # the self-test at load has called it too
    played = play(made, [call("look"), say(""), say("")])
    outcome = played.outcome
    assert (outcome.status, outcome.output) == ("completed", SORRY)
    stop = outcome.stop
    assert (stop.code, stop.rule, stop.action, stop.at) == (FALLBACK, "empty_response", "rewrite", "test.yaml:1")
    assert (stop.observed, stop.limit) == (2, 2)
    assert heard == [stop]
    assert all(SORRY not in message.text for message in played.messages)
    assert_valid(played.messages)


def test_the_text_is_a_rules_also_where_the_run_is_wound_down_at_the_same_time():
    class Winding(Extension):
        name = "winding"
        messages = {"enough.wind_down": {}}
        templates = {"en": {"enough.wind_down": "enough"}}

        @hookimpl
        def after_parse(self, run, verdict, calls):
            return run.wind_down("enough")

    outcome = play(engine(Winding, fallback=SORRY, after=1), [say("")]).outcome
    assert (outcome.status, outcome.output, outcome.stop.code) == ("completed", SORRY, FALLBACK)


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_both_hold_in_either_protocol(protocol):
    made = policy(rule("empty_response", {"answered_by": ["send_*"], "after": 1, "fallback": SORRY}), protocol=protocol)
    started = Engine(made, registry=ListedRegistry())
    assert play(started, [SENT, say("")]).outcome.stop is None
    assert play(started, [say("")]).outcome.output == SORRY


def test_in_a_plan_silence_ends_the_step_and_a_text_of_the_policy_fails_it():
    plan = Plan((Step("one", "write"), Step("two", "report")))
    turns = (SENT, say(""), say(""), say(""))
    model = ScriptedModel(Script("t", turns))
    agent = Agent(engine(answered_by=["send_*"], fallback=SORRY, after=2), model, model.tools())
    outcome = agent.drive(agent.start(), Begin("task", plan))
    assert [step.state for step in outcome.plan.steps] == ["done", "failed"]
    assert (outcome.output, outcome.stop.code) == (SORRY, FALLBACK)
    assert_valid(outcome.messages)


def test_another_final_verdict_without_a_text_stays_unusable():
    class Emptying(Extension):
        name = "emptying"

        @hookimpl
        def after_parse(self, run, verdict, calls):
            return run.rewrite("x", verdict=Verdict("ok", (), "", "something_else")) if run.iteration == 1 else None

    played = play(engine(Emptying, answered_by=["x"]), [call("look"), say("done")])
    assert any(message.origin == "warning:empty" for message in played.messages)
    assert played.outcome.output == "done"
