"""`stop_unusable_response_loop`: one counter over all kinds of unusable responses."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.context import RunView
from policyengine.extensions.stop_unusable_response_loop import KINDS, StopUnusableResponseLoop
from policyengine.messages import UNDECLARED, HistoryWarning, Iteration
from policyengine.parsing.verdict import WARNING_KINDS
from policyengine.policy.validate import check
from policyengine.runstate import RunState

LIMIT = "max_consecutive_unusable_responses"


def play(rule, *rounds):
    """Play rounds and return the answers to their warnings.

    A round is the kind of its warning, several kinds, or `None` for a usable response.
    """
    answers = []
    for kinds in rounds:
        for kind in (kinds,) if isinstance(kinds, str) else kinds or ():
            answers.append(rule.hook("hist_add_warning_end", HistoryWarning(kind)))
        rule.hook("after_iteration", Iteration(rule.run.iteration, 0 if kinds else 1, not kinds))
        rule.next_round()
    return answers


def stops(answers):
    return [answer is not None for answer in answers]


def test_three_mixed_kinds_in_a_row_stop_at_limit_three_and_are_listed(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 3})
    first, second, third = play(rule, "misformat", "empty", "repeat")
    assert first is None
    assert second is None
    assert (third.name, third.code, third.kind) == ("stop", "unusable_responses", "unusable_responses.stop")
    assert (third.observed, third.limit) == (3, 3)
    assert third.data == {"kinds": ["misformat", "empty", "repeat"], "window": 0}


def test_a_usable_round_ends_the_streak(bench):
    assert stops(play(bench(StopUnusableResponseLoop, **{LIMIT: 2}), "misformat", None, "misformat")) == [False, False]


def test_the_streak_needs_no_other_hook_than_the_warning(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 2})
    rule.guard.after_iteration  # noqa: B018 - it exists, and is not called below
    found = []
    for number in (1, 3, 4):
        rule.run.iteration = number
        found.append(rule.hook("hist_add_warning_end", HistoryWarning("empty")))
    assert stops(found) == [False, False, True]


def test_two_warnings_in_one_round_count_once_unless_every_one_counts(bench):
    once = bench(StopUnusableResponseLoop, **{LIMIT: 2})
    assert stops(play(once, ("misformat", "empty"))) == [False, False]
    every = bench(StopUnusableResponseLoop, **{LIMIT: 2}, count="every")
    assert stops(play(every, ("misformat", "empty"))) == [False, True]


def test_limit_one_stops_at_the_first(bench):
    assert stops(play(bench(StopUnusableResponseLoop, **{LIMIT: 1}), "truncated")) == [True]


def test_the_default_stops_at_the_fifth(bench):
    assert stops(play(bench(StopUnusableResponseLoop), *["reasoning_only"] * 5)) == [False] * 4 + [True]


def test_the_text_of_a_warning_never_matters(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 2})
    texts = ("Bitte noch einmal.", "格式不对：missing name")
    found = []
    for text in texts:
        found.append(rule.hook("hist_add_warning_end", HistoryWarning("misformat", text, {"reason": "x"})))
        rule.next_round()
    assert stops(found) == [False, True]


def test_a_warning_of_another_kind_neither_counts_nor_ends_a_streak(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 2}, kinds=["misformat"])
    assert stops(play(rule, "misformat", "empty", "misformat")) == [False, False, True]


def test_a_warning_that_is_not_about_a_response_lets_a_usable_round_be_usable(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 2})
    assert stops(play(rule, "misformat", "acme.budget_low", "misformat")) == [False, False, False]


def test_a_host_may_have_its_own_kinds_counted(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 2}, kinds=["acme.refusal"])
    assert stops(play(rule, "acme.refusal", "acme.refusal")) == [False, True]


def test_every_kind_of_unusable_verdict_is_counted_by_default():
    assert set(KINDS) == set(WARNING_KINDS.values())


def test_four_of_the_last_eight_rounds_stop_at_the_fourth_bad_one(bench):
    rounds = ("misformat", None, "empty", None, "misformat", None, "repeat")
    with_window = play(bench(StopUnusableResponseLoop, window={"bad": 4, "of": 8}), *rounds)
    assert stops(with_window) == [False, False, False, True]
    assert (with_window[-1].observed, with_window[-1].limit) == (4, 4)
    assert with_window[-1].data == {"kinds": ["misformat", "empty", "repeat"], "window": 8}
    assert stops(play(bench(StopUnusableResponseLoop), *rounds)) == [False] * 4


def test_what_leaves_the_window_no_longer_counts(bench):
    rule = bench(StopUnusableResponseLoop, window={"bad": 2, "of": 3})
    assert stops(play(rule, "empty", None, None, "empty", None, "empty")) == [False, False, True]


def test_the_window_counts_rounds_even_where_every_warning_counts(bench):
    rule = bench(StopUnusableResponseLoop, window={"bad": 2, "of": 8}, count="every")
    assert stops(play(rule, ("empty", "misformat"), None, "empty")) == [False, False, True]


def test_a_new_run_starts_from_zero(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 3})
    play(rule, "empty", "empty")
    rule.next_run("run-2")
    assert stops(play(rule, "empty")) == [False]


def test_scope_conversation_counts_on_through_further_runs(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 5}, scope="conversation")
    play(rule, "empty", "misformat")
    rule.next_run("run-2")
    play(rule, "empty", "empty")
    rule.next_run("run-3")
    (answer,) = play(rule, "repeat")
    assert (answer.observed, answer.limit) == (5, 5)


def test_a_usable_last_response_ends_the_streak_for_the_next_run_too(bench):
    rule = bench(StopUnusableResponseLoop, **{LIMIT: 2}, scope="conversation")
    play(rule, "empty", None)
    rule.next_run("run-2")
    assert stops(play(rule, "empty")) == [False]


def test_the_window_reaches_into_earlier_runs_of_the_conversation(bench):
    rule = bench(StopUnusableResponseLoop, window={"bad": 3, "of": 6}, scope="conversation")
    play(rule, "empty", None, "empty", None)
    rule.next_run("run-2")
    assert stops(play(rule, "empty")) == [True]


def test_state_fits_other_options_after_a_reload(bench):
    rule = bench(StopUnusableResponseLoop, window={"bad": 3, "of": 9})
    play(rule, "empty", None, "empty", None)
    rule.reload(window={"bad": 2, "of": 3}, **{LIMIT: 2})
    assert stops(play(rule, "empty")) == [True]


@pytest.mark.parametrize("value", [0, -1, True, "5", 2.5])
def test_a_limit_below_one_is_no_limit(value):
    assert check(StopUnusableResponseLoop.options, {LIMIT: value})


def test_problems_of_options_are_told(faults):
    assert faults(StopUnusableResponseLoop, kinds=["misfromat"]) == [
        "kinds: no response is warned about as 'misfromat'; did you mean 'misformat'? "
        "(kinds are: misformat, repeat, empty, truncated, reasoning_only)"
    ]
    assert faults(StopUnusableResponseLoop, window={"bad": 9, "of": 8}) == [
        "window.bad: 9 of the last 8 rounds can never be unusable"
    ]
    (late,) = StopUnusableResponseLoop.check_options({LIMIT: 2, "kinds": [], "window": {"bad": 5, "of": 8}})
    assert not late.fatal
    assert faults(StopUnusableResponseLoop, window={"bad": 4, "of": 8}, **{LIMIT: 2}) == []


@pytest.mark.parametrize("kind", ["truncated", "empty", "reasoning_only", "misformat"])
def test_every_kind_is_proved_through_the_loop(proved, kind):
    assert proved(StopUnusableResponseLoop, kinds=[kind], window={"bad": 4, "of": 8}, **{LIMIT: 3}) == {
        LIMIT: "fires at 3",
        "window": "fires at 5",
    }


def test_the_default_and_the_window_are_proved_through_the_loop(proved):
    assert proved(StopUnusableResponseLoop, window={"bad": 4, "of": 8}, **{LIMIT: 2}) == {
        LIMIT: "fires at 2",
        "window": "fires at 7",
    }
    assert proved(StopUnusableResponseLoop, **{LIMIT: 1}, window={"bad": 4, "of": 8}) == {LIMIT: "fires at 1"}


def test_repeats_alone_have_no_proof(proved):
    assert proved(StopUnusableResponseLoop, kinds=["repeat"]) == {"unproven": ""}


@given(
    st.lists(st.lists(st.sampled_from([*KINDS, "acme.other"]), max_size=3), max_size=30),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(0, 4),
)
def test_it_stops_exactly_where_a_count_of_the_rounds_says(rounds, limit, bad, extra):
    of = bad + extra
    options = {LIMIT: limit, "kinds": list(KINDS), "window": {"bad": bad, "of": of}, "scope": "run", "count": "once"}
    rule = StopUnusableResponseLoop(options)
    run = RunState("r")
    view = RunView(run, "rule", StopUnusableResponseLoop.state(), lambda name: UNDECLARED)
    history = []
    for warnings in rounds:
        run.iteration += 1
        history.append(any(kind in KINDS for kind in warnings))
        answers = [rule.hist_add_warning_end(view, HistoryWarning(kind)) for kind in warnings]
        row = next((index for index, was_bad in enumerate(reversed(history)) if not was_bad), len(history))
        expected = history[-1] and (row >= limit or sum(history[-of:]) >= bad)
        assert any(answer is not None for answer in answers) == expected
        assert len(view.state.recent) <= bad
    assert len(msgspec.json.encode(view.state)) < 600
