"""`failure_hint_injector`: a ladder over declared failures of tools."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import Engine, call, say
from policyengine.context import RunView
from policyengine.extensions.failure_hint_injector import FailureHintInjector
from policyengine.messages import UNDECLARED, Batch, Failure, ToolCall, ToolError, ToolFacts, ToolResult
from policyengine.policy.model import Planning
from policyengine.runstate import RunState
from policyengine.testing import play, policy, rule

OK = ToolResult("", "fine")
FAILED = ToolResult("", "no", "error")
FINAL = ToolResult("", "gone", "error", ToolError("gone", retryable=False))
UNKNOWN = ToolResult("", "no such tool", "error", ToolError("unknown_tool", retryable=False))
RESULTS = {".": OK, "F": FAILED, "N": FINAL, "?": UNKNOWN}


def told(rule, script, tool="search"):
    """Play one call a round (`.` success, `F` failure, `N` not retryable, `?` unknown) and return what was told.

    The words are the last parts of message kinds; `-` is silence.
    """
    words = []
    for letter in script:
        before, after = rule.batch((tool, RESULTS[letter]))
        answer = before[0] or after[0]
        words.append(answer.kind.rpartition(".")[2] if answer else "-")
    return " ".join(words)


def test_first_failure_second_failure_and_then_the_tool_is_refused(bench):
    rule = bench(FailureHintInjector)
    assert told(rule, "FFFFF") == "retry change - deny deny"


def test_the_refusal_says_what_was_counted(bench):
    rule = bench(FailureHintInjector)
    told(rule, "FFF")
    (refusal,), _ = rule.batch(("search", OK))
    assert (refusal.name, refusal.code, refusal.kind) == ("deny", "tool_failure", "tool_failure.deny")
    assert (refusal.observed, refusal.limit, refusal.data["tool"]) == (3, 3, "search")


def test_success_resets_the_row_but_not_the_total(bench):
    rule = bench(FailureHintInjector)
    assert told(rule, "F.F.F.F") == "retry - change - - - -"
    tally = rule.state.tallies["search"]
    assert (tally.in_a_row, tally.total) == (1, 4)
    assert told(rule, "FFF") == "- - deny"


def test_the_refusal_can_count_the_total_instead(bench):
    rule = bench(FailureHintInjector, count="total")
    assert told(rule, "F.F.F.") == "retry - change - - deny"


def test_a_new_step_starts_from_zero(bench):
    rule = bench(FailureHintInjector)
    assert told(rule, "FFFF") == "retry change - deny"
    rule.next_step()
    assert told(rule, "F") == "retry"


def test_a_refused_tool_stays_refused_until_the_step_ends(bench):
    rule = bench(FailureHintInjector)
    told(rule, "FFF")
    assert told(rule, "...") == "deny deny deny"


def test_failures_of_another_tool_do_not_raise_the_level(bench):
    rule = bench(FailureHintInjector)
    assert told(rule, "FF", "search") == "retry change"
    assert told(rule, "F", "fetch") == "retry"
    told(rule, "F", "search")
    assert told(rule, ".", "search") == "deny"
    assert told(rule, ".", "fetch") == "-"


def test_scope_step_counts_all_tools_and_refuses_the_one_that_fails_last(bench):
    rule = bench(FailureHintInjector, scope="step")
    assert told(rule, "F", "a") == "retry"
    assert told(rule, "F", "b") == "change"
    assert told(rule, "F", "c") == "-"
    assert [told(rule, ".", tool) for tool in "abc"] == ["-", "-", "deny"]


def test_a_success_of_any_tool_ends_the_row_in_scope_step(bench):
    rule = bench(FailureHintInjector, scope="step")
    told(rule, "FF", "a")
    told(rule, ".", "b")
    assert told(rule, "F.", "a") == "- -"


def test_a_tool_that_rules_out_a_retry_gets_the_alternative_at_once(bench):
    rule = bench(FailureHintInjector)
    assert told(rule, "NNN.") == "no_retry no_retry - deny"


def test_a_retry_is_ruled_out_once_between_the_levels(bench):
    rule = bench(FailureHintInjector, levels={"hint": 1, "insist": 5})
    assert told(rule, "FNNFF") == "retry no_retry - - change"


def test_after_a_first_failure_without_retry_the_second_still_insists(bench):
    assert told(bench(FailureHintInjector), "NF") == "no_retry change"


def test_a_refusal_by_a_guard_is_no_failure_and_no_success(bench):
    rule = bench(FailureHintInjector)
    told(rule, "FF")
    for status in ("denied", "not_run"):
        rule.hook("after_tool_call", ToolCall("x", "search"), ToolResult("x", "no", status))
    assert (rule.state.tallies["search"].in_a_row, rule.state.tallies["search"].total) == (2, 2)


@pytest.mark.parametrize(
    "result",
    [
        ToolResult("", "", "timeout"),
        ToolResult("", "exit", "ok", exit_code=2),
        ToolResult("", "  Error: no such file"),
    ],
    ids=["timeout", "exit code", "declared prefix"],
)
def test_failure_is_what_is_declared_as_failure(bench, result):
    rule = bench(FailureHintInjector, tools={"search": ToolFacts(failure=Failure(("Error",)))})
    _, (note,) = rule.batch(("search", result))
    assert note.kind == "tool_failure.retry"


def test_words_in_an_output_are_no_failure(bench):
    assert rule_is_silent(bench(FailureHintInjector), ToolResult("", "ERROR failed exception"))


def rule_is_silent(rule, result):
    before, after = rule.batch(("search", result))
    return before == after == [None]


def test_a_batch_of_failures_of_one_tool_is_one_failure_with_one_note(bench):
    rule = bench(FailureHintInjector)
    _, notes = rule.batch(*[("search", FAILED)] * 3)
    assert [note and note.kind for note in notes] == ["tool_failure.retry", None, None]
    assert rule.state.tallies["search"].total == 1


def test_each_tool_of_a_batch_gets_its_own_note(bench):
    _, notes = bench(FailureHintInjector).batch(("a", FAILED), ("b", OK), ("b", FAILED), ("a", FAILED))
    assert [note and note.data["tool"] for note in notes] == ["a", None, "b", None]


def test_a_host_that_counts_no_rounds_still_has_batches(bench):
    rule = bench(FailureHintInjector)
    kinds = []
    for _ in range(2):
        _, (note,) = rule.batch(("search", FAILED))
        rule.run.iteration = 1
        kinds.append(note.kind)
    assert kinds == ["tool_failure.retry", "tool_failure.change"]


def test_levels_left_out_are_not_reached(bench):
    assert told(bench(FailureHintInjector, levels={"deny": 2}), "FFF") == "- - deny"
    assert told(bench(FailureHintInjector, levels={"hint": 2}), "FFFFF") == "- retry - - -"
    assert told(bench(FailureHintInjector, levels={"insist": 1}), "FFFF") == "change - - -"
    assert told(bench(FailureHintInjector, levels={"deny": 2}), "NN.") == "- - deny"


def test_the_two_notes_have_codes_of_their_own(bench):
    rule = bench(FailureHintInjector)
    codes = [rule.batch(("search", FAILED))[1][0].code for _ in range(2)]
    assert codes == ["tool_failure", "tool_failure_again"]


def test_calls_of_unknown_tools_say_nothing_and_are_left_to_another_rule(bench):
    rule = bench(FailureHintInjector)
    assert told(rule, "F?F??.", "search") == "retry - change - - -"
    assert (rule.state.tallies["search"].total, rule.state.refused) == (2, {})


def test_state_survives_a_restart_and_other_levels(bench):
    rule = bench(FailureHintInjector)
    told(rule, "FFF")
    rule.reload(levels={"deny": 4})
    assert told(rule, "FF") == "- deny"
    rule.reload(levels={"hint": 1})
    assert told(rule, ".") == "-"


def test_problems_of_options_are_told(faults):
    assert faults(FailureHintInjector, levels={"hint": 2, "deny": 2}) == [
        "levels.deny: must be above hint (2): each level is reached after the one before it"
    ]
    assert faults(FailureHintInjector, levels={"hint": 3, "insist": 2, "deny": 1}) == [
        "levels.insist: must be above hint (3): each level is reached after the one before it",
        "levels.deny: must be above insist (2): each level is reached after the one before it",
    ]
    assert faults(FailureHintInjector, levels={}) == [
        "levels: no level is set; set `mode: disabled` on the rule to switch it off"
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            {
                "levels.hint": "fires at 1",
                "levels.insist": "fires at 2",
                "levels.deny": "fires at 4",
                "not retryable": "fires at 1",
            },
        ),
        ({"levels": {"deny": 1}}, {"levels.deny": "fires at 2"}),
        ({"levels": {"insist": 1}}, {"levels.insist": "fires at 1", "not retryable": "fires at 1"}),
        (
            {"scope": "step", "count": "total", "levels": {"hint": 4, "deny": 6}},
            {"levels.hint": "fires at 4", "levels.deny": "fires at 7", "not retryable": "fires at 1"},
        ),
    ],
    ids=["default", "deny only", "insist only", "step"],
)
def test_every_level_is_proved_through_the_loop(proved, options, expected):
    assert proved(FailureHintInjector, **options) == expected


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.booleans()), max_size=25), st.booleans())
def test_a_tool_is_refused_exactly_after_three_failures_in_a_row(script, total):
    options = {
        "levels": {"hint": 1, "insist": 2, "deny": 3},
        "scope": "tool",
        "count": "total" if total else "consecutive",
    }
    rule = FailureHintInjector(options)
    run = RunState("r")
    view = RunView(run, "rule", FailureHintInjector.state(), lambda name: UNDECLARED)
    failures = {"a": 0, "b": 0}
    notes = {"a": 0, "b": 0}
    for number, (tool, fails) in enumerate(script):
        run.iteration += 1
        call = ToolCall(f"c{number}", tool)
        refused = rule.before_tool_call(view, call, Batch(f"b{number}"))
        assert (refused is not None) == (failures[tool] >= 3)
        if refused is not None:
            continue
        failures[tool] = failures[tool] + 1 if fails else (failures[tool] if total else 0)
        notes[tool] += rule.after_tool_call(view, call, FAILED if fails else OK) is not None
        assert notes[tool] <= 2


def test_the_state_does_not_grow_with_the_names_a_model_invents(bench):
    rule = bench(FailureHintInjector, levels={"hint": 1, "deny": 2})
    for number in range(400):
        told(rule, "FF", f"tool-{number}")
    assert len(rule.state.tallies) <= 256
    assert len(rule.state.refused) <= 256


def test_a_note_points_to_the_plan_where_there_is_one():
    options = {"levels": {"hint": 1, "insist": 2}, "scope": "tool", "count": "consecutive"}
    options = {"levels": {"hint": 1, "insist": 2}, "scope": "tool", "count": "consecutive"}
    made = policy(rule("failure_hint_injector", options))
    turns = [call("a", {"n": n}, "x", status="error") for n in range(2)] + [say("done")]
    for planning, expected in ((Planning("steps", decompose=False), 2), (Planning(), 0)):
        played = play(Engine(msgspec.structs.replace(made, plan=planning)), turns)
        notes = [message.text for message in played.messages if message.origin == "rule:failure_hint_injector"]
        assert len(notes) == 2
        assert sum("update_step" in note for note in notes) == expected
