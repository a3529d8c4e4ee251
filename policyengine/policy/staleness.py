"""For how long the files of a policy have differed from the policy in force.

Knows: what the files were when the policy in force was read, when they were first seen to differ.
Must not know: why no newer version is in force, what follows from it (see `Engine`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from policyengine.policy.disk import Disk


class Staleness(msgspec.Struct, frozen=True):
    """`differs_s` is for how long the files have differed (`None`: they do not), `limit_s` how long they may."""

    differs_s: float | None = None
    limit_s: float | None = None

    @property
    def exceeded(self) -> bool:
        """Whether the files have differed for longer than they may."""
        return self.differs_s is not None and self.limit_s is not None and self.differs_s > self.limit_s


class _Base(msgspec.Struct, frozen=True):
    parts: frozenset[Path]
    fingerprint: str


class Freshness:
    """Compares the files with what they were when the policy in force was read; several threads may ask.

    What the policy in force was read from counts, and nothing else: a version that was refused may name further files.
    `told` is whether somebody was told that the files have differed for too long.
    """

    def __init__(self, disk: Disk, clock: Callable[[], float]) -> None:
        self._disk = disk
        self._clock = clock
        self._base: _Base | None = None
        self._since: float | None = None
        self._lock = threading.Lock()  # held for assignments only, never while files are read
        self.told = False

    def settle(self, fingerprint: str) -> None:
        """Take note that the policy in force is the one of the files with this fingerprint."""
        base = _Base(self._disk.parts, fingerprint)
        with self._lock:
            self._base, self._since = base, None

    def look(self, seen: str | None = None) -> float | None:
        """Return for how long the files have differed; `seen` is the fingerprint where somebody took it just now."""
        if not self._disk:
            return None
        base = self._base
        same = base is not None and self._found(base, seen) == base.fingerprint
        with self._lock:
            if self._base is base:
                if same:
                    self._since = None
                elif self._since is None:
                    self._since = self._clock()
            return None if self._since is None else max(0.0, self._clock() - self._since)

    def tell(self, exceeded: bool) -> bool:
        """Return whether this is news: the first time after it was otherwise."""
        with self._lock:
            news, self.told = exceeded != self.told, exceeded
        return news

    def _found(self, base: _Base, seen: str | None) -> str:
        if seen is not None and self._disk.parts == base.parts:
            return seen
        return self._disk.fingerprint(base.parts)
