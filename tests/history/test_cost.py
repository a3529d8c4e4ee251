"""Time is linear: counted are executed lines of the package, which no machine makes faster or slower."""

import sys

import pytest

from policyengine.history.check import check_history
from policyengine.history.cuts import legal_cuts
from policyengine.history.repair import repair_history

SIZES = (100, 1_000, 10_000)


def lines_of(function, *args, **options):
    """How many lines of `policyengine/history` a call runs."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if "history" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args, **options)
    finally:
        sys.settrace(before)
    return count


def valid(write, size):
    turn = [*write.user(), *write.calls("a", "b"), *write.results("a", "b"), *write.says()]
    return turn * (size // len(turn))


def damaged(write, size):
    """Every kind of damage that makes a repair look further than one message."""
    turn = [
        *write.calls("a", "a"),
        *write.user(),
        *write.results("a"),
        *write.says(),
        *write.results("a", "z"),
        *write.calls("", name="bad name", arguments="{"),
        *write.says(""),
    ]
    return turn * (size // len(turn))


def one_turn(write, size):
    """A single response with half as many calls as there are messages, and results in the opposite order."""
    ids = [str(number) for number in range(size // 2)]
    return [*write.calls(*ids), *write.results(*reversed(ids), "0", "x")]


@pytest.mark.parametrize(
    ("function", "history"),
    [(check_history, valid), (repair_history, damaged), (repair_history, one_turn), (legal_cuts, damaged)],
)
def test_the_cost_of_a_message_does_not_grow_with_the_history(written, history, function):
    rates = [lines_of(function, history(written, size), shape=written.shape) / size for size in SIZES]
    assert max(rates) < 1.3 * rates[0]


def test_rules_of_the_whole_history_cost_no_more(writers):
    written = writers["openai_chat"]
    profile = {"unique_ids": "history", "reasoning_content": "required", "thought_signature": "required"}
    rates = [
        lines_of(repair_history, damaged(written, size), shape=written.shape, profile=profile) / size for size in SIZES
    ]
    assert max(rates) < 1.3 * rates[0]
