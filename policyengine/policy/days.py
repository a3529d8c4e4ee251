"""Days, as `expires` of an exception names them: `2026-12-31`, in UTC.

Knows: how a day is written. Must not know: what it is for.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z", re.ASCII)


def day(text: str) -> date | None:
    """Return the day that a text names, or `None` if it is no day."""
    if not _DAY.match(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def today() -> date:
    """Return the present day in UTC."""
    return datetime.now(UTC).date()
