"""Says of the runs of this process, from time to time, that somebody still works on them.

Knows: keepers, when a lease needs to be renewed. Must not know: what a keeper commits.

One thread serves all runs of a store in this process; it begins with the first one and ends with the last. A run that
commits often renews its lease by that and needs nothing here: only a long request or call does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from policyengine.durable.keeper import Keeper
from policyengine.durable.lease import LeaseLostError
from policyengine.log import log

_PER_LEASE = 4


class _Beats:
    """The runs that are held in one store, and the thread that speaks for them: no store holds up another one."""

    def __init__(self) -> None:
        self.held: set[Keeper] = set()
        self.thread: threading.Thread | None = None
        self.wake = threading.Condition()


_beats: dict[int, _Beats] = {}
"""By the identity of a store; it is there for as long as a run in that store is held."""

_lock = threading.Lock()


def _forked() -> None:
    """The runs of a process that was forked are its parent's, and its locks may be held by threads that are gone."""
    global _lock
    _lock = threading.Lock()
    for beats in _beats.values():
        beats.wake = threading.Condition()
        for keeper in beats.held:
            keeper.forked()
    _beats.clear()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def holding(keeper: Keeper) -> Iterator[None]:
    """Hold a run for as long as the block lasts: its lease is renewed meanwhile, and given up afterwards."""
    try:
        beats = _begin(keeper)
        try:
            yield
        finally:
            with beats.wake:
                beats.held.discard(keeper)
                beats.wake.notify()
    finally:
        keeper.release()


def _begin(keeper: Keeper) -> _Beats:
    place = id(keeper.store)
    with _lock:
        beats = _beats.setdefault(place, _Beats())
        with beats.wake:
            beats.held.add(keeper)
            if beats.thread is None:
                beats.thread = threading.Thread(
                    target=_beat, args=(place, beats), name="policyengine-leases", daemon=True
                )
                try:
                    beats.thread.start()
                except RuntimeError as error:  # the system has no thread left; the next run tries again
                    beats.thread = None
                    log().warning("leases are renewed by commits only: {}", error)
            else:
                beats.wake.notify()
    return beats


def _beat(place: int, beats: _Beats) -> None:
    while True:
        with beats.wake:
            if beats.held:
                due = min(map(_due, beats.held)) - monotonic()
                if due > 0:
                    beats.wake.wait(due)
            late = [keeper for keeper in beats.held if _due(keeper) <= monotonic()]
        for keeper in late:
            _renew(beats, keeper)
        with _lock, beats.wake:
            if not beats.held:
                beats.thread = None
                if _beats.get(place) is beats:
                    del _beats[place]
                return


def _due(keeper: Keeper) -> float:
    return keeper.renewed + keeper.lease_s / _PER_LEASE


def _renew(beats: _Beats, keeper: Keeper) -> None:
    """Renew one lease. What fails is tried again: the run finds out for itself when it commits."""
    try:
        keeper.renew()
    except LeaseLostError as error:
        log().warning("{}", error)
        with beats.wake:
            beats.held.discard(keeper)
    except Exception as error:  # noqa: BLE001 - a store that fails in whatever way must not end the thread
        log().warning("the lease of run {} is not renewed: {}", keeper.run_id, error)
        keeper.renewed = monotonic()
