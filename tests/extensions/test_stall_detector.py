from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import (
    Batch,
    Iteration,
    RunView,
    ToolCall,
    ToolError,
    ToolFacts,
    ToolResult,
    Verdict,
    raw_fingerprint,
)
from policyengine.extensions.stall_detector import StallDetector
from policyengine.extensions.stall_detector.state import MAX_OPEN, MAX_RECORDS, MAX_TEXTS, TEXT_LIMIT, StallState
from policyengine.runstate import RunState

quick = settings(max_examples=80, deadline=None)

EFFECTS = {"read": "read", "search": "read", "edit": "write", "save": "write", "shell": "exec", "poll": "poll"}
OFF: dict[str, Any] = {kind: {} for kind in ("repeat", "cycle", "interleaved", "stagnation", "poll", "text")}
DENY = {
    "repeat": {"deny": 3},
    "cycle": {"deny": 3, "max_period": 4},
    "interleaved": {"deny": 5},
    "stagnation": {"deny": 6, "exec": {"deny": 12}},
    "poll": {"deny": 10},
    "text": {"stop": 3},
}


def action(answer: Any) -> str:
    if answer is None:
        return "allow"
    parts = answer if isinstance(answer, tuple) else (answer,)
    return "+".join("give_up" if part.kind == "stall.give_up" else part.name for part in parts)


class Session:
    """Plays rounds of calls to a detector as our loop does, and says what each call was answered with.

    `save` puts the state through JSON after every event. `singly` reports each result before the next call is judged,
    as hosts with one hook per call do. `ends` says whether the end of a round is reported.
    """

    def __init__(self, options=DENY, *, save=False, singly=False, ends=True, batches=True, **tools):
        self.guard = StallDetector({**OFF, "scope": "step", "tools": {}, **options})
        self.tools = {name: ToolFacts(effect=effect) for name, effect in EFFECTS.items()} | tools
        self.run = RunState("run-1", iteration=1, step=1)
        self.view = RunView(self.run, "rule", StallState(), lambda name: self.tools.get(name, ToolFacts()))
        self.save, self.singly, self.ends, self.batches = save, singly, ends, batches
        self.number = 0
        self.answers: list[Any] = []

    @property
    def state(self):
        return self.view.state

    def hook(self, method, *payload):
        answer = getattr(self.guard, method)(self.view, *payload)
        for part in answer if isinstance(answer, tuple) else (answer,) if answer else ():
            assert part.kind in StallDetector.messages
            assert set(StallDetector.messages[part.kind]) == {*part.data, "observed", "limit"}
        if self.save:
            self.view.state = msgspec.json.decode(msgspec.json.encode(self.state), type=StallState)
        return answer

    def round(self, *calls):
        """Play calls given as `(tool, args, result)`; a result may be text or a `ToolResult`. Return their answers."""
        self.run.iteration += 1
        answers, made = [], []
        for index, (tool, args, result) in enumerate(calls):
            self.number += 1
            call = ToolCall(f"c{self.number}", tool, json.dumps(args), args)
            group = f"b{self.run.iteration}" if self.batches else f"call-{self.number}"
            answer = self.hook("before_tool_call", call, Batch(group, index))
            answers.append(action(answer))
            self.answers.append(answer)
            made.append((call, result, answers[-1]))
            if self.singly:
                self.report(*made[-1])
        if not self.singly:
            for item in made:
                self.report(*item)
        if self.ends:
            self.hook("after_iteration", Iteration(self.run.iteration, len(calls)))
        return answers

    def report(self, call, result, answer):
        if "deny" in answer:
            shown = ToolResult(call.id, "refused by a guard", "denied", ToolError("repeat"))
        elif isinstance(result, ToolResult):
            shown = msgspec.structs.replace(result, call_id=call.id)
        else:
            shown = ToolResult(call.id, result)
        self.hook("after_tool_call", call, shown)

    def call(self, tool="read", args=None, result="same"):
        return self.round((tool, args or {}, result))[0]

    def play(self, *calls):
        return [self.call(*call) for call in calls]

    def say(self, text, kind="ok", calls=()):
        return action(self.hook("after_parse", Verdict(kind, tuple(calls), text), tuple(calls)))

    def user(self):
        ended = self.hook("step_end", self.run.step)
        self.run.step += 1
        self.view.state = StallState()
        self.hook("step_start", self.run.step)
        return action(ended)


def A(result="a", n=1):  # noqa: N802 - calls are named like in the scenarios
    return ("read", {"n": n}, result)


def B(result="b"):  # noqa: N802
    return ("search", {"q": "b"}, result)


def C(result="c"):  # noqa: N802
    return ("read", {"n": 3}, result)


def other(n):
    return ("search", {"q": f"other {n}"}, f"news {n}")


def at(answers):
    """Number of the first call that was not allowed, from 1."""
    return next((number for number, answer in enumerate(answers, 1) if answer != "allow"), None)


# ---- the scenarios


def test_t17_third_call_with_the_same_values_is_cancelled_before_it_runs():
    session = Session({"repeat": {"deny": 3, "stop": 4}})
    texts = ('{"a":1,"b":2}', '{"b":2,"a":1}', '{ "b" : 2,  "a" : 1.0 }', '{"a":1,"b":2}')
    answers = []
    for number, text in enumerate(texts, 1):
        call = ToolCall(f"c{number}", "read", text, json.loads(text))
        answers.append(action(session.hook("before_tool_call", call, Batch(f"b{number}"))))
        session.report(call, "same", answers[-1])
    assert answers == ["allow", "allow", "deny+give_up", "stop"]


def test_t17_the_note_to_give_up_comes_once():
    assert Session({"repeat": {"deny": 3}}).play(*[A()] * 6) == ["allow", "allow", "deny+give_up", *["deny"] * 3]


def test_t18_polling_whose_result_moves_is_never_cancelled():
    session = Session()
    assert set(session.play(*[A(f"running {share} %") for share in range(0, 100, 5)])) == {"allow"}
    assert at(Session().play(*[A("running")] * 5)) == 3


def test_t18_an_allowance_per_tool_holds_for_that_tool():
    for effect in ("read", "poll"):
        tools = {"tools": {"check_job": {"repeat": {"deny": 10}}}}
        session = Session({**DENY, **tools}, check_job=ToolFacts(effect=effect))
        assert at(session.play(*[("check_job", {}, "queued")] * 12)) == 10
        assert at(session.play(*[A()] * 4)) == 3


def test_t19_a_cycle_of_two_is_refused_when_it_completes_its_third_repetition():
    session = Session()
    assert at(session.play(*[A(), B()] * 3)) == 6
    found = session.answers[-1][0]
    assert (found.code, found.data["pattern"], found.data["period"]) == ("cycle", "cycle", 2)
    assert (found.observed, found.limit) == (3, 3)


def test_t19_a_cycle_of_three_is_found():
    session = Session()
    assert at(session.play(*[A(), B(), C()] * 3)) == 9
    assert session.answers[-1][0].data["period"] == 3


