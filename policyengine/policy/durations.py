"""Durations with units: `250ms`, `10s`, `2m`, `1h`.

Knows: how a duration is written. Must not know: what it is for.
"""

from __future__ import annotations

import re

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h)\Z", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_S = 24 * 3600.0
"""Longest duration a policy may hold."""


def seconds(text: str) -> float | None:
    """Return a duration in seconds, or `None` if the text is no duration above zero and up to 24 hours."""
    match = _DURATION.match(text)
    if match is None:
        return None
    value = float(match.group(1)) * _SECONDS[match.group(2)]
    return value if 0 < value <= MAX_S else None
