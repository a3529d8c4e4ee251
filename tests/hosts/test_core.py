"""The state machine of hosts: decisions as in a replay, answers in any order, nothing let through by a failure."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import (
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolError,
    ToolResult,
    Usage,
    UsageError,
)
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.hosts.closed import ADAPTER_FAILED, FAILED_TEXT, WITHHELD_TEXT, fail_closed
from policyengine.hosts.core import MOST_RECENT, HostRun
from policyengine.hosts.host import ALL, Host
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid, ending
from policyengine.replay import replay
from policyengine.run import Run
from policyengine.testing import make_engine
from tests.hosts.own_rules import Asking

EVERYTHING = Host("everything")
RULES = {
    "stall_detector": {
        "with": {
            "repeat": {"hint": 2, "deny": 3, "stop": 5},
            "cycle": {"hint": 2, "deny": 3, "wind_down": 4},
            "interleaved": {"hint": 3, "deny": 4},
            "text": {"hint": 2, "stop": 3},
        }
    },
    "failure_hint_injector": {"with": {"levels": {"hint": 1, "deny": 3}}},
    "repeat_message": {},
    "stop_unusable_response_loop": {"with": {"max_consecutive_unusable_responses": 3}},
    "step_limit": {"with": {"max_steps": 9, "wind_down_at": 8}},
    "tool_call_limit": {"with": {"calls": 12, "tools": {"b": 4}}},
    "token_budget": {"with": {"run": 900}},
}


def rules(**wanted):
    return make_engine(wanted)


def look(id="c1", page=1, name="look"):
    return ToolCall(id, name, args={"page": page})


def started(engine, host=EVERYTHING, **options):
    run = HostRun(engine, host, **options)
    run.begin("task")
    return run


def said(run, *calls, text=""):
    assert run.before_model().action == "send"
    return run.after_model(text, calls)


# ---- the same decisions as a replay

calls = st.tuples(
    st.sampled_from("abc"), st.integers(0, 1), st.sampled_from(["x", "y"]), st.sampled_from([True, False])
)
turns = st.one_of(
    st.lists(calls, min_size=1, max_size=3),
    st.lists(calls, min_size=1, max_size=2),
    st.sampled_from(["", "thinking", "one", "two"]),
)
scripts = st.lists(st.tuples(turns, st.sampled_from([None, None, None, "go on"])), max_size=14)


def drive(run, script):
    """Play a script; return what happened as a recording."""
    events = [UserSaid("task")]
    run.begin("task")
    for number, (what, user) in enumerate(script):
        if run.before_model().action == "end":
            break
        sent = [] if isinstance(what, str) else what
        made = tuple(ToolCall(f"{number}-{at}", name, args={"n": n}) for at, (name, n, *_) in enumerate(sent))
        text, usage = what if isinstance(what, str) else "", Usage(40, 10, 50)
        given = tuple(msgspec.structs.replace(call, arguments=f'{{"n": {call.args["n"]}}}') for call in made)
        events.append(ModelSaid(ModelResponse(text, given, usage=usage)))
        turn = run.after_model(text, given, usage=usage)
        for ruling, (_, _, result, fine) in zip(turn.rulings, sent, strict=False):
            status = "ok" if fine else "error"
            if ruling.runs:
                run.answer(ruling.call.id, result, status)
                events.append(ToolAnswered(ruling.call.id, ToolResult(ruling.call.id, result, status)))
            elif ruling.action == "refuse":
                error = ToolError(ruling.code, ruling.text, False)
                events.append(ToolAnswered(ruling.call.id, ToolResult(ruling.call.id, ruling.text, "denied", error)))
        if run.ended or turn.kind == "final":
            break
        if user:
            if run.user_message(user).action == "end":
                break
            events.append(UserSaid(user))
    run.end()
    return Recording("r", "f", "t", tuple(events), ending(tuple(events)))


@settings(max_examples=150, deadline=None)
@given(scripts)
def test_a_host_gets_the_decisions_of_a_replay_up_to_the_first_stop(script):
    made = make_engine(RULES)
    found = []

    def note(report):
        control = report.decision.control
        found.extend(("hint", note.rule, report.run.state.iteration) for note in report.decision.notes)
        if control is not None and report.hook != "after_parse":
            found.append((report.decision.ending, report.decision.decided_by, report.run.state.iteration))

    made.sinks.append(note)
    recording = drive(HostRun(made, EVERYTHING), script)
    made.sinks.remove(note)
    report = replay(recording, make_engine(RULES))
    told = [(entry.action, entry.rule, entry.iteration) for entry in report.interventions]
    halts = [
        index for index, (action, *_) in enumerate(found) if action in ("stop", "wind_down", "end_step", "hand_over")
    ]
    until = found[: halts[0] + 1] if halts else found
    assert sorted(told) == sorted(until[: len(told)])
    assert bool(report.stop) == bool(halts)
    assert len(told) == len(until)


@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(0, 30))
def test_a_run_saved_and_resumed_at_any_event_goes_on_as_if_it_had_not_been(script, at):
    class Resuming:
        """Forwards every report, and resumes the run once."""

        def __init__(self, run):
            self.run, self.count = run, 0

        def __getattr__(self, name):
            self.count += 1
            if self.count == at:
                self.run = HostRun.resume(self.run.engine, EVERYTHING, self.run.save())
            return getattr(self.run, name)

    once, twice = HostRun(make_engine(RULES), EVERYTHING), Resuming(HostRun(make_engine(RULES), EVERYTHING))
    assert drive(once, script) == drive(twice, script)
    assert once.outcome == twice.run.outcome


# ---- batches and answers


def test_every_call_is_judged_before_anything_runs_and_a_stop_answers_all():
    run = started(rules(stall_detector={"with": {"repeat": {"stop": 2}}}))
    (ruling,) = said(run, look("c1")).rulings
    run.answer(ruling.call.id, "same")
    turn = said(run, look("c2"))
    assert turn.kind == "ended"
    assert [(ruling.action, bool(ruling.text)) for ruling in turn.rulings] == [("not_run", True)]
    assert (run.outcome.status, run.outcome.stop.code, run.outcome.executed) == ("stopped", "repeat", 1)
    assert run.before_model().action == "end"
    after = run.after_model("", [look("c3"), look("c4")])
    assert [ruling.action for ruling in after.rulings] == ["not_run", "not_run"]
    assert run.call(look("c5")).action == "not_run"


def test_notes_wait_until_every_call_of_the_batch_has_its_answer():
    run = started(rules(failure_hint_injector={}))
    said(run, look("c1"), look("c2", 2, "other"))
    run.answer("c2", "broken", "error")
    assert run.take_notes() == ()
    run.answer("c1", "fine")
    assert [note.rule for note in run.take_notes()] == ["failure_hint_injector"]
    assert run.before_model().notes == ()


def test_answers_may_come_from_many_threads_in_any_order():
    run = started(rules(step_limit={}))
    made = tuple(look(f"c{number}", number) for number in range(16))
    said(run, *made)
    threads = [threading.Thread(target=run.answer, args=(call.id, f"page {call.id}")) for call in reversed(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.open_calls == ()
    assert run.end().executed == 16


def test_an_answer_that_never_came_counts_as_run_and_one_that_comes_late_is_judged_all_the_same():
    engine = rules(tool_call_limit={"with": {"calls": 3}})
    run = started(engine)
    said(run, look("c1"), look("c2", 2))
    run.answer("c1", "one")
    assert [call.id for call in run.open_calls] == ["c2"]
    said(run, look("c3", 3))
    assert run.open_calls[0].id == "c3"
    assert run.answer("c2", "late") == "late"
    run.answer("c3", "three")
    assert said(run, look("c4", 4)).rulings[0].code == "wind_down"


def test_where_a_host_never_tells_of_results_an_answer_that_never_came_counts_as_run():
    blind = Host("blind", silent=frozenset({"after_tool_call"}))
    run = started(rules(tool_call_limit={"with": {"tools": {"look": 2}}}), blind)
    actions = [said(run, look(f"c{number}", number)).rulings[0].action for number in range(3)]
    assert actions == ["run", "run", "refuse"]


@pytest.mark.parametrize(("started_ones", "statuses"), [(None, ["error", "error"]), (("c1",), ["error", "not_run"])])
def test_what_was_let_through_and_never_heard_of_counts_as_started_unless_the_adapter_knows(started_ones, statuses):
    seen = []
    engine = rules(step_limit={})
    engine.sinks.append(lambda report: seen.append(report) if report.hook == "after_tool_call" else None)
    run = started(engine)
    if started_ones is not None:
        run.was_started = lambda call_id: call_id in started_ones
    said(run, look("c1"), look("c2", 2))
    outcome = run.end("cancelled")
    results = [report.payload[1] for report in seen]
    assert [result.status for result in results] == statuses
    assert [result.error.code for result in results] == [
        "interrupted" if status == "error" else "cancelled" for status in statuses
    ]
    assert outcome.executed == statuses.count("error")


def test_an_answer_after_the_end_of_the_run_is_left_out():
    run = started(rules(step_limit={}))
    said(run, look("c1"))
    run.end("cancelled")
    assert "left out" in run.answer("c1", "secret")


def test_calls_by_themselves_may_overlap_and_the_last_answer_closes_the_round():
    run = started(rules(step_limit={"with": {"max_steps": 3}}))
    assert [run.call(look(f"c{number}", number)).action for number in range(4)] == ["run", "run", "run", "not_run"]
    assert (run.outcome.stop.code, run.outcome.iterations, run.outcome.executed) == ("max_steps", 3, 3)


def test_a_second_request_without_a_response_is_another_attempt_of_the_same_round():
    run = started(rules(step_limit={"with": {"max_steps": 2}}))
    assert [run.before_model().action for _ in range(4)] == ["send"] * 4
    assert (run.run.state.iteration, run.run.state.attempt) == (1, 4)


def test_a_final_text_is_the_answer_and_the_user_may_go_on():
    run = started(rules(step_limit={}))
    assert said(run, text="done").kind == "final"
    assert not run.ended
    run.user_message("more")
    assert said(run, text="done again").text == "done again"
    outcome = run.end()
    assert (outcome.status, outcome.output, outcome.iterations) == ("completed", "done again", 2)


def test_an_unusable_response_runs_nothing_and_its_warning_comes_with_the_next_request():
    run = started(rules(stop_unusable_response_loop={"with": {"max_consecutive_unusable_responses": 2}}))
    run.before_model()
    turn = run.after_model("", [look("c1")], finish_reason="length")
    assert (turn.kind, turn.rulings[0].action) == ("unusable", "not_run")
    assert [note.kind for note in run.before_model().notes] == ["warning.truncated"]
    assert run.after_model("").kind == "ended"
    assert run.outcome.stop.code == "unusable_responses"


def test_a_retry_stays_in_its_round_and_is_capped_by_the_policy():
    class Again(Extension):
        name = "acme.again"
        messages = {"acme.again": {}}
        templates = {"en": {"acme.again": "Say it again."}}

        @hookimpl
        def after_model_response(self, run, response):
            return run.retry("again", "acme.again")

    engine = make_engine({"acme.again": {}}, extensions=[Again], parsing={"max_retry": 1})
    run = started(engine)
    assert said(run, look("c1")).kind == "retry"
    assert run.before_model().action == "send"
    assert run.run.state.iteration == 1
    assert run.after_model("", [look("c1")]).kind == "unusable"
    unable = started(engine, Host("plain", ALL - {"retry"}))
    assert said(unable, look("c1")).kind == "unusable"


# ---- humans


def test_what_a_human_says_is_reported_and_only_true_lets_a_call_run():
    engine = make_engine({"acme.asking": {}}, extensions=[Asking])
    run = started(engine)
    first, second, third, fourth = said(run, *(look(f"c{number}", number) for number in (1, 2, 3, 4))).rulings
    assert (first.action, first.text) == ("ask", "May it?")
    assert len({first.digest, second.digest, third.digest, fourth.digest}) == 4
    assert run.approve("c1", True, first.digest).action == "run"
    assert run.approve("c4", True, first.digest).code == "refused_by_human"
    assert run.approve("c2", 1).code == "refused_by_human"
    run.answer("c1", "one")
    assert run.answer("c3", "three") == "three"  # a host that does not tell: the call ran, so it was approved
    assert run.open_calls == ()


def test_without_a_human_or_a_way_to_ask_the_call_is_refused():
    engine = make_engine({"acme.asking": {}}, extensions=[Asking])
    for run in (started(engine, attended=False), started(engine, Host("mute", ALL - {"ask"}))):
        (ruling,) = said(run, look("c1")).rulings
        assert (ruling.action, ruling.code, ruling.rule) == ("refuse", "nobody_to_ask", "acme.asking")


# ---- what a host cannot do becomes stricter


class Rewriting(Extension):
    name = "acme.rewriting"
    rewrites_calls = True

    @hookimpl
    def before_model_call(self, run, request):
        return run.rewrite("other", model="other") if request.model == "change" else None

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return run.rewrite("other", args={"page": 0}) if call.args.get("page") == 9 else None

    @hookimpl
    def after_tool_call(self, run, call, result):
        return run.rewrite("mask", text="masked") if "secret" in result.text else None


def rewriting(*unable):
    engine = make_engine({"acme.rewriting": {}}, extensions=[Rewriting])
    return started(engine, Host("poor", ALL - set(unable)))


def test_rewrites_are_carried_out_where_the_host_can():
    run = rewriting()
    assert run.before_model(ModelRequest((), model="change")).request.model == "other"
    (ruling,) = run.after_model("", [look("c1", 9)]).rulings
    assert (ruling.changed, ruling.call.args) == (True, {"page": 0})
    assert run.answer("c1", "a secret") == "masked"


def test_a_rewrite_that_the_host_cannot_do_refuses_the_call_or_ends_the_run():
    run = rewriting("rewrite")
    ruling = said(run, look("c1", 9)).rulings[0]
    assert (ruling.action, ruling.code) == ("refuse", "cannot_rewrite")
    run = rewriting("rewrite_result")
    said(run, look("c1"))
    run.answer("c1", "a secret")
    assert (run.stop.code, run.stop.action) == ("mask", "stop")
    assert rewriting("rewrite_request").before_model(ModelRequest((), model="change")).action == "end"


def test_a_wind_down_becomes_a_stop_and_a_note_the_text_of_a_refusal():
    winding = rules(stall_detector={"with": {"repeat": {"wind_down": 2}}})
    run = started(winding, Host("poor", ALL - {"wind_down"}))
    said(run, look("c1"))
    run.answer("c1", "same")
    assert said(run, look("c2")).kind == "ended"
    run = started(rules(failure_hint_injector={}), Host("poor", ALL - {"hint"}))
    said(run, look("c1"))
    run.answer("c1", "broken", "error")
    assert run.before_model().notes == ()
    first, second = run.after_model("", [look("c2", 2), look("c3", 3)]).rulings
    assert (first.action, first.code, first.rule) == ("refuse", "note", "failure_hint_injector")
    assert second.runs


def test_a_failed_request_is_sent_again_only_where_the_host_can():
    engine = rules(provider_recovery={})
    error = ProviderError("overloaded", remedies=("wait",))
    run = started(engine)
    run.before_model()
    assert run.provider_error(error).remedy.name == "wait"
    run = started(engine, Host("poor", ALL - {"recover"}))
    run.before_model()
    assert run.provider_error(error).action == "fail"


# ---- failing closed


def broken(run, name):
    def fails(*args, **kwargs):
        raise RuntimeError("broken")

    setattr(run.run, name, fails)


def test_a_failure_of_the_engine_refuses_and_never_lets_through():
    run = started(rules(step_limit={}))
    run.before_model()
    broken(run, "before_tool_call")
    turn = run.after_model("", [look("c1"), look("c2", 2)])
    assert [(ruling.action, ruling.code, ruling.text) for ruling in turn.rulings] == [
        ("refuse", ADAPTER_FAILED, FAILED_TEXT)
    ] * 2
    assert run.call(look("c3")).code == ADAPTER_FAILED


def test_a_failure_withholds_a_result_and_ends_a_run_before_its_next_request():
    run = started(rules(step_limit={}))
    said(run, look("c1"))
    broken(run, "after_tool_call")
    assert run.answer("c1", "secret") == WITHHELD_TEXT
    run = started(rules(step_limit={}))
    broken(run, "before_model_call")
    move = run.before_model()
    assert (move.action, move.stop.code) == ("end", ADAPTER_FAILED)
    assert run.outcome.status == "failed"
    assert run.call(look("c1")).action == "not_run"


def test_a_run_whose_end_cannot_be_reported_is_over_all_the_same():
    run = started(rules(step_limit={}))
    broken(run, "end")
    assert run.end().status == "cancelled"
    assert run.ended


def test_wrong_use_refuses_and_raises_where_that_is_wanted():
    run = started(rules(step_limit={}))
    assert run.answer("never judged", "x") == WITHHELD_TEXT
    assert run.approve("never judged", True).code == ADAPTER_FAILED
    strict = started(rules(step_limit={}), strict=True)
    with pytest.raises(UsageError, match="never judged"):
        strict.answer("c9", "x")
    with pytest.raises(UsageError, match="nothing is being asked"):
        strict.approve("c9", True)


def test_an_interrupt_passes_and_so_does_what_the_host_steers_itself_with():
    class Steering(Exception):
        pass

    def deny(error, kind):
        return "denied"

    @fail_closed(deny, passing=(Steering,))
    def hook(kind):
        raise kind

    @fail_closed(deny, passing=(Steering,))
    async def waiting(kind):
        raise kind

    import asyncio

    assert hook(ValueError) == "denied"
    assert asyncio.run(waiting(ValueError)) == "denied"
    for passing in (KeyboardInterrupt, Steering):
        with pytest.raises(passing):
            hook(passing)
    with pytest.raises(Steering):
        asyncio.run(waiting(Steering))


def test_a_rule_that_fails_still_refuses_under_a_host():
    class Broken(Extension):
        name = "acme.broken"

        @hookimpl
        def before_tool_call(self, run, call, batch):
            if call.name == "look":
                raise RuntimeError("x")

    engine = make_engine({"acme.broken": {}}, extensions=[Broken])
    assert said(started(engine), look("c1")).rulings[0].code == "extension_error"


def test_results_are_told_as_the_policy_wants_them():
    engine = make_engine({"step_limit": {}}, tool_results="envelope")
    run = started(engine)
    said(run, look("c1"))
    assert msgspec.json.decode(run.answer("c1", "fine"))["status"] == "ok"


def test_a_wind_down_before_a_request_counts_the_round_it_opens_and_ends_with_the_answer_if_there_is_one():
    def wound():
        run = started(
            make_engine({"step_limit": {"with": {"max_steps": 9, "wind_down_at": 1}}}, wind_down={"rounds": 2})
        )
        said(run, look("c1"))
        run.answer("c1", "x")
        return run

    run = wound()
    move = run.before_model()
    assert [note.kind for note in move.notes] == ["wind_down"]
    assert run.after_model("", [look("c2", 2)]).rulings[0].code == "wind_down"
    assert said(run, look("c3", 3)).kind == "ended"
    assert (run.outcome.status, run.outcome.stop.code, run.outcome.iterations) == ("stopped", "max_steps", 3)
    run = wound()
    said(run, text="what I know")
    outcome = run.end()
    assert (outcome.status, outcome.output, outcome.stop.code) == ("completed", "what I know", "max_steps")


def test_results_of_calls_that_do_not_run_are_reported_in_call_order_between_the_others():
    engine = rules(tool_call_limit={"with": {"tools": {"no": 1}}})
    order = []
    engine.sinks.append(lambda report: order.append(report.payload[0].id) if report.hook == "after_tool_call" else None)
    run = started(engine)
    made = (look("c1", 1, "no"), look("c2", 2, "no"), look("c3", 3), look("c4", 4, "no"), look("c5", 5))
    said(run, *made)
    assert order == []
    for call in ("c1", "c3", "c5"):
        run.answer(call, "x")
    assert order == ["c1", "c2", "c3", "c4", "c5"]


def test_arguments_that_the_policy_mends_run_mended_where_the_host_can_and_else_as_they_are():
    engine = make_engine({"step_limit": {}}, parsing={"mode": "repair"})
    sent = ToolCall("c1", "look", "{'page': 1}")
    (ruling,) = said(started(engine), sent).rulings
    assert (ruling.changed, ruling.call.args) == (True, {"page": 1})
    (ruling,) = said(started(engine, Host("poor", ALL - {"rewrite"})), sent).rulings
    assert (ruling.changed, ruling.call) == (False, sent)


class Reading(Extension):
    name = "acme.reading"

    @hookimpl
    def after_parse(self, run, verdict, calls):
        if verdict.text == "only one":
            return run.rewrite("fewer", verdict=msgspec.structs.replace(verdict, calls=calls[:1]))
        if verdict.text == "none":
            return run.rewrite("none", verdict=msgspec.structs.replace(verdict, calls=()))
        if verdict.text == "nothing":
            return run.rewrite("nothing", verdict=msgspec.structs.replace(verdict, calls=(), text=""))
        return None


def test_calls_that_a_rule_takes_out_of_a_response_do_not_run_and_have_an_answer():
    run = started(make_engine({"acme.reading": {}}, extensions=[Reading]))
    made = (look("c1"), look("c2", 2))
    fewer = said(run, *made, text="only one")
    assert [ruling.action for ruling in fewer.rulings] == ["run", "not_run"]
    run.answer("c1", "x")
    none = said(run, *made, text="none")
    assert (none.kind, [ruling.action for ruling in none.rulings]) == ("final", ["not_run"] * 2)
    nothing = said(run, *made, text="nothing")
    assert (nothing.kind, [bool(ruling.text) for ruling in nothing.rulings]) == ("unusable", [True] * 2)


def test_a_late_result_may_end_the_run():
    run = started(rules(tool_failures={"with": {"stop": 1}}))
    said(run, look("c1"), look("c2", 2))
    run.answer("c1", "x")
    run.user_message("go on")
    run.answer("c2", "broken", "error")
    assert run.stop.code == "tool_failures"


def test_a_message_of_the_harness_while_calls_are_running_leaves_them_open():
    run = started(rules(step_limit={}))
    said(run, look("c1"))
    run.user_message("You have 3 steps left.", injected=True)
    assert [call.id for call in run.open_calls] == ["c1"]
    run.user_message("Never mind.")
    assert run.open_calls == ()


def test_what_is_remembered_of_answered_calls_is_bounded():
    run = started(rules(step_limit={"with": {"max_steps": 1000}}))
    for number in range(MOST_RECENT + 20):
        run.answer(run.call(look(f"c{number}", number)).call.id, "x")
    assert len(run.state.recent) == MOST_RECENT
    assert run.state.open == []


# ---- recordings


def driven(recording, engine):
    """Drive a host's run by what was recorded, up to the first decision that would have changed it; return them all."""
    found = []

    def note(report):
        decision, iteration = report.decision, report.run.state.iteration
        found.extend((iteration, "hint", note.rule) for note in decision.notes)
        if decision.control is not None and report.hook not in ("on_stop", "after_parse"):
            found.append((iteration, decision.ending, decision.decided_by))

    def changed():
        return any(action != "hint" for _, action, _ in found)

    engine.sinks.append(note)
    try:
        run = HostRun(engine, EVERYTHING, run_id=recording.id)
        results = {event.call_id: event.result for event in recording.events if isinstance(event, ToolAnswered)}
        for place, event in enumerate(recording.events):
            if isinstance(event, UserSaid) and not place:
                run.begin(event.text)
            elif isinstance(event, UserSaid):
                run.user_message(event.text, injected=event.injected)
            elif isinstance(event, ModelSaid):
                run.begin("") if not run.run.state.started else None
                said = event.response
                facts = {"reasoning": said.reasoning, "finish_reason": said.finish_reason, "usage": said.usage}
                run.before_model()
                if changed():
                    return found
                turn = run.after_model(said.text, said.tool_calls, model=said.model, **facts)
                if changed() or (turn.kind == "unusable" and said.tool_calls):
                    return found
                for ruling in turn.rulings:
                    run.answer_result(ruling.call.id, results.get(ruling.call.id) or ToolResult("", "", "not_run"))
            if changed():
                return found
        return found
    finally:
        engine.sinks.remove(note)


