"""`policyengine tune`: which thresholds would have done better in recorded runs.

Knows: options, how the report is printed, the overlay that is written. Must not know: how candidates are made, judged
and chosen.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
import msgspec

from policyengine.backtest.front import FEW, limit_of
from policyengine.backtest.grids import Grid, bounded, by_landmark, interval, percent, signed
from policyengine.backtest.sweep import MOST
from policyengine.backtest.tune import Candidate, Direction, Options, TuneReport, tune
from policyengine.cli import COULD_NOT, NOTHING, OK
from policyengine.cli.backtest import bar, check_writable, show_grids, tell_unread, write_text
from policyengine.cli.options import allow_empty_option, json_option, load_format, policy_source, protocol_option
from policyengine.cli.output import aside, print_json, say, terminal
from policyengine.errors import UsageError
from policyengine.recordings.readers import readers_for
from policyengine.visible import clean_line

if TYPE_CHECKING:
    from rich.console import Console

WRITTEN = "# Written by policyengine tune"
"""How a file begins that may be overwritten, if it is still as it was written."""

MOST_REFUSED = 10
"""How many refused candidates are listed on a terminal."""


@click.command("tune")
@click.argument("paths", nargs=-1, metavar="PATH...")
@policy_source
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="RULE.with.PATH[=V1,V2|A..B[..STEP]]",
    help="Only these thresholds, or these values; repeatable. [default: all of the rules in force]",
)
@click.option("--grid", is_flag=True, help="Every combination of the values instead of one threshold at a time.")
@click.option(
    "--most", type=click.IntRange(1), default=MOST, show_default=True, help="How many candidates are allowed."
)
@click.option(
    "--max-false-stops",
    metavar="RATE|N",
    help="How many successful runs may be stopped: 0.01 or 1% of them, or 3. [default: as many as the policy in force]",
)
@click.option(
    "--min-firings",
    type=click.IntRange(0),
    default=FEW,
    show_default=True,
    help="Fewer runs of a fold that are decided otherwise are called too few to tell.",
)
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the proposal as an overlay.")
@click.option("--format", "form", metavar="NAME", help="Read every file as this format instead of recognising it.")
@protocol_option
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: one for each core]")
@allow_empty_option
@load_format("--problem-format")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    policy: str,
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    sweeps: tuple[str, ...],
    grid: bool,
    most: int,
    max_false_stops: str | None,
    min_firings: int,
    write: Path | None,
    form: str | None,
    protocol: str,
    workers: int | None,
    allow_empty: bool,
    as_json: bool,
) -> int:
    """Try other thresholds on recorded runs (files, or folders with all that is in them), and propose the best.

    Tasks are divided into two folds: candidates are chosen on one and reported on the other. The proposal saves the
    most turns and stops no more successful runs than --max-false-stops allows. No policy is changed; --write makes an
    overlay.

    Exit code: 0 there is a proposal, or nothing better; 2 the overlay could not be written; 4 there was nothing to
    read.
    """
    readers_for(form or "")
    if write is not None:
        check_target(write)
        check_writable(write)
    options = Options(
        sweep=sweeps,
        grid=grid,
        most=most,
        limit=limit_of(max_false_stops),
        few=min_firings,
        form=form or "",
        protocol=protocol,
        workers=workers or os.cpu_count() or 1,
    )
    with aside(as_json), bar(as_json, "tune") as progress:
        report = tune(paths, policy, overlays=overlays, folders=folders, options=options, progress=progress)
    tell_unread(report)
    if as_json:
        print_json(msgspec.to_builtins(report, str_keys=True))
    elif report.runs:
        _show(report, terminal())
    if not report.runs:
        say("nothing was read: no recording found")
        return OK if allow_empty else NOTHING
    if write is not None and not _write(report, write, _command_line(ctx)):
        return COULD_NOT
    return OK


# ---- what is printed


def _show(report: TuneReport, console: Console) -> None:
    from rich.text import Text

    def line(text: str, style: str = "") -> None:
        console.print(Text(clean_line(text), style), soft_wrap=True)

    for text in _summary(report):
        line(text, "bold")
    direction = report.directions[0]
    show_grids(console, [_front(report, direction)])
    console.print()
    for number, text in enumerate(_proposal(report, direction)):
        line(text, "" if number else "bold")
    line(_cross_check(report))
    if direction.proposal and report.held_out is not None and report.held_out.landmarks:
        held_out = msgspec.structs.replace(
            report.held_out, policy=f"{report.held_out.policy}, fold {direction.reported_on}"
        )
        show_grids(console, [by_landmark(held_out)])
    if report.refused:
        console.print()
        for refused in report.refused[:MOST_REFUSED]:
            line(f"refused: {refused.candidate}: {refused.code} {refused.reason}")
        if len(report.refused) > MOST_REFUSED:
            line(f"and {len(report.refused) - MOST_REFUSED} more that are refused; --json lists all")


def _summary(report: TuneReport) -> Iterator[str]:
    yield f"{_runs(report)}; {report.seconds:.1f} s."
    if report.runs_without_task:
        yield f"{report.runs_without_task} runs have no task; each counts as one of its own, by its id."
    same = len(report.candidates[0].alike)
    others = report.tried - len(report.refused) - same
    yield (
        f"{report.tried} candidates over {len(report.swept)} threshold{'' if len(report.swept) == 1 else 's'}: "
        f"{len(report.refused)} refused, "
        f"{same} decide every run as the policy in force does, {others} differ in {len(report.candidates) - 1} ways."
    )


def _runs(report: TuneReport) -> str:
    folds = " and ".join(f"{count} in fold {fold}" for fold, count in report.folds.items())
    return f"{report.runs} runs, {folds}"


def _front(report: TuneReport, direction: Direction) -> Grid:
    in_force = report.candidates[0].name
    equals: dict[tuple[int | None, ...], list[Candidate]] = {}
    for name in direction.front:
        candidate = report.candidate(name)
        total = candidate.folds[direction.tuned_on].total
        key = (total.turns_saved, total.stopped_successes, total.stopped_successes_working, total.tokens_saved)
        equals.setdefault(key, []).append(candidate)
    rows = []
    for first, *others in equals.values():
        shown = next((one for one in (first, *others) if one.name in (in_force, direction.proposal)), first)
        rows.append(_row(shown, direction, f"{len(others)} more that stop as much" if others else ""))
    if in_force not in direction.front:
        rows.append(_row(report.candidates[0], direction, "not on the front"))
    on, off = direction.tuned_on, direction.reported_on
    columns = (
        "candidate",
        "",
        f"#turns saved, {on}",
        f"share, 95 %, {on}",
        f"#succeeded, stopped, {on}",
        f"#at work, {on}",
        f"at work, 95 %, {on}",
        f"#tokens saved, {on}",
        f"more turns than in force, {off}",
        f"#succeeded, stopped, {off}",
        f"#at work, {off}",
    )
    return Grid(f"Pareto front on fold {on}: turns saved against wrong stops", columns, tuple(rows))


def _row(candidate: Candidate, direction: Direction, mark: str) -> tuple[str, ...]:
    on, off = candidate.folds[direction.tuned_on], candidate.folds[direction.reported_on]
    alike = f" (and {len(candidate.alike)} alike)" if candidate.alike else ""
    return (
        candidate.name + alike,
        ", ".join(filter(None, ("proposal" if candidate.name == direction.proposal else "", mark))),
        str(on.total.turns_saved),
        bounded(on.rates.turns_saved_share, on.rates.turns_saved_bounds),
        str(on.total.stopped_successes),
        str(on.total.stopped_successes_working),
        interval(on.rates.working_stop_rate),
        "" if on.total.tokens_saved is None else str(on.total.tokens_saved),
        _gained(candidate, direction.reported_on),
        str(off.total.stopped_successes),
        str(off.total.stopped_successes_working),
    )


def _gained(candidate: Candidate, fold: str) -> str:
    gain = candidate.folds[fold].gain
    if gain.bounds is None:
        return f"{gain.turns:+d}" if gain.turns else "0"
    return f"{gain.turns:+d}, {signed(gain.share, gain.bounds)} points"


def _proposal(report: TuneReport, direction: Direction) -> Iterator[str]:
    if not direction.proposal:
        better = f"nothing tried is better than the policy in force within the limit ({report.limit})"
        yield f"no proposal: {'; '.join(direction.notes) or better}"
        for fold in (direction.tuned_on, direction.reported_on):
            yield f"  in force, {_figures(report, report.candidates[0], fold)}"
    else:
        candidate = report.candidate(direction.proposal)
        verdict = "borne out by the other fold" if direction.confirmed else "not borne out by the other fold"
        yield f"proposal: {', '.join(_changes(report, candidate))}; {verdict}"
        yield f"  chosen on {_figures(report, candidate, direction.tuned_on)}"
        yield f"  held out, {_figures(report, candidate, direction.reported_on)}"
        if candidate.alike:
            yield f"  decides every run as: {', '.join(candidate.alike)}"
        for note in direction.notes:
            yield f"  {note}"


def _changes(report: TuneReport, candidate: Candidate) -> Iterator[str]:
    in_force = {swept.threshold: swept.in_force for swept in report.swept}
    for name, value in candidate.values.items():
        was = in_force[name]
        yield f"{name}={value} (in force: {'none' if was is None else was})"


def _figures(report: TuneReport, candidate: Candidate, fold: str) -> str:
    found, base = candidate.folds[fold], report.candidates[0].folds[fold]
    total, before = found.total, base.total
    text = (
        f"fold {fold}: {total.turns_saved} of {total.turns} turns saved ({percent(found.rates.turns_saved_share)}), "
        f"{total.stopped_successes} of {total.successes} successful runs stopped, "
        f"{total.stopped_successes_working} of them at work"
    )
    if candidate.values:
        text += (
            f"; in force: {before.turns_saved} turns, {before.stopped_successes} stopped, "
            f"{before.stopped_successes_working} at work; {found.gain.changed} runs decided otherwise"
        )
    return text


def _cross_check(report: TuneReport) -> str:
    first, second = report.directions
    way = f"cross-check, chosen on fold {second.tuned_on} and reported on fold {second.reported_on}"
    if first.proposal == second.proposal:
        return f"{way}: the same proposal" if second.proposal else f"{way}: no proposal either"
    if not second.proposal:
        return f"{way}: no proposal"
    candidate = report.candidate(second.proposal)
    borne = "borne out" if second.confirmed else "not borne out"
    return f"{way}: another proposal, {candidate.name} ({borne}; {_figures(report, candidate, second.reported_on)})"


# ---- the overlay


def check_target(path: Path) -> None:
    """Refuse a file that is there already, unless it is still as this verb wrote it.

    Raises:
        UsageError: it may not be written.
    """
    if not os.path.exists(path):
        if not os.path.isdir(path.parent):
            raise UsageError(f"{path}: there is no folder {path.parent}")
        return
    refusal = UsageError(f"{path} exists and is not as tune wrote it; it is not overwritten")
    if not path.is_file():
        raise refusal
    try:
        head, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    except OSError:
        raise refusal from None
    if head != _head(rest):
        raise refusal


def _head(rest: str) -> str:
    return f"{WRITTEN} (check {blake2b(rest.encode(), digest_size=8).hexdigest()})."


def _write(report: TuneReport, path: Path, asked: str) -> bool:
    """Write the proposal if it may be; return whether that went as it should."""
    proposal = report.proposal
    if proposal is None:
        say(f"nothing is written to {path}: there is no proposal")
        return True
    if not report.directions[0].confirmed:
        say(f"nothing is written to {path}: the other fold does not bear the proposal out")
        return True
    wrapped = (line for text in _comments(report, proposal) for line in wrap(_ascii(text), 110, subsequent_indent="  "))
    rest = "".join(f"# {line}\n" for line in (_ascii(asked), *wrapped)) + proposal.overlay
    check_target(path)
    return write_text(path, f"{_head(rest)}\n{rest}", "overlay")


def _comments(report: TuneReport, proposal: Candidate) -> Iterator[str]:
    direction = report.directions[0]
    yield f"{_runs(report)}; {report.tried} candidates; limit on wrong stops: {report.limit}."
    yield from _changes(report, proposal)
    yield f"Chosen on {_figures(report, proposal, direction.tuned_on)}."
    yield f"Held out, {_figures(report, proposal, direction.reported_on)}."
    yield from direction.notes


def _ascii(text: str) -> str:
    return clean_line(text).encode("ascii", "backslashreplace").decode()


def _command_line(ctx: click.Context) -> str:
    """Return the command as one would type it, with what was not given left out."""
    words: list[str] = ["policyengine", "tune"]
    for parameter in ctx.command.params:
        value: Any = ctx.params.get(str(parameter.name))
        given: Sequence[Any] = value if isinstance(value, tuple) else () if value in (None, False) else (value,)
        if isinstance(parameter, click.Argument):
            words += map(str, given)
        elif value != parameter.default:
            for one in given:
                words += [parameter.opts[0]] if one is True else [parameter.opts[0], str(one)]
    return shlex.join(words)
