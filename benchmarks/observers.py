"""`python -m benchmarks.observers`: what each way to watch a run costs, as a ratio to a run that nobody watches.

Knows: which observers there are, what is timed. Must not know: how they work.

The baseline is a round of the policy `default` under an engine without sinks and without a journal (`do_round` of
`speed`). All observers take turns every few rounds, so that a machine that is busy slows all of them; of each the
lowest median of several stretches counts. What an observer does in a thread of its own takes part of the same
processor's time, and is in the figures as far as it falls into a round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

from benchmarks.scripted import step
from benchmarks.speed import BATCHES, do_round
from benchmarks.stats import lowest_median
from policyengine.cli.output import configure_logging, print_json, table, terminal
from policyengine.engine import Engine
from policyengine.policy.model import Policy
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.journal import JournalWriter
from policyengine.telemetry.log_file import LogFile

BASELINE = "nobody"
ROUNDS = 200
"""How many rounds a run has before the next one begins: below the limit of the policy."""

STRETCH = 10


class Cost(NamedTuple):
    """One observer: microseconds of a round, and that as a ratio to the round of the baseline."""

    observer: str
    us: float
    ratio: float


def observed(policy: Policy, folder: Path, stack: ExitStack) -> dict[str, Engine]:
    """Return an engine for every observer that can be had here, the one without first."""
    plain = stack.enter_context((folder / "plain").open("w", encoding="utf-8"))
    rotating = stack.enter_context(LogFile(folder / "rotating", max_bytes=50_000_000, keep=1))
    dropping = stack.enter_context(LogFile(folder / "dropping", max_bytes=50_000_000, keep=1, when_full="drop"))
    journal = stack.enter_context((folder / "journal").open("w", encoding="utf-8"))
    engines = {
        BASELINE: Engine(policy),
        "a sink that does nothing": Engine(policy, sinks=[lambda report: None]),
        "decision log, open file": Engine(policy, sinks=[DecisionLog(plain)]),
        "decision log, rotating file": Engine(policy, sinks=[DecisionLog(rotating)]),
        "decision log, rotating file, drop": Engine(policy, sinks=[DecisionLog(dropping)]),
        "journal": Engine(policy, journal=JournalWriter(journal)),
    }
    if find_spec("prometheus_client"):
        from policyengine.telemetry.metrics import Metrics

        engines["metrics"] = Engine(policy)
        Metrics(engines["metrics"])
    if find_spec("opentelemetry") and find_spec("opentelemetry.sdk"):
        engines["spans"] = Engine(policy, sinks=[tracing(stack)])
        engines["spans, none sampled"] = Engine(policy, sinks=[tracing(stack, sampled=False)])
    return engines


def tracing(stack: ExitStack, *, sampled: bool = True) -> Callable[[Any], None]:
    """Return a sink that makes spans, which a thread hands to an exporter that throws them away."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    from policyengine.telemetry.traces import Tracing

    class Nowhere(SpanExporter):  # type: ignore[misc, unused-ignore]
        def export(self, spans: Any) -> Any:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    stack.callback(provider.shutdown)
    return Tracing(provider)


def measure(samples: int) -> list[Cost]:
    """Time rounds under every observer, taking turns."""
    policy = Engine("default").snapshot.policy
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        tracks = {name: rounds(engine) for name, engine in observed(policy, Path(folder), stack).items()}
        taken: dict[str, list[int]] = {name: [] for name in tracks}
        for _ in range(samples):
            for name, track in tracks.items():
                taken[name].append(next(track))
    best = {name: lowest_median(found, BATCHES) / 1000 for name, found in taken.items()}
    return [Cost(name, us, us / best[BASELINE]) for name, us in best.items()]


def rounds(engine: Engine) -> Iterator[int]:
    """Yield the nanoseconds of rounds; of ten in a row the last one counts."""
    number = 0
    while True:
        number += 1
        run = engine.start_run()
        run.start("Find out where the symbols are defined.")
        for index in range(1, ROUNDS + 1):
            now = step(number, index)
            started = perf_counter_ns()
            do_round(run, now)
            took = perf_counter_ns() - started
            if index % STRETCH == 0:
                yield took


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=400, metavar="N", help="rounds timed under each observer")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    arguments = parser.parse_args(argv)
    configure_logging()
    costs = measure(arguments.samples)
    if arguments.json:
        print_json([cost._asdict() for cost in costs])
        return 0
    shown = table("observer", "#round, us", "#x nobody")
    for cost in costs:
        shown.add_row(cost.observer, f"{cost.us:.0f}", f"{cost.ratio:.2f}")
    terminal().print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