def agreed(recording, make):
    """Return whether a host's run and a replay say the same about a recording, as far as both go."""
    found = driven(recording, make())
    replayed = [(one.iteration, one.action, one.rule) for one in replay(recording, make()).interventions]
    # At the boundary of a round a replay reports texts as they come, a host the same: order within a round is free.
    return sorted(found) == sorted(replayed[: len(found)]) and (
        len(found) == len(replayed) or any(action != "hint" for _, action, _ in found)
    )


@settings(max_examples=60, deadline=None)
@given(scripts)
def test_a_recording_that_no_guard_watched_gives_a_host_the_decisions_of_its_replay(script):
    recording = drive(HostRun(make_engine({"step_limit": {"with": {"max_steps": 100}}}), EVERYTHING), script)
    assert agreed(recording, lambda: make_engine(RULES))


@pytest.mark.parametrize("point", ["end", "end_iteration"])
def test_an_end_that_cannot_be_reported_ends_the_run_all_the_same(point, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    run = started(rules())
    said(run, look())
    monkeypatch.setattr(Run, point, broken)
    outcome = run.end("failed", output="as far as it came", error="TimeoutError: late")
    assert outcome.status == "failed"
    assert run.ended


def test_a_failure_at_an_event_is_a_refusal_however_its_arguments_are_given(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    run = started(rules())
    said(run, look())
    monkeypatch.setattr(HostRun, "_find", broken)
    assert run.approve(call_id="c1", approved=True).code == ADAPTER_FAILED
    assert run.answer_result(call_id="c1", result=ToolResult("c1", "x")).text == WITHHELD_TEXT


@pytest.mark.parametrize("calls", [(look(),), ()])
def test_the_third_failure_of_the_engine_ends_the_run(calls, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    run = started(rules())
    monkeypatch.setattr(Run, "after_model_response", broken)
    kinds = [run.after_model("hm", calls).kind for _ in range(4)]
    assert kinds == ["calls" if calls else "unusable"] * 2 + ["ended"] * 2
    assert (run.outcome.status, run.stop.code, run.before_model().action) == ("failed", ADAPTER_FAILED, "end")


def test_results_of_calls_that_nobody_judged_do_not_end_the_run():
    run = started(rules())
    for number in range(9):
        assert run.answer(f"x{number}", "late") == WITHHELD_TEXT
    assert said(run, look()).kind == "calls"


def test_what_stands_beside_a_text_counts_where_results_are_compared_and_is_no_part_of_the_text():
    for marks, ended in (("abcd", False), ("aaaa", True)):
        run = started(rules(stall_detector={"with": {"repeat": {"stop": 4}}}))
        for number, mark in enumerate(marks):
            turn = said(run, look(f"c{number}"))
            if turn.kind == "calls":
                assert run.answer_result(f"c{number}", ToolResult("", "seen", beside=mark)).text == "seen"
        assert run.ended is ended


def test_who_watches_is_told_of_a_run_that_ends_with_a_failure_of_the_engine(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    told = []
    run = started(rules())
    monkeypatch.setattr(run.run, "end", told.append)
    monkeypatch.setattr(HostRun, "_read", broken)
    for _ in range(5):
        run.after_model("hm")
    assert told == [run.outcome]
    assert run.end() == run.outcome
    assert told == [run.outcome]
