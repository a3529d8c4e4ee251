"""`python -m benchmarks.reload_load`: a policy is edited and reloaded a thousand times while runs decide under it.

Knows: when the policy is reloaded, what is asked of the figures. Must not know: what makes a decision right (see
`load`), how the engine works.

Reloads come in blocks, and after each block the runs decide as long without any: so both are timed in one process,
under the same load, minutes apart at most. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import inspect
import linecache
import os
import platform
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.grids import Check, Grid, show, what_is_asked
from benchmarks.load import Load, registry, start, write
from policyengine.cli.output import configure_logging, print_json
from policyengine.engine import Engine
from policyengine.messages import ToolCall

RELOADS = 1_000
FIRST = 200
"""After how many reloads memory is looked at for the first time."""
BLOCK = 20
THREADS = 8
TASKS = 200
PAUSES_S = (0.01, 0.2)
"""How long a thread and an asynchronous run wait where a model or a tool would work."""
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}

MAX_RATIOS = {
    True: {"p50": 5.0, "p95": 10.0, "p99": 10.0, "p99.9": 15.0},
    False: {"p50": 2.0, "p95": 3.0, "p99": 15.0, "p99.9": 30.0},
}
"""How many times as long a decision may take while the policy is built without a pause (docs/benchmarks.md).

By whether rules are asked that count as third-party.
"""
BUILT_IN = 0.2
"""The part of all reloads after which built-in rules alone are timed."""
MAX_OBJECTS = 1.01
"""How many times as many objects there may be after all reloads as after the first of them."""
MAX_RSS_MIB = 8.0

GUARD = """\
from __future__ import annotations
import msgspec
from policyengine import Extension, hookimpl

class Seen(msgspec.Struct):
    calls: int = 0
    tools: dict[str, Count] = {{}}

class Count(msgspec.Struct):
    value: int = 0

class Guard(Extension):
    name = "local.guard"
    state = Seen

    @hookimpl
    def before_tool_call(self, run, call):
        run.state.calls += 1
        return run.record("guard", observed=run.state.calls, limit={version})
"""

GUARDED = """\
apiVersion: policyengine/v1
kind: Policy
name: guarded
extends: [default]
extensions:
  guard: {use: local.guard, timeout: 30s}
"""


class Memory(NamedTuple):
    """What the process holds when no run is under way and the garbage was collected.

    `snapshots` are generations that are no more in force and still exist; `modules` are the drop-in files
    in `sys.modules` (others are imported late, by whoever shares the process), `sources` the entries of `linecache`.
    """

    objects: int
    blocks: int
    rss_mib: float
    modules: int
    sources: int
    snapshots: int


Guards = tuple[Memory, Memory, list[str]]
"""What editing a guard found: memory early and late, and what was not as it must be."""


class Found(NamedTuple):
    """Everything that one measurement found.

    `installed` are the reloads that put a new generation in force, of each engine; `most` is how many generations
    existed at once at most.
    """

    load: Load
    installed: tuple[int, ...]
    wanted: int
    most: int
    reload_ms: float
    early: Memory
    late: Memory


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, or 1 if `--check` and a condition is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reload_load", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--reloads", type=int, default=RELOADS, metavar="N", help="how often the policy is edited")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/benchmarks.md")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    arguments = parser.parse_args(argv)
    configure_logging()
    first = min(FIRST, max(1, arguments.reloads // 5))
    with tempfile.TemporaryDirectory() as folder:
        found = under_load(Path(folder), arguments.reloads, first)
        built_in = under_load(Path(folder), max(2, int(arguments.reloads * BUILT_IN)), 1, foreign=False)
        guards = edited_guard(Path(folder, "guards"), arguments.reloads, first)
    runs = {"all rules": found, "built-in rules alone": built_in}
    checks = [check._replace(asked=f"{name}: {check.asked}") for name, run in runs.items() for check in what_holds(run)]
    checks += [check for name, run in runs.items() for check in what_takes(name, run, MAX_RATIOS[run is found])]
    checks += what_stays(found, guards)
    if arguments.json:
        print_json(_described(runs, guards, checks))
    else:
        for grid in (*_grids(runs, guards), what_is_asked(checks)):
            show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


# ---- runs under load


def under_load(
    folder: Path,
    reloads: int = RELOADS,
    first: int = FIRST,
    *,
    threads: int = THREADS,
    tasks: int = TASKS,
    pauses_s: tuple[float, float] = PAUSES_S,
    block: int = BLOCK,
    rest: bool = True,
    foreign: bool = True,
) -> Found:
    """Edit and reload a policy in `folder` while runs decide, half of them pinned per run and half per iteration.

    With `rest` they decide as long without a reload after every `block` of reloads; with `foreign` two rules count as
    third-party.
    """
    file = folder / "policy.yaml"
    write(file, 1, foreign=foreign)
    engines = [Engine(file, registry=registry(), pin="run"), Engine(file, registry=registry(), pin="iteration")]
    load = Load(foreign=foreign)
    alive: weakref.WeakSet[Any] = weakref.WeakSet(engine.snapshot for engine in engines)
    memory, took = [], []
    installed = [0] * len(engines)
    most = 0
    for begin, end in ((1, first), (first + 1, reloads)):
        load.stop.clear()
        workers = start(load, engines, threads, tasks, pauses_s)
        for blocked in range(begin, end + 1, block):
            load.busy = True
            started = time.perf_counter()
            for number in range(blocked, min(blocked + block, end + 1)):
                write(file, number + 1, foreign=foreign)
                for index, engine in enumerate(engines):
                    begun = time.perf_counter()
                    installed[index] += engine.reload()
                    took.append(time.perf_counter() - begun)
                    alive.add(engine.snapshot)
                most = max(most, len(alive))
            spent = time.perf_counter() - started
            load.busy = False
            if rest:
                time.sleep(spent)
        load.stop.set()
        for worker in workers:
            worker.join()
        memory.append(_memory(alive, len(engines)))
    if any(engine.snapshot.generation != reloads + 1 for engine in engines):
        load.fault(f"generations at the end: {[engine.snapshot.generation for engine in engines]}")
    return Found(load, tuple(installed), reloads, most, median(took) * 1000, *memory)


def _memory(alive: weakref.WeakSet[Any], in_force: int) -> Memory:
    # Python 3.12 before 3.12.4 keeps the last 128 classes that were looked at in a cache of `inspect`.
    cache = getattr(inspect, "_shadowed_dict_from_mro_tuple", None)
    if hasattr(cache, "cache_clear"):
        cache.cache_clear()
    for _ in range(3):  # what a collection ends may have kept other things
        gc.collect()
    return Memory(
        len(gc.get_objects()),
        sys.getallocatedblocks(),
        _rss_mib(),
        sum(name.startswith("policyengine_dropin_") for name in tuple(sys.modules)),
        len(linecache.cache),
        len(alive) - in_force,
    )


def _rss_mib() -> float:
    """Return the resident memory of this process, without what the C library keeps free; 0 where nothing tells it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# ---- a guard that is edited


