"""`python -m benchmarks.shared_limits`: what reserving of a shared pool costs, as a ratio to one decision.

Knows: the ledger, the three stores. Must not know: how they keep counts.

Reserving waits for a store, so it is no part of deciding, and what counts is what it adds to a request or a batch. A
decision is that of a shipped policy on one call and its result, in the same process, in turns with the reservations,
so that a busy machine slows both. Many processes are timed against one, on one file and one server.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from policyengine import Engine, Ledger, ToolCall, ToolResult
from policyengine.cli.output import configure_logging, print_json, table, terminal
from policyengine.shared.pools import Need, Pool
from policyengine.stores import open_store

SAMPLES = 1_000
PROCESSES = 16
EACH = 200
LIMIT = 10**9

WORKER = """
import sys
from benchmarks.shared_limits import needs_of
from policyengine import Ledger
from policyengine.stores import open_store
ledger, needs = Ledger(open_store(sys.argv[1])), needs_of(1)
ledger.reserve(needs)
print("ready", flush=True)
sys.stdin.readline()
down = sum(ledger.reserve(needs)[0].state == "down" for _ in range(int(sys.argv[2])))
print(down, flush=True)
"""


class Timing(NamedTuple):
    """One store: nanoseconds of a reservation (the median and the 95th percentile) and of a decision."""

    store: str
    needs: int
    median: float
    p95: float
    decision: float

    @property
    def ratio(self) -> float:
        """How many decisions a reservation takes."""
        return self.median / self.decision


class Fleet(NamedTuple):
    """Many processes on one store: reservations a second of one and of all of them, and how many were `down`."""

    store: str
    one: float
    all: float
    down: int


def needs_of(number: int) -> tuple[Need, ...]:
    """Return what is reserved at once: pools with a window, each counted by itself."""
    pools = [Pool(f"pool-{place}", "tool_calls", LIMIT, 3600.0, wait_s=60.0) for place in range(number)]
    return tuple(Need(pool.name, pool, pool.key(conversation="", agent=""), 1) for pool in pools)


def time_store(place: str, name: str, number: int, samples: int) -> Timing:
    """Time reservations and decisions in turns."""
    store = open_store(place)
    ledger, needs = Ledger(store), needs_of(number)
    run = Engine("default").start_run()
    run.start("task")
    taken, decided = [], []
    for sample in range(samples):
        began = perf_counter_ns()
        ledger.reserve(needs)
        taken.append(perf_counter_ns() - began)
        run.begin_iteration()
        call = ToolCall(f"c{sample}", "look", f'{{"page": {sample}}}', {"page": sample})
        began = perf_counter_ns()
        run.before_tool_call(call)
        run.after_tool_call(call, ToolResult(call.id, f"page {sample}"))
        decided.append(perf_counter_ns() - began)
        run.end_iteration(1)
    store.close()
    return Timing(name, number, median(taken), quantiles(taken, n=20)[-1], median(decided))


def time_fleet(place: str, name: str, processes: int, each: int) -> Fleet:
    """Time one process, then many at the same time; each has its connection before the clock starts."""
    alone, _ = _race(place, 1, each)
    together, down = _race(place, processes, each)
    return Fleet(name, each / alone, processes * each / together, down)


def _race(place: str, processes: int, each: int) -> tuple[float, int]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, place, str(each)], **pipes) for _ in range(processes)]
    for worker in workers:
        worker.stdout.readline()
    began = perf_counter()
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    down = sum(int(worker.stdout.readline()) for worker in workers)
    took = perf_counter() - began
    for worker in workers:
        worker.communicate()
    return took, down


@contextmanager
def server(folder: Path) -> Iterator[str | None]:
    """Start a Redis on a free port of this machine; `None` where there is none."""
    if shutil.which("redis-server") is None or find_spec("redis") is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout or ():
            if "Ready to accept connections" in line:
                break
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def main(argv: list[str] | None = None) -> int:
    """Print what reserving costs with each store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_limits", description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="reservations of each store that are timed")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes at the same time")
    parser.add_argument("--each", type=int, default=EACH, help="reservations of each process")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(argv)
    configure_logging()
    timings: list[Timing] = []
    fleets: list[Fleet] = []
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as redis:
        places = {"memory": "memory:", "sqlite": str(Path(folder) / "shared.db"), **({"redis": redis} if redis else {})}
        for name, place in places.items():
            timings += [time_store(place, name, number, chosen.samples) for number in (1, 3)]
        shared = [(name, place) for name, place in places.items() if name != "memory"]
        fleets = [time_fleet(place, name, chosen.processes, chosen.each) for name, place in shared]
    if chosen.json:
        made = [{**timing._asdict(), "ratio": timing.ratio} for timing in timings]
        print_json({"python": platform.python_version(), "reserve": made, "fleet": [one._asdict() for one in fleets]})
        return 0
    out = terminal()
    costs = table("store", "#pools", "#reserve, us", "#p95", "#decisions")
    for one in timings:
        costs.add_row(
            one.store, str(one.needs), f"{one.median / 1000:.0f}", f"{one.p95 / 1000:.0f}", f"{one.ratio:.0f}"
        )
    out.print(costs)
    speeds = table("store", "#1 process, /s", f"#{chosen.processes}, /s", "#ratio", "#down")
    for fleet in fleets:
        ratio = fleet.all / fleet.one
        speeds.add_row(fleet.store, f"{fleet.one:.0f}", f"{fleet.all:.0f}", f"{ratio:.2f}", str(fleet.down))
    out.print(speeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
