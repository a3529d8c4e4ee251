"""A directory of the process for what can only be read from files; it goes with the process.

Knows: temporary directories. Must not know: what is written there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="fuzz-")


def folder() -> Path:
    """Return the directory."""
    return Path(_folder().name)


def written(name: str, data: bytes) -> Path:
    """Return the path of a file of this name that holds the data."""
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