def test_t19_equal_acknowledgements_of_different_writes_are_no_stall():
    session = Session()
    assert set(session.play(*[("edit", {"file": n}, "true") for n in range(30)])) == {"allow"}


def test_t20_a_repeated_batch_is_one_unit():
    session = Session({"repeat": {"hint": 3, "stop": 5}, "cycle": {"hint": 2, "stop": 3}})
    rounds = [session.round(*batch) for batch in ([A(), B()], [B(), A()], [A(), B()], [B(), A()], [A(), B()])]
    assert rounds == [["allow"] * 2] * 2 + [["allow", "hint"], ["allow"] * 2, ["allow", "stop"]]
    assert {answer.data["pattern"] for answer in session.answers if answer} == {"identical"}


def test_t20_copies_in_one_batch_are_refused_from_the_limit_on():
    session = Session({"repeat": {"hint": 2, "deny": 3, "stop": 4}})
    assert session.round(*[A()] * 5) == ["allow", "allow", "deny+give_up", "deny", "deny"]
    assert session.state.open == []


def test_t21_after_a_stall_other_calls_are_accepted():
    session = Session()
    assert session.play(*[A()] * 4)[2:] == ["deny+give_up", "deny"]
    assert session.play(("finish", {"answer": 42}, "done"), ("update_plan", {"drop": 1}, "ok")) == ["allow"] * 2


def test_t21_the_first_call_always_runs(faults):
    from policyengine.policy.validate import check

    assert check(StallDetector.options, {"repeat": {"deny": 1}}) != []
    assert check(StallDetector.options, {"cycle": {"hint": 1}}) != []
    assert check(StallDetector.options, {"repeat": {"deny": 2}}) == []


def test_t22_a_user_message_clears_the_window():
    session = Session()
    assert session.play(A(), A()) == ["allow"] * 2
    assert session.user() == "allow"
    assert session.play(A(), A(), A()) == ["allow", "allow", "deny+give_up"]


def test_t22_the_end_of_a_step_gives_no_second_note():
    for rungs in ({"hint": 3}, {"deny": 3}):
        session = Session({"repeat": rungs})
        session.play(*[A()] * 3)
        assert session.user() == "allow"


def test_t22_the_end_of_a_step_gives_the_note_that_is_missing():
    session = Session({"repeat": {"end_step": 3}})
    assert session.play(*[A()] * 3) == ["allow", "allow", "end_step"]
    assert session.user() == "give_up"
    session = Session({"repeat": {"end_step": 3}})
    session.play(*[A()] * 3)
    note = session.hook("step_end", 1)
    assert (note.kind, note.data["tool"], note.observed) == ("stall.give_up", "read", 3)
    assert session.hook("step_end", 1) is None


def test_t22_no_note_for_a_stall_that_is_over_or_that_ended_the_run():
    session = Session({"repeat": {"end_step": 3}})
    session.play(*[A()] * 3, B())
    assert session.user() == "allow"
    session = Session({"repeat": {"stop": 3}})
    session.play(*[A()] * 3)
    assert session.user() == "allow"


def test_t23_state_saved_in_one_process_goes_on_in_another():
    plain, saved = Session(), Session(save=True)
    calls = [A(), B()] * 3 + [A()] * 3 + [("edit", {"n": 1}, "ok")] + [A()] * 3
    assert plain.play(*calls) == saved.play(*calls)
    assert msgspec.json.encode(plain.state) == msgspec.json.encode(saved.state)


# ---- the public cases, and more of their kind


CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "public_cases.jsonl").read_text("utf-8").splitlines()
    if '"class": "loop"' in line
]


def options_of(config):
    def deny(name):
        return {"deny": config[name]} if name in config else {}

    return {
        "repeat": deny("repeat_threshold"),
        "text": {"stop": config["repeat_threshold"]},
        "cycle": {**deny("cycle_repeats"), "max_period": config["max_period"]},
        "interleaved": deny("interleaved_threshold"),
        "stagnation": {**deny("stagnation_threshold"), "exec": deny("stagnation_threshold_exec")},
        "poll": deny("poll_threshold"),
        "tools": {"*": {"ignore_args": config.get("ignore_args", [])}},
    }


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_public_cases(case):
    given, expected = case["input"], case["expected"]
    tools = {name: ToolFacts(effect=effect) for name, effect in given["effects"].items()}
    session = Session(options_of(given["config"]), **tools)
    at_call, at_text, pattern = [], [], None
    for event in given["events"]:
        if event["type"] == "user":
            session.user()
        elif event["type"] == "text":
            answer = session.hook("after_parse", Verdict("prose", (), event["text"]), ())
            at_text.append(action(answer))
            pattern = pattern or (answer and answer.data["pattern"])
        else:
            raw = isinstance(event["args"], str)
            call = ToolCall(
                f"c{len(at_call)}",
                event["tool"] or "",
                event["args"] if raw else json.dumps(event["args"]),
                None if raw else event["args"],
            )
            answer = session.hook("before_tool_call", call, Batch(call.id))
            at_call.append(action(answer))
            pattern = pattern or (answer and answer[0].data["pattern"])
            status = "ok" if event["ok"] else "error"
            session.report(call, ToolResult(call.id, event["result"], status), at_call[-1])
    if not expected["stall"]:
        assert (at(at_call), at(at_text)) == (None, None)
        return
    first = at(at_call) if "at_call" in expected else at(at_text)
    low, high = expected.get("at_call_range") or expected["at_text_range"]
    assert first is not None
    assert low <= first <= high
    assert pattern == expected["kind"]


MORE = {
    "keys in another order, deep down": (
        [("read", {"q": {"a": 1, "b": [1]}}, "x"), ("read", {"q": {"b": [1.0], "a": 1}}, "x")] * 2,
        3,
        "identical",
    ),
    "not a number": ([("read", {"q": float("nan")}, "x")] * 4, 3, "identical"),
    "array order matters": ([("read", {"q": [1, 2]}, "x"), ("read", {"q": [2, 1]}, "y")] * 2, None, None),
    "null and missing alternate": ([("read", {"q": None}, "x"), ("read", {}, "y")] * 3, 6, "cycle"),
    "composed and decomposed letters": (
        [("read", {"q": "é"}, "é"), ("read", {"q": "e\u0301"}, "e\u0301")] * 2,
        3,
        "identical",
    ),
    "a cycle with volatile results": (
        [call for n in range(3) for call in (A(f"pid {n}"), B(f"took {n}.5 s"))],
        6,
        "cycle",
    ),
    "a cycle of reads with one write that is new once": ([A(), ("edit", {"n": 1}, "ok"), B()] * 3, 9, "cycle"),
    "a cycle with a new write in every round": (
        [call for n in range(5) for call in (A(), B(), ("edit", {"n": n}, "ok"))],
        None,
        None,
    ),
    "toggling between two writes": ([("edit", {"to": "a"}, "ok"), ("edit", {"to": "b"}, "ok")] * 3, 6, "cycle"),
    "the same failure again": ([("shell", {"cmd": "lint"}, ToolResult("", "E501", exit_code=1))] * 4, 3, "identical"),
    "failures of different commands": (
        [("shell", {"cmd": n}, ToolResult("", f"line {n}", exit_code=1)) for n in range(20)],
        None,
        None,
    ),
    "a poll within its allowance": ([("poll", {"job": 7}, "queued")] * 9, None, None),
    "a poll beyond its allowance": ([("poll", {"job": 7}, "queued")] * 10, 10, "identical"),
    "a poll between reads": (
        [call for n in range(4) for call in (other(n), ("poll", {"job": 7}, "queued"))],
        None,
        None,
    ),
    "searches that find nothing": ([("search", {"q": n}, "") for n in range(8)], 6, "stagnation"),
    "one call between ever new ones": (
        [call for n in range(6) for call in (other(n), other(-n - 1), A())],
        15,
        "interleaved",
    ),
    "one call between ever new writes": (
        [call for n in range(9) for call in (("edit", {"n": n}, "ok"), A())],
        None,
        None,
    ),
}


