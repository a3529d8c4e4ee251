"""How many runs an engine has begun, and how many are under way.

Knows: that a run begins and ends. Must not know: anything else about runs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from policyengine.run import Run


class RunTally:
    """Counts runs. One that nobody holds any more is not under way, ended or not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: WeakSet[Run] = WeakSet()
        self.begun = 0

    @property
    def under_way(self) -> int:
        """How many runs have begun, have not ended and are still held by somebody."""
        return len(self._under_way)

    def begin(self, run: Run) -> None:
        """Take note that a run begins or is resumed."""
        with self._lock:
            self.begun += 1
            self._under_way.add(run)

    def end(self, run: Run) -> None:
        """Take note that a run ended."""
        with self._lock:
            self._under_way.discard(run)
