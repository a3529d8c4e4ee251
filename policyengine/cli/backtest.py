"""`policyengine backtest`: what policies would have done in recorded runs, counted and compared with their labels.

Knows: options, how the report is printed and where it is written. Must not know: how anything is counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click
import msgspec

from policyengine.backtest.figures import BacktestReport, ReadError, without_tasks
from policyengine.backtest.gate import Condition, condition
from policyengine.backtest.run import EngineName, Progress, assigned, backtest
from policyengine.backtest.timeline import Timelines, timelines
from policyengine.cli import AT_FAULT, COULD_NOT, NOTHING, OK, ONLY_WARNINGS
from policyengine.cli.options import (
    allow_empty_option,
    folder_option,
    json_option,
    load_format,
    protocol_option,
    strict_option,
)
from policyengine.cli.output import aside, print_json, say, table, terminal
from policyengine.cli.replay import tell_unreadable
from policyengine.errors import UsageError
from policyengine.private import for_us_alone
from policyengine.recordings.loading import find, load
from policyengine.recordings.model import Skipped, Unreadable
from policyengine.recordings.readers import UNKNOWN, Reader, readers_for, recognise
from policyengine.visible import clean, clean_line

if TYPE_CHECKING:
    from rich.console import Console

    from policyengine.backtest.grids import Grid

REPORTS = (".html", ".md", ".json")
"""What a report may be, by the suffix of its file."""

MOST_NAMED = 20
"""How many files are named that no reader knows."""


@click.command("backtest")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option(
    "--policy", "-p", "policies", multiple=True, metavar="NAME|PATH", help="A policy; repeatable. [default: default]"
)
@click.option("--overlay", "overlays", multiple=True, metavar="FILE", help="Overlay on each of the policies.")
@folder_option
@click.option("--baseline", metavar="NAME|PATH", help="Another policy; the table says what changes from it.")
@click.option("--report", "reports", multiple=True, metavar="FILE", help="Write a report: .html, .md or .json.")
@click.option("--no-content", is_flag=True, help="Leave recorded texts out of reports.")
@click.option("--fail-if", "gates", multiple=True, metavar="CONDITION", help='Such as "false_stop_rate > 0.01".')
@click.option("--by-task", is_flag=True, help="Tell the tasks of a set apart in groups (--json and reports).")
@click.option("--format", "form", metavar="NAME", help="Read every file as this format instead of recognising it.")
@protocol_option
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: one for each core]")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Who works.")
@click.option("--address", metavar="ADDRESS", help="Of a Ray cluster; without it Ray runs on this machine.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FILE", help="Go on from here; made if missing.")
@strict_option
@allow_empty_option
@load_format("--problem-format")
@json_option
def command(
    paths: tuple[str, ...],
    policies: tuple[str, ...],
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    baseline: str | None,
    reports: tuple[str, ...],
    no_content: bool,
    gates: tuple[str, ...],
    by_task: bool,
    form: str | None,
    protocol: str,
    workers: int | None,
    engine: EngineName,
    address: str | None,
    resume: Path | None,
    strict: bool,
    allow_empty: bool,
    as_json: bool,
) -> int:
    """Judge recorded runs (files, or folders with all that is in them) under policies, and count what comes of it.

    Every recording stands as it happened, as if every intervention had been ignored. Successful runs that a policy
    would have stopped are wrong stops; where they made a new call afterwards, they were still at work.

    Exit code: 0 no condition of --fail-if is true of any policy, 1 one is, 2 a report could not be written, 3 something
    could not be read and --strict, 4 there was nothing to read.
    """
    readers = readers_for(form or "", protocol)
    conditions = [condition(text) for text in gates]
    given = [*paths, *policies, *overlays, *(str(one) for one in (baseline, resume) if one)]
    for report in reports:
        _check_target(report)
        _check_own(report, given, paths, readers)
        check_writable(Path(report))
    with aside(as_json), bar(as_json, "backtest") as progress:
        outcome = backtest(
            paths,
            policies or ("default",),
            overlays=overlays,
            folders=folders,
            baseline=baseline,
            by_task=by_task,
            form=form or "",
            protocol=protocol,
            workers=workers or os.cpu_count() or 1,
            engine=engine,
            address=address,
            resume=resume,
            progress=progress,
        )
    tell_unread(outcome)
    told = without_tasks(outcome) if no_content else outcome
    again = None
    if any(report.endswith(".html") for report in reports):
        asked = assigned(policies or ("default",), overlays, folders, baseline)
        again = timelines(outcome, asked.policies, paths, form=form or "", protocol=protocol, content=not no_content)
    written = [_write(told, Path(report), paths, again, private=not no_content) for report in reports]
    if as_json:
        print_json(msgspec.to_builtins(told, str_keys=True))
    elif outcome.runs:
        _show(outcome)
    if not all(written):
        return COULD_NOT
    if not outcome.runs:
        say("nothing was read: no recording found")
        return OK if allow_empty else NOTHING
    if _failed(outcome, conditions):
        return AT_FAULT
    return ONLY_WARNINGS if strict and outcome.read_error_count else OK


def _check_target(report: str) -> None:
    path = Path(report)
    if path.suffix not in REPORTS:
        raise UsageError(f"{report}: a report is one of {', '.join(REPORTS)} by its suffix")
    if not os.path.isdir(path.parent):
        raise UsageError(f"{report}: there is no folder {path.parent}")
    if path.suffix == ".html":
        from policyengine.backtest.html import check_installed

        check_installed()


def _check_own(report: str, given: Sequence[str], paths: Sequence[str], readers: tuple[Reader, ...]) -> None:
    """Refuse a report in the place of what the backtest reads.

    A file in a folder of recordings may be written over if it is none, as the report of an earlier backtest is.
    """
    for own in given:
        if _same(report, own):
            raise UsageError(f"{report}: a report may not be written over {own}, which the backtest uses")
    if not report.endswith(".json") or not os.path.isfile(report):
        return
    for item in find(paths):
        if isinstance(item, tuple) and _same(report, item[0]) and _recorded(*item, readers):
            raise UsageError(f"{report}: a report may not be written over a recording that is read")


def _recorded(path: Path, source: str, readers: tuple[Reader, ...]) -> bool:
    document = load(path, source)
    return isinstance(document, Unreadable) or recognise(document, readers) is not None


def _same(one: str, other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before there is anything to write; leaves everything as it was.

    Raises:
        UsageError: it cannot.
    """
    there = os.path.exists(path)
    if there and not os.path.isfile(path):
        raise UsageError(clean_line(f"cannot write {path}: not a regular file"))
    try:
        with path.open("ab"):
            pass
        if not there:
            os.unlink(os.path.realpath(path))  # a link to nothing stays one
    except OSError as error:
        raise UsageError(clean_line(f"cannot write {path}: {error.strerror}")) from error