@pytest.mark.parametrize(("calls", "first", "pattern"), MORE.values(), ids=MORE)
def test_more_cases_of_the_same_kind(calls, first, pattern):
    session = Session()
    assert at(session.play(*calls)) == first
    if first is not None:
        assert session.answers[first - 1][0].data["pattern"] == pattern


# ---- identical calls


def test_every_rung_of_the_ladder_comes_in_its_turn():
    session = Session({"repeat": {"hint": 2, "deny": 4, "end_step": 5, "wind_down": 6, "stop": 7}})
    answers = session.play(*[A()] * 8)
    assert answers == ["allow", "hint", "allow", "deny+give_up", "end_step", "wind_down", "stop", "stop"]


def test_a_hint_does_not_reset_the_streak_and_a_new_episode_gets_a_new_one():
    session = Session({"repeat": {"hint": 3, "deny": 5}})
    assert session.play(*[A()] * 5) == ["allow", "allow", "hint", "allow", "deny+give_up"]
    session.play(B())
    assert session.play(*[A()] * 5) == ["allow", "allow", "hint", "allow", "deny+give_up"]


def test_a_changed_result_starts_the_count_again():
    session = Session()
    assert at(session.play(A("1"), A("1"), A("2"), A("2"), A("2"))) == 3
    session = Session()
    assert at(session.play(A("1"), A("2"), A("2"), A("2"))) == 4


def test_a_partly_repeated_batch_never_stops_the_run_but_refuses_the_call_that_repeats():
    session = Session({"repeat": {"hint": 2, "deny": 5, "stop": 6}, "interleaved": {}})
    rounds = [session.round(A(), other(n)) for n in range(8)]
    assert [first for first, _ in rounds] == ["allow"] * 4 + ["deny+give_up"] + ["deny"] * 3
    assert {second for _, second in rounds} == {"allow"}


def test_copies_of_an_earlier_batch_count_on():
    session = Session({"repeat": {"deny": 5}})
    assert session.round(*[A()] * 3) == ["allow"] * 3
    assert session.round(*[A()] * 3) == ["allow", "deny+give_up", "deny"]


def test_copies_that_answer_differently_are_no_repeat_afterwards():
    session = Session({"repeat": {"deny": 4}})
    session.round(A("1"), A("2"), A("3"))
    assert session.round(A("3"), A("3")) == ["allow", "allow"]
    assert session.call(*A("3")) == "deny+give_up"


def test_a_host_that_reports_one_call_at_a_time_gets_the_same_decisions():
    batches = [[A(), A(), B()]] * 3 + [[A()], [B()]] * 4 + [[A("x"), A("y")]] * 4
    together, singly = Session(), Session(singly=True, ends=False)
    assert [together.round(*batch) for batch in batches] == [singly.round(*batch) for batch in batches]


def test_a_host_without_batch_ids_gets_each_call_judged_on_its_own():
    session = Session(batches=False, ends=False)
    assert session.round(*[A()] * 4) == ["allow", "allow", "deny+give_up", "deny"]
    session = Session(batches=False, ends=False)
    assert at([answer for _ in range(4) for answer in session.round(A(), B())]) == 6


def test_an_empty_batch_id_makes_a_call_its_own_batch():
    session = Session({"repeat": {"stop": 3}}, ends=False)
    answers = []
    for number in range(3):
        call = ToolCall(f"c{number}", "read", "{}", {})
        answers.append(action(session.hook("before_tool_call", call, Batch(""))))
        session.hook("after_tool_call", call, ToolResult(call.id, "same"))
    assert answers == ["allow", "allow", "stop"]


def test_late_results_correct_what_was_assumed():
    """A host without batch ids that runs two calls at once reports the first result when the second call is open."""

    def play(results):
        session = Session(ends=False)
        answers = []
        for number, text in enumerate(results):
            first, second = ToolCall(f"a{number}", "read", "{}", {}), ToolCall(f"b{number}", *["search", "{}", {}])
            answers.append(action(session.hook("before_tool_call", first, Batch(f"x{number}"))))
            session.hook("before_tool_call", second, Batch(f"y{number}"))
            session.hook("after_tool_call", first, ToolResult(first.id, text))
            session.hook("after_tool_call", second, ToolResult(second.id, f"news {number}"))
        return at(answers)

    assert play([f"running {share} %" for share in range(12)]) is None
    assert play(["same"] * 8) == 5


def test_calls_without_any_result_count_as_repeats():
    session = Session(ends=False)
    calls = [ToolCall(f"c{number}", "read", "{}", {}) for number in range(4)]
    answers = [action(session.hook("before_tool_call", call, Batch(call.id))) for call in calls]
    assert answers == ["allow", "allow", "deny+give_up", "deny"]


def test_calls_refused_by_others_count_as_having_answered_as_before():
    refused = ToolResult("", "refused", "denied", ToolError("acme"))
    session = Session()
    assert session.play(A(), A(refused), A()) == ["allow", "allow", "deny+give_up"]
    session = Session()
    assert session.play(A(refused), A(refused), A(refused)) == ["allow", "allow", "deny+give_up"]
    not_run = ToolResult("", "stopped", "not_run")
    assert Session().play(A(), A(not_run), A()) == ["allow", "allow", "deny+give_up"]


def test_a_rewritten_call_is_judged_once_more_and_counts_once():
    session = Session(ends=False)
    for number in range(5):
        batch = Batch(f"b{number}", 0)
        call = ToolCall(f"c{number}", "read", "", {"n": number})
        session.hook("before_tool_call", call, batch)
        changed = msgspec.structs.replace(call, args={"n": 0})
        answer = action(session.hook("before_tool_call", changed, batch))
        session.report(call, "same", answer)
        assert answer == ("allow" if number < 2 else "deny+give_up" if number == 2 else "deny")
        assert len(session.state.open) == 1


