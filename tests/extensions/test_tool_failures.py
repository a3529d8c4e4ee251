"""`tool_failures`: declared failures of any tool, counted apart from everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.context import RunView
from policyengine.extensions.tool_failures import ToolFailures
from policyengine.extensions.tool_timeout import ToolTimeout
from policyengine.extensions.unknown_tools import UnknownTools
from policyengine.messages import UNDECLARED, Batch, Failure, ToolCall, ToolError, ToolFacts, ToolResult
from policyengine.runstate import RunState

RESULTS = {
    ".": ToolResult("", "fine"),
    "F": ToolResult("", "no", "error"),
    "T": ToolResult("", "late", "timeout", ToolError("timeout")),
    "?": ToolResult("", "no such tool", "error", ToolError("unknown_tool")),
    "A": ToolResult("", "arguments", "error", ToolError("invalid_arguments")),
    "D": ToolResult("", "refused", "denied", ToolError("call_limit")),
}


def stops(rule, script):
    """Play one batch for each word, one call for each letter; return the numbers of the batches that stop."""
    found = []
    for number, word in enumerate(script.split(), 1):
        _, answers = rule.batch(*((f"tool-{index}", RESULTS[letter]) for index, letter in enumerate(word)))
        if any(answers):
            found.append(number)
    return found


def test_failures_in_a_row_stop_at_the_limit_whichever_tool_failed(bench):
    rule = bench(ToolFailures, stop=3)
    assert stops(rule, "F T A") == [3]
    assert stops(rule, "F") == [1]


def test_a_success_ends_the_row_but_not_the_total(bench):
    assert stops(bench(ToolFailures, stop=3), "F F . F F") == []
    assert stops(bench(ToolFailures, stop=3, count="total"), "F F . F F") == [4, 5]


def test_failures_of_one_batch_count_once(bench):
    assert stops(bench(ToolFailures, stop=2), "FFFF") == []
    assert stops(bench(ToolFailures, stop=2, count="total"), "FFFF FF") == [2]


def test_refused_calls_and_unknown_tools_say_nothing(bench):
    assert stops(bench(ToolFailures, stop=2), "F D ? ? D") == []
    assert stops(bench(ToolFailures, stop=2), "F D ? F") == [4]


def test_failure_is_what_is_declared_as_failure(bench):
    rule = bench(ToolFailures, stop=1, tools={"sh": ToolFacts(failure=Failure(("Error",)))})
    texts = ["ERROR in words", "  Error: declared"]
    answers = [rule.batch(("sh", ToolResult("", text)))[1][0] for text in texts]
    assert [answer and answer.code for answer in answers] == [None, "tool_failures"]
    assert rule.batch(("sh", ToolResult("", "exit", exit_code=2)))[1][0] is not None


def test_the_stop_says_what_was_counted(bench):
    rule = bench(ToolFailures, stop=2, count="total")
    rule.batch(("a", RESULTS["F"]))
    _, (answer,) = rule.batch(("b", RESULTS["F"]))
    assert (answer.name, answer.code, answer.observed, answer.limit) == ("stop", "tool_failures", 2, 2)
    assert answer.data == {"tool": "b", "in_a_row": False}


def test_the_option_scope_is_the_scope_of_the_state(bench):
    assert bench(ToolFailures).guard.state_scope() == "run"
    assert bench(ToolFailures, scope="step").guard.state_scope() == "step"


def test_timeouts_are_counted_by_a_rule_of_their_own(bench):
    assert stops(bench(ToolTimeout, stop=2), "T F T") == []
    assert stops(bench(ToolTimeout, stop=2), "T D ? T") == [4]
    assert stops(bench(ToolTimeout, stop=2, count="total"), "T . F TT") == [4]
    assert stops(bench(ToolTimeout, stop=2), "F F F") == []
    rule = bench(ToolTimeout, stop=1)
    _, (answer,) = rule.batch(("slow", RESULTS["T"]))
    assert (answer.name, answer.code, answer.kind) == ("stop", "tool_timeout", "tool_timeout.stop")


@pytest.mark.parametrize("cls", [ToolFailures, ToolTimeout])
@pytest.mark.parametrize("options", [{}, {"stop": 1}, {"stop": 12, "count": "total"}], ids=str)
def test_the_limit_is_proved_through_the_loop(proved, cls, options):
    limit = options.get("stop", cls.options["stop"]["default"])
    assert proved(cls, **options) == {"stop": f"fires at {limit}"}


@given(st.lists(st.sampled_from(sorted(RESULTS)), max_size=30), st.sampled_from(["consecutive", "total"]))
def test_separate_counters_stay_separate(script, count):
    run = RunState("r")
    rules = [cls({"stop": 1000, "count": count, "scope": "run"}) for cls in (ToolFailures, ToolTimeout, UnknownTools)]
    views = [RunView(run, rule.name, rule.state(), lambda name: UNDECLARED) for rule in rules]
    for number, letter in enumerate(script):
        run.iteration += 1
        call = ToolCall(f"c{number}", "x")
        for rule, view in zip(rules, views, strict=True):
            rule.before_tool_call(view, call, Batch(f"b{number}"))
            rule.after_tool_call(view, call, RESULTS[letter])
    assert [view.state.total for view in views] == [sum(map(script.count, kinds)) for kinds in ("FTA", "T", "?")]
    says = {"tool_failures": ("FTA", ".FTA"), "tool_timeout": ("T", ".FTA"), "unknown_tools": ("?", ".FTA?")}
    for rule, view in zip(rules, views, strict=True):
        counted, heard = says[rule.name]
        row = 0
        for letter in script:
            row = row + 1 if letter in counted else (0 if letter in heard else row)
        assert view.state.in_a_row == row
