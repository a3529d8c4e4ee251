"""`python -m benchmarks.peers --recordings DIR`: other guards and ours over the same recordings.

Knows: which policies are compared with which guards, what is watched of `unattended`, tables.
Must not know: how a guard is driven, how outcomes are determined.

See docs/peers.md for what the columns mean.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.grids import Grid, show, update
from benchmarks.outcomes import Outcome, Totals, add_up, outcome_at, policy_outcomes
from benchmarks.peers.catalogue import POLICIES, UNDRIVEN, peers
from benchmarks.peers.drive import Set, drive, read_sets
from benchmarks.peers.model import Peer
from benchmarks.peers.ours import starter
from benchmarks.stats import ratio
from policyengine.cli.output import configure_logging
from policyengine.errors import ConfigError

SHIPPED = ("default", "unattended")

WATCHED = "unattended"
MIN_STOPS = 20
"""A guard that stops fewer runs of a set says too little about it."""

COLUMNS = (
    "",
    "#would stop",
    "#successful runs stopped",
    "#of those, a new call afterwards",
    "#turns after the stop",
    "#cost of a call, floors",
)

AGREEMENT = ("", "set", "#same turn", "#policy earlier", "#policy later", "#policy only", "#package only", "#neither")


class Row(NamedTuple):
    """One guard over one set. `rule`: it is somebody else's rule that ends runs; `note` says why it was not driven."""

    name: str
    outcomes: list[Outcome]
    cost: float | None = None
    rule: bool = False
    note: str = ""


class Watched(NamedTuple):
    """A rule of somebody else's beside `unattended` on one set."""

    set: str
    rule: str
    its: Totals
    ours: Totals

    @property
    def holds(self) -> bool:
        """Whether ours saves at least as many turns."""
        return _saved(self.ours) >= _saved(self.its)


