"""`python -m benchmarks.evidence --recordings DIR`: what the shipped policies would have done to recorded runs.

Knows: which policies and rules are compared, what is asked of `unattended`, tables.
Must not know: how runs are read (`sets`), how a policy is judged (`policyengine.backtest`), what naive rules look like.

See docs/evidence.md for where the sets come from, what the columns mean, and what the figures cannot show.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.grids import Check, Grid, show, update, what_is_asked
from benchmarks.naive import RULES
from benchmarks.outcomes import add_up, rule_outcomes, with_history
from benchmarks.peers.catalogue import POLICIES
from benchmarks.sets import CODING, ENRICHED, RANDOM, SETS, read
from policyengine.backtest.figures import BacktestReport, GroupFigures, PolicyFigures, rate
from policyengine.backtest.grids import by_landmark, by_rule, interval, percent
from policyengine.backtest.judge import Assignment, Judge, Judged, sources
from policyengine.backtest.merge import empty, report
from policyengine.backtest.tally import Groups
from policyengine.cli.output import configure_logging
from policyengine.errors import ConfigError
from policyengine.identity import remembering
from policyengine.recordings.model import ModelSaid, Recording

SHIPPED = ("default", "cautious", "unattended")
WATCHED = "unattended"

MIN_STOPS = 20
"""A rule that stops fewer runs of a set says too little about it."""

MOST_AT_WORK = 0.002
GATE_SHARE = 0.9
GATE_COLUMN = "halt_sameres3_at"
"""Column of the index of agentdojo_raw: the turn with the third equal call in a row with an equal result."""

ALL = "all sets"
TABLES = "evidence-tables.md"

SET_COLUMNS = (
    "set",
    "#runs",
    "#successes",
    "#stopped",
    "#successes stopped",
    "#at work",
    "at work, 95 %",
    "#refused, had succeeded",
    "#turns",
    "#turns saved",
)


class Effect(NamedTuple):
    """What a policy or a rule does to the runs of a set."""

    runs: int
    successes: int
    stopped: int
    successes_stopped: int
    at_work: int
    turns: int
    saved: int
    refused: int = 0


class Beside(NamedTuple):
    """Another rule beside the policy that is watched, on one set."""

    set: str
    rule: str
    its: Effect
    ours: Effect

    @property
    def saves_more(self) -> bool:
        """Whether it saves more turns."""
        return self.its.saved > self.ours.saved

    @property
    def is_no_worse(self) -> bool:
        """Whether it stops no more successful runs, and no more of them at work."""
        return self.its.successes_stopped <= self.ours.successes_stopped and self.its.at_work <= self.ours.at_work


class Evidence(NamedTuple):
    """Everything that was found. `ended` are the runs that the watched policy stops, by set and id."""

    report: BacktestReport
    effects: dict[str, dict[str, Effect]]
    runs: list[Recording]
    ended: set[tuple[str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and a condition does not hold, 2 if the work cannot be done."""
    arguments = _arguments(argv)
    configure_logging()
    try:
        found = evidence(read(arguments.recordings), arguments.policy)
        checks = list(_checks(found, arguments.recordings))
        page, tables = list(_page(found, checks)), list(_tables(found))
        if arguments.update:
            update(arguments.update, page)
            update(arguments.update.with_name(TABLES), tables)
    except (OSError, ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for grid in () if arguments.update else (*page, *tables):
        show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--policy", action="append", default=[], metavar="P", help="also a policy of yours, a path")
    parser.add_argument("--check", action="store_true", help="exit 1 unless everything that is asked holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/evidence.md")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help=f"write the Markdown between the marks of FILE and of {TABLES}"
    )
    return parser.parse_args(argv)


# ---- judging


