"""What coverage calls reached: rules that trip and do not, thresholds from below, at and above."""

from __future__ import annotations

import pytest

from policyengine.policytest.coverage import coverage, numbers, percent
from policyengine.policytest.play import play_suite
from policyengine.policytest.read import read_suite

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: house
extensions:
  step_limit: {with: {max_steps: 3}}
  stall_detector:
    with: {repeat: {hint: 2, deny: 5}, cycle: {}, interleaved: {}, stagnation: {}, poll: {}, text: {}}
    when: {tool: look}
  off: {use: step_limit, mode: disabled}
"""


@pytest.fixture
def covered(tmp_path):
    """Return what tests with so many equal calls (and then an answer) cover, by rule."""

    def measure(*counts: int, tool: str = "look", policy: str = POLICY, test: str = "", expect: str = ""):
        (tmp_path / "house.yaml").write_text(policy)
        tests = "".join(
            f"  - name: number {index}\n"
            f"    expect: [{{outcome: {'stopped' if count >= 3 else 'completed'}}}{expect}]\n"
            f"    turns: [{{times: {count}, calls: [{{tool: {tool}}}]}}, {{text: done}}]\n{test}"
            for index, count in enumerate(counts)
        )
        (tmp_path / "t.yaml").write_text(
            f"apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: house.yaml\ntests:\n{tests}"
        )
        result = play_suite(read_suite(tmp_path / "t.yaml"))
        assert [case.failures for case in result.cases] == [() for _ in counts]
        (found,) = coverage([result])
        return found

    return measure


def sides(found, rule: str, option: str):
    (threshold,) = [
        threshold
        for item in found.rules
        if item.rule == rule
        for threshold in item.thresholds
        if threshold.option == option
    ]
    return threshold.below, threshold.at, threshold.above


@pytest.mark.parametrize(
    ("calls", "reached"),
    [
        (1, (False, False, False)),  # 2 requests: a limit of 2 would not be noticed
        (2, (True, False, False)),  # 3 requests
        (3, (True, True, False)),  # a limit of 4 would let the answer come
        (4, (True, True, True)),
    ],
)
def test_a_threshold_is_reached_where_moving_it_by_one_would_be_noticed(covered, calls, reached):
    assert sides(covered(calls), "step_limit", "max_steps") == reached


def test_several_tests_reach_together_what_none_reaches_alone(covered):
    assert sides(covered(1, 2, 4), "step_limit", "max_steps") == (True, True, True)


def test_a_side_that_the_schema_leaves_no_number_for_is_no_goal(covered):
    found = covered(2)
    assert sides(found, "stall_detector", "repeat.hint") == (None, True, False)
    policy = POLICY.replace("max_steps: 3", "max_steps: 100000").replace("stopped", "completed")
    assert sides(covered(1, policy=policy), "step_limit", "max_steps") == (False, None, None)


def test_nothing_is_above_a_rung_where_the_next_one_takes_over_at_once(covered):
    found = covered(2, policy=POLICY.replace("deny: 5", "deny: 3"))
    assert sides(found, "stall_detector", "repeat.hint") == (None, True, None)


def test_rules_are_counted_by_tests_and_disabled_ones_left_out(covered):
    found = covered(1, 2, 4)
    counts = {item.rule: (item.evaluated, item.tripped, item.not_tripped, item.errored) for item in found.rules}
    assert counts == {"step_limit": (3, 1, 2, 0), "stall_detector": (3, 2, 1, 0)}


def test_a_rule_that_only_hears_of_other_tools_is_not_asked(covered):
    item = covered(2, tool="other").rules[1]
    assert (item.rule, item.evaluated, item.not_tripped) == ("stall_detector", 0, 0)


def test_a_test_in_which_the_rule_fails_covers_nothing_of_it(covered):
    fault = {"test": "    faults: {stall_detector: timeout}\n", "expect": ", {error: stall_detector}"}
    item = covered(1, **fault).rules[1]
    assert (item.evaluated, item.errored, any(item.goals)) == (0, 1, False)


def test_percent_is_the_share_of_goals_of_all_policies_together(covered):
    found = covered(1)
    # asked and not tripped, of both rules; sides: 3 of max_steps, 2 of hint, 3 of deny
    assert (found.reached, found.total) == (4, 14)
    assert percent([found]) == pytest.approx(400 / 14)
    assert percent([]) == 100


def test_playing_again_leaves_the_policy_as_it_was(covered, tmp_path):
    covered(4)
    suite = read_suite(tmp_path / "t.yaml")
    before = suite.engine.snapshot
    coverage([play_suite(suite)])
    assert suite.engine.snapshot is before


def test_numbers_are_found_at_any_depth_and_truth_values_are_none():
    options = {"a": 1, "b": {"c": 2.5, "d": True, "e": "3s"}, "f": [4]}
    assert list(numbers(options)) == [(("a",), 1), (("b", "c"), 2.5)]
