"""The demonstrations in examples/reference_systems: the failure really happens, and here it does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from policyengine import Plan, Step, check_history
from policyengine.plans import ready, update_plan

FOLDER = Path(__file__).parents[1] / "examples" / "reference_systems"
DEMOS = sorted(path.stem for path in FOLDER.glob("*.py"))

LINES = {
    "agent_zero": (
        "alternating: 6 unusable, longest row counted 1, limit 3: never stopped",
        "reworded: 6 unusable, longest row counted 0, limit 3: never stopped",
        "alternating: stopped in round 7 by stop_unusable_response_loop: unusable_responses (observed 4, limit 4)",
        "circle: 12 of 12 calls run, 0 refused",
        "circle: stopped in round 8 by stall_detector: cycle (observed 4, limit 4); history valid",
        "job: completed, 3 calls run; history valid",
        "as it was: whole: misformat, in two: runs {'page': 1}, letters: runs {'page': 1}",
        "here: whole: multiple, in two: multiple, letters: multiple",
    ),
    "tool_envelope": (
        "a job that moves: queued, stop: same_tool",
        "a job that moves: completed: It is done. (4 calls run; history valid)",
        "a job that is stuck: stopped in round 7 by stall_detector: poll (observed 7, limit 7); history valid",
        "12 requests; reasons to stop: none given",
        "stopped in round 3 by token_budget: token_budget (observed 960, limit 960); history valid",
        "without the task; roles: user",
        "with the task; roles: system, user, assistant, user",
        "6 failed attempts, 0 of them kept in the history",
    ),
    "amritacore": (
        "messages[4]: interposed_message (c2)",
        "after a compaction: messages[2]: orphan_result (c2)",
        "user assistant tool tool tool user assistant",
        "as it was: 5 run, 0 cancelled",
        "here: 2 of 4 run, stopped by stall_detector: repeat (observed 4, limit 4); history valid",
        "as it was: 10 run, 0 cancelled",
        "stopped by stall_detector: cycle (observed 4, limit 4); history valid",
        "success, success, success, success",
        "unknown_step, unknown_action, step_needed, ok",
    ),
    "state_machine": (
        "as it was: halted at step 3: tool failures (counter: 3, limit 3)",
        "here: completed in round 4: found; history valid",
        "here: stopped in round 3 by parse_failures: parse_failures (observed 3, limit 3); history valid",
        "as it was: halted at step 51: steps (counter: 50, limit 3)",
        "here: stopped in round 3 by unknown_tools: unknown_tool (observed 3, limit 3); history valid",
        "as it was: halted at step 4: loop",
        "here: completed in round 5: found; history valid",
    ),
    "xagent": (
        "request 1: none, request 2: finish_task, request 3: finish_task",
        "request 1: none, request 2: finish_task, request 3: end_task",
        "caller's messages: 2 before, 3 after",
        "RetriesOver: 3 attempts; 0 notices told to the model",
        "missing_call after 3 attempts: the response holds no call; 2 notices",
        "as it was: accepted: {'tool_call': {'tool_name': 'careful'",
        "here: wrong_function after 3 attempts",
        "here: accepted: handle",
    ),
}


def demo(name):
    spec = importlib.util.spec_from_file_location(f"reference_systems_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(name, capsys):
    demo(name).main()
    return capsys.readouterr()


def test_every_demonstration_is_listed_and_checked():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(LINES) == DEMOS
    assert all(f"[{name}.py]({name}.py)" in page for name in DEMOS)


@pytest.mark.parametrize("name", DEMOS)
def test_a_demonstration_tells_both_parts_and_always_the_same(name, capsys):
    first = told(name, capsys)
    assert first.err == ""
    assert [line for line in LINES[name] if line not in first.out] == []
    parts = first.out.count("as it was"), first.out.count("here")
    assert min(parts) >= 3
    assert first.out.index("as it was") < first.out.index("here")
    assert "history broken" not in first.out
    assert told(name, capsys) == first


@pytest.mark.parametrize("name", DEMOS)
def test_a_demonstration_runs_as_a_program_of_its_own_without_warnings(name, capsys, tmp_path):
    command = [sys.executable, "-W", "error", "-X", "utf8", str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == told(name, capsys).out


# ---- the failures are computed: with other input they do not happen, or happen elsewhere


def test_the_old_breaker_does_trip_on_a_row_that_is_worded_as_it_expects():
    shown = demo("agent_zero")
    assert shown.old_loop(shown.PROSE)["stopped"] == 3
    assert shown.old_loop(shown.PROSE, "another wording")["stopped"] == 0
    assert shown.old_loop(shown.ALTERNATING)["stopped"] == 0


def test_the_old_stream_reads_by_pieces_and_accepts_a_request_alone_however_it_is_cut():
    shown = demo("agent_zero")
    request, rest = shown.STREAMS["two requests"]
    assert {shown.old_stream([request]), shown.old_stream(request)} == {"runs {'page': 1}"}
    assert shown.old_stream([request + rest]) != shown.old_stream([request, rest])


def test_the_old_polling_stops_a_call_because_it_is_equal_not_because_its_result_is():
    shown = demo("tool_envelope")
    twice = [("check_job", {"id": 7}), ("check_job", {"id": 7})]
    assert shown.old_polling(twice, ["20 %", "done"]) == ["20 %", "stop: same_tool"]
    other = [("check_job", {"id": 7}), ("check_job", {"id": 8})]
    assert shown.old_polling(other, ["20 %", "done"]) == ["20 %", "done"]


def test_the_old_steps_give_up_only_where_no_attempt_of_a_step_can_be_read():
    shown = demo("tool_envelope")
    model = shown.Heard([shown.say("hm")] * 3, "text")
    assert (shown.old_steps(model), len(model.requests)) == (["parse_exhausted"], 3)


def test_the_old_history_is_sound_where_nothing_or_the_last_call_fails_and_broken_otherwise():
    shown = demo("amritacore")
    good, failing = shown.FILES[0], shown.FILES[1]
    for calls, codes in (
        ((good, good), []),
        ((good, failing), []),
        ((failing, good), ["interposed_message"]),
    ):
        assert [problem.code for problem in check_history(shown.old_history(calls))] == codes
    compacted = check_history(shown.old_compaction(shown.old_history(shown.FILES)))
    assert {problem.code for problem in compacted} == {"orphan_result"}


def test_the_old_stall_test_sees_equal_text_and_nothing_else():
    shown = demo("amritacore")
    assert shown.old_stall([shown.SAME[0]] * 5) == (2, 3)
    assert shown.old_stall(shown.SAME) == (5, 0)
    assert shown.old_stall(shown.CIRCLE) == (10, 0)


def test_the_old_update_takes_away_what_another_step_waits_for():
    shown = demo("amritacore")
    old = {id: {"needs": needs, "done": False} for id, needs in shown.STEPS.items()}
    new = Plan(tuple(Step(id, f"See to {id}.", needs) for id, needs in shown.STEPS.items()))
    for args in (*shown.UPDATES, {"action": "mark_done", "id": "stock"}):
        assert shown.old_update(old, args) == "success"
        new = update_plan(new, args).plan
    assert shown.old_ready(old) == []
    assert [step.id for step in ready(new)] == ["offer"]


def test_the_old_machine_adds_up_what_has_nothing_to_do_with_each_other():
    shown = demo("state_machine")
    two = [shown.prose(1), shown.unknown(1), shown.DONE]
    assert shown.old_run(two) == "halted at step 3: finished (counter: 2, limit 3)"
    for kinds in (
        [shown.prose(1), shown.fails(1), shown.unknown(1)],
        [shown.unknown(1), shown.fails(1), shown.prose(1)],
    ):
        assert "counter: 3" in shown.old_run([*kinds, shown.DONE])
    for limit in (5, 20, 50):
        assert shown.old_run(shown.ALWAYS_UNKNOWN, limit).startswith(f"halted at step {limit + 1}: steps")


def test_the_old_request_is_told_about_the_first_wrong_name_only():
    shown = demo("xagent")
    old, messages, said, _, _ = shown.both(shown.WRONG_NAMES)
    second, third = old.added(len(shown.PROMPT))[1:]
    assert second == third == [messages[-1].text]
    assert said.startswith("RetriesOver")
    old, messages, _, new, _ = shown.both(shown.NO_CALL)
    assert (old.requests[0], messages) == (old.requests[2], list(shown.PROMPT))
    assert len(new.requests[2].messages) == len(shown.PROMPT) + 1


def test_the_old_tolerance_takes_any_quoted_word_and_no_other():
    shown = demo("xagent")
    assert shown.both(shown.QUOTED)[2].startswith("accepted")
    assert shown.both([shown.call("hidden")] * 3)[2].startswith("RetriesOver")
