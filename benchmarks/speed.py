"""`python -m benchmarks`: what a decision and a whole round of the shipped policies cost, and what a run keeps.

Knows: what is timed against what, the targets. Must not know: how the engine works.

Floor, decision, round and (where it is installed) OpenHands' stuck detector are timed at the same steps, and run
lengths take turns every few steps, so that a machine that is busy slows all of them. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec

from benchmarks.peer import Peer, make_peers, sdk_version
from benchmarks.scripted import TOOLS, Step, step
from benchmarks.stats import lowest_median
from policyengine.cli.output import configure_logging, print_json, table, terminal
from policyengine.engine import Engine
from policyengine.messages import Batch, ModelRequest
from policyengine.parsing.parse import parse_response
from policyengine.run import Run

SHIPPED = ("default", "cautious", "unattended")
LENGTHS = (10, 1_000, 100_000)
STRETCH = 10
SAMPLES = 600
BATCHES = 20

MAX_DECISION_FLOORS = 10.0
MAX_ROUND_PEERS = 1.0
MAX_GROWTH = 1.3
MAX_MEMORY_GROWTH = 1 << 20

# A shipped policy would end these runs at its own limit of rounds, so they get the largest there is.
OVERLAY = """\
apiVersion: policyengine/v1
kind: Overlay
target: {policy}
extensions:
  step_limit:
    with: {{max_steps: 100000}}
"""

REQUEST = ModelRequest(())
NAMES = frozenset(TOOLS)

_decode = msgspec.json.decode
_encode = msgspec.json.Encoder(order="deterministic").encode


class Sample(NamedTuple):
    """Nanoseconds of one step: the floor, the decision on its call, its whole round, and the stuck detector (or 0)."""

    floor: int
    decision: int
    round: int
    peer: int


class Timing(NamedTuple):
    """One policy at one run length, in nanoseconds.

    What is compared is the lowest median of several stretches of samples; `median` and `p95` are of all samples.
    """

    policy: str
    length: int
    floor: float
    decision: float
    round: float
    peer: float | None
    median: dict[str, float]
    p95: dict[str, float]


class Memory(NamedTuple):
    """What runs of one policy keep, in bytes, by run length: allocated memory, and the size of the saved run."""

    policy: str
    allocated: dict[int, int]
    saved: dict[int, int]


class Check(NamedTuple):
    """One target, what was measured, and whether it is met (`None`: not measured)."""

    policy: str
    target: str
    found: str
    holds: bool | None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, or 1 if `--check` and a target is missed."""
    arguments = _arguments(argv)
    configure_logging()
    policies = arguments.policy or list(SHIPPED)
    timings = [timing for policy in policies for timing in measure_time(policy, arguments.samples)]
    memory = [] if arguments.no_memory else [measure_memory(policy) for policy in policies]
    checks = list(_checks(timings, memory))
    if arguments.json:
        print_json(_described(timings, memory, checks))
    else:
        _show(timings, memory, checks)
    return 1 if arguments.check and any(check.holds is False for check in checks) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", action="append", metavar="P", help="a shipped policy; default: all three")
    parser.add_argument("--samples", type=int, default=SAMPLES, metavar="N", help="steps timed at each run length")
    parser.add_argument("--no-memory", action="store_true", help="measure only time, which takes a third as long")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    return parser.parse_args(argv)


# ---- time


def measure_time(policy: str, samples: int) -> list[Timing]:
    """Time the steps at the end of runs of every length, which take turns."""
    engine = _engine(policy)
    peers = make_peers(len(LENGTHS)) if sdk_version() else []
    tracks = [
        _samples(engine, length, samples, peers[index] if peers else None) for index, length in enumerate(LENGTHS)
    ]
    taken: list[list[Sample]] = [[next(track)] for track in tracks]  # the first of each drives its run to its length
    gc.collect()
    gc.freeze()  # what was made until now is not searched for garbage while something is timed
    for _ in range(samples):
        for track, found in zip(tracks, taken, strict=True):
            found.append(next(track))
    gc.unfreeze()
    return [_timing(policy, length, found[1:]) for length, found in zip(LENGTHS, taken, strict=True)]


