"""The arithmetic of pools: one count for each key, in at most `BUCKETS` + 1 parts of its window.

Knows: how a count changes, within one transaction. Must not know: which store that is, runs.

A part counts until all of it is older than the window, so nothing is forgotten early: in no stretch of time as long as
the window is more granted than the limit. Time is the clock of the store. Where it jumps back by less than a window,
time stands still until it has caught up; where by more, what counts is moved along, so that it does not count for
ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Protocol

import msgspec

from policyengine.shared.pools import BREAKERS, METERED, Due, Grant, Need, Pool

KIND = "pool"
"""The kind under which a store keeps counts."""

BUCKETS = 60

MOST = 2**62
"""No count grows beyond this: it must fit into what stores and JSON can hold."""


class Kept(Protocol):
    """What is needed of the values of a store."""

    def now(self) -> float:
        """Return the seconds since 1970."""
        raise NotImplementedError

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value."""
        raise NotImplementedError

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value."""
        raise NotImplementedError


class Tally(msgspec.Struct, omit_defaults=True):
    """One count: `parts` are amounts by number of the stretch of `width` seconds; without a window there is one.

    `seen` is the stretch to which something was added last. After the clock was set back behind it nothing is given
    back up to the stretch `unsure`: what is there may have been moved, or added later.
    """

    width: float = 0.0
    parts: dict[int, int] = {}
    seen: int = 0
    unsure: int = 0

    @property
    def total(self) -> int:
        """What counts now."""
        return sum(self.parts.values())


def carry_out(values: Kept, needs: Sequence[Need], dues: Sequence[Due] = ()) -> tuple[Grant, ...]:
    """Settle what is owed, reserve what is needed, and return a grant for each need.

    Needs of one key (two rules on one pool) are held against their own limits and reserved together, once.
    """
    now = values.now()
    tallies: dict[str, Tally] = {}
    changed = set()
    pools = {due.key: due.pool for due in dues} | {need.key: need.pool for need in needs}
    for key, pool in pools.items():
        kept = _read(values.get(KIND, key))
        tallies[key] = _current(kept, pool, now)
        if _newest(tallies[key]) < _newest(kept):  # moved along with the clock, and from here on it ages again
            changed.add(key)
    for due in dues:
        if _settle(tallies[due.key], due, now):
            changed.add(due.key)
    seen = {key: (tally.total, _time(tally, now)) for key, tally in tallies.items()}
    grants = tuple(_grant(need, *seen[need.key]) for need in needs)
    taken: dict[str, int] = {}
    for grant in grants:
        taken[grant.key] = max(taken.get(grant.key, 0), grant.granted)
    for key, amount in taken.items():
        if amount:
            _add(tallies[key], amount, now)
            changed.add(key)
    for key in sorted(changed):
        values.put(KIND, key, msgspec.json.encode(tallies[key]))
    return grants


def used_of(values: Kept, pool: Pool, key: str) -> int:
    """Return what counts now."""
    return _current(_read(values.get(KIND, key)), pool, values.now()).total


def _time(tally: Tally, now: float) -> float:
    """Return the time that counts: it stands still where the clock was set back a little."""
    newest = max(tally.parts, default=None) if tally.width else None
    return now if newest is None or newest <= _number(now, tally.width) else (newest + 0.5) * tally.width


def _grant(need: Need, used: int, now: float) -> Grant:
    pool = need.pool
    left = max(0, pool.limit - used)
    if pool.counts in BREAKERS:
        granted = 0
    elif pool.counts in METERED:
        granted = need.amount if need.amount <= left else 0
    else:
        granted = min(need.amount, left)
    return Grant(need.rule, pool.name, pool.counts, need.key, need.amount, granted, used, pool.limit, at=now)


def _read(value: bytes | None) -> Tally:
    return Tally() if value is None else msgspec.json.decode(value, type=Tally)


def _newest(tally: Tally) -> float:
    """Return when the newest part is, by the clock."""
    return max(tally.parts, default=0) * tally.width


def _width(pool: Pool) -> float:
    return pool.window_s / BUCKETS if pool.window_s else 0.0


def _number(now: float, width: float) -> int:
    return floor(now / width) if width else 0


def _current(tally: Tally, pool: Pool, now: float) -> Tally:
    """Return a count without what is older than the window."""
    width = _width(pool)
    parts = {number: amount for number, amount in tally.parts.items() if amount > 0}
    if parts and width:
        present, newest = _number(now, width), max(parts)
        if newest - present > BUCKETS:  # the clock was set back by more than a window
            parts = {number - newest + present: amount for number, amount in parts.items()}
            newest = present
        oldest = max(present, newest) - BUCKETS
        parts = {number: amount for number, amount in parts.items() if number >= oldest}
    found = Tally(width, parts, tally.seen, tally.unsure)
    if width and _number(_time(found, now), width) < tally.seen:
        found.unsure = max(tally.unsure, tally.seen)
    return found


def _add(tally: Tally, amount: int, now: float) -> None:
    number = tally.seen = _number(_time(tally, now), tally.width)
    tally.parts[number] = min(MOST, tally.parts.get(number, 0) + amount)


def _settle(tally: Tally, due: Due, now: float) -> bool:
    """Change a count by what is owed; return whether that changed anything. What cannot be found stays counted."""
    if due.amount > 0:
        _add(tally, due.amount, now)
        return True
    number = _number(due.at, tally.width)
    if tally.width and number <= tally.unsure:
        return False
    kept = tally.parts.get(number, 0)
    back = min(kept, -due.amount)
    if back:
        tally.parts[number] = kept - back
    return back > 0
