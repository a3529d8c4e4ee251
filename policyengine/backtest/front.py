"""Which candidates are worth a choice, and whether the data can tell them apart.

Knows: what is better of two figures, limits on wrong stops, differences with intervals. Must not know: thresholds,
recordings, how anything is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from policyengine.backtest.stats import Bounds, change_bounds
from policyengine.backtest.tally import Tally
from policyengine.errors import UsageError

FEW = 10
"""Fewer runs than this that are decided otherwise are too few to tell."""


class Limit(msgspec.Struct, frozen=True):
    """How many wrong stops are accepted: not more than the policy in force, a number of runs, or a share."""

    kind: Literal["in force", "number", "rate"] = "in force"
    value: float = 0.0

    def admits(self, tally: Tally, in_force: Tally) -> bool:
        """Return whether a candidate stops no more successful runs than this, and no more of them at work."""
        stops = (tally.stopped_successes, tally.stopped_successes_working)
        if self.kind == "in force":
            accepted = (in_force.stopped_successes, in_force.stopped_successes_working)
            return all(one <= other for one, other in zip(stops, accepted, strict=True))
        share = tally.successes if self.kind == "rate" else 1
        return all(one <= self.value * share for one in stops)

    def __str__(self) -> str:
        if self.kind == "in force":
            return "no more than the policy in force"
        if self.kind == "rate":
            return f"at most {100 * self.value:g} % of successful runs"
        return f"at most {self.value:g} successful runs"


_LIMIT = re.compile(r"(?P<number>\d+)|(?P<percent>\d+(?:\.\d+)?) ?%|(?P<rate>0?\.\d+|[01]\.\d*)")


def limit_of(text: str | None) -> Limit:
    """Return the limit that `--max-false-stops` says: `3` is a number of runs, `0.01` and `1%` a share.

    Raises:
        UsageError: it is neither.
    """
    if text is None:
        return Limit()
    found = _LIMIT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no number of runs such as 3, and no share such as 0.01 or 1%")
    if found["number"] is not None:
        return Limit("number", int(found["number"]))
    share = float(found["percent"]) / 100 if found["percent"] else float(found["rate"])
    if share > 1:
        raise UsageError(f"{text!r} is more than all runs")
    return Limit("rate", share)


class Gain(msgspec.Struct, frozen=True):
    """How many turns a candidate saves beyond the policy in force, over the same runs.

    `changed` are the runs that it decides otherwise. `share` is of all turns, with the 95 % interval of which runs are
    the units; there is none where no two runs differ in it.
    """

    changed: int
    turns: int
    share: float
    bounds: Bounds | None

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out that nothing is gained."""
        return self.bounds is not None and self.bounds.low > 0


def gain(tally: Tally) -> Gain:
    """Return what a candidate gains by its sums against the policy in force."""
    bounds = change_bounds(
        tally.runs, tally.gained, tally.turns, tally.gained_squared, tally.gained_times_turns, tally.turns_squared
    )
    return Gain(tally.changed, tally.gained, tally.gained / tally.turns if tally.turns else 0.0, bounds)


def rank(tally: Tally) -> tuple[int, int, int, int]:
    """Return what candidates are put in order by, the best first: turns saved, wrong stops at work, all, tokens."""
    return (
        -tally.turns_saved,
        tally.stopped_successes_working,
        tally.stopped_successes,
        -tally.tokens_saved,
    )


def dominates(one: Tally, other: Tally) -> bool:
    """Return whether one is at least as good as another in everything that counts, and better in something."""
    mine, its = rank(one), rank(other)
    return mine != its and all(a <= b for a, b in zip(mine, its, strict=True))


def front(tallies: Sequence[Tally]) -> list[int]:
    """Return the places of those that no other dominates, those that save most turns first."""
    kept = [place for place, tally in enumerate(tallies) if not any(dominates(other, tally) for other in tallies)]
    return sorted(kept, key=lambda place: (rank(tallies[place]), place))


def overlap(one: Gain, other: Gain) -> bool:
    """Return whether two gains may be the same as far as their intervals tell."""
    first, second = (found.bounds or Bounds(found.share, found.share) for found in (one, other))
    return first.low <= second.high and second.low <= first.high
