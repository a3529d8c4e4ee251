"""Pools of a run that nobody shares: for recordings, proofs and tests.

Knows: the arithmetic of pools and a clock. Must not know: stores, threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policyengine.shared.pools import Due, Grant, Need
from policyengine.shared.reckon import carry_out


class Alone:
    """Reckons like a `Ledger`, in memory and by the given clock. It tells no timings: same events, same grants."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[tuple[str, str], bytes] = {}

    def perform(self, needs: Sequence[Need], dues: Sequence[Due] = (), run_id: str = "") -> tuple[Grant, ...]:
        """Settle what is owed, reserve what is needed, and return a grant for each need."""
        return carry_out(self, needs, dues)

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value."""
        return self._values.get((kind, key))

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value."""
        self._values[kind, key] = value
