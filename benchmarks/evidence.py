"""`python -m benchmarks.evidence --recordings DIR`: what the shipped policies would have done to recorded runs.

Knows: two public sets, their parts, what is asked of the policy `unattended`, tables.
Must not know: how outcomes are determined (`outcomes`), what rules look like (`naive`).

See docs/evidence.md for where the sets come from, what the columns mean, and what the figures cannot show.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.grids import Check, Grid, as_markdown, show, what_is_asked
from benchmarks.naive import RULES
from benchmarks.outcomes import Outcome, Recorded, Totals, add_up, policy_outcomes, rule_outcomes, with_history
from benchmarks.stats import Bounds, exact, ratio
from policyengine.cli.output import configure_logging
from policyengine.errors import ConfigError
from policyengine.recordings.model import Recording, Unreadable
from policyengine.recordings.readers import read_recordings

SHIPPED = ("default", "cautious", "unattended")

PARTS: dict[str, tuple[str, ...]] = {
    "tau_bench": ("tau_bench",),
    "agentdojo_raw, random": ("agentdojo_raw/random",),
    "agentdojo_raw, enriched": ("agentdojo_raw/enriched",),
    "agentdojo_raw, both": ("agentdojo_raw/random", "agentdojo_raw/enriched"),
}
"""Each part of a set with the folders it consists of."""

TAU, AGENTDOJO = "tau_bench", "agentdojo_raw, both"

GATE_POLICY = "unattended"
GATE_SHARE = 0.9
GATE_COLUMN = "halt_sameres3_at"
"""Column of the set's own index: the turn with the third equal call in a row with an equal result."""

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""Where a document holds the tables."""

COLUMNS = (
    "",
    "#would stop",
    "#failing runs stopped",
    "#successful runs stopped",
    "#of those, a new call afterwards",
    "#refused calls that had succeeded",
    "#of those, with a new answer",
    "#turns after the stop",
)


class Row(NamedTuple):
    """One policy or naive rule, and what it would have done."""

    name: str
    totals: Totals
    refuses: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and a condition does not hold, 2 if the work cannot be done."""
    arguments = _arguments(argv)
    configure_logging()
    try:
        parts = {name: _read(arguments.recordings, folders) for name, folders in PARTS.items()}
        policies = arguments.policy or list(SHIPPED)
        rows = {name: _rows(runs, policies) for name, runs in parts.items()}
        checks = _checks(arguments.recordings, parts)
        grids = [grid for name, found in rows.items() for grid in _tables(name, found)] + [_gate(checks)]
        if arguments.update:
            _update(arguments.update, grids)
    except (OSError, ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not arguments.update:
        _report(grids, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--policy", action="append", metavar="P", help="a shipped policy or a path; default: all three")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/evidence.md")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="write the Markdown between the marks of docs/evidence.md"
    )
    return parser.parse_args(argv)


def _read(root: Path, folders: Sequence[str]) -> list[Recorded]:
    recordings: list[Recording] = []
    for found in read_recordings([root / folder for folder in folders]):
        if isinstance(found, Unreadable):
            raise ValueError(f"{found.source}:{found.line}: {found.reason}")
        if isinstance(found, Recording):
            recordings.append(found)
    return with_history(recordings)


def _rows(runs: Sequence[Recorded], policies: Iterable[str]) -> list[Row]:
    rows = [Row(policy, add_up(policy_outcomes(runs, policy)), True) for policy in policies]
    return rows + [Row(name, add_up(rule_outcomes(runs, rule)), False) for name, rule in RULES.items()]


# ---- what is asked of `unattended`