def evidence(runs: list[Recording], more: Sequence[str] = ()) -> Evidence:
    """Judge all runs under the shipped policies, those of other systems and `more`, and ask the naive rules."""
    assignment = Assignment(sources([*SHIPPED, *more, *POLICIES]))
    judge, judged = Judge(assignment), Judged(0, groups=[Groups() for _ in assignment.policies])
    watched = SHIPPED.index(WATCHED)
    ended = set()
    for recording in runs:
        with remembering():
            look = judge.run(recording, judged)
        if look.facts[watched].stop_turn is not None:
            ended.add((recording.set, recording.id))
    merged = empty(assignment)
    merged.add(judged)
    outcome = report(merged, assignment, 0.0)
    effects = {policy.policy: _policy_effects(policy) for policy in outcome.policies}
    return Evidence(outcome, effects | _rule_effects(runs), runs, ended)


def _policy_effects(policy: PolicyFigures) -> dict[str, Effect]:
    return {ALL: _sum([policy.total])} | {
        found.name: _sum([group for group in policy.groups if group.set == found.name]) for found in SETS
    }


def _sum(groups: Sequence[GroupFigures]) -> Effect:
    def total(field: str) -> int:
        return sum(getattr(group, field) for group in groups)

    return Effect(
        total("runs"),
        total("successes"),
        total("stopped"),
        total("stopped_successes"),
        total("stopped_successes_working"),
        total("turns"),
        total("turns_saved"),
        total("denied_succeeded"),
    )


def _rule_effects(runs: Sequence[Recording]) -> dict[str, dict[str, Effect]]:
    seen = with_history(runs)
    found: dict[str, dict[str, Effect]] = {}
    for name, rule in RULES.items():
        effects = {}
        for part in SETS:
            totals = add_up(rule_outcomes([run for run in seen if run.recording.set == part.name], rule))
            effects[part.name] = Effect(
                totals.runs,
                totals.successes,
                totals.stopped,
                totals.successful_stopped,
                totals.successful_new,
                sum(turns for _, turns in totals.after),
                sum(saved for saved, _ in totals.after),
            )
        effects[ALL] = Effect(*map(sum, zip(*effects.values(), strict=True)))
        found[name] = effects
    return found


# ---- what is asked


def _checks(found: Evidence, root: Path) -> Iterator[Check]:
    ours = found.effects[WATCHED]
    repeating = list(_repeating(found.runs, root / "agentdojo_raw" / "index.csv"))
    stopped = sum(run in found.ended for run in repeating)
    yield Check(
        f"agentdojo: of the failing runs with three equal calls and results in a row ({GATE_COLUMN} is set), "
        f"at least {GATE_SHARE:.0%} are stopped",
        _share(stopped, len(repeating)),
        bool(repeating) and stopped >= GATE_SHARE * len(repeating),
    )
    worst = max((effect.at_work, name) for name, effect in ours.items() if name != ALL)
    yield Check(
        "each set: at most one successful run is stopped that makes a new call afterwards",
        f"{worst[0]} ({worst[1]})" if worst[0] else "0",
        worst[0] <= 1,
    )
    everything = ours[ALL]
    yield Check(
        f"all sets: at most {MOST_AT_WORK:.1%} of the successful runs are stopped that make a new call afterwards",
        _share(everything.at_work, everything.successes),
        everything.at_work <= MOST_AT_WORK * everything.successes,
    )
    beaten = [item for item in _beside(found) if item.saves_more and item.is_no_worse]
    yield Check(
        f"each set: of the rules that stop {MIN_STOPS} runs, none saves more turns and stops no more successful runs",
        "; ".join(f"{item.rule} on {item.set}" for item in beaten) or "none",
        not beaten,
    )


def _repeating(runs: Iterable[Recording], index: Path) -> Iterator[tuple[str, str]]:
    with index.open(encoding="utf-8", newline="") as file:
        marked = {row["id"] for row in csv.DictReader(file) if row[GATE_COLUMN]}
    for run in runs:
        if run.set in (RANDOM, ENRICHED) and run.id in marked and run.label is False:
            yield run.set, run.id


def _beside(found: Evidence) -> Iterator[Beside]:
    """Yield every rule of somebody else's beside ours, on the labelled sets where it stops enough runs."""
    for part in SETS:
        ours = found.effects[WATCHED][part.name]
        for rule in (*POLICIES, *RULES):
            its = found.effects[rule][part.name]
            if ours.successes and its.stopped >= MIN_STOPS:
                yield Beside(part.name, rule, its, ours)