def test_two_failures_are_equal_when_the_tool_declares_the_same_code():
    def failure(text, code="enoent", declared=True):
        return ToolResult("", text, "error", ToolError(code, text, declared=declared))

    assert at(Session().play(*[A(failure(f"no file {n}")) for n in range(4)])) == 3
    assert at(Session().play(*[A(failure(f"no file {n}", declared=False)) for n in range(9)])) is None
    assert at(Session().play(*[A(failure("no file", declared=False)) for n in range(4)])) == 3
    assert at(Session().play(*[A(failure("no file", code=f"e{n}")) for n in range(9)])) is None


def test_a_failure_differs_from_a_success_with_the_same_text():
    results = ["x", ToolResult("", "x", exit_code=1)] * 4
    assert at(Session().play(*[A(result) for result in results])) is None
    codes = [ToolResult("", "x", exit_code=code) for code in (1, 2, 3)]
    assert at(Session().play(*[A(result) for result in codes])) == 3


@pytest.mark.parametrize("padding", [0, TEXT_LIMIT + 1], ids=["kept text", "masked at once"])
def test_results_that_differ_only_in_ids_and_times_are_equal(padding):
    texts = [f"batch-{n:08x}-77aa-4c1e-9b0d-0a1b2c3d4e5f durationMs={n * 7} pid {n}" + "x" * padding for n in range(5)]
    assert at(Session().play(*[A(text) for text in texts])) == 3


def test_results_that_differ_in_digits_or_far_down_are_different():
    assert at(Session().play(*[A(f"{n} of 40 passed") for n in range(9)])) is None
    assert at(Session().play(*[A("log " * 5000 + str(n)) for n in range(9)])) is None


def test_a_declared_mask_makes_results_equal():
    tool = ToolFacts(effect="read", result_mask=(r"took \d+ lines",))
    session = Session(DENY, log=tool)
    assert at(session.play(*[("log", {}, f"took {n} lines") for n in range(4)])) == 3


def test_a_result_whose_text_was_dropped_is_masked_from_the_next_one_on():
    session = Session({"repeat": {}, "interleaved": {"deny": 4, "max_gap": 100}})
    volatile = (f"pid {number}" for number in range(9))
    session.call(*A(next(volatile)))
    session.play(*[other(n) for n in range(MAX_TEXTS + 1)])
    kept = [record.text for record in session.state.records.values() if record.text is not None]
    assert len(kept) == MAX_TEXTS
    answers = [session.call(*A(next(volatile))) for _ in range(5) if session.call(*other(f"x{_}")) == "allow"]
    assert answers == ["allow", "allow", "allow", "deny+give_up", "deny"]


@pytest.mark.parametrize("ignore", [["thought"], ["thought", "note"]])
def test_ignored_arguments_do_not_make_calls_different(ignore):
    session = Session({**DENY, "tools": {"re*": {"ignore_args": ignore}}})
    assert at(session.play(*[("read", {"path": "x", "thought": n}, "same") for n in range(4)])) == 3


def test_malformed_calls_without_a_name_repeat_too():
    session = Session()
    answers = []
    for number in range(3):
        call = ToolCall(f"c{number}", "", '{"arguments": {', None)
        answers.append(action(session.hook("before_tool_call", call, Batch(f"b{number}"))))
        session.hook("after_tool_call", call, ToolResult(call.id, "error: 'name' is required", "error"))
    assert answers == ["allow", "allow", "deny+give_up"]


def test_calls_of_unusable_responses_feed_the_same_count():
    session = Session({"repeat": {"hint": 2, "deny": 3, "stop": 5}})
    call = ToolCall("c", "read", '{"path": ', None)
    assert [session.say("", "truncated", [call]) for _ in range(6)] == [
        "allow",
        "hint",
        "give_up",
        "allow",
        "stop",
        "stop",
    ]


def test_calls_of_usable_responses_are_judged_before_they_run_and_not_when_parsed():
    session = Session()
    call = ToolCall("c", "read", "{}", {})
    assert [session.say("", "ok", [call]) for _ in range(6)] == ["allow"] * 6


# ---- cycles


@pytest.mark.parametrize("period", [2, 3, 4])
def test_cycles_up_to_the_longest_period_are_found(period):
    session = Session(DENY | {"interleaved": {}})
    block = [A(n=n) for n in range(period)]
    block = [(tool, args, f"r{args['n']}") for tool, args, _ in block]
    assert at(session.play(*block * 4)) == 3 * period
    assert session.answers[3 * period - 1][0].data["period"] == period


def test_a_cycle_goes_on_being_refused_and_then_stops_the_run():
    session = Session({"cycle": {"hint": 2, "deny": 3, "stop": 4}})
    answers = session.play(*[A(), B()] * 4)
    assert answers == ["allow"] * 3 + ["hint", "allow", "deny+give_up", "deny", "stop"]


def test_a_cycle_whose_results_move_is_none():
    session = Session()
    assert at(session.play(*[call for n in range(20) for call in (A(f"{n} %"), B())][:8])) is None


def test_one_call_alone_is_never_a_cycle():
    session = Session(DENY | {"repeat": {}, "interleaved": {}})
    assert set(session.play(*[A()] * 20)) == {"allow"}
    assert set(session.play(*[A("on"), A("off")] * 10)) == {"allow"}
    assert {answer for n in range(20) for answer in session.round(*[A()] * (1 + n % 2))} == {"allow"}


def test_a_repeated_batch_is_no_cycle_but_alternating_batches_are():
    session = Session({"cycle": {"deny": 3}})
    assert {answer for _ in range(9) for answer in session.round(A(), B())} == {"allow"}
    session = Session({"cycle": {"deny": 3}})
    rounds = [
        session.round(*batch) for batch in ([A(), B()], [C(), B()], [B(), A()], [B(), C()], [A(), B()], [B(), C()])
    ]
    assert rounds == [["allow"] * 2] * 5 + [["allow", "deny+give_up"]]


def test_a_cycle_with_a_repeat_inside_is_found():
    session = Session({"cycle": {"deny": 3, "max_period": 4}})
    assert at(session.play(*[A(), A(), B()] * 3)) == 9


def test_alternating_writes_of_the_same_content_are_a_cycle():
    session = Session()
    writes = [("edit", {"path": path, "content": "x"}, "ok") for path in ("a", "b")]
    assert at(session.play(*writes * 4)) == 6


def test_a_broken_cycle_starts_again():
    session = Session()
    assert at(session.play(A(), B(), A(), B(), A(), other(1), B(), A())) is None


def test_a_cycle_longer_than_the_longest_period_is_an_interleaved_repeat():
    session = Session()
    block = [(tool, args, f"r{args['n']}") for tool, args, _ in [A(n=n) for n in range(5)]]
    assert at(session.play(*block * 5)) == 21
    assert session.answers[20][0].code == "interleaved"


# ---- interleaved repeats