def write_text(path: Path, text: str, what: str, *, private: bool = False) -> bool:
    """Write a file (a new one for us alone, if `private`) and say so on stderr; return whether it could be written."""
    try:
        with open(path, "w", encoding="utf-8", opener=for_us_alone if private else None) as file:
            file.write(text)
    except OSError as error:
        say(clean_line(f"error: cannot write {path}: {error.strerror}"))
        return False
    say(clean_line(f"{what}: {path}"))
    return True


def _write(
    outcome: BacktestReport, path: Path, inputs: Sequence[str], again: Timelines | None, *, private: bool
) -> bool:
    if path.suffix == ".json":
        text = msgspec.json.format(msgspec.json.encode(outcome)).decode()
    elif path.suffix == ".md":
        from policyengine.backtest.markdown import markdown

        text = markdown(outcome)
    else:
        from policyengine.backtest.html import html

        text = html(outcome, inputs, again)
    return write_text(path, text + "\n", "report", private=private)


class Unread(Protocol):
    """What was not read: errors (the first of them) with their number, and files that are no recordings."""

    @property
    def read_errors(self) -> Sequence[ReadError]: ...  # noqa: D102
    @property
    def read_error_count(self) -> int: ...  # noqa: D102
    @property
    def skipped(self) -> Sequence[Skipped]: ...  # noqa: D102


def tell_unread(outcome: Unread) -> None:
    """Say on stderr what was not read."""
    for item in outcome.read_errors:
        tell_unreadable(item.source, item.line, item.reason)
    more = outcome.read_error_count - len(outcome.read_errors)
    if more:
        say(f"and {more} more that cannot be read")
    unknown = [skipped.source for skipped in outcome.skipped if skipped.reason == UNKNOWN]
    for source in unknown[:MOST_NAMED]:
        say(clean_line(f"{source}: skipped: {UNKNOWN}"))
    reasons: dict[str, int] = {}
    for skipped in outcome.skipped:
        reasons[skipped.reason] = reasons.get(skipped.reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        if reason == UNKNOWN and count <= MOST_NAMED:
            continue
        say(clean_line(f"{count} file{'' if count == 1 else 's'} skipped: {reason}"))


def _failed(outcome: BacktestReport, conditions: Sequence[Condition]) -> bool:
    failed = False
    for policy in outcome.policies:
        if policy.policy == outcome.baseline:
            continue
        for gate in conditions:
            if gate.holds(policy):
                failed = True
                observed = gate.observed(policy)
                seen = "no run says anything about it" if observed is None else f"it is {observed:.6g}"
                say(f"failed: {policy.policy}: {gate.text} ({seen})")
    return failed


def _show(outcome: BacktestReport) -> None:
    from rich.text import Text

    from policyengine.backtest.grids import grids, summary

    console = terminal()
    for line in summary(outcome):
        console.print(Text(clean(line), "bold"))
    show_grids(console, grids(outcome))


def show_grids(console: Console, grids: Iterable[Grid]) -> None:
    """Print tables, each below its title."""
    from rich.text import Text

    for grid in grids:
        shown = table(*grid.columns)
        for row in grid.rows:
            shown.add_row(*(Text(clean_line(cell)) for cell in row))
        console.print()
        console.print(Text(clean(grid.title), "bold"))
        console.print(shown)


@contextmanager
def bar(as_json: bool, title: str) -> Iterator[Progress | None]:
    """Show on stderr how much is done and how long it will take, where a person sees it."""
    if not sys.stderr.isatty() or (as_json and sys.stdout.isatty()):
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, whole: shown.update(task, completed=done, total=whole)