def _checks(root: Path, parts: dict[str, list[Recorded]]) -> list[Check]:
    outcomes = {name: policy_outcomes(parts[name], GATE_POLICY) for name in (AGENTDOJO, TAU)}
    totals = {name: add_up(found) for name, found in outcomes.items()}
    repeating = _repeating(root / "agentdojo_raw" / "index.csv", parts[AGENTDOJO], outcomes[AGENTDOJO])
    stopped = sum(outcome.stopped for outcome in repeating)
    lost, tau = totals[AGENTDOJO].successful_new, totals[TAU].successful_stopped
    return [
        Check(
            f"agentdojo_raw: of the failing runs with three equal calls and results in a row ({GATE_COLUMN} is set), "
            f"at least {GATE_SHARE:.0%} are stopped",
            _share(stopped, len(repeating)),
            bool(repeating) and stopped >= GATE_SHARE * len(repeating),
        ),
        Check("agentdojo_raw: no successful run is stopped that makes a new call afterwards", str(lost), lost == 0),
        Check("tau_bench: at most one successful run is stopped", str(tau), tau <= 1),
    ]


def _repeating(index: Path, runs: Sequence[Recorded], outcomes: Sequence[Outcome]) -> list[Outcome]:
    with index.open(encoding="utf-8", newline="") as file:
        marked = {row["id"] for row in csv.DictReader(file) if row[GATE_COLUMN]}
    found = zip(runs, outcomes, strict=True)
    return [outcome for run, outcome in found if run.recording.id in marked and outcome.label is False]


# ---- tables


def _report(grids: Sequence[Grid], *, markdown: bool) -> None:
    if markdown:
        print("\n".join(map(as_markdown, grids)))
        return
    for grid in grids:
        show(grid)


def _tables(part: str, rows: Sequence[Row]) -> list[Grid]:
    """Return the figures of a part, and what the policies stopped for where they did."""
    reasons = _reasons(part, rows)
    return [_figures(part, rows), reasons] if reasons.rows else [_figures(part, rows)]


def _figures(part: str, rows: Sequence[Row]) -> Grid:
    totals = rows[0].totals
    title = (
        f"{part}: {totals.runs} runs, {totals.labelled} labelled, "
        f"{totals.successes} successful, {totals.failures} failing"
    )
    return Grid(title, COLUMNS, tuple(_figure_row(row) for row in rows))


def _figure_row(row: Row) -> tuple[str, ...]:
    totals = row.totals
    share, bounds = ratio(totals.after)
    return (
        row.name,
        _share(totals.stopped, totals.runs),
        _share(totals.failing_stopped, totals.failures),
        _share(totals.successful_stopped, totals.successes),
        _share(totals.successful_new, totals.successful_stopped),
        _share(totals.refused_ok, totals.refused) if row.refuses else "-",
        _share(totals.refused_new, totals.refused_ok) if row.refuses else "-",
        f"{share:.1%}" + (f" ({_percent(bounds)})" if bounds else ""),
    )


def _reasons(part: str, rows: Sequence[Row]) -> Grid:
    """Return what the policies' stops were made for."""
    policies = [row for row in rows if row.refuses]
    reasons = sorted({reason for row in policies for reason in row.totals.reasons})
    columns = ("reason (what happens)", *(f"#{row.name}" for row in policies))
    body = (
        (reason, *("{} / {}".format(*row.totals.reasons.get(reason, (0, 0))) for row in policies)) for reason in reasons
    )
    return Grid(f"{part}: failing / successful runs stopped, by reason", columns, tuple(body))


def _gate(checks: Sequence[Check]) -> Grid:
    return what_is_asked(checks, f"What is asked of {GATE_POLICY}")


def _share(events: int, trials: int) -> str:
    if not trials:
        return "0 of 0"
    return f"{events} of {trials}: {events / trials:.1%} ({_percent(exact(events, trials))})"


def _percent(bounds: Bounds) -> str:
    return f"{100 * bounds.low:.1f} to {100 * bounds.high:.1f}"


def _update(path: Path, grids: Sequence[Grid]) -> None:
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{path} has no {BEGIN} and {END}")
    tables = "\n".join(map(as_markdown, grids))
    path.write_text(f"{head}{begin}\n\n{tables}\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