# ---- tables


def _page(found: Evidence, checks: Sequence[Check]) -> Iterator[Grid]:
    yield what_is_asked(checks, f"What is asked of {WATCHED}")
    for name in (WATCHED, "default", "cautious"):
        yield _sets(name, found.effects[name])
    yield _lengths(found)
    yield _more_at_a_price(found)


def _tables(found: Evidence) -> Iterator[Grid]:
    policies = [policy for policy in found.report.policies if policy.policy not in POLICIES]
    for policy in policies:
        if policy.policy not in SHIPPED:
            yield _sets(policy.policy, found.effects[policy.policy])
        for grid in (by_rule(policy), by_landmark(policy)):
            yield Grid(grid.title, grid.columns, grid.rows)
    for part in (*(part.name for part in SETS), ALL):
        names = [*(policy.policy for policy in policies), *POLICIES, *RULES]
        rows = tuple(_guard_row(name, found.effects[name][part]) for name in names)
        yield Grid(f"{part}: policies and rules", ("", *SET_COLUMNS[3:7], *SET_COLUMNS[8:]), rows)


def _sets(name: str, effects: dict[str, Effect]) -> Grid:
    return Grid(f"{name}: by set", SET_COLUMNS, tuple(_set_row(part, effect) for part, effect in _in_order(effects)))


def _in_order(effects: dict[str, Effect]) -> Iterator[tuple[str, Effect]]:
    for name in (*(part.name for part in SETS), ALL):
        yield name, effects[name]


def _set_row(name: str, effect: Effect) -> tuple[str, ...]:
    stopped, successes, at_work, bounds, turns, saved = _guard_row("", effect)[1:]
    counts = (str(effect.runs), str(effect.successes))
    return (name, *counts, stopped, successes, at_work, bounds, str(effect.refused), turns, saved)


def _guard_row(name: str, effect: Effect) -> tuple[str, ...]:
    share = effect.saved / effect.turns if effect.turns else 0.0
    return (
        name,
        str(effect.stopped),
        str(effect.successes_stopped),
        str(effect.at_work),
        interval(rate(effect.at_work, effect.successes)),
        f"{effect.turns:,}",
        f"{effect.saved:,} ({percent(share)})",
    )


def _lengths(found: Evidence) -> Grid:
    """Return how long the runs of the labelled coding sets are: what a limit on rounds has to leave room for."""
    rows = []
    for name in CODING:
        effect = found.effects[WATCHED][name]
        turns = sorted(_turns(run) for run in found.runs if run.set == name and run.label)
        shares = (turns[len(turns) // 2], turns[len(turns) * 9 // 10], turns[-1])
        over = (sum(turn > limit for turn in turns) for limit in (100, 150, 250))
        rows.append((name, str(effect.successes), *map(str, shares), *map(str, over)))
    columns = (
        "set",
        "#successes",
        "#median turns",
        "#9 of 10 up to",
        "#longest",
        "#over 100",
        "#over 150",
        "#over 250",
    )
    return Grid("How long successful runs of coding agents are", columns, tuple(rows))


def _turns(run: Recording) -> int:
    return sum(isinstance(event, ModelSaid) for event in run.events)


def _more_at_a_price(found: Evidence) -> Grid:
    rows = tuple(
        (
            item.set,
            item.rule,
            f"{item.its.saved:,}",
            f"{item.ours.saved:,}",
            f"{item.its.successes_stopped} / {item.its.at_work}",
            f"{item.ours.successes_stopped} / {item.ours.at_work}",
        )
        for item in _beside(found)
        if item.saves_more
    )
    columns = (
        "set",
        "rule",
        "#turns it saves",
        f"#{WATCHED} saves",
        "#successes it stops / at work",
        f"#{WATCHED} stops / at work",
    )
    return Grid(f"Rules that save more turns than {WATCHED}, and what they cost", columns, rows)


def _share(events: int, trials: int) -> str:
    return f"{events} of {trials}" + (
        f": {percent(events / trials)} ({interval(rate(events, trials))})" if trials else ""
    )


if __name__ == "__main__":
    sys.exit(main())