def edited_guard(folder: Path, reloads: int = RELOADS, first: int = FIRST) -> Guards:
    """Edit an extension in a drop-in folder; return memory early and late, and what was not as it must be.

    One run holds on to the first version, and one takes every new one and counts on.
    """
    folder.mkdir()
    policy, guard = folder.parent / "guarded.yaml", folder / "guard.py"
    policy.write_text(GUARDED, encoding="utf-8")
    guard.write_text(GUARD.format(version=1), encoding="utf-8")
    engine = Engine(policy, folders=[folder])
    alive: weakref.WeakSet[Any] = weakref.WeakSet([engine.snapshot])
    held = engine.start_run()
    engine.pin = "iteration"
    guard.write_text(GUARD.format(version=2), encoding="utf-8")
    engine.reload()
    alive.add(engine.snapshot)
    follower = engine.start_run()
    faults: list[str] = []
    memory = []
    for run in (held, follower):
        run.start("Find out where the symbols are defined.")
    for number in range(1, reloads + 1):
        guard.write_text(GUARD.format(version=number + 2), encoding="utf-8")
        if not engine.reload():
            faults.append(f"edit {number} was not put in force: {engine.rejected}")
        alive.add(engine.snapshot)
        for run, version in ((held, 1), (follower, number + 2)):
            run.begin_iteration()
            call = ToolCall(f"call-{number}", "search", f'{{"page": {number}}}', {"page": number})
            votes = [vote for vote in run.before_tool_call(call).votes if vote.rule == "guard"]
            said = [(vote.raw[0].limit, vote.raw[0].observed) for vote in votes]
            if said != [(version, number)]:
                faults.append(f"at edit {number} version {version} said {said}")
        if number in (first, reloads):
            memory.append(_memory(alive, in_force=2))  # the newest, and the one that is held on to
    return memory[0], memory[-1], faults


# ---- what is asked