def test_a_call_that_keeps_coming_back_is_refused():
    session = Session()
    calls = [call for n in range(6) for call in (A(), other(n))]
    assert at(session.play(*calls)) == 9
    assert session.answers[8][0].data["pattern"] == "interleaved"


def test_interleaved_repeats_count_batches_for_a_hint_and_copies_for_a_refusal():
    session = Session({"interleaved": {"hint": 3, "deny": 5}})
    assert session.round(A(), A()) == ["allow"] * 2
    session.call(*other(1))
    assert session.round(A(), A()) == ["allow"] * 2
    session.call(*other(2))
    assert session.round(A(), A()) == ["deny+give_up", "deny"]


def test_a_hint_about_an_interleaved_repeat_comes_once():
    session = Session({"interleaved": {"hint": 3, "deny": 5}})
    answers = [session.play(A(), other(n))[0] for n in range(6)]
    assert answers == ["allow", "allow", "hint", "allow", "deny+give_up", "deny"]


def test_calls_in_a_row_are_no_interleaved_repeat():
    session = Session({"interleaved": {"deny": 3}})
    assert set(session.play(*[A()] * 9)) == {"allow"}


def test_a_call_that_comes_back_after_a_long_time_starts_again():
    session = Session({"interleaved": {"deny": 3, "max_gap": 4}})
    calls = [call for n in range(9) for call in (A(), *[other(f"{n}-{m}") for m in range(4)])]
    assert set(session.play(*calls)) == {"allow"}
    calls = [call for n in range(9) for call in (A(), *[other(f"x{n}-{m}") for m in range(3)])]
    assert at(session.play(*calls)) == 9


def test_the_strictest_rung_wins_and_then_the_plainest_kind():
    session = Session({"repeat": {"hint": 3}, "interleaved": {"stop": 5}})
    answers = session.play(A(), other(1), A(), A(), A(), A())
    assert answers == ["allow"] * 4 + ["hint", "stop"]
    session = Session({"repeat": {"deny": 3}, "interleaved": {"deny": 4}})
    session.play(A(), other(1), A(), A(), A())
    assert session.answers[-1][0].data["pattern"] == "identical"


# ---- stagnation


def test_different_questions_with_the_same_answer_stagnate():
    session = Session()
    assert at(session.play(*[("read", {"q": n}, "none") for n in range(9)])) == 6
    assert session.answers[5][0].data["pattern"] == "stagnation"


def test_commands_have_their_own_rungs_for_stagnation():
    session = Session()
    assert at(session.play(*[("shell", {"cmd": n}, "") for n in range(14)])) == 12
    assert set(Session().play(*[("poll", {"id": n}, "queued") for n in range(20)])) == {"allow"}


def test_an_undeclared_tool_counts_as_a_command():
    assert at(Session().play(*[("mystery", {"q": n}, "none") for n in range(14)])) == 12


def test_stagnation_compares_raw_results():
    assert at(Session().play(*[("read", {"q": n}, f"took {n} ms") for n in range(20)])) is None


def test_stagnation_is_per_tool_and_other_tools_may_come_between():
    session = Session()
    calls = [call for n in range(6) for call in (("read", {"q": n}, "none"), ("search", {"q": n}, f"news {n}"))]
    assert at(session.play(*calls)) == 11


def test_the_same_question_again_is_no_new_question():
    session = Session({"stagnation": {"deny": 4}})
    calls = [("read", {"q": n % 3}, "none") for n in range(30)]
    assert set(session.play(*calls)) == {"allow"}
    assert session.call("read", {"q": 3}, "none") == "deny+give_up"


def test_parallel_questions_are_one_step():
    session = Session()
    wide = [session.round(*[("read", {"q": f"{turn}-{n}"}, "none") for n in range(8)]) for turn in range(6)]
    assert {answer for answers in wide[:5] for answer in answers} == {"allow"}
    assert wide[5] == ["deny+give_up"] + ["deny"] * 7


def test_parallel_questions_with_different_answers_are_progress():
    session = Session({"stagnation": {"deny": 3}})
    for turn in range(6):
        answers = session.round(("read", {"q": f"a{turn}"}, "none"), ("read", {"q": f"b{turn}"}, f"news {turn}"))
        assert answers == ["allow", "allow"]


def test_refused_questions_count_so_that_a_later_rung_is_reached():
    session = Session({"stagnation": {"hint": 2, "deny": 4, "stop": 6}})
    answers = session.play(*[("read", {"q": n}, "none") for n in range(7)])
    assert answers == ["allow", "hint", "allow", "deny+give_up", "deny", "stop", "stop"]


def test_paging_forward_is_progress():
    session = Session()
    assert at(session.play(*[("read", {"offset": n * 200}, f"lines {n * 200}") for n in range(30)])) is None


# ---- effects


def test_a_new_write_makes_the_next_repeat_legitimate():
    session = Session()
    calls = [call for n in range(8) for call in (("shell", {"cmd": "make"}, "error"), ("edit", {"line": n}, "edited"))]
    assert set(session.play(*calls)) == {"allow"}


def test_a_new_write_in_the_same_batch_does_so_too():
    session = Session()
    for n in range(8):
        assert session.round(("shell", {"cmd": "make"}, "error"), ("edit", {"line": n}, "edited")) == ["allow"] * 2


