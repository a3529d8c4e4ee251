"""`policyengine replay`: what a policy would have done in recorded runs.

Knows: how reports are listed and counted. Must not know: formats of recordings, how a run is replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from policyengine.cli import AT_FAULT, NOTHING, OK
from policyengine.cli.options import allow_empty_option, json_option, load_format, policy_source, protocol_option
from policyengine.cli.output import print_json, say, table, terminal
from policyengine.engine import Engine
from policyengine.recordings.model import Recording, Skipped, Unreadable
from policyengine.recordings.readers import read_recordings, readers_for
from policyengine.replay import ReplayReport, replay
from policyengine.telemetry.live import measured
from policyengine.visible import clean, clean_line


class Totals(msgspec.Struct):
    """What is counted over all runs. `succeeded` are runs that somebody judged to have done their task.

    `policy` judged them; `others` are those under which runs were recorded, with how many.
    """

    runs: int = 0
    would_stop: int = 0
    intervened: int = 0
    succeeded: int = 0
    succeeded_stopped: int = 0
    denied_succeeded: int = 0
    unreadable: int = 0
    skipped: int = 0
    policy: str = ""
    others: dict[str, int] = {}

    def add(self, report: ReplayReport) -> None:
        """Count one run."""
        self.runs += 1
        self.would_stop += report.stop is not None
        self.intervened += report.first_intervention is not None
        self.succeeded += report.label is True
        self.succeeded_stopped += report.label is True and report.stop is not None
        self.denied_succeeded += report.denied_succeeded
        if report.recorded_policy not in ("", report.policy):
            self.others[report.recorded_policy] = self.others.get(report.recorded_policy, 0) + 1


@click.command("replay")
@click.argument("paths", nargs=-1, metavar="PATH...")
@policy_source
@click.option("--format", "form", metavar="NAME", help="Read every file as this format instead of recognising it.")
@protocol_option
@click.option("--no-color", is_flag=True, help="Print without colours.")
@allow_empty_option
@load_format("--problem-format")
@json_option
def command(
    paths: tuple[str, ...],
    policy: str,
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    form: str | None,
    protocol: str,
    no_color: bool,
    allow_empty: bool,
    as_json: bool,
) -> int:
    """Replay recorded runs (files, or folders with all that is in them) under a policy.

    A recording stands as it happened: the report says what the policy would have done, and where it would have
    ended the run. Journals of `run --record` are recordings too. With --json there is one object a run, line by line.

    Exit code: 0 everything was read, 1 a recording could not be read, 4 there was nothing to read.
    """
    readers = readers_for(form or "", protocol)
    engine = Engine(policy, overlays=overlays, folders=folders)
    totals = Totals(policy=engine.snapshot.named)
    # On one terminal the bar and lines of output would overwrite each other; a table comes when the bar is gone.
    bar = sys.stderr.isatty() and not (as_json and sys.stdout.isatty())
    reports = _reports(_watched(read_recordings(map(Path, paths), readers), bar), engine, totals)
    if as_json:
        for report in reports:
            print_json(msgspec.to_builtins(report), indent=None)
    else:
        _show(list(reports), terminal(no_color=no_color), totals)
    if totals.unreadable:
        return AT_FAULT
    if not totals.runs:
        say("nothing was read: no recording found")
        return OK if allow_empty else NOTHING
    return OK


def tell_unreadable(source: str, line: int, reason: str) -> None:
    """Say on stderr what could not be read; line 0 stands for the whole file."""
    place = f"{source}:{line}" if line else source
    say(clean_line(f"{place}: cannot be read: {reason}"))


def _reports(
    items: Iterable[Recording | Skipped | Unreadable], engine: Engine, totals: Totals
) -> Iterator[ReplayReport]:
    for item in items:
        match item:
            case Skipped(source, reason):
                totals.skipped += 1
                say(clean_line(f"{source}: skipped: {reason}"))
            case Unreadable(source, line, reason):
                totals.unreadable += 1
                tell_unreadable(source, line, reason)
            case Recording():
                report = replay(item, engine)
                totals.add(report)
                yield report


def _watched(
    items: Iterable[Recording | Skipped | Unreadable], bar: bool
) -> Iterator[Recording | Skipped | Unreadable]:
    """Pass everything on, and show on stderr that it goes on."""
    with Progress(console=terminal(stderr=True), transient=True) if bar else nullcontext() as progress:
        task = progress.add_task("replaying", total=None) if progress is not None else None
        for item in items:
            yield item
            if progress is not None and task is not None:
                progress.advance(task)


def _show(reports: Sequence[ReplayReport], console: Console, totals: Totals) -> None:
    if reports:
        shown = table("run", "#rounds", "#calls", "ended", "label", "first intervention", "would stop")
        width = 44 if console.is_terminal else 400
        for report in reports:
            shown.add_row(*_row(report, width))
        console.print(shown)
    console.print(Text(summary(totals), "bold"), soft_wrap=True)


def _row(report: ReplayReport, width: int) -> Iterator[Text]:
    label = {True: "succeeded", False: "failed", None: ""}[report.label]
    run = clean(report.run)
    if len(run) > width:  # the ends of ids tell them apart
        run = f"{run[: width // 3]}...{run[3 - width + width // 3 :]}"
    facts = (run, str(report.iterations), str(report.calls), report.outcome, label)
    yield from map(Text, facts)
    first, stop = report.first_intervention, report.stop
    yield Text(f"{first.action} by {first.rule}: {clean_line(first.code)} {_place(first)}" if first else "")
    why = f"{clean_line(stop.code)}{measured(stop.observed, stop.limit)}" if stop else ""
    yield Text(f"{stop.rule}: {why} {_place(stop)}" if stop else "", "red")


def _place(event: Any) -> str:
    return f"at round {event.iteration}" + (f", call {event.call}" if event.call is not None else "")


def _others(totals: Totals) -> str:
    """Return under which other policies runs were recorded."""
    told = [f"{count} recorded under {clean_line(name)}" for name, count in sorted(totals.others.items())]
    return f"; {', '.join(told)}" if told else ""


def summary(totals: Totals) -> str:
    """Return the counts over all runs, one a line."""
    labelled = (
        f"{totals.succeeded_stopped} of {totals.succeeded} runs labelled as successful"
        if totals.succeeded
        else "no run is labelled as successful"
    )
    return "\n".join(
        (
            f"{totals.runs} runs ({totals.unreadable} unreadable, {totals.skipped} files skipped)",
            f"  judged under {clean_line(totals.policy)}{_others(totals)}",
            f"  would intervene in {totals.intervened}, would stop {totals.would_stop}",
            f"  would stop {labelled}" if totals.succeeded else f"  {labelled}",
            f"  would refuse {totals.denied_succeeded} calls that had succeeded",
        )
    )