class Results(NamedTuple):
    """All rows of a set: policies first, then packages."""

    set: Set
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row | None:
        """Return the row of a guard that was driven."""
        return next((row for row in self.rows if row.name == name and not row.note), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and another rule saves more turns, 2 if the work cannot be done."""
    arguments = _arguments(argv)
    configure_logging()
    try:
        sets = [found for found in read_sets(arguments.recordings) if not arguments.set or found.name in arguments.set]
        if not sets:
            raise ValueError(f"{arguments.recordings} has no such recordings")
        known = peers()
        driven = [peer for peer in known if peer.version and peer.distribution not in arguments.without]
        results = [_results(found, driven, known) for found in sets]
        watched = list(_watched(results))
        grids = [*map(_figures, results), _agreement(results, driven), _packages(known, arguments.without)]
        grids.append(_watch(watched))
        if arguments.update:
            update(arguments.update, grids)
    except (OSError, ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for grid in () if arguments.update else grids:
        show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(item.holds for item in watched) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--set", action="append", metavar="NAME", help="only this set (may be repeated)")
    parser.add_argument(
        "--without", action="append", default=[], metavar="PACKAGE", help="leave a package out (may be repeated)"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 unless ours saves most turns everywhere")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/peers.md")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="write the Markdown between the marks of docs/peers.md"
    )
    return parser.parse_args(argv)


# ---- results


def _results(found: Set, driven: Sequence[Peer], known: Sequence[Peer]) -> Results:
    print(f"{found.name}: {len(found.runs)} runs", file=sys.stderr)
    policies = (*SHIPPED, *POLICIES)
    able = [peer for peer in driven if not (found.outlines and peer.texts)]
    starts = {policy: starter(policy) for policy in policies} | {peer.name: peer.start for peer in able}
    done = drive(found.runs, starts)
    rows = [
        Row(policy, policy_outcomes(found.runs, policy), done[policy].cost, rule=policy in POLICIES)
        for policy in policies
    ]
    for peer in known:
        if peer not in driven:
            rows.append(Row(peer.name, [], note="not installed" if not peer.version else "left out"))
        elif peer not in able:
            rows.append(Row(peer.name, [], note="needs texts"))
        else:
            stops = zip(found.runs, done[peer.name].stops, strict=True)
            outcomes = [outcome_at(run, turn) for run, turn in stops]
            rows.append(Row(_title(peer), outcomes, done[peer.name].cost, rule=peer.ends))
    return Results(found, tuple(rows))


def _title(peer: Peer) -> str:
    name, comma, part = peer.name.partition(",")
    return f"{name} {peer.version}{comma}{part}"


def _watched(results: Sequence[Results]) -> Iterator[Watched]:
    """Yield every rule of somebody else's beside ours, where it stops enough labelled runs."""
    for found in results:
        ours = found.row(WATCHED)
        if ours is None or not any(run.recording.label is not None for run in found.set.runs):
            continue
        for row in found.rows:
            totals = add_up(row.outcomes)
            if row.rule and totals.stopped >= MIN_STOPS:
                yield Watched(found.set.name, row.name, totals, add_up(ours.outcomes))


def _saved(totals: Totals) -> int:
    return sum(after for after, _ in totals.after)


# ---- tables


def _figures(results: Results) -> Grid:
    totals = add_up(results.rows[0].outcomes)
    title = f"{results.set.name}: {totals.runs} runs, {totals.labelled} labelled, {totals.successes} successful"
    return Grid(title, COLUMNS, tuple(map(_line, results.rows)))


def _line(row: Row) -> tuple[str, ...]:
    if row.note:
        return (row.name, row.note, "-", "-", "-", "-")
    totals = add_up(row.outcomes)
    share, _ = ratio(totals.after)
    cost = "-" if row.cost is None else f"{row.cost:,.1f}"
    return (
        row.name,
        f"{totals.stopped} of {totals.runs}",
        f"{totals.successful_stopped} of {totals.successes}",
        str(totals.successful_new),
        f"{_saved(totals):,}: {share:.1%}",
        cost,
    )


def _agreement(results: Sequence[Results], driven: Sequence[Peer]) -> Grid:
    rows = []
    for peer in driven:
        for found in results:
            policy, package = found.row(peer.policy), found.row(_title(peer))
            if policy is not None and package is not None and (add_up(policy.outcomes + package.outcomes).stopped):
                rows.append((f"{peer.policy}, {_title(peer)}", found.set.name, *_compared(policy, package)))
    return Grid("Runs by where our restatement and the package stop them (sets with stops)", AGREEMENT, tuple(rows))


def _compared(policy: Row, package: Row) -> tuple[str, ...]:
    counts = Counter(_relation(ours, theirs) for ours, theirs in zip(policy.outcomes, package.outcomes, strict=True))
    return tuple(str(counts[name.removeprefix("#")]) for name in AGREEMENT[2:])


def _relation(ours: Outcome, theirs: Outcome) -> str:
    if not ours.stopped:
        return "package only" if theirs.stopped else "neither"
    if not theirs.stopped:
        return "policy only"
    if ours.turns_after == theirs.turns_after:
        return "same turn"
    return "policy earlier" if ours.turns_after > theirs.turns_after else "policy later"


def _packages(known: Sequence[Peer], without: Sequence[str]) -> Grid:
    rows = []
    for peer in known:
        state = "left out" if peer.distribution in without else "driven" if peer.version else "not installed"
        rows.append((f"{peer.name} {peer.version}".strip() if "," not in peer.name else peer.name, state, peer.stops))
    rows += [(item.name, "not driven", item.why) for item in UNDRIVEN]
    return Grid("The packages", ("", "", "what counts as a stop, or why it is not driven"), tuple(rows))


def _watch(watched: Sequence[Watched]) -> Grid:
    columns = (
        "set",
        "rule",
        "#successful runs it stops",
        f"#{WATCHED} stops",
        "#turns it saves",
        f"#{WATCHED} saves",
        "at least as many",
    )
    rows = (
        (
            item.set,
            item.rule,
            str(item.its.successful_stopped),
            str(item.ours.successful_stopped),
            f"{_saved(item.its):,}",
            f"{_saved(item.ours):,}",
            "yes" if item.holds else "NO",
        )
        for item in watched
    )
    title = f"What is watched of {WATCHED}: the turns it saves beside every rule that stops {MIN_STOPS} runs of a set"
    return Grid(title, columns, tuple(rows))