def test_a_new_write_resets_stagnation():
    session = Session()
    calls = [call for n in range(9) for call in (("read", {"q": n}, "none"), ("edit", {"n": n // 3}, "ok"))]
    assert set(session.play(*calls)) == {"allow"}


def test_a_repeated_or_failed_write_resets_nothing():
    session = Session({"interleaved": {"deny": 4}})
    session.play(("edit", {"n": 1}, "ok"))
    assert at(session.play(*[A(), ("edit", {"n": 1}, "ok"), other(1)] * 4)) == 8
    session = Session({"interleaved": {"deny": 3}})
    failed = ToolResult("", "disk full", "error", ToolError("io"))
    calls = [call for n in range(3) for call in (A(), ("edit", {"n": n}, failed))]
    assert at(session.play(*calls)) == 5


def test_a_write_never_resets_its_own_count():
    assert at(Session().play(*[("edit", {"n": 1}, "Wrote 2 bytes")] * 5)) == 3
    session = Session()
    rounds = [session.round(("edit", {"n": 1}, "ok"), ("save", {"n": 1}, "ok")) for _ in range(3)]
    assert rounds[2] == ["deny+give_up", "deny+give_up"]


def test_commands_and_reads_reset_nothing():
    session = Session({"interleaved": {"deny": 4}})
    calls = [call for n in range(4) for call in (A(), ("shell", {"cmd": n}, f"done {n}"))]
    assert at(session.play(*calls)) == 7


def test_polls_count_only_under_their_own_allowance():
    session = Session()
    assert at(session.play(*[("poll", {"job": 1}, "queued")] * 12)) == 10
    assert (session.answers[9][0].code, session.answers[9][0].data["pattern"]) == ("poll", "identical")
    session = Session()
    calls = [call for n in range(9) for call in (("poll", {"job": 1}, "queued"), ("poll", {"job": 2}, "queued"))]
    assert set(session.play(*calls)) == {"allow"}


def test_polls_are_no_part_of_a_cycle_and_do_not_hide_one():
    session = Session(DENY | {"interleaved": {}})
    calls = [call for call in [A(), B()] * 3 for call in (call, ("poll", {"job": 1}, "queued"))]
    assert at(session.play(*calls)) == 11
    assert session.answers[10][0].data["period"] == 2


def test_a_batch_with_a_poll_is_judged_by_the_strictest_ladder_whatever_the_order():
    poll = ("poll", {"job": 1}, "queued")
    for batch in ([A(), poll], [poll, A()]):
        session = Session({"repeat": {"stop": 3}, "poll": {"stop": 9}})
        assert [session.round(*batch) for _ in range(3)][2][1] == "stop"


def test_moving_polls_in_a_batch_are_progress():
    session = Session({"repeat": {"hint": 3, "stop": 5}})
    assert {answer for n in range(9) for answer in session.round(A(), ("poll", {}, f"{n} %"))} == {"allow"}


# ---- texts


def test_the_same_text_again_and_again_ends_the_run():
    session = Session({"text": {"hint": 2, "stop": 4}})
    assert [session.say("I will prepare it.", "prose") for _ in range(4)] == ["allow", "hint", "allow", "stop"]
    found = session.hook("after_parse", Verdict("prose", (), "I will prepare it."), ())
    assert (found.code, found.data["pattern"], found.observed) == ("text_repeat", "text_repeat", 5)


def test_a_call_ends_a_streak_of_texts():
    session = Session()
    for _ in range(4):
        assert [session.say("Next."), session.say("Next.")] == ["allow", "allow"]
        session.call(*other(_))
    session = Session()
    for number in range(4):
        assert session.say("Next.") == "allow"
        session.say("", "ok", [ToolCall(f"c{number}", "read", "{}", {})])


def test_other_texts_end_a_streak_and_empty_ones_do_not():
    session = Session()
    assert [session.say(text) for text in ("a", "a", "b", "a", "a")] == ["allow"] * 5
    assert [session.say(text) for text in ("", " ")] == ["allow"] * 2
    assert session.say(" a\n") == "stop"


def test_texts_in_different_steps_are_no_repeat():
    session = Session({"text": {"stop": 2}, "scope": "run"})
    assert session.say("Done.") == "allow"
    session.hook("step_start", 2)
    assert session.say("Done.") == "allow"
    session.hook("run_start", "next task")
    assert session.say("Done.") == "stop"


# ---- scopes


@pytest.mark.parametrize("scope", ["step", "run", "conversation"])
def test_the_scope_of_the_state_is_an_option(scope):
    assert StallDetector({**OFF, "scope": scope}).state_scope() == scope


def test_batch_ids_of_another_run_do_not_continue_a_batch():
    session = Session({"repeat": {"stop": 3}, "scope": "conversation"}, ends=False)
    for _ in range(3):
        session.run.iteration = 0
        session.hook("run_start", "task")
        answers = session.round(A())
    assert answers == ["stop"]


# ---- options


def test_options_that_can_never_fire_are_reported(faults):
    assert faults(StallDetector) == []
    found = faults(StallDetector, repeat={"hint": 5, "deny": 5, "stop": 4})
    assert [line.split(":")[0] for line in found] == ["repeat.deny", "repeat.stop"]
    found = faults(StallDetector, stagnation={"hint": 3, "exec": {"deny": 9, "stop": 9}})
    assert [line.split(":")[0] for line in found] == ["stagnation.exec.stop"]
    found = faults(StallDetector, tools={"x": {"poll": {"hint": 9, "stop": 3}}})
    assert [line.split(":")[0] for line in found] == ["tools.x.poll.stop"]


def test_rungs_masked_by_others_are_reported(faults):
    found = faults(StallDetector, cycle={"hint": 3, "stop": 5}, interleaved={"stop": 4})
    assert [line.split(":")[0] for line in found] == ["cycle.stop"]
    found = faults(StallDetector, text={"end_step": 3, "stop": 5})
    assert [line.split(":")[0] for line in found] == ["text.stop"]
    assert faults(StallDetector, text={"end_step": 3, "stop": 5}, scope="run") == []


def test_patterns_after_a_catch_all_are_reported(faults):
    found = faults(StallDetector, tools={"exact": {}, "*": {"repeat": {}}, "x*": {}, "other": {}})
    assert [line.split(":")[0] for line in found] == ["tools.x*"]


def test_a_detector_without_rungs_is_reported(faults):
    assert len(faults(StallDetector, **OFF)) == 1
    assert faults(StallDetector, **OFF, tools={"x": {"stagnation": {"exec": {"stop": 4}}}}) == []


def test_a_kind_without_rungs_is_off():
    session = Session({})
    assert set(session.play(*[A()] * 20, *[A(), B()] * 20)) == {"allow"}
    assert {session.say("same") for _ in range(20)} == {"allow"}
    session = Session(DENY | {"tools": {"re[ab]d": {"repeat": {}, "interleaved": {}}}})
    assert set(session.play(*[A()] * 9)) == {"allow"}


def test_an_exact_override_wins_over_patterns_and_the_first_pattern_over_later_ones():
    tools = {"*": {"repeat": {"deny": 7}}, "read": {"repeat": {"deny": 4}}, "sea*": {"repeat": {"deny": 2}}}
    session = Session({"repeat": {"deny": 3}, "tools": tools})
    assert at(session.play(*[A()] * 5)) == 4
    assert at(session.play(*[B()] * 9)) == 7


# ---- proofs


def test_every_rung_is_proved_through_the_real_loop(proved):
    found = proved(StallDetector)
    assert found["repeat.deny"] == "fires at 5"
    assert found["cycle period 5.stop"] == "fires at 25"
    assert found["text.hint"] == "fires at 2"
    assert len(found) == 18


def test_overrides_are_proved_too(proved):
    tools = {"check_*": {"repeat": {"deny": 10}}, "n[ao]p?": {"stagnation": {"exec": {"hint": 4}}}, "n[!x]pe": {}}
    found = proved(StallDetector, tools=tools, repeat={"wind_down": 3}, text={"end_step": 2}, cycle={"max_period": 2})
    assert found["repeat[check_*].deny"] == found["poll[check_*].deny"] == "fires at 10"
    assert found["stagnation.exec[n[ao]p?].hint"] == "fires at 4"
    assert found["repeat.wind_down"] == "fires at 3"


def test_each_proof_trips_its_rung():
    options = {
        **{kind: {"hint": 2, "deny": 3, "end_step": 4, "wind_down": 5, "stop": 6} for kind in OFF},
        "cycle": {"hint": 2, "deny": 3, "end_step": 4, "wind_down": 5, "stop": 6, "max_period": 4},
        "text": {"hint": 2, "end_step": 3, "wind_down": 4, "stop": 5},
    }
    kinds = Counter()
    for proof in StallDetector({**options, "scope": "run", "tools": {}}).proofs():
        kind = proof.label.split(".")[0].split(" ")[0]
        alone = {kind: options[kind]}
        session = Session(alone, **proof.tools)
        answers = []
        for turn in proof.turns:
            if turn.calls:
                answers.append(session.call(turn.calls[0].tool, turn.calls[0].args, turn.calls[0].result))
            else:
                answers.append(session.say(turn.text, "prose"))
        assert (answers.index(next(a for a in answers if a.startswith(proof.action))) + 1, proof.action) == (
            proof.expect,
            proof.action,
        ), proof.label
        kinds[kind] += 1
    assert kinds == {"repeat": 5, "poll": 5, "cycle": 10, "interleaved": 5, "stagnation": 5, "text": 4}


# ---- properties


calls = st.tuples(
    st.sampled_from([*EFFECTS, ""]),
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 1), max_size=2),
    st.sampled_from(["same", "pid 1", "pid 2", "other", ToolResult("", "bad", "error", ToolError("e", declared=True))]),
)
rounds = st.lists(st.lists(calls, min_size=1, max_size=3), max_size=25)
LADDER = {"hint": 2, "deny": 3, "end_step": 4, "wind_down": 5, "stop": 6}
EVERYTHING = {
    "repeat": LADDER,
    "cycle": {**LADDER, "max_period": 3},
    "interleaved": {**LADDER, "max_gap": 6},
    "stagnation": {**LADDER, "exec": LADDER},
    "poll": LADDER,
    "text": {"hint": 2, "stop": 3},
}


@quick
@given(rounds)
def test_saving_between_any_two_events_changes_no_decision(batches):
    plain, saved = Session(EVERYTHING), Session(EVERYTHING, save=True)
    for batch in batches:
        assert plain.round(*batch) == saved.round(*batch)
    assert plain.state == saved.state


@quick
@given(rounds)
def test_how_results_are_reported_changes_no_decision(batches):
    together, singly, lazy = Session(EVERYTHING), Session(EVERYTHING, singly=True), Session(EVERYTHING, ends=False)
    for batch in batches:
        assert together.round(*batch) == singly.round(*batch) == lazy.round(*batch)


@quick
@given(rounds)
def test_the_order_of_keys_changes_no_decision(batches):
    one, other_way = Session(EVERYTHING), Session(EVERYTHING)
    for batch in batches:
        turned = [(tool, dict(reversed(args.items())), result) for tool, args, result in batch]
        assert one.round(*batch) == other_way.round(*turned)


@quick
@given(rounds)
def test_a_first_call_is_never_refused_for_what_it_is(batches):
    session = Session({"repeat": {"deny": 2}, "cycle": {"deny": 2}, "interleaved": {"deny": 2}, "poll": {"deny": 2}})
    seen = set()
    for batch in batches:
        for (tool, args, _), answer in zip(batch, session.round(*batch), strict=True):
            key = (tool, json.dumps(args, sort_keys=True))
            assert key in seen or answer == "allow"
            seen.add(key)


@quick
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=40))
def test_counts_agree_with_a_detector_that_looks_at_the_whole_history(sequence):
    """Reads only, one call a batch, nothing refused (the only rungs are hints that are never suppressed: stops)."""
    session = Session({"repeat": {"stop": 3}, "cycle": {"stop": 2, "max_period": 4}, "interleaved": {"stop": 4}})
    history: list[tuple[int, int]] = []
    for name, result in sequence:
        answer = session.call("read", {"n": name}, f"result {result}")
        assert answer == ("stop" if _stalls(history, name) else "allow")
        history.append((name, result))


