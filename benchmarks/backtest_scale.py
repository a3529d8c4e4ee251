"""`python -m benchmarks.backtest_scale`: whether memory grows with the input of a backtest, and what more cores bring.

Knows: how an input of any size is written, what is measured of the processes. Must not know: how work is shared out.

Every backtest is a process of its own. Memory is the most that it, and the largest of its workers, ever had resident.
Times are those of a clock and of the processors: the first counts, the second says how busy the machine was with other
things. See docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple

import msgspec

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine.backtest import merge
from policyengine.backtest.judge import Judge
from policyengine.backtest.run import assigned, backtest
from policyengine.backtest.work import plan

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}

SMALLER = 10
"""How many times smaller the other input is."""

MAX_GROWTH = 1.15
"""By how much a process may have more memory with the large input than with the small one."""

MIN_SPEEDUP = 1.5
"""How many times faster two processes are than one, at least, where one takes half a minute."""
IDLE = 0.9
"""A machine on which one process gets less of a core than this is busy with other things."""

MERGES = 50
"""How often a result is added, to time it."""

LONG_S = 30.0
"""With less work the start of a process counts for too much."""

KINDS = 400
"""How many different runs there are; they are repeated under other names until the input is large enough."""


class Spent(NamedTuple):
    """What one backtest took: seconds by the clock, by the processors, and the peaks of memory in bytes."""

    runs: int
    seconds: float
    own_cpu: float
    workers_cpu: float
    own_peak: int
    worker_peak: int

    @property
    def cpu(self) -> float:
        """Seconds of all processes."""
        return self.own_cpu + self.workers_cpu

    @property
    def share(self) -> float:
        """Seconds of the first process, during which nobody is taken to work, and of one of two workers."""
        return self.own_cpu + self.workers_cpu / 2


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, or 1 if `--check` and something that is asked does not hold."""
    arguments = _arguments(argv)
    if arguments.measure is not None:
        print(json.dumps(_measured(arguments.measure, arguments.policy, arguments.workers)))
        return 0
    checks: list[Check] = []
    with TemporaryDirectory(dir=arguments.folder) as folder:
        small, large = Path(folder) / "small.jsonl", Path(folder) / "large.jsonl"
        write(small, arguments.size // SMALLER)
        write(large, arguments.size)
        # By turns: what else the machine does hits both.
        taken = [_spent(large, arguments.policy, workers) for _ in range(arguments.rounds) for workers in (1, 2)]
        alone, pair = taken[::2], taken[1::2]
        first = _spent(small, arguments.policy, 2)
        for grid, check in (
            _speeds(large.stat().st_size, alone, pair),
            _memory((small, first), (large, max(pair, key=lambda spent: spent.worker_peak))),
        ):
            show(grid, markdown=arguments.markdown)
            checks += check
        show(_sums(small, arguments.policy), markdown=arguments.markdown)
    show(what_is_asked(checks), markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest_scale", description=description)
    parser.add_argument("--size", type=_bytes, default="2GB", metavar="N", help="of the large input (default: 2GB)")
    parser.add_argument("--policy", default="default", metavar="P", help="the policy (default: default)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the input is written (default: temporary)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often both are timed (default: 1)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/scale.md")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _bytes(text: str) -> int:
    for unit, size in UNITS.items():
        if text.upper().endswith(unit):
            return int(float(text[: -len(unit)]) * size)
    return int(text)


# ---- the input


def write(path: Path, size: int) -> None:
    """Write runs, one on each line, until the file has `size` bytes."""
    drawn = random.Random(20)
    kinds = [run(drawn) for _ in range(KINDS)]
    written = number = 0
    with path.open("wb") as file:
        while written < size:
            written += file.write(b'{"id":"run-%d",' % number + kinds[number % KINDS])
            number += 1


def run(drawn: random.Random) -> bytes:
    """Return a run of 3 to 40 rounds without its first brace and id; one in four goes round in circles at its end."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": text(drawn, 3_000)},
        {"role": "user", "content": text(drawn, 300)},
    ]
    rounds = drawn.randint(3, 40)
    stuck = drawn.random() < 0.25
    for place in range(rounds):
        same = stuck and place > rounds // 2
        messages += step(place, "always the same" if same else text(drawn, 80), "" if same else text(drawn, 1_500))
    messages.append({"role": "assistant", "content": text(drawn, 200)})
    label = drawn.random() < (0.2 if stuck else 0.7)
    about = {"model": f"model-{drawn.randint(1, 4)}", "label": label, "messages": messages}
    about["task"] = f"task-{drawn.randint(1, 10**9)}"
    return msgspec.json.encode(about)[1:] + b"\n"


def step(place: int, query: str, result: str) -> Iterator[dict[str, object]]:
    """Yield a response with one call, and the result of it."""
    function = {"name": "search", "arguments": json.dumps({"query": query, "limit": 10})}
    call = {"id": f"call_{place}", "type": "function", "function": function}
    yield {"role": "assistant", "content": "Let me look that up.", "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": f"call_{place}", "content": result}


def text(drawn: random.Random, length: int) -> str:
    """Return words of about this length together."""
    return " ".join("".join(drawn.choices("etaoinshrdlu", k=drawn.randint(2, 9))) for _ in range(length // 7))


# ---- what it takes


def _spent(path: Path, policy: str, workers: int) -> Spent:
    command = [sys.executable, "-m", "benchmarks.backtest_scale", "--policy", policy, "--workers", str(workers)]
    finished = subprocess.run([*command, "--measure", str(path)], stdout=subprocess.PIPE, check=True)
    return Spent(*json.loads(finished.stdout))


def _measured(path: Path, policy: str, workers: int) -> Spent:
    begun = perf_counter()
    report = backtest([path], [policy], workers=workers)
    seconds = perf_counter() - begun
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    cpu, others_cpu = (usage.ru_utime + usage.ru_stime for usage in (own, others))
    return Spent(report.runs, seconds, cpu, others_cpu, own.ru_maxrss * unit, others.ru_maxrss * unit)


def _speeds(size: int, alone: Sequence[Spent], pair: Sequence[Spent]) -> tuple[Grid, list[Check]]:
    rows = [
        (
            str(workers),
            f"{size / 1e6:,.0f}",
            f"{spent.runs:,}",
            f"{spent.seconds:.1f}",
            f"{spent.cpu:.1f}",
            f"{spent.own_cpu:.1f}",
            f"{size / 1e6 / spent.cpu:.1f}",
            f"{spent.runs / spent.cpu:,.0f}",
            f"{1e6 / spent.runs * spent.cpu / 3600:.2f}",
        )
        for workers, listed in ((1, alone), (2, pair))
        for spent in listed
    ]
    columns = (
        "#processes",
        "#MB",
        "#runs",
        "#seconds",
        "#processor seconds",
        "#of the first process",
        "#MB a core second",
        "#runs a core second",
        "#core hours a million runs",
    )
    busy = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    grid = Grid(f"What a backtest takes ({busy})", columns, tuple(rows))
    one, two = (min(listed, key=lambda spent: spent.seconds) for listed in (alone, pair))
    if one.cpu < LONG_S:
        return grid, []
    faster = one.seconds / two.seconds
    asked = f"two processes are at least {MIN_SPEEDUP:g} times as fast as one, where one takes {LONG_S:g} s or more"
    if one.cpu < IDLE * one.seconds:
        # Nobody gets the cores that others use: what the processors did says how it would be without those.
        asked += " (by processor time: the machine was busy)"
        found = f"{one.cpu / two.share:.2f}; by the clock {faster:.2f}"
        return grid, [Check(asked, found, one.cpu / two.share >= MIN_SPEEDUP)]
    return grid, [Check(asked, f"{faster:.2f}", faster >= MIN_SPEEDUP)]


def _memory(*inputs: tuple[Path, Spent]) -> tuple[Grid, list[Check]]:
    rows = tuple(
        (
            f"{path.stat().st_size / 1e6:,.0f}",
            f"{spent.runs:,}",
            f"{spent.seconds:.0f}",
            f"{spent.own_peak / 1e6:.0f}",
            f"{spent.worker_peak / 1e6:.0f}",
        )
        for path, spent in inputs
    )
    columns = ("#MB", "#runs", "#seconds", "#peak of the first process, MB", "#peak of a worker, MB")
    small, large = (spent for _, spent in inputs)
    growths = large.own_peak / small.own_peak, large.worker_peak / small.worker_peak
    asked = f"with {SMALLER} times the input no process has more than {MAX_GROWTH:g} times the memory"
    found = ", ".join(f"{growth:.2f}" for growth in growths)
    return Grid("Memory of two processes and the one that shares out the work", columns, rows), [
        Check(asked, found, max(growths) <= MAX_GROWTH)
    ]


def _sums(path: Path, policy: str) -> Grid:
    """Return what the result of a unit takes, by the number of groups its runs are in."""
    rows = []
    for by_task in (False, True):
        assignment = assigned([policy], by_task=by_task)
        judged = Judge(assignment).judge(plan([path])[0][0])
        tracemalloc.start()
        merged = merge.empty(assignment)
        merged.add(judged)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        begun = process_time()
        for _ in range(MERGES):
            merged.add(judged)
        taken = (process_time() - begun) / MERGES
        groups = len(judged.groups[0].tallies)
        sizes = (len(msgspec.json.encode(judged)), len(pickle.dumps(judged)), kept // groups)
        rows.append((str(judged.runs), str(groups), *(f"{size:,}" for size in sizes), f"{taken * 1e3:.2f}"))
    columns = ("#runs", "#groups", "#bytes to resume", "#bytes sent", "#bytes kept a group", "#ms to add")
    return Grid("The result of one unit: a group for each model, and one for each task", columns, tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