def what_holds(found: Found) -> list[Check]:
    """Return what must hold however fast the machine is."""
    load = found.load
    engines = len(found.installed)
    return [
        Check("no error, no mixed generation, no lost count", "; ".join(load.faults[:3]) or "none", not load.faults),
        Check(
            f"all {found.wanted:,} reloads were put in force, by each of {engines} engines",
            ", ".join(f"{number:,}" for number in found.installed),
            set(found.installed) == {found.wanted},
        ),
        Check("runs pinned per iteration took new generations under way", f"{load.moves:,} times", load.moves > 0),
        Check(
            "no generation outlives the runs that use it",
            f"{found.early.snapshots} and {found.late.snapshots} left",
            not found.early.snapshots and not found.late.snapshots,
        ),
    ]


def what_takes(name: str, found: Found, limits: Mapping[str, float]) -> list[Check]:
    """Return what is asked of the time that decisions take."""
    checks = []
    for percentile, share in SHARES.items():
        ratio = found.load.reloading.quantile(share) / found.load.idle.quantile(share)
        asked = f"{name}: {percentile} under reload is at most {limits[percentile]:g} times that without"
        checks.append(Check(asked, f"{ratio:.2f}", ratio <= limits[percentile]))
    return checks


def what_stays(found: Found, guards: Guards) -> list[Check]:
    """Return what is asked of memory."""
    checks = []
    for what, early, late in (("policy", found.early, found.late), ("guard", guards[0], guards[1])):
        ratio = late.objects / early.objects
        checks.append(
            Check(
                f"{what} edited: at most {MAX_OBJECTS:g} times as many objects at the end as at first",
                f"{ratio:.4f}",
                ratio <= MAX_OBJECTS,
            )
        )
        grown = late.rss_mib - early.rss_mib
        checks.append(
            Check(f"{what} edited: at most {MAX_RSS_MIB:g} MiB more", f"{grown:+.1f} MiB", grown <= MAX_RSS_MIB)
        )
    modules = guards[1].modules - guards[0].modules
    checks.append(Check("guard edited: no more modules at the end than at first", f"{modules:+d}", modules <= 0))
    checks.append(
        Check("guard edited: no generation outlives its runs", f"{guards[1].snapshots} left", not guards[1].snapshots)
    )
    faults = guards[2]
    checks.append(Check("guard edited: each version is in force and counts on", f"{len(faults)} faults", not faults))
    return checks


# ---- output


def _described(runs: Mapping[str, Found], guards: Guards, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "runs": {name: _run_described(found) for name, found in runs.items()},
        "guard": {"memory": [guards[0]._asdict(), guards[1]._asdict()], "faults": guards[2]},
        "checks": [check._asdict() for check in checks],
    }


def _run_described(found: Found) -> dict[str, Any]:
    load = found.load
    return {
        "reloads": list(found.installed),
        "reload_ms": found.reload_ms,
        "most_generations": found.most,
        "decisions": load.decisions,
        "runs": load.runs,
        "moves": load.moves,
        "faults": load.faults,
        "times_us": {
            name: {share: times.quantile(of) / 1000 for share, of in SHARES.items()} | {"timed": times.total}
            for name, times in (("idle", load.idle), ("reloading", load.reloading))
        },
        "memory": [found.early._asdict(), found.late._asdict()],
    }


def _grids(runs: Mapping[str, Found], guards: Guards) -> list[Grid]:
    found = next(iter(runs.values()))
    title = (
        f"{found.load.decisions:,} decisions of {found.load.runs:,} runs; a reload took {found.reload_ms:.0f} ms "
        f"(median), and at most {found.most} generations existed at once"
    )
    times: list[tuple[str, ...]] = []
    for name, run in runs.items():
        idle, reloading = run.load.idle, run.load.reloading
        for when, taken in (("without", idle), ("under reload", reloading)):
            figures = (f"{taken.quantile(of) / 1000:,.0f}" for of in SHARES.values())
            times.append((f"{name}, {when}", f"{taken.total:,}", *figures))
        ratios = (reloading.quantile(of) / idle.quantile(of) for of in SHARES.values())
        times.append((f"{name}, ratio", "", *(f"{ratio:.2f}" for ratio in ratios)))
    rows = [
        (
            f"{what}, {when}",
            f"{memory.objects:,}",
            f"{memory.blocks:,}",
            f"{memory.rss_mib:.1f}",
            str(memory.modules),
            str(memory.sources),
            str(memory.snapshots),
        )
        for what, pair in (("policy edited", (found.early, found.late)), ("guard edited", guards[:2]))
        for when, memory in zip(("at first", "at the end"), pair, strict=True)
    ]
    columns = ("when", "#objects", "#blocks", "#RSS, MiB", "#drop-in modules", "#linecache", "#old generations")
    return [
        Grid(title, ("decisions, us", "#timed", *(f"#{name}" for name in SHARES)), tuple(times)),
        Grid("What the process holds when no run is under way", columns, tuple(rows)),
    ]


if __name__ == "__main__":
    sys.exit(main())
