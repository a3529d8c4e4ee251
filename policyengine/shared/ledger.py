"""`Ledger`: the counts of pools in a store that many processes share.

Knows: stores, how long they are waited for, what is still owed to them. Must not know: runs, rules, the arithmetic.

A ledger is safe for threads. Nothing it does raises because of its store: where that does not answer in time, or says
that it cannot, the grants say `down`, and what a rule then wants is up to the rule.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any

import msgspec

from policyengine.errors import UsageError
from policyengine.log import log
from policyengine.shared.pools import Due, Grant, Need, Pool, all_down, unused
from policyengine.shared.reckon import KIND, carry_out, used_of
from policyengine.stores import Store, StoreError, Values
from policyengine.workers import call_with_limit

RETRY_S = 1.0
"""For how long a store that did not answer is not asked again."""

SETTLE_S = 2.0
"""How long to wait for a store where no rule says it."""

MOST_OWED = 10_000
"""How many counts a ledger remembers something for while its store does not answer."""


class Ledger:
    """Reserves and settles amounts of pools in a store, every event in one transaction.

    What cannot be settled while the store is down is kept in this process and settled with the next transaction; if
    the process ends before, it is lost. What was reserved by somebody who did not wait for it is given back.
    """

    def __init__(self, store: Store, *, retry_s: float = RETRY_S, clock: Callable[[], float] = monotonic) -> None:
        if not callable(getattr(store, "update", None)):
            raise UsageError(f"a ledger needs a store, not {type(store).__name__}: Ledger(open_store(place))")
        self.store = store
        self._retry_s = retry_s
        self._clock = clock
        self._lock = threading.Lock()
        self._owed: dict[tuple[str, float], Due] = {}
        self._down_until = float("-inf")
        self._told_down = False

    def perform(self, needs: Sequence[Need], dues: Sequence[Due] = (), run_id: str = "") -> tuple[Grant, ...]:
        """Settle what is owed, reserve what is needed, all at once, and return a grant for each need.

        Where rules differ in how long they wait for the store, the longest time counts.
        """
        began = perf_counter_ns()
        if self._clock() < self._down_until:
            self._owe(dues)
            return all_down(needs)
        attempt = _Attempt(self, tuple(needs), tuple(dues))
        waits = [one.pool.wait_s for one in needs or dues] or [SETTLE_S]
        try:
            in_time, grants, fault = call_with_limit(attempt.run, max(waits))
        except BaseException:  # an interrupt: nobody takes what is granted
            attempt.give_back()
            raise
        if not in_time:
            grants = attempt.give_up()
            fault = f"no answer after {max(waits):g} s"
        us = (perf_counter_ns() - began) // 1000
        if grants is None:
            self._went_down(fault, run_id)
            return all_down(needs, us)
        self._came_back()
        return tuple(msgspec.structs.replace(grant, us=us) for grant in grants)

    def reserve(self, needs: Sequence[Need], run_id: str = "") -> tuple[Grant, ...]:
        """Reserve what is needed, all at once, and return a grant for each need."""
        return self.perform(needs, (), run_id)

    def settle(self, pool: Pool, grant: Grant, actual: int) -> None:
        """Settle a reservation: `actual` of it was used, or more than it, or less."""
        if actual != grant.granted:
            self.perform((), (Due(pool, grant.key, actual - grant.granted, grant.at),))

    def add(self, pool: Pool, amount: int, *, conversation: str = "", agent: str = "") -> None:
        """Count something that was not reserved."""
        self.perform((), (Due(pool, pool.key(conversation=conversation, agent=agent), amount),))

    def used(self, source: Any, rule: str = "", *, conversation: str = "", agent: str = "") -> int:
        """Return what counts in a pool now: of a `Pool`, or of the pool of a rule of an engine or snapshot.

        Money is counted in billionths of a dollar. A pool by conversation or agent has one count for each.

        Raises:
            UsageError: no such rule counts in a pool.
            StoreError: the store does not answer.
        """
        pool = source if isinstance(source, Pool) else _pool_of(source, rule)
        key = pool.key(conversation=conversation, agent=agent)
        return self.store.read(lambda values: used_of(values, pool, key))

    def forget(self, older_than_s: float) -> int:
        """Forget counts to which nothing was added for so long; return how many. Raises StoreError."""
        return self.store.update(lambda values: values.forget(KIND, values.now() - older_than_s))

    @property
    def owed(self) -> int:
        """For how many counts something waits to be settled, because the store was down."""
        return len(self._owed)

    # ---- what is owed

    def _owe(self, dues: Sequence[Due]) -> None:
        """Remember what could not be settled, added up by count; what is given back keeps its time."""
        with self._lock:
            for due in dues:
                name = (due.key, due.at if due.amount < 0 else float("inf"))
                known = self._owed.get(name)
                if known is None and len(self._owed) >= MOST_OWED:
                    log().error("shared pool {}: too much is owed to the store, {} is lost", due.pool.name, due.amount)
                    continue
                amount = due.amount + (known.amount if known is not None else 0)
                self._owed[name] = Due(due.pool, due.key, amount, due.at)

    def _take_owed(self) -> tuple[Due, ...]:
        with self._lock:
            owed, self._owed = tuple(self._owed.values()), {}
        return owed

    def _went_down(self, fault: str, run_id: str) -> None:
        self._down_until = self._clock() + self._retry_s
        if not self._told_down:
            self._told_down = True
            log().error("run {}: the store of shared pools does not answer: {}", run_id, fault)

    def _came_back(self) -> None:
        if self._told_down:
            self._told_down = False
            log().warning("the store of shared pools answers again")


def _pool_of(source: Any, rule: str) -> Pool:
    """Return the pool in which a rule of an engine, or of a snapshot, counts. Raises UsageError."""
    rules = getattr(getattr(source, "snapshot", source), "shared", None)
    if not isinstance(rules, tuple):
        raise UsageError(f"give a Pool, or an engine and the name of a rule, not {type(source).__name__}")
    for one in rules:
        if one.rule == rule:
            pool: Pool = one.pool
            return pool
    known = ", ".join(one.rule for one in rules) or "none"
    raise UsageError(f"no rule {rule!r} counts in a pool; those that do: {known}")


class _Attempt:
    """One transaction, in a thread that may be given up: who ends it is who settles what came of it."""

    def __init__(self, ledger: Ledger, needs: tuple[Need, ...], dues: tuple[Due, ...]) -> None:
        self._ledger = ledger
        self._needs = needs
        self._dues = dues
        self._lock = threading.Lock()
        self._given_up = False
        self._grants: tuple[Grant, ...] | None = None

    def run(self) -> tuple[Grant, ...] | None:
        """Perform the transaction; `None` where the store cannot."""
        dues = (*self._ledger._take_owed(), *self._dues)
        change: Callable[[Values], tuple[Grant, ...]] = partial(carry_out, needs=self._needs, dues=dues)
        try:
            grants = self._ledger.store.update(change)
        except (StoreError, msgspec.DecodeError, msgspec.ValidationError) as error:
            unknown = isinstance(error, StoreError) and error.unknown
            # Nobody knows whether it was settled: rather count something twice than not at all.
            self._ledger._owe([due for due in dues if due.amount > 0 or not unknown])
            raise
        with self._lock:
            self._grants = grants
            if self._given_up:
                self._ledger._owe(unused(self._needs, grants))
        return grants

    def give_up(self) -> tuple[Grant, ...] | None:
        """Wait no longer; return the grants if they came just now. What is granted later is given back."""
        with self._lock:
            self._given_up = True
            return self._grants

    def give_back(self) -> None:
        """Wait no longer, and give back what was granted, now or later."""
        grants = self.give_up()
        if grants is not None:
            self._ledger._owe(unused(self._needs, grants))
