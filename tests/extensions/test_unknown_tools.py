"""`unknown_tools`: calls of tools that do not exist have a counter and a reason of their own."""

from __future__ import annotations

import pytest

from policyengine.extensions.unknown_tools import UnknownTools
from policyengine.messages import ToolCall, ToolError, ToolResult

OK = ToolResult("", "fine")
FAILED = ToolResult("", "no", "error")
UNKNOWN = ToolResult("", "no such tool", "error", ToolError("unknown_tool", retryable=False))
RESULTS = {".": OK, "F": FAILED, "?": UNKNOWN}


def stops(rule, script):
    """Play one call a round (`.` success, `F` failure, `?` unknown); return the numbers of the rounds that stop."""
    found = []
    for number, letter in enumerate(script, 1):
        _, (answer,) = rule.batch(("search", RESULTS[letter]))
        if answer is not None:
            assert answer.name == "stop"
            found.append(number)
    return found


def test_unknown_tools_have_a_counter_and_a_reason_of_their_own(bench):
    rule = bench(UnknownTools)
    assert stops(rule, "??") == []
    _, (answer,) = rule.batch(("sarch", UNKNOWN))
    assert (answer.name, answer.code, answer.kind) == ("stop", "unknown_tool", "unknown_tool.stop")
    assert (answer.observed, answer.limit, answer.data["tool"]) == (3, 3, "sarch")


def test_a_call_of_a_known_tool_ends_the_row_whatever_came_of_it(bench):
    assert stops(bench(UnknownTools, stop=2), "?.?F?") == []
    assert stops(bench(UnknownTools, stop=2, count="total"), "?.?F?") == [3, 5]


def test_unknown_tools_of_one_batch_count_once(bench):
    rule = bench(UnknownTools, stop=2)
    _, answers = rule.batch(*[(f"t{number}", UNKNOWN) for number in range(5)])
    assert answers == [None] * 5


def test_a_call_that_did_not_run_says_nothing(bench):
    rule = bench(UnknownTools, stop=2)
    stops(rule, "?")
    for status in ("denied", "not_run"):
        rule.hook("after_tool_call", ToolCall("x", "search"), ToolResult("x", "no", status))
    assert stops(rule, "?") == [1]


def test_a_host_that_counts_no_rounds_still_has_batches(bench):
    rule = bench(UnknownTools, stop=2)
    for expected in ([None], ["stop"]):
        _, answers = rule.batch(("x", UNKNOWN))
        rule.run.iteration = 1
        assert [answer and answer.name for answer in answers] == expected


def test_the_count_goes_on_in_a_new_step(bench):
    rule = bench(UnknownTools, stop=2)
    stops(rule, "?")
    rule.next_step()
    assert stops(rule, "?") == [1]


@pytest.mark.parametrize("options", [{}, {"stop": 1}, {"stop": 9, "count": "total"}], ids=str)
def test_the_limit_is_proved_through_the_loop(proved, options):
    assert proved(UnknownTools, **options) == {"stop": f"fires at {options.get('stop', 3)}"}
