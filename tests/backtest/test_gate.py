"""`--fail-if`: what a condition may say, and what it is compared with."""

from __future__ import annotations

import pytest

from policyengine.backtest.figures import policy_figures
from policyengine.backtest.gate import NAMES, condition
from policyengine.backtest.tally import Groups, Key, Tally
from policyengine.errors import UsageError


def figures(**numbers):
    groups = Groups()
    groups.of(Key("set", "model")).merge(Tally(**numbers))
    return policy_figures("p", "p", "", groups)


def test_a_rate_is_compared_by_its_value_and_by_the_ends_of_its_interval():
    policy = figures(runs=100, labelled=100, successes=50, stopped=2, stopped_labelled=2, stopped_successes=1)
    assert condition("false_stop_rate > 0.01").holds(policy)
    assert not condition("false_stop_rate > 0.02").holds(policy)
    assert condition("false_stop_rate.upper > 0.1").holds(policy)  # 1 of 50: 0.05 % to 10.6 %
    assert not condition("false_stop_rate.lower>0.001").holds(policy)
    assert condition("stop_rate >= 0.02").holds(policy)


def test_no_event_still_has_an_upper_bound():
    policy = figures(runs=30, labelled=30, successes=30)
    assert condition("working_stop_rate.upper > 0.05").holds(policy)  # 1 - 0.05 ** (1 / 30) = 0.095
    assert not condition("working_stop_rate.upper > 0.1").holds(policy)
    assert not condition("working_stop_rate > 0").holds(policy)


def test_a_gate_that_no_run_says_anything_about_does_not_let_a_policy_pass():
    policy = figures(runs=30)
    assert condition("false_stop_rate > 0.01").holds(policy)
    assert condition("false_stop_rate > 0.01").observed(policy) is None


def test_counts_are_compared_as_they_are():
    policy = figures(runs=7, denied_succeeded=3, turns=100, turns_saved=25)
    assert condition("denied_succeeded == 3").holds(policy)
    assert condition("turns_saved_share < 0.3").holds(policy)
    assert condition("runs != 8").holds(policy)
    assert all(condition(f"{name} <= 1e9").holds(policy) for name in NAMES)


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("", "is no condition"),
        ("false_stop_rate", "is no condition"),
        ("false_stop_rate > ", "is no condition"),
        ("0.01 < false_stop_rate", "is no condition"),
        ("false_stops > 0", "no figure is called 'false_stops'"),
        ("runs.upper > 0", "only rates have an interval"),
        ("runs > 1e", "is no number"),
        ("runs > nan", "is no condition"),
        ("runs > 1; import os", "is no condition"),
    ],
)
def test_what_is_no_condition_is_an_error_that_says_why(text, about):
    with pytest.raises(UsageError, match=about):
        condition(text)
