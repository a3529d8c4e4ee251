"""`python -m benchmarks.kept_load`: many runs at once in one store, against one run after another.

Knows: how many at once, what is compared. Must not know: how a run is kept.

Timed is the same work (`benchmarks.kept`, requests and calls that take no time) as runs per second: one run after
another without a store (the baseline) and with one; 1,000 concurrent asynchronous runs in one process; and 16 processes
with their share of the runs each. Every run must end as it should, none may be lost, no effect may happen twice.
See docs/durable-runs.md.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.kept import Worker, noted, wanted, work
from benchmarks.kill_runs import heads, place_of
from policyengine.cli.output import print_json
from policyengine.stores import open_store

ALONE = 50
"""Runs that are timed one after another."""


def main(argv: Sequence[str] | None = None) -> int:
    """Time, look, print; with `--check` fail where a run went wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept_load", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="concurrent runs in one process")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--each", type=int, default=25, help="runs of each process")
    parser.add_argument("--store", choices=["sqlite", "redis"], default="sqlite")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name, place_of(options.store, Path(name)) as place:
        folder = Path(name)
        speeds, faults = measure(place, folder, options.runs, options.processes, options.each)
        ended = Counter(head.status for head in heads(place))
        effects = Counter(noted(folder / "effects"))
        kept = ALONE + options.runs + options.processes * options.each
    twice = sorted(effect for effect, times in effects.items() if times > 1)
    due = (kept + ALONE) * len(wanted("any"))
    baseline = speeds["one after another, no store"]
    report = {
        "store": options.store,
        "runs_per_second": {what: round(speed, 1) for what, speed in speeds.items()},
        "ratio_to_no_store": {what: round(speed / baseline, 3) for what, speed in speeds.items()},
        "kept": kept,
        "ended": dict(ended),
        "effects": sum(effects.values()),
        "effects_due": due,
        "twice": twice[:10],
        "faults": faults[:10],
    }
    print_json(report)
    sound = ended == Counter(completed=kept) and len(effects) == due and not twice and not faults
    return 0 if sound or not options.check else 1


def measure(place: str, folder: Path, runs: int, processes: int, each: int) -> tuple[dict[str, float], list[str]]:
    """Return runs per second by how they were run, and what went wrong."""
    store = open_store(place)
    speeds, faults = {}, []
    for what, kept_in, ids in (
        ("one after another, no store", None, [f"plain-{number}" for number in range(ALONE)]),
        ("one after another", store, [f"alone-{number}" for number in range(ALONE)]),
    ):
        worker = Worker(folder, kept_in, 0.0)
        speeds[what], failed = timed(one_by_one(worker, ids), len(ids))
        faults += failed
    ids = [f"at-once-{number}" for number in range(runs)]
    speeds[f"{runs} at once"], failed = timed(work(Worker(folder, store, 0.0), ids), runs)
    faults += failed
    store.close()
    speeds[f"{processes} processes"], failed = in_processes(place, folder, processes, each)
    return speeds, faults + failed


async def one_by_one(worker: Worker, ids: Sequence[str]) -> list[str]:
    """Work on runs one after another."""
    return [fault for run in ids for fault in await work(worker, [run])]


def timed(working: Any, runs: int) -> tuple[float, list[str]]:
    """Return runs per second, and what went wrong."""
    begun = time.perf_counter()
    faults = asyncio.run(working)
    return runs / (time.perf_counter() - begun), faults


def in_processes(place: str, folder: Path, processes: int, each: int) -> tuple[float, list[str]]:
    """Return runs per second of so many processes, from when the last of them is ready; and what went wrong."""
    command = [sys.executable, "-m", "benchmarks.kept", "--pause", "0", "--wait", place, str(folder)]
    workers = []
    with ExitStack() as stack:
        for number in range(processes):
            ids = [f"process-{number}-{run}" for run in range(each)]
            started = subprocess.Popen([*command, *ids], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            workers.append(stack.enter_context(started))
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        begun = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
        faults = []
        for worker in workers:
            assert worker.stdout is not None
            lines = worker.stdout.read().splitlines()
            faults += [] if lines[-1:] == ["done"] else lines or ["no answer"]
    return processes * each / (time.perf_counter() - begun), faults


if __name__ == "__main__":
    sys.exit(main())
