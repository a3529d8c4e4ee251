"""A recording is driven as a live loop would, and stands whatever the engine says."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.messages import ModelResponse, ToolCall, ToolResult, Usage
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid, ending
from policyengine.replay import replay


class Tape:
    """Builds a recording; call ids count up."""

    def __init__(self, task="do it"):
        self.events = [UserSaid(task)] if task is not None else []
        self.count = 0

    def calls(self, *names, results=(), usage=None, arguments="{}", at=None):
        calls = []
        for name in names:
            self.count += 1
            calls.append(ToolCall(f"c{self.count}", name, arguments, {} if arguments == "{}" else None))
        self.events.append(ModelSaid(ModelResponse("", tuple(calls), usage=usage), at))
        for call, result in zip(calls, results, strict=False):
            if isinstance(result, str):
                result = ToolResult(call.id, result)
            self.events.append(ToolAnswered(call.id, msgspec.structs.replace(result, call_id=call.id)))
        return self

    def says(self, text="", reasoning="", usage=None, finish_reason=""):
        response = ModelResponse(text, reasoning=reasoning, usage=usage, finish_reason=finish_reason)
        self.events.append(ModelSaid(response))
        return self

    def user(self, text, injected=False):
        self.events.append(UserSaid(text, injected))
        return self

    def recording(self, **facts):
        events = tuple(self.events)
        return Recording("r-1", "file.json", "test", events, ending(events), **facts)


class Watched:
    """An engine that keeps the runs it starts."""

    def __init__(self, engine):
        self.engine = engine
        self.runs = []

    def start_run(self, **options):
        self.runs.append(self.engine.start_run(**options))
        return self.runs[-1]

    @property
    def seen(self):
        return self.runs[-1].state.cells["guard"].value.seen


def test_events_are_reported_in_the_order_of_a_live_loop(engine):
    tape = Tape("weigh").calls("a", "b", results=("1 kg", ToolResult("", "broken", "error"))).says("Done.")
    watched = Watched(engine())
    report = replay(tape.recording(), watched)
    assert watched.seen == [
        "start weigh",
        "round 1",
        "call a 0",
        "call b 1",
        "result ok 1 kg",
        "result error broken",
        "end 1 2 True",
        "round 2",
        "end 2 0 True",
        "step 1 ends",
        "outcome completed",
    ]
    assert (report.iterations, report.calls, report.outcome) == (2, 2, "final_answer")
    assert (report.first_intervention, report.stop, report.interventions) == (None, None, ())


def test_a_user_message_closes_the_step_and_an_injected_one_does_not(engine):
    watched = Watched(engine())
    replay(Tape().says("a").user("task again", injected=True).says("b").user("more").says("c").recording(), watched)
    steps = [entry for entry in watched.seen if entry.startswith(("round", "step"))]
    assert steps == ["round 1", "round 2", "step 1 ends", "round 3", "step 2 ends"]


def test_a_recording_that_begins_with_the_model_starts_without_a_task(engine):
    watched = Watched(engine())
    replay(Tape(None).says("hello").user("go").recording(), watched)
    assert watched.seen[:2] == ["start ", "round 1"]


def test_an_empty_recording_is_a_run_without_rounds(engine):
    report = replay(Tape(None).recording(), engine())
    assert (report.iterations, report.calls, report.outcome, report.stop) == (0, 0, "empty", None)


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        ({"text": " "}, "empty"),
        ({"reasoning": "hm"}, "reasoning_only"),
        ({"text": "half a sent", "finish_reason": "length"}, "truncated"),
    ],
)
def test_an_unusable_response_is_warned_about(engine, turn, kind):
    watched = Watched(engine())
    replay(Tape().says(**turn).recording(), watched)
    assert watched.seen[2:4] == [f"warning {kind}", "end 1 0 False"]


def test_a_text_that_a_rule_declares_a_repeat_is_warned_about_and_is_no_intervention_by_itself(engine):
    watched = Watched(engine())
    report = replay(Tape().says("same again").says("fine").recording(), watched)
    assert watched.seen[2:4] == ["warning repeat", "end 1 0 False"]
    assert report.interventions == ()


def test_calls_that_ran_are_usable_whatever_their_arguments_look_like(engine):
    watched = Watched(engine())
    report = replay(Tape().calls("think", arguments="{'t': 'x'}", results=("ok",)).recording(), watched)
    assert "call think 0" in watched.seen
    assert report.calls == 1


def test_an_unanswered_call_with_unreadable_arguments_is_unusable(engine):
    watched = Watched(engine())
    report = replay(Tape().calls("f", arguments="{'t': 'x'}").recording(), watched)
    assert watched.seen[2] == "warning misformat"
    assert report.calls == 0


def test_a_call_without_a_recorded_result_did_not_run(engine):
    watched = Watched(engine())
    replay(Tape().calls("a", "b", results=("one",)).recording(), watched)
    assert watched.seen[4:6] == ["result ok one", "result not_run "]


def test_interventions_are_listed_up_to_the_first_stop_and_the_run_goes_on(engine):
    tape = Tape().calls("hint_a", results=("x",)).calls("f", "stop_now", "deny_x", results=("1", "2", "3"))
    watched = Watched(engine())
    report = replay(tape.calls("deny_x", results=("x",)).says("end").recording(label=True), watched)
    assert [(item.action, item.iteration, item.call) for item in report.interventions] == [
        ("hint", 1, 1),
        ("stop", 2, 3),
    ]
    assert report.first_intervention is report.interventions[0]
    assert report.interventions[0].message == "guard says by_name.hint to hint_a"
    assert msgspec.to_builtins(report.stop) == {
        "code": "by_name",
        "rule": "guard",
        "iteration": 2,
        "call": 3,
        "observed": 1,
        "limit": 1,
        "at": "policy.yaml:3",
    }
    assert (report.iterations, report.calls, report.label) == (4, 5, True)
    assert "round 4" in watched.seen


@pytest.mark.parametrize("tool", ["stop_x", "end_step_x", "wind_down_x"])
def test_stop_end_step_and_wind_down_all_would_have_ended_the_run(engine, tool):
    report = replay(Tape().calls("f", results=("x",)).calls(tool, results=("x",)).recording(), engine())
    assert (report.stop.iteration, report.stop.call, report.stop.rule) == (2, 2, "guard")


@pytest.mark.parametrize("tool", ["hint_x", "deny_x", "ask_x"])
def test_a_hint_a_denial_or_a_question_ends_nothing(engine, tool):
    report = replay(Tape().calls(tool, results=("x",)).recording(), engine())
    assert report.stop is None
    assert report.first_intervention.action == tool.removesuffix("_x")


def test_a_stop_before_a_request_names_its_round_and_no_call(engine):
    tape = Tape().calls("f", results=("x",)).calls("f", results=("x",)).says("end")
    stop = replay(tape.recording(), engine(stop_at=2)).stop
    assert (stop.iteration, stop.call, stop.observed, stop.limit) == (2, None, 2, 2)


@pytest.mark.parametrize(("then", "action"), [("stop", "stop"), ("hand_over", "hand_over")])
def test_the_intervention_past_the_cap_ends_the_run(engine, then, action):
    tape = Tape()
    for _ in range(4):
        tape.calls("deny_x", results=("fine",))
    report = replay(tape.recording(), engine(cap=2, then=then))
    assert [item.action for item in report.interventions] == ["deny", "deny", action]
    assert (report.stop.code, report.stop.iteration, report.stop.limit) == ("interventions", 3, 2)
    assert report.denied_succeeded == 2


def test_only_refused_calls_that_had_succeeded_are_counted(engine):
    failed = ToolResult("", "no", "error")
    tape = Tape().calls("deny_x", "deny_x", "deny_x", "f", results=("fine", failed)).calls("f", results=("fine",))
    assert replay(tape.recording(), engine()).denied_succeeded == 1


def test_tokens_after_the_stop_are_those_of_later_responses(engine):
    usage = Usage(10, 5, 15)
    tape = (
        Tape()
        .calls("stop_x", results=("x",), usage=usage)
        .says("a", usage=Usage(7, 1))
        .says("b")
        .says("c", usage=usage)
    )
    assert replay(tape.recording(), engine()).tokens_after_stop == 23
    assert replay(tape.recording(), engine(stop_at=1)).tokens_after_stop == 38
    assert replay(tape.recording(), engine(mode="shadow")).tokens_after_stop == 0


def test_without_recorded_usage_the_tokens_are_unknown(engine):
    assert replay(Tape().calls("stop_x", results=("x",)).says("a").recording(), engine()).tokens_after_stop is None


def test_a_shadow_rule_intervenes_nowhere_and_is_reported_apart(engine):
    tape = Tape().calls("stop_x", results=("x",)).calls("stop_x", results=("x",)).calls("f", results=("x",))
    report = replay(tape.calls("stop_x", results=("x",)).recording(), engine(mode="shadow"))
    assert (report.stop, report.interventions) == (None, ())
    assert [(wish.mode, wish.action, wish.iteration, wish.call) for wish in report.would] == [
        ("shadow", "stop", 1, 1),
        ("shadow", "stop", 4, 4),
    ]


def test_a_rule_in_warn_mode_hints_and_tells_what_it_wanted(engine):
    report = replay(Tape().calls("stop_x", results=("x",)).recording(), engine(mode="warn"))
    assert [item.action for item in report.interventions] == ["hint"]
    assert [wish.action for wish in report.would] == ["stop"]


def test_recorded_times_reach_the_rules_and_without_them_the_clock_stands_still(engine):
    timed = replay(Tape().calls("f", results=("note this",), at=12.5).recording(), engine())
    untimed = replay(Tape().calls("f", results=("note this",)).recording(), engine())
    assert timed.interventions[0].observed == 12.5
    assert untimed.interventions[0].observed == 0


@pytest.mark.parametrize("builtin", [True, False])
def test_no_rule_overruns_its_time_in_a_replay(engine, builtin):
    report = replay(Tape().calls("f", results=("x",)).recording(), engine(timeout_s=0.0, builtin=builtin))
    assert report.interventions == ()


def test_the_report_has_the_documented_fields(engine):
    report = replay(Tape().calls("hint_x", results=("x",)).recording(), engine())
    plain = json.loads(msgspec.json.encode(report))
    assert list(plain) == [
        "run",
        "source",
        "format",
        "iterations",
        "calls",
        "outcome",
        "first_intervention",
        "stop",
        "interventions",
        "label",
        "tokens_after_stop",
        "denied_succeeded",
        "would",
        "new_calls_after_stop",
        "recovered",
        "tokens",
        "policy",
        "recorded_policy",
    ]
    assert list(plain["first_intervention"]) == [
        "iteration",
        "call",
        "hook",
        "action",
        "code",
        "rule",
        "observed",
        "limit",
        "message",
        "at",
    ]


def test_replaying_twice_gives_the_same_report(engine):
    recording = Tape().calls("hint_x", "deny_x", results=("x", "y")).calls("stop_x", results=("z",)).recording()
    assert replay(recording, engine()) == replay(recording, engine())


TOOLS = st.sampled_from(["f", "hint_x", "deny_x", "stop_x", "ask_x", "end_step_x", "wind_down_x"])
RESULTS = st.lists(st.sampled_from(["fine", "note this", ToolResult("", "no", "error")]), max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("calls"), st.lists(TOOLS, min_size=1, max_size=3), RESULTS),
    st.tuples(st.just("says"), st.sampled_from(["", "text", "same again"]), st.none()),
    st.tuples(st.just("user"), st.just("more"), st.booleans()),
)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(STEPS, max_size=8), cap=st.integers(1, 4), mode=st.sampled_from(["enforce", "warn", "shadow"]))
def test_any_recording_is_replayed_and_its_report_is_consistent(engine, steps, cap, mode):
    tape = Tape()
    for kind, what, more in steps:
        if kind == "calls":
            tape.calls(*what, results=more)
        elif kind == "says":
            tape.says(what)
        else:
            tape.user(what, injected=more)
    recording = tape.recording()
    report = replay(recording, engine(cap=cap, mode=mode))
    places = [(item.iteration, item.call or 0) for item in report.interventions]
    ending_actions = [item.action in ("stop", "hand_over", "end_step", "wind_down") for item in report.interventions]
    assert report.iterations == sum(isinstance(event, ModelSaid) for event in recording.events)
    assert [place[0] for place in places] == sorted(place[0] for place in places)
    assert report.first_intervention == next(iter(report.interventions), None)
    assert sum(ending_actions) == (report.stop is not None)
    assert not any(ending_actions[:-1])
    assert mode == "enforce" or all(item.action in ("hint", "stop", "hand_over") for item in report.interventions)
    assert mode != "shadow" or report.interventions == ()
    assert report.denied_succeeded <= sum(item.action == "deny" for item in report.interventions)


def test_a_recorded_text_is_read_as_the_policy_says_for_live_runs():
    from policyengine import Engine, ModelResponse
    from policyengine.plugins.registry import builtin_registry
    from policyengine.policy.load import load_policy_text
    from policyengine.recordings.model import ModelSaid, Recording, UserSaid
    from policyengine.replay import replay

    registry = builtin_registry()
    fenced = '```json\n{"tool_name": "look", "tool_args": {"page": 1}}\n```'
    events = (UserSaid("task"), ModelSaid(ModelResponse(fenced)))
    recording = Recording("r", "r.json", "test", events, "final_answer", protocol="text")

    def calls(mode):
        text = f"apiVersion: policyengine/v1\nkind: Policy\nname: t\nparsing: {{mode: {mode}}}\nextensions: {{}}\n"
        return replay(recording, Engine(load_policy_text(text, registry=registry), registry=registry)).calls

    assert (calls("strict"), calls("fenced")) == (0, 1)
