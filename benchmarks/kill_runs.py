"""`python -m benchmarks.kill_runs`: the processes of kept runs are killed at random points, again and again.

Knows: when to kill, what must hold afterwards. Must not know: how a run is kept.

Groups of runs are worked on by one process each; it is killed (SIGKILL) at a random moment and started anew, as often
as `--kills` says, and then left to finish. Afterwards every run must have ended as an undisturbed one does; no call
that writes or executes may have taken effect twice; and what did not take effect must have been a human's decision.
See docs/durable-runs.md.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.kept import noted, wanted
from policyengine.cli.output import print_json
from policyengine.durable import Head, KeptRuns
from policyengine.stores import open_store

GROUP = 10
SHOWN = 10
PAUSE_S = 0.03
"""The longest time a request or a call takes, so that a run takes about as long as until its process is killed."""

LONGEST_S = 0.25
"""A process is killed within so many seconds after it began to work."""


class Killed(NamedTuple):
    """What came of a group: how often its process was killed, how many of its runs were under way then, what failed."""

    kills: int
    under_way: int
    faults: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, finish, look; with `--check` fail where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=3, help="how often the process of each group is killed")
    parser.add_argument("--store", choices=["sqlite", "redis"], default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name, place_of(options.store, Path(name)) as place:
        folder = Path(name)
        ids = [f"run-{number}" for number in range(options.runs)]
        groups = [ids[first : first + GROUP] for first in range(0, len(ids), GROUP)]
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(kill_group, place, folder, group, options.kills, options.seed + number)
                for number, group in enumerate(groups)
            ]
            killed = [job.result() for job in jobs]
        found = judge(place, folder, ids)
    report = {
        "store": options.store,
        "seed": options.seed,
        "runs": options.runs,
        "kills": sum(group.kills for group in killed),
        "runs_under_way_when_killed": sum(group.under_way for group in killed),
        "seconds": round(time.perf_counter() - begun, 1),
        **found,
        "faults": [fault for group in killed for fault in group.faults],
    }
    print_json({name: found[:SHOWN] if isinstance(found, list) else found for name, found in report.items()})
    bad = [name for name in ("lost", "twice", "missing_unasked", "faults") if report[name]]
    if options.runs >= 100 and report["runs_under_way_when_killed"] < options.runs:
        bad.append("fewer kills than runs")
    if options.check and bad:
        print(f"failed: {', '.join(bad)}", file=sys.stderr)
    return 1 if options.check and bad else 0


@contextmanager
def place_of(store: str, folder: Path) -> Iterator[str]:
    """Start what a store needs, and return its place."""
    if store == "sqlite":
        yield f"sqlite:{folder / 'runs.db'}"
        return
    from tests.redis_server import RedisServer

    server = RedisServer(folder)
    server.start()
    try:
        yield server.url("kills")
    finally:
        server.stop()


def kill_group(place: str, folder: Path, ids: Sequence[str], kills: int, seed: int) -> Killed:
    """Work on a group, with its process killed so often; then let it finish."""
    chance = random.Random(seed)
    done, under_way = 0, 0
    for _ in range(kills):
        process = start(place, folder, ids)
        time.sleep(chance.random() * LONGEST_S)
        if process.poll() is not None:
            process.communicate()
            break
        process.kill()
        process.communicate()
        done += 1
        under_way += sum(not head.ended for head in heads(place) if head.run_id in set(ids))
    process = start(place, folder, ids)
    said, _ = process.communicate()
    lines = said.splitlines()
    return Killed(done, under_way, [] if lines[-1:] == ["done"] else lines or ["no answer"])


def start(place: str, folder: Path, ids: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process on a group; return when it is about to begin."""
    command = [sys.executable, "-m", "benchmarks.kept", "--pause", str(PAUSE_S), place, str(folder), *ids]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def heads(place: str) -> list[Head]:
    """Return the heads of all runs."""
    store = open_store(place)
    try:
        return KeptRuns(store).heads()[0]
    finally:
        store.close()


def judge(place: str, folder: Path, ids: Sequence[str]) -> dict[str, object]:
    """Return what does not hold, and what humans were asked."""
    store = open_store(place)
    try:
        runs = KeptRuns(store)
        status = {head.run_id: head.status for head in runs.heads()[0]}
    finally:
        store.close()
    effects, asked = Counter(noted(folder / "effects")), set(noted(folder / "asked"))
    due = set().union(*map(wanted, ids))
    return {
        "ended": dict(Counter(status.values())),
        "lost": sorted(set(ids) - status.keys()) + sorted(run for run in ids if status.get(run) != "completed"),
        "effects": sum(effects.values()),
        "twice": sorted(effect for effect, times in effects.items() if times > 1),
        "asked": len(asked),
        "not_done_as_asked": len(due - effects.keys()),
        "missing_unasked": sorted(due - effects.keys() - asked),
    }


if __name__ == "__main__":
    sys.exit(main())
