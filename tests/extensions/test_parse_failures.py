"""`parse_failures`: responses that cannot be parsed, counted by the kind of their warning."""

from __future__ import annotations

import pytest

from policyengine.extensions.parse_failures import ParseFailures
from policyengine.messages import HistoryWarning

KINDS = {"m": "misformat", "t": "truncated", "e": "empty", "r": "repeat", "x": "acme.refusal", "o": "reasoning_only"}


def stops(rule, script):
    """Play one round for each word, with a warning for each letter (`.` is none); return the rounds that stop."""
    found = []
    for number, word in enumerate(script.split(), 1):
        answers = [rule.hook("hist_add_warning_end", HistoryWarning(KINDS[item])) for item in word if item != "."]
        if any(answers):
            found.append(number)
        rule.next_round()
    return found


def test_the_third_unparseable_response_stops(bench):
    rule = bench(ParseFailures, stop=3)
    assert stops(rule, "m t") == []
    answer = rule.hook("hist_add_warning_end", HistoryWarning("misformat"))
    assert (answer.name, answer.code, answer.kind) == ("stop", "parse_failures", "parse_failures.stop")
    assert (answer.observed, answer.limit, answer.data) == (3, 3, {"last": "misformat", "in_a_row": False})


def test_the_total_outlives_usable_rounds_and_a_row_does_not(bench):
    assert stops(bench(ParseFailures, stop=3), "m . t . . m") == [6]
    assert stops(bench(ParseFailures, stop=3, count="consecutive"), "m m . t m . m m m") == [9]


def test_other_kinds_neither_count_nor_end_the_row(bench):
    assert stops(bench(ParseFailures, stop=2), "e r o x e") == []
    assert stops(bench(ParseFailures, stop=2, count="consecutive"), "m e r o t") == [5]
    assert stops(bench(ParseFailures, stop=2, count="consecutive", kinds=["acme.refusal"]), "x m x") == [3]


def test_a_round_counts_once(bench):
    assert stops(bench(ParseFailures, stop=2), "mtm") == []
    assert stops(bench(ParseFailures, stop=2), "em m") == [2]


def test_a_host_that_counts_no_rounds_is_counted_by_its_warnings(bench):
    rule = bench(ParseFailures, stop=3, count="consecutive")
    rule.run.iteration = 0
    answers = [rule.hook("hist_add_warning_end", HistoryWarning("misformat")) for _ in range(3)]
    assert [answer and answer.observed for answer in answers] == [None, None, 3]


def test_counting_goes_on_where_the_stop_is_not_carried_out(bench):
    assert stops(bench(ParseFailures, stop=1), "m . m") == [1, 3]


def test_a_kind_that_no_response_has_is_refused(faults):
    (problem,) = faults(ParseFailures, kinds=["misformatted"])
    assert problem.startswith("kinds: no response is warned about as 'misformatted'; did you mean 'misformat'?")
    assert faults(ParseFailures, kinds=["acme.refusal", "empty"]) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"stop": "fires at 13"}),
        ({"stop": 1}, {"stop": "fires at 1"}),
        ({"stop": 4, "count": "consecutive", "kinds": ["truncated"]}, {"stop": "fires at 4"}),
        ({"stop": 2, "kinds": ["empty"]}, {"stop": "fires at 4"}),
        ({"stop": 2, "kinds": ["reasoning_only"]}, {"stop": "fires at 4"}),
        ({"kinds": ["repeat"]}, {"unproven": ""}),
    ],
    ids=str,
)
def test_the_limit_is_proved_through_the_loop(proved, options, expected):
    assert proved(ParseFailures, **options) == expected
