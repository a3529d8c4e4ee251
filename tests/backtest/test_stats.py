"""The figures of a backtest against values computed by hand, and against simulations whose truth is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.backtest.stats import Stratum, exact, ratio_bounds, stratified


def test_the_stratified_difference_is_the_hand_computed_one():
    # Stratum 1: 2 of 10 flagged and 6 of 20 others succeeded; stratum 2: 1 of 5 and 3 of 5.
    #   weights n1 n0 / N: 200/30 = 6.6667 and 25/10 = 2.5, sum 9.1667
    #   (a n0 - b n1) / N: (40 - 60)/30 = -0.6667 and (5 - 15)/10 = -1, sum -1.6667
    #   difference -1.6667 / 9.1667 = -0.181818
    # Sato's variance: P = (n1^2 b - n0^2 a + n1 n0 (n0 - n1)/2)/N^2
    #   (600 - 800 + 1000)/900 = 0.888889 and (75 - 25 + 0)/100 = 0.5, sum 1.388889
    #   Q = (a (n0 - b) + b (n1 - a))/(2 N): (28 + 48)/60 = 1.266667 and (2 + 12)/20 = 0.7, sum 1.966667
    #   variance = (-0.181818 * 1.388889 + 1.966667) / 9.1667^2 = 1.714141 / 84.027778 = 0.0204
    found = stratified([Stratum(10, 2, 20, 6), Stratum(5, 1, 5, 3)])
    assert found.value == pytest.approx(-2 / 11)
    half = 1.959964 * 0.02040**0.5
    assert found.bounds == pytest.approx((-2 / 11 - half, -2 / 11 + half), abs=2e-4)
    assert (found.strata, found.used) == (2, 40)


def test_strata_with_only_one_group_say_nothing():
    assert stratified([Stratum(0, 0, 9, 4), Stratum(3, 1, 0, 0)]) is None
    assert stratified([Stratum(10, 2, 20, 6), Stratum(0, 0, 9, 4)]).used == 30


def test_the_raw_difference_misleads_and_the_stratified_one_does_not():
    # Success is 80 % in easy runs and 20 % in hard ones whatever the guard says, but it flags hard runs more often.
    # Raw: flagged 16 + 16 of 20 + 80 = 32 %, others 64 + 4 of 80 + 20 = 68 %.
    easy, hard = Stratum(20, 16, 80, 64), Stratum(80, 16, 20, 4)
    assert pytest.approx(-0.36) == (16 + 16) / 100 - (64 + 4) / 100
    assert stratified([easy, hard]).value == pytest.approx(0.0)


@pytest.mark.parametrize("truth", [0.0, -0.15])
def test_intervals_of_the_stratified_difference_cover_the_truth_as_often_as_they_say(truth):
    # 600 studies of 12 strata with different success rates and sizes; 95 % must cover, within three standard errors.
    luck = random.Random(7)
    covered = 0
    studies = 600
    for _ in range(studies):
        strata = []
        for _ in range(12):
            base = luck.uniform(0.25, 0.8)
            n1, n0 = luck.randint(3, 15), luck.randint(5, 30)
            a = sum(luck.random() < base + truth for _ in range(n1))
            b = sum(luck.random() < base for _ in range(n0))
            strata.append(Stratum(n1, a, n0, b))
        low, high = stratified(strata).bounds
        covered += low <= truth <= high
    assert abs(covered / studies - 0.95) <= 3 * (0.95 * 0.05 / studies) ** 0.5


def test_intervals_of_proportions_cover_the_truth_at_least_as_often_as_they_say():
    luck = random.Random(11)
    for truth, trials in ((0.002, 300), (0.05, 80), (0.4, 25)):
        covered = 0
        for _ in range(400):
            low, high = exact(sum(luck.random() < truth for _ in range(trials)), trials)
            covered += low <= truth <= high
        # Exact intervals are conservative: they may cover more often, and hardly less. A bound with one side open
        # gets all 5 % on the other, so that a mixture may lose another 2.5 %.
        assert covered / 400 >= 0.925 - 3 * (0.925 * 0.075 / 400) ** 0.5


def test_the_interval_of_a_share_is_the_hand_computed_one():
    # Runs (saved, turns): (0, 10), (5, 10), (4, 8). Share 9/28; residuals saved - share * turns:
    # -3.2143, 1.7857, 1.4286; squares 10.3316 + 3.1888 + 2.0408 = 15.5612; times 3/2 = 23.3418; root 4.8313; / 28.
    runs = [(0, 10), (5, 10), (4, 8)]
    found = ratio_bounds(
        len(runs),
        sum(part for part, _ in runs),
        sum(whole for _, whole in runs),
        sum(part * part for part, _ in runs),
        sum(part * whole for part, whole in runs),
        sum(whole * whole for _, whole in runs),
    )
    half = 1.959964 * 4.831337 / 28
    assert found == pytest.approx((max(0, 9 / 28 - half), 9 / 28 + half), abs=1e-5)


def test_runs_that_do_not_scatter_have_no_interval():
    assert ratio_bounds(1, 3, 9, 9, 27, 81) is None
    assert ratio_bounds(2, 2, 4, 2, 4, 8) is None
    assert ratio_bounds(3, 0, 0, 0, 0, 0) is None


@given(st.integers(0, 400), st.integers(1, 400))
def test_bounds_hold_the_observed_share(events, trials):
    events = min(events, trials)
    low, high = exact(events, trials)
    assert 0 <= low <= events / trials <= high <= 1


@pytest.mark.parametrize(("events", "trials"), [(2000, 1_000_000), (5, 3_000_000), (999_000, 1_000_000)])
def test_bounds_of_a_million_runs_are_those_of_the_normal_distribution(events, trials):
    low, high = exact(events, trials)
    share = events / trials
    deviation = (share * (1 - share) / trials) ** 0.5
    assert low == pytest.approx(share - 1.96 * deviation, abs=1.2 * deviation)
    assert high == pytest.approx(share + 1.96 * deviation, abs=1.2 * deviation)