def _stalls(history, name):
    def run_of(entries):
        """Number of the latest calls of this name in `entries` with one result."""
        found = [result for known, result in entries if known == name]
        return next((n for n, result in enumerate(reversed(found)) if result != found[-1]), len(found))

    tail = 0
    while tail < len(history) and history[-1 - tail][0] == name:
        tail += 1
    if run_of(history[len(history) - tail :]) + 1 >= 3:
        return True
    last = next((n for n in range(len(history) - 1, -1, -1) if history[n][0] == name), None)
    total = run_of(history)
    if last is not None and total + 1 >= 4:
        first = [n for n in range(len(history)) if history[n][0] == name][-total]
        if any(known != name for known, _ in history[first:]):
            return True
    for period in (2, 3, 4):
        if len(history) < 2 * period - 1:
            continue
        block = history[-period:]
        before = history[-2 * period + 1 : -period]
        if block[0][0] == name and block[1:] == before and len({known for known, _ in block}) > 1:
            return True
    return False


def test_memory_is_bounded_whatever_happens():
    session = Session(EVERYTHING)
    generator = random.Random(7)
    sizes = []
    for n in range(3000):
        tool = generator.choice([*EFFECTS, f"tool {n}"])
        text = generator.choice(["x" * 300, f"pid {n} " * 50, "y" * (TEXT_LIMIT + 1)])
        width = generator.choice([1, 1, 1, 3])
        session.round(*[(tool, {"n": generator.choice([n, n % 5]), "m": m}, text) for m in range(width)])
        sizes.append(len(msgspec.json.encode(session.state)))
    assert max(sizes[1000:]) < 2 * max(sizes[:500]) < 200_000
    assert len(session.state.records) <= MAX_RECORDS


def test_results_that_never_come_do_not_pile_up():
    session = Session(EVERYTHING, ends=False)
    for n in range(500):
        session.hook("before_tool_call", ToolCall(f"c{n}", "read", "", {"n": n}), Batch(f"b{n}"))
    assert len(session.state.late) <= 64
    assert len(session.state.records) <= MAX_RECORDS


def test_a_huge_batch_is_judged_to_its_last_call():
    session = Session({"repeat": {"deny": 3}})
    answers = session.round(*[A()] * (MAX_OPEN + 50))
    assert answers[:3] == ["allow", "allow", "deny+give_up"]
    assert set(answers[3:]) == {"deny"}
    session = Session({"repeat": {"stop": 2}, "cycle": {"stop": 2}})
    for _ in range(3):
        assert set(session.round(*[other(n) for n in range(MAX_OPEN + 5)])) == {"allow"}


@pytest.mark.parametrize("max_period", [2, 3, 8])
def test_state_stays_valid_when_windows_change(max_period):
    session = Session({"cycle": {"deny": 3, "max_period": 4}})
    session.play(*[A(), B()] * 2)
    session.guard = StallDetector({**session.guard.options, "cycle": {"deny": 3, "max_period": max_period}})
    assert session.play(A(), B()) == ["allow", "deny+give_up"]
    assert len(session.state.cycles.calls) <= max(4, max_period)


