"""Work on all units in this process, or in several on this machine.

Knows: processes, and what becomes of a unit whose worker dies. Must not know: what a unit holds, rates.

Every worker is a pool of one process, so that it is known which unit it had when it died.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import wait as wait_for

from policyengine.backtest.judge import Assignment, Judge, Judged
from policyengine.backtest.work import Unit
from policyengine.errors import ConfigError, ExtensionError, UsageError

ATTEMPTS = 3
"""How often a unit is tried whose worker died (the machine ran out of memory, somebody killed it)."""


def judge_all(assignment: Assignment, units: Sequence[Unit], workers: int) -> Iterator[Judged]:
    """Yield what comes of every unit, in no particular order.

    With one worker everything happens here; with more, in processes of their own.

    Raises:
        UsageError: the worker of a unit died again and again.
    """
    if workers <= 1 or len(units) <= 1:
        judge = Judge(assignment)
        for unit in units:
            yield judge.judge(unit)
        return
    others = set(multiprocessing.active_children())
    pools = [_pool(assignment) for _ in range(min(workers, len(units)))]
    finished = False
    try:
        yield from _shared_out(assignment, units, pools)
        finished = True
    finally:
        if not finished:  # nobody waits for what is still being worked on
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def died(unit: Unit) -> UsageError:
    """Return the error of a unit whose workers die."""
    named = ", ".join(piece.source for piece in unit.pieces[:3])
    more = f" and {len(unit.pieces) - 3} more" if len(unit.pieces) > 3 else ""
    return UsageError(
        f"the process that worked on {named}{more} died {ATTEMPTS} times; it may need more memory than there is, "
        "or an extension or a reader ends the process"
    )


def _shared_out(assignment: Assignment, units: Sequence[Unit], pools: list[ProcessPoolExecutor]) -> Iterator[Judged]:
    waiting, deaths = deque(units), Counter[int]()
    running: dict[Future[Judged], tuple[int, Unit]] = {}

    def begin(place: int) -> None:
        if waiting:
            unit = waiting.popleft()
            try:
                future = pools[place].submit(_work, unit)
            except BrokenProcessPool:  # it died when it had nothing to do
                pools[place] = _pool(assignment)
                future = pools[place].submit(_work, unit)
            running[future] = place, unit

    for place in range(len(pools)):
        begin(place)
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            place, unit = running.pop(future)
            try:
                judged = future.result()
            except BrokenProcessPool:
                deaths[unit.number] += 1
                if deaths[unit.number] == ATTEMPTS:
                    raise died(_deadly(assignment, unit)) from None
                pools[place].shutdown()
                pools[place] = _pool(assignment)
                waiting.appendleft(unit)
                begin(place)
                continue
            begin(place)  # first, so that the worker is busy while its result is added up
            yield judged


def _deadly(assignment: Assignment, unit: Unit) -> Unit:
    """Return what a worker dies of, each piece of a unit tried alone; the whole unit if it is none of them alone."""
    if len(unit.pieces) == 1:
        return unit
    pool = _pool(assignment)
    try:
        for piece in unit.pieces:
            alone = Unit(unit.number, (piece,))
            try:
                pool.submit(_work, alone).result()
            except BrokenProcessPool:
                return alone
    finally:
        pool.shutdown(wait=False)
    return unit


def _pool(assignment: Assignment) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(assignment,))


_assignments: list[Assignment] = []
"""What a worker process works on."""

_judges: list[Judge] = []
"""The judge of this worker process, made when the first unit comes and kept for the next."""


def _begin(assignment: Assignment) -> None:
    # Ctrl-C reaches every process of a terminal; the one that shares the work out decides what becomes of the others.
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _assignments[:] = [assignment]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(unit: Unit) -> Judged:
    return work(_assignments[0], unit)


def work(assignment: Assignment, unit: Unit) -> Judged:
    """Return what comes of a unit, in a worker process.

    Raises:
        UsageError: a policy cannot be used here.
    """
    if not _judges or _judges[0].assignment != assignment:
        try:
            _judges[:] = [Judge(assignment)]
        except (ConfigError, ExtensionError) as error:
            # These kinds do not survive the way to the other process.
            raise UsageError(f"a worker cannot use a policy: {error}") from None
    return _judges[0].judge(unit)
