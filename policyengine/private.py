"""Files with content of runs: what makes one makes it for this user alone.

Knows: file modes. Must not know: what is written.
"""

from __future__ import annotations

import os


def for_us_alone(path: str, flags: int) -> int:
    """Open a file as `open` asks for, and make it with mode 0600 if it is not there; for `open(opener=...)`."""
    return os.open(path, flags, 0o600)
