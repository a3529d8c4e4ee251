"""Bounds of ratios, and what interleaved timings come to.

Knows: arithmetic. Must not know: recordings, policies, clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import median

from policyengine.backtest.stats import Bounds, Z


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