def _samples(engine: Engine, length: int, samples: int, peer: Peer | None) -> Iterator[Sample]:
    """Yield the timings of steps at the end of runs of this length.

    Steps are taken ten in a row, first all by us and then all by the stuck detector, and only the last of the ten is
    counted: before that, something else had the processor and its caches. A run of 100,000 steps is long enough to give
    all samples; a shorter one gives those of its last fifth, and then the next run begins.
    """
    window = min(max(STRETCH, length // 5), STRETCH * (samples + 1))
    number = 0
    while True:
        number += 1
        run = engine.start_run()
        run.start("Find out where the symbols are defined.")
        for index in range(1, length - window + 1):
            do_round(run, step(number, index))
        for index in range(length - window, length, STRETCH):
            steps = [step(number, index + offset) for offset in range(1, STRETCH + 1)]
            ours = [_ours(run, now) for now in steps][-1]
            theirs = [_theirs(peer, now) for now in steps][-1] if peer is not None else 0
            yield Sample(*ours, theirs)


def _ours(run: Run, now: Step) -> tuple[int, int, int]:
    """Return the nanoseconds of the floor, the decision and the whole round of a step."""
    started = perf_counter_ns()
    floor(now.call.arguments)
    floored = perf_counter_ns()
    decision = do_round(run, now)
    return floored - started, decision, perf_counter_ns() - floored


def _theirs(peer: Peer, now: Step) -> int:
    """Return the nanoseconds that the stuck detector takes after a step, recording the step itself not included."""
    peer.happened(now)
    started = perf_counter_ns()
    stuck = peer.is_stuck()
    took = perf_counter_ns() - started
    if stuck:
        raise RuntimeError("the scripted run looks stuck to the stuck detector, so its cost is not the usual one")
    return took


def floor(arguments: str) -> str:
    """Do what telling two calls apart takes at least: parse the arguments, write them in one form, hash that."""
    return blake2b(_encode(_decode(arguments)), digest_size=16).hexdigest()


def do_round(run: Run, now: Step) -> int:
    """Report one round as the live loop does; return the nanoseconds of the decision on its call."""
    number = run.begin_iteration()
    run.before_model_call(REQUEST)
    run.after_model_response(now.response)
    verdict = parse_response(now.response, protocol="native", tools=NAMES)
    run.after_parse(verdict)
    batch = Batch(f"batch-{number}", 0)
    started = perf_counter_ns()
    decision = run.before_tool_call(verdict.calls[0], batch)
    decided = perf_counter_ns() - started
    run.after_tool_call(now.call, now.result)
    run.end_iteration(1, True)
    if not decision.allowed or run.take_notes():
        raise RuntimeError(f"the scripted run is objected to: {decision}")
    return decided


def _timing(policy: str, length: int, found: Sequence[Sample]) -> Timing:
    columns = {name: [getattr(sample, name) for sample in found] for name in Sample._fields}
    best = {name: lowest_median(values, BATCHES) for name, values in columns.items()}
    return Timing(
        policy,
        length,
        best["floor"],
        best["decision"],
        best["round"],
        best["peer"] or None,
        {name: median(values) for name, values in columns.items()},
        {name: quantiles(values, n=20)[-1] for name, values in columns.items()},
    )


def _engine(policy: str) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder, "long-runs.yaml")
        overlay.write_text(OVERLAY.format(policy=policy), encoding="utf-8")
        return Engine(policy, overlays=[overlay])


# ---- memory


def measure_memory(policy: str) -> Memory:
    """Return what a run keeps after 1,000 and after 100,000 steps."""
    engine = _engine(policy)
    allocated, saved = {}, {}
    for length in LENGTHS[1:]:
        gc.collect()
        tracemalloc.start()
        run = engine.start_run()
        run.start("Find out where the symbols are defined.")
        for index in range(1, length + 1):
            do_round(run, step(0, index))
        gc.collect()
        allocated[length] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        saved[length] = len(run.save())
    return Memory(policy, allocated, saved)


# ---- targets


def _checks(timings: Sequence[Timing], memory: Sequence[Memory]) -> Iterator[Check]:
    for policy in dict.fromkeys(timing.policy for timing in timings):
        mine = [timing for timing in timings if timing.policy == policy]
        worst = max(timing.decision / timing.floor for timing in mine)
        target = f"a decision costs at most {MAX_DECISION_FLOORS:g} floors"
        yield Check(policy, target, f"{worst:.2f}", worst <= MAX_DECISION_FLOORS)
        ratios = [timing.round / timing.peer for timing in mine if timing.peer]
        target = "a round costs at most one is_stuck"
        if ratios:
            yield Check(policy, target, f"{max(ratios):.2f}", max(ratios) <= MAX_ROUND_PEERS)
        else:
            yield Check(policy, target, "openhands-sdk is not installed", None)
        for name in ("decision", "round"):
            growth = getattr(mine[-1], name) / getattr(mine[0], name)
            target = f"a {name} costs at most {MAX_GROWTH:g} times as much after {LENGTHS[-1]:,} steps as after 10"
            yield Check(policy, target, f"{growth:.2f}", growth <= MAX_GROWTH)
    for kept in memory:
        for what, sizes in (("allocated", kept.allocated), ("saved", kept.saved)):
            grown = sizes[LENGTHS[-1]] - sizes[LENGTHS[1]]
            target = f"at most 1 MiB more is {what} after {LENGTHS[-1]:,} steps than after {LENGTHS[1]:,}"
            yield Check(kept.policy, target, f"{grown / 1024:+.1f} KiB", grown <= MAX_MEMORY_GROWTH)


# ---- output


def _described(timings: Sequence[Timing], memory: Sequence[Memory], checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "openhands_sdk": sdk_version() or None,
        "times_ns": [timing._asdict() for timing in timings],
        "memory_bytes": [json.loads(json.dumps(kept._asdict())) for kept in memory],
        "targets": [check._asdict() for check in checks],
    }


def _show(timings: Sequence[Timing], memory: Sequence[Memory], checks: Sequence[Check]) -> None:
    console = terminal()
    peer = sdk_version()
    console.print(
        f"Python {platform.python_version()}, openhands-sdk {peer or 'not installed'}. "
        "Times in microseconds: the lowest median of several stretches, and the 95th percentile of all.\n",
        markup=False,
    )
    shown = table(
        "policy",
        "#steps",
        "#floor",
        "#decision",
        "#x floor",
        "#round",
        "#p95",
        "#is_stuck",
        "#p95",
        "#round / is_stuck",
    )
    for timing in timings:
        shown.add_row(
            timing.policy,
            f"{timing.length:,}",
            f"{timing.floor / 1000:.2f}",
            f"{timing.decision / 1000:.2f}",
            f"{timing.decision / timing.floor:.2f}",
            f"{timing.round / 1000:.2f}",
            f"{timing.p95['round'] / 1000:.2f}",
            f"{timing.peer / 1000:.2f}" if timing.peer else "-",
            f"{timing.p95['peer'] / 1000:.2f}" if timing.peer else "-",
            f"{timing.round / timing.peer:.2f}" if timing.peer else "-",
        )
    console.print(shown)
    if memory:
        shown = table("policy", "#steps", "#allocated KiB", "#saved KiB")
        for kept in memory:
            for length, size in kept.allocated.items():
                shown.add_row(kept.policy, f"{length:,}", f"{size / 1024:.1f}", f"{kept.saved[length] / 1024:.1f}")
        console.print()
        console.print(shown)
    shown = table("policy", "target", "#found", "met")
    for check in checks:
        shown.add_row(
            check.policy, check.target, check.found, {None: "not measured", True: "yes"}.get(check.holds, "NO")
        )
    console.print()
    console.print(shown)
