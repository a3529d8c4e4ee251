"""Rates with intervals: exact ones for proportions, and figures over strata.

Knows: arithmetic. Must not know: recordings, policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, lgamma, log, sqrt
from typing import NamedTuple

import msgspec

CONFIDENCE = 0.95
Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for two-sided 95 % intervals."""

_HALVINGS = 60


class Bounds(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def exact(events: int, trials: int) -> Bounds:
    """Return the exact (Clopper-Pearson) 95 % interval of a proportion.

    It is two-sided, 2.5 % on either side. Where there are no events, or nothing but events, only one side is open, and
    it gets all 5 %: the upper bound of 0 of n is `1 - 0.05 ** (1 / n)`, which the rule of three approximates by 3 / n.
    Of no trials nothing is known.
    """
    if not 0 <= events <= trials:
        raise ValueError(f"{events} of {trials} is no proportion")
    if trials == 0:
        return Bounds(0.0, 1.0)
    if events == 0:
        return Bounds(0.0, 1 - (1 - CONFIDENCE) ** (1 / trials))
    if events == trials:
        return Bounds((1 - CONFIDENCE) ** (1 / trials), 1.0)
    tail = (1 - CONFIDENCE) / 2
    low = _solve(lambda p: 1 - binomial_cdf(events - 1, trials, p), tail)
    high = _solve(lambda p: 1 - binomial_cdf(events, trials, p), 1 - tail)
    return Bounds(low, high)


def binomial_cdf(events: int, trials: int, chance: float) -> float:
    """Return how likely at most `events` of `trials` are."""
    if chance <= 0:
        return 1.0
    if chance >= 1:
        return 1.0 if events >= trials else 0.0
    if events >= trials:
        return 1.0
    yes, no = log(chance), log(1 - chance)
    # From the term at `events` down: terms fall off, and those that no longer count are left out.
    term = exp(_log_ways(trials, events) + events * yes + (trials - events) * no)
    if term == 0.0:
        return _far(events, trials, chance)
    total, k, odds = 0.0, events, (1 - chance) / chance
    while k >= 0:
        total += term
        if term < total * 1e-17 and k < trials * chance:
            break
        term *= k / (trials - k + 1) * odds
        k -= 1
    return min(1.0, total)


def _far(events: int, trials: int, chance: float) -> float:
    """Return the probability where even the nearest term is too small for a float: all of it, or none."""
    return 1.0 if events > trials * chance else 0.0


def _log_ways(trials: int, events: int) -> float:
    # Logarithms, because the number of ways is too large for a float from about a thousand trials on.
    return lgamma(trials + 1) - lgamma(events + 1) - lgamma(trials - events + 1)


def _solve(rising: Callable[[float], float], target: float) -> float:
    """Return where a function that rises between 0 and 1 reaches `target`."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def ratio_bounds(
    units: int, parts: int, wholes: int, parts_squared: int, products: int, wholes_squared: int
) -> Bounds | None:
    """Return a 95 % interval of a share of which whole runs are the units, from sums over them.

    All turns of a run stand or fall together, so the interval comes from how the pairs (part, whole) scatter: the
    linearised standard error of a ratio. Pairs that do not scatter, and single ones, have none.
    """
    found = change_bounds(units, parts, wholes, parts_squared, products, wholes_squared)
    return None if found is None else Bounds(max(0.0, found.low), min(1.0, found.high))


def change_bounds(
    units: int, parts: int, wholes: int, parts_squared: int, products: int, wholes_squared: int
) -> Bounds | None:
    """Return the same interval of a change of a share, which may be negative."""
    if units < 2 or not wholes:
        return None
    share = parts / wholes
    # Whole numbers first: the sum of (part - share * whole) squared, times wholes squared.
    exactly = parts_squared * wholes**2 - 2 * parts * wholes * products + parts**2 * wholes_squared
    squares = exactly / wholes**2
    if squares <= 0:
        return None
    half = Z * sqrt(squares * units / (units - 1)) / wholes
    return Bounds(max(-1.0, share - half), min(1.0, share + half))


class Stratum(msgspec.Struct, frozen=True):
    """Successes of two groups of runs that are alike otherwise (one set, one model)."""

    flagged: int
    flagged_successes: int
    unflagged: int
    unflagged_successes: int


class Difference(msgspec.Struct, frozen=True):
    """How much the share of successes of flagged runs differs from that of the others, over strata that have both.

    `used` are the runs in such strata. Negative: flagged runs fail more often.
    """

    value: float
    bounds: Bounds
    strata: int
    used: int


def stratified(strata: Iterable[Stratum]) -> Difference | None:
    """Return the Mantel-Haenszel risk difference with Sato's 95 % interval; `None` where no stratum has both groups.

    Sato's variance (Biometrics 45, 1989) holds for few large strata as for many small ones.
    """
    weights = weighted = p = q = 0.0
    count = used = 0
    for stratum in strata:
        n1, n0 = stratum.flagged, stratum.unflagged
        if not n1 or not n0:
            continue
        a, b, n = stratum.flagged_successes, stratum.unflagged_successes, n1 + n0
        weights += n1 * n0 / n
        weighted += (a * n0 - b * n1) / n
        p += (n1**2 * b - n0**2 * a + n1 * n0 * (n0 - n1) / 2) / n**2
        q += (a * (n0 - b) + b * (n1 - a)) / (2 * n)
        count += 1
        used += n
    if not count:
        return None
    value = weighted / weights
    half = Z * sqrt(max(0.0, value * p + q)) / weights
    return Difference(value, Bounds(max(-1.0, value - half), min(1.0, value + half)), count, used)
