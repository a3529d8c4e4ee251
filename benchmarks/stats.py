"""Bounds of proportions, and what interleaved timings come to.

Knows: arithmetic. Must not know: recordings, policies, clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, lgamma, log, sqrt
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for two-sided 95 % intervals."""

_HALVINGS = 60


class Bounds(NamedTuple):
    """A 95 % interval of a proportion."""

    low: float
    high: float


def exact(events: int, trials: int) -> Bounds:
    """Return the exact (Clopper-Pearson) 95 % interval of a proportion.

    It is two-sided, 2.5 % on either side. Where there are no events, or nothing but events, only one side is open, and
    it gets all 5 %: the upper bound of 0 of n is `1 - 0.05 ** (1 / n)`, which the rule of three approximates by 3 / n.
    Of no trials nothing is known.
    """
    _check(events, trials)
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
    yes, no = log(chance), log(1 - chance)
    return sum(exp(_log_ways(trials, k) + k * yes + (trials - k) * no) for k in range(events + 1))


def _log_ways(trials: int, events: int) -> float:
    # Logarithms, because the number of ways is too large for a float from about a thousand trials on.
    return lgamma(trials + 1) - lgamma(events + 1) - lgamma(trials - events + 1)


def ratio(parts: Sequence[tuple[float, float]]) -> tuple[float, Bounds | None]:
    """Return the sum of the first numbers over that of the second, with a 95 % interval, of pairs that belong together.

    The pairs are what was drawn, not the units they count (all turns of a run stand or fall together), so the interval
    comes from how the pairs scatter: the linearised standard error of a ratio. Pairs that do not scatter have none.
    """
    whole = sum(total for _, total in parts)
    if not whole:
        return 0.0, None
    share = sum(part for part, _ in parts) / whole
    squares = sum((part - share * total) ** 2 for part, total in parts)
    if not squares or len(parts) == 1:
        return share, None
    half = Z * sqrt(squares * len(parts) / (len(parts) - 1)) / whole
    return share, Bounds(max(0.0, share - half), min(1.0, share + half))


def lowest_median(samples: Sequence[float], batches: int) -> float:
    """Return the lowest of the medians of `batches` equal stretches of `samples`.

    A median ignores single outliers, the lowest of several the stretches in which something else used the machine.
    """
    size = max(1, len(samples) // batches)
    starts = range(0, len(samples) - size + 1, size)
    return min(median(samples[start : start + size]) for start in starts)


def _check(events: int, trials: int) -> None:
    if not 0 <= events <= trials:
        raise ValueError(f"{events} of {trials} is no proportion")


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