def test_a_late_write_resets_like_any_other():
    session = Session({"interleaved": {"deny": 3}}, ends=False)
    answers = []
    for number in range(6):
        answers.append(session.call(*A()))
        write = ToolCall(f"w{number}", "edit", "", {"n": number})
        session.hook("before_tool_call", write, Batch(f"w{number}"))
        session.hook("before_tool_call", ToolCall(f"x{number}", "search", "", {"n": number}), Batch(f"x{number}"))
        session.hook("after_tool_call", write, ToolResult(write.id, "edited"))
    assert set(answers) == {"allow"}


def test_fingerprints_in_the_state_never_hold_arguments():
    session = Session()
    session.play(("read", {"secret": "hunter2"}, raw_fingerprint("x")), A())
    assert b"hunter2" not in msgspec.json.encode(session.state)


def test_state_can_be_saved_whatever_tools_and_ids_look_like():
    session = Session({"repeat": {"deny": 3, "stop": 5}}, save=True)
    answers = []
    for number in range(4):
        call = ToolCall(f"\ud800{number}", "réad\udcff", "", {"a": "\ud801"})
        answers.append(action(session.hook("before_tool_call", call, Batch(f"b{number}"))))
        session.report(call, "bad \ud802", answers[-1])
    assert answers == ["allow", "allow", "deny+give_up", "deny"]


def test_a_rewritten_call_keeps_its_place_in_a_batch_of_others():
    session = Session({"repeat": {"stop": 3}}, ends=False)
    answers = []
    for number in range(3):
        for index in range(2):
            call = ToolCall(f"c{number}-{index}", "read", "", {"n": number, "index": index})
            session.hook("before_tool_call", call, Batch(f"b{number}", index))
            changed = msgspec.structs.replace(call, args={"index": index})
            answers.append(action(session.hook("before_tool_call", changed, Batch(f"b{number}", index))))
    assert answers == ["allow"] * 5 + ["stop"]


def test_calls_without_an_id_are_matched_in_order():
    session = Session({"repeat": {"deny": 3}}, ends=False)
    call = ToolCall("", "read", "{}", {})
    for number, texts in enumerate([("1", "2"), ("3", "3"), ("3", "3")]):
        for _ in texts:
            answer = session.hook("before_tool_call", call, Batch(f"b{number}"))
        for text in texts:
            session.hook("after_tool_call", call, ToolResult("", text))
    assert action(answer) == "deny"
    session.hook("before_tool_call", call, Batch("never answered"))
    session.hook("before_tool_call", call, Batch("next"))
    assert session.state.late == {}


def test_a_result_nobody_waits_for_changes_nothing():
    session = Session(ends=False)
    session.play(A(), B())
    before = msgspec.json.encode(session.state)
    session.hook("after_tool_call", ToolCall("unknown", "read", "{}", {}), ToolResult("unknown", "x"))
    assert msgspec.json.encode(session.state) == before


def test_a_late_result_of_a_call_that_was_forgotten_changes_nothing():
    session = Session({"interleaved": {"deny": 2}}, ends=False)
    late = ToolCall("late", "read", "{}", {})
    session.hook("before_tool_call", late, Batch("late"))
    session.call("edit", {"n": 1}, "ok")
    session.call(*B())
    session.hook("after_tool_call", late, ToolResult("late", "x"))
    assert session.call("read", {}, "x") == "allow"


def test_many_tools_are_followed_at_once():
    session = Session({"stagnation": {"exec": {"deny": 3}}})
    for turn in range(2):
        session.play(*[(f"tool {n}", {"turn": turn}, "none") for n in range(100)])
    assert len(session.state.tools) <= 64
    assert session.call("tool 99", {"turn": 2}, "none") == "allow"
    session.play(*[("tool 99", {"turn": turn}, "none") for turn in range(3, 5)])
    assert session.call("tool 99", {"turn": 9}, "none") == "deny"


def test_batches_wider_than_the_memory_are_judged():
    session = Session({"repeat": {"deny": 2}})
    width = MAX_RECORDS + MAX_TEXTS
    for turn in range(3):
        assert set(session.round(*[other(f"{turn}-{n}") for n in range(width)])) == {"allow"}
    assert len(session.state.texts) == MAX_TEXTS
    assert sum(record.text is not None for record in session.state.records.values()) <= MAX_TEXTS
    calls = [ToolCall(f"w{n}", "read", "", {"n": n}) for n in range(width)]
    for index, call in enumerate(calls):
        session.hook("before_tool_call", call, Batch("wide", index))
    session.hook("before_tool_call", calls[-1], Batch("wide", width - 1))
    assert len(session.state.open) == width


def test_a_late_result_corrects_only_its_own_call():
    session = Session({"repeat": {"stop": 3}}, ends=False)
    answers = []
    for number in range(3):
        late = ToolCall(f"late{number}", "read", "{}", {})
        session.hook("before_tool_call", late, Batch(late.id))
        answers.append(session.call(*B()))
        answers.append(session.call(*B()))
        session.hook("after_tool_call", late, ToolResult(late.id, f"{number} %"))
        answers.append(session.call(*B()))
    assert answers == ["allow", "allow", "stop"] * 3


# ---- results that are taken as equal


def failing(text):
    return ToolResult("", text, "error")


def test_failures_that_say_something_else_each_time_are_a_repeat_where_only_successes_are_compared():
    calls = [("read", {}, failing(f"no such file (attempt {word})")) for word in ("one", "two", "three")]
    assert Session({"repeat": {"deny": 3}}).play(*calls) == ["allow"] * 3
    guard = Session({"repeat": {"deny": 3}, "results": "compare_successes"})
    assert guard.play(*calls) == ["allow", "allow", "deny+give_up"]


def test_a_failure_never_equals_a_success_where_only_successes_are_compared():
    guard = Session({"repeat": {"deny": 3}, "results": "compare_successes"})
    assert guard.play(A("same"), A(failing("same")), A("same"), A("other")) == ["allow"] * 4


def test_what_a_call_answers_does_not_matter_where_results_are_ignored():
    guard = Session({"repeat": {"deny": 3}, "cycle": {"deny": 3, "max_period": 4}, "results": "ignore"})
    assert guard.play(A("one"), A(failing("two")), A("three")) == ["allow", "allow", "deny+give_up"]
    guard.user()
    turns = [call for turn in "xyz" for call in (A(f"a {turn}"), B(f"b {turn}"))]
    assert guard.play(*turns) == ["allow"] * 5 + ["deny+give_up"]


def test_results_of_one_tool_are_ignored_and_those_of_others_compared():
    guard = Session({"repeat": {"deny": 3}, "tools": {"shell": {"results": "ignore"}}})
    assert guard.play(*(("shell", {}, f"12:00:{second}x") for second in "abc"))[-1] == "deny+give_up"
    assert guard.play(A("one"), A("two"), A("three")) == ["allow"] * 3


@pytest.mark.parametrize("singly", [False, True])
def test_results_that_come_late_are_taken_as_equal_too(singly):
    guard = Session({"repeat": {"deny": 3}, "results": "ignore"}, singly=singly, save=True, ends=False)
    assert guard.play(A("one"), A("two"), A("three"))[-1] == "deny+give_up"
