"""Times of a recording, whatever way they are written, as seconds since its first one.

Knows: seconds since the epoch, ISO 8601. Must not know: formats of recordings.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Any


class Clock:
    """The times of one run. It never goes back: an earlier time counts as the latest one before it."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._latest = 0.0

    def at(self, value: Any) -> float | None:
        """Return the seconds since the first time of the run, or nothing if `value` is no time."""
        moment = _moment(value)
        if moment is None:
            return None
        if self._first is None:
            self._first = moment
        self._latest = max(self._latest, moment - self._first)
        return self._latest


def _moment(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value)
            # Without a zone, the zone of this machine would decide how long an hour in spring is.
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) if isfinite(value) else None
        except OverflowError:
            return None
    return None
