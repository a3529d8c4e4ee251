"""`step_limit`: exactly N rounds, and a wind-down before that."""

from __future__ import annotations

import pytest

from policyengine.extensions.step_limit import StepLimit
from policyengine.messages import Message, ModelRequest

REQUEST = ModelRequest((Message("user", "task"),))


def answers(bench, rounds, **options):
    limit = bench(StepLimit, **options)
    found = []
    for number in range(1, rounds + 1):
        limit.run.iteration = number
        found.append(limit.hook("before_model_call", REQUEST))
    return found


def test_five_permitted_rounds_are_five_requests_and_the_sixth_is_not_sent(bench):
    *allowed, sixth = answers(bench, 6, max_steps=5)
    assert allowed == [None] * 5
    assert (sixth.name, sixth.code, sixth.observed, sixth.limit) == ("stop", "max_steps", 5, 5)


def test_one_permitted_round_is_one_round(bench):
    first, second = answers(bench, 2, max_steps=1)
    assert first is None
    assert second.name == "stop"


def test_a_run_far_over_a_lowered_limit_stops_at_its_next_request(bench):
    limit = bench(StepLimit, max_steps=5)
    limit.run.iteration = 30
    assert limit.hook("before_model_call", REQUEST).observed == 29


def test_the_wind_down_comes_first_and_the_stop_still_follows(bench):
    found = answers(bench, 6, max_steps=5, wind_down_at=3)
    assert [answer and answer.name for answer in found] == [None, None, None, "wind_down", "wind_down", "stop"]
    assert (found[3].observed, found[3].limit, found[3].kind) == (3, 5, "max_steps.wind_down")


def test_a_further_request_of_the_same_round_is_judged_alike(bench):
    limit = bench(StepLimit, max_steps=1)
    repair = ModelRequest((Message("user", "task"),), attempt=2, purpose="repair")
    assert limit.hook("before_model_call", repair) is None


def test_a_new_step_does_not_reset_the_limit(bench):
    limit = bench(StepLimit, max_steps=2)
    limit.run.iteration = 3
    limit.next_step()
    assert limit.hook("before_model_call", REQUEST).name == "stop"


@pytest.mark.parametrize("wind_down_at", [5, 6])
def test_a_wind_down_at_or_after_the_limit_is_refused(faults, wind_down_at):
    (problem,) = faults(StepLimit, max_steps=5, wind_down_at=wind_down_at)
    assert problem.startswith("wind_down_at: must be below max_steps (5)")
    assert faults(StepLimit, max_steps=5, wind_down_at=4) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"max_steps": "fires at 41"}),
        ({"max_steps": 1}, {"max_steps": "fires at 2"}),
        ({"max_steps": 9, "wind_down_at": 4}, {"wind_down_at": "fires at 5", "max_steps": "fires at 10"}),
        ({"max_steps": 5, "wind_down_at": 4}, {"wind_down_at": "fires at 5", "max_steps": "fires at 6"}),
    ],
    ids=["default", "one", "early wind-down", "late wind-down"],
)
def test_every_rung_is_proved_through_the_loop(proved, options, expected):
    assert proved(StepLimit, **options) == expected


def test_a_limit_nobody_would_wait_for_has_no_proof(bench):
    assert list(bench(StepLimit, max_steps=100_000).guard.proofs()) == []
