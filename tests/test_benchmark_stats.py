"""The statistics of the benchmarks against values computed by hand or printed in tables."""

import pytest

from benchmarks.stats import lowest_median, ratio
from policyengine.backtest import stats


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [
        # One of two: P(X >= 1) = 1 - (1 - p)^2 = 0.025 and P(X <= 1) = 1 - p^2 = 0.025.
        (1, 2, 0.0125791, 0.9874209),
        # One of ten: 1 - 0.975^(1/10); the upper bound is the tabled one.
        (1, 10, 0.0025286, 0.4450161),
        (5, 10, 0.1870860, 0.8129140),
        (7, 8, 0.4734903, 0.9968403),
    ],
)
def test_exact_bounds_are_the_tabled_ones(events, trials, low, high):
    assert stats.exact(events, trials) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("trials", "high"),
    [
        (1, 0.95),  # (1 - p) = 0.05
        (2, 0.7763932),  # (1 - p)^2 = 0.05
        (10, 0.2588656),
        (300, 0.0099361),  # the rule of three says 0.01
    ],
)
def test_no_events_still_leave_an_upper_bound(trials, high):
    assert stats.exact(0, trials) == pytest.approx((0.0, high), abs=1e-6)
    assert stats.exact(trials, trials) == pytest.approx((1 - high, 1.0), abs=1e-6)


def test_the_rule_of_three_is_an_upper_bound_of_the_exact_one():
    for trials in range(4, 400):
        # -ln 0.05 is 2.9957, and the second term of the series is 4.49 / trials^2.
        assert 0 < 3 / trials - stats.exact(0, trials).high < 0.0043 / trials + 4.5 / trials**2


def test_the_bounds_put_the_tail_where_they_say():
    for events, trials in ((1, 7), (3, 40), (36, 40), (150, 439)):
        low, high = stats.exact(events, trials)
        assert 1 - stats.binomial_cdf(events - 1, trials, low) == pytest.approx(0.025, abs=1e-9)
        assert stats.binomial_cdf(events, trials, high) == pytest.approx(0.025, abs=1e-9)


def test_exact_bounds_are_symmetric():
    for events, trials in ((0, 9), (2, 9), (17, 113)):
        low, high = stats.exact(events, trials)
        assert stats.exact(trials - events, trials) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_of_no_trials_nothing_is_known():
    assert stats.exact(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("events", "trials"), [(-1, 3), (4, 3), (1, 0)])
def test_what_is_no_proportion_is_an_error(events, trials):
    with pytest.raises(ValueError, match="is no proportion"):
        stats.exact(events, trials)


def test_binomial_probabilities_add_up():
    # Three tosses: 1/8, 3/8, 3/8, 1/8.
    assert [stats.binomial_cdf(k, 3, 0.5) for k in range(4)] == pytest.approx([0.125, 0.5, 0.875, 1.0])
    assert stats.binomial_cdf(1, 2, 0.25) == pytest.approx(15 / 16)
    assert [stats.binomial_cdf(k, 2, 0.0) for k in range(3)] == [1.0, 1.0, 1.0]
    assert [stats.binomial_cdf(k, 2, 1.0) for k in range(3)] == [0.0, 0.0, 1.0]
    assert stats.binomial_cdf(2000, 4000, 0.5) == pytest.approx(0.5063, abs=1e-4)


def test_the_lowest_median_passes_over_outliers_and_slow_stretches():
    assert lowest_median([9, 9, 9, 1, 2, 90, 5, 4, 6], 3) == 2
    assert lowest_median([3, 1, 2], 1) == 2
    assert lowest_median([3], 5) == 3
    # What is left over after equal stretches is not a stretch of its own.
    assert lowest_median([4, 4, 4, 4, 1], 2) == 4


def test_a_ratio_is_that_of_the_sums_and_scatters_as_the_pairs_do():
    # Sums 6 of 12: 1/2. Residuals 1 - 2, 2 - 2, 3 - 2: squares 2. Error: sqrt(2 * 3 / 2) / 12 = 0.1443376.
    share, bounds = ratio([(1, 4), (2, 4), (3, 4)])
    assert share == 0.5
    assert bounds == pytest.approx((0.5 - 0.2828965, 0.5 + 0.2828965), abs=1e-6)
    # Sums 10 of 40: 1/4. Residuals 2 - 2.5, 3 - 2.5, 2 - 2.5, 3 - 2.5: squares 1. Error: sqrt(4 / 3) / 40 = 0.0288675.
    share, bounds = ratio([(2, 10), (3, 10), (2, 10), (3, 10)])
    assert share == 0.25
    assert bounds == pytest.approx((0.25 - 0.0565793, 0.25 + 0.0565793), abs=1e-6)


@pytest.mark.parametrize(("pairs", "share"), [([], 0.0), ([(0, 0)], 0.0), ([(0, 5), (0, 9)], 0.0), ([(1, 4)], 0.25)])
def test_what_does_not_scatter_has_a_ratio_without_bounds(pairs, share):
    assert ratio(pairs) == (share, None)
