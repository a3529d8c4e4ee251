"""How many runs an engine has begun, which are under way, and what was decided in them.

Knows: that a run begins, ends and is stopped; decisions by their names. Must not know: why anything was decided.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec

from policyengine.runstate import StopReason

if TYPE_CHECKING:
    from policyengine.decision import Decision
    from policyengine.run import Run


class Stopped(msgspec.Struct, frozen=True):
    """The last reason that was made of a decision: in which run, and when (seconds since 1970)."""

    run_id: str
    at: float
    reason: StopReason


class RunTally:
    """Counts runs and decisions. A run that nobody holds any more is not under way, ended or not."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._lock = threading.Lock()
        self._wall_clock = wall_clock
        self._under_way: WeakSet[Run] = WeakSet()
        self._decisions: Counter[str] = Counter()
        self.begun = 0
        self.last_stop: Stopped | None = None

    @property
    def under_way(self) -> int:
        """How many runs have begun, have not ended and are still held by somebody."""
        return len(self._under_way)

    @property
    def decisions(self) -> dict[str, int]:
        """How often each action was decided, `allow` left out; `hint` counts decisions that brought notes."""
        with self._lock:
            return dict(self._decisions)

    def runs(self) -> tuple[Run, ...]:
        """Return the runs that are under way."""
        with self._lock:
            return tuple(self._under_way)

    def begin(self, run: Run) -> None:
        """Take note that a run begins or is resumed."""
        with self._lock:
            self.begun += 1
            self._under_way.add(run)

    def end(self, run: Run) -> None:
        """Take note that a run ended."""
        with self._lock:
            self._under_way.discard(run)

    def decided(self, decision: Decision) -> None:
        """Take note of a decision that holds a control action or notes."""
        with self._lock:
            if decision.control is not None:
                self._decisions[decision.action] += 1
            if decision.notes:
                self._decisions["hint"] += 1

    def stopped(self, run: Run, reason: StopReason) -> None:
        """Take note of a stop, the end of a step, a wind-down or a question."""
        self.last_stop = Stopped(run.state.run_id, self._wall_clock(), reason)
