"""The tables of a backtest: the same on the terminal, in Markdown and in the HTML report.

Knows: which columns a table has and how a figure is written. Must not know: how figures come about, any markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from policyengine.backtest.figures import (
    BacktestReport,
    GroupFigures,
    LandmarkFigures,
    PolicyFigures,
    Rate,
    SetFigures,
)
from policyengine.backtest.stats import Bounds
from policyengine.backtest.tally import LANDMARKS
from policyengine.visible import clean_line

MOST_ROWS = 1000
"""How many groups, skipped files or read errors a table lists; the rest is counted."""

MOST_TASK = 80
"""How many characters of a task a table shows: it may be the whole text that a user wrote."""

MOST_BINS = 20
"""How many rows the table of stops by turn has."""


class Grid(msgspec.Struct, frozen=True):
    """A table: a title, what its columns are called (`#` before those of numbers), and its rows as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def summary(report: BacktestReport) -> list[str]:
    """Return what the input was, in sentences."""
    read = f"{report.runs} runs, {report.read_error_count} read errors"
    return [f"{read}, {len(report.skipped)} files that are no recordings, {report.seconds:.1f} s."]


def grids(report: BacktestReport) -> Iterable[Grid]:
    """Yield the tables for the terminal in order."""
    for policy in report.policies:
        yield from policy_grids(policy, report.baseline, groups=False)


def all_grids(report: BacktestReport) -> Iterable[Grid]:
    """Yield the tables of a whole report: those of the terminal and more."""
    yield identities(report)
    yield compared(report)
    yield survival(report)
    if any(policy.stops for policy in report.policies):
        yield stops(report)
    for policy in report.policies:
        yield from policy_grids(policy, report.baseline)
    yield from unread(report)


def policy_grids(policy: PolicyFigures, baseline: str | None, *, groups: bool = True) -> Iterable[Grid]:
    """Yield the tables about one policy; with `groups` also theirs, where it says more than the one by set."""
    yield by_set(policy)
    if groups and len(policy.groups) > len(policy.sets):
        yield by_group(policy)
    yield by_rule(policy)
    if policy.landmarks:
        yield by_landmark(policy)
    if policy.transitions:
        yield transitions(policy, baseline or "")
    if policy.samples:
        yield samples(policy)


def identities(report: BacktestReport) -> Grid:
    """Return which policies were judged."""
    rows = tuple((item.policy, item.source, item.digest) for item in report.policies)
    return Grid("Policies", ("policy", "source", "digest"), tuple(tuple(map(clean_line, row)) for row in rows))


def compared(report: BacktestReport) -> Grid:
    """Return what decides between policies: what they stop wrongly against what they save."""
    columns = (
        "policy",
        "#runs",
        "#succeeded",
        "#stopped",
        "succeeded, stopped",
        "of them at work",
        "turns saved",
        "#tokens saved",
        "#USD saved",
    )
    rows = tuple(map(_compared_row, report.policies))
    known = [index for index in range(len(columns)) if index < _MONEY or any(row[index] for row in rows)]
    return Grid(
        "Wrong stops against turns saved",
        tuple(columns[index] for index in known),
        tuple(tuple(row[index] for index in known) for row in rows),
    )


_MONEY = 7
"""The column from which on a table may say nothing: few recordings have usage, few models a known price."""


def _compared_row(policy: PolicyFigures) -> tuple[str, ...]:
    total, rates = policy.total, policy.rates
    return (
        clean_line(policy.policy),
        str(total.runs),
        str(total.successes),
        str(total.stopped),
        share(rates.false_stop_rate),
        share(rates.working_stop_rate),
        bounded(rates.turns_saved_share, rates.turns_saved_bounds),
        "" if total.tokens_saved is None else str(total.tokens_saved),
        "" if total.usd_saved is None else f"{total.usd_saved:.2f}",
    )


def survival(report: BacktestReport) -> Grid:
    """Return how many runs are still alive in some turns: as recorded, and under each policy."""
    names = [clean_line(policy.policy) for policy in report.policies]
    lengths = report.policies[0].lengths if report.policies else {}
    last = max(lengths, default=0)
    turns = [turn for turn in (1, *LANDMARKS) if turn <= last]
    columns = [alive(lengths, turns), *(alive(policy.ends, turns) for policy in report.policies)]
    rows = zip(map(str, turns), *([_of(count, report.runs) for count in column] for column in columns), strict=True)
    heads = ("#turn", "#as recorded", *(f"#under {name}" for name in names))
    return Grid("Runs still alive, by turn", heads, tuple(rows))


def alive(ends: dict[int, int], turns: Sequence[int]) -> list[int]:
    """Return how many runs have each of the turns (in ascending order), given in which turn runs end."""
    left = sum(ends.values())
    found, items = [], iter(sorted(ends.items()))
    following = next(items, None)
    for turn in turns:
        while following is not None and following[0] < turn:
            left -= following[1]
            following = next(items, None)
        found.append(left)
    return found


def _of(count: int, whole: int) -> str:
    return f"{count} ({percent(count / whole)})" if whole else "0"


def stops(report: BacktestReport) -> Grid:
    """Return in which turns runs would be stopped."""
    edges = bins(report, MOST_BINS)
    names = [clean_line(policy.policy) for policy in report.policies]
    rows = []
    for first, following in pairwise(edges):
        counts = [
            sum(count for turn, count in policy.stops.items() if first <= turn < following)
            for policy in report.policies
        ]
        if any(counts):
            rows.append((span(first, following - 1), *map(str, counts)))
    return Grid("Stops, by turn", ("turn", *(f"#{name}" for name in names)), tuple(rows))


def bins(report: BacktestReport, most: int) -> list[int]:
    """Return the edges of at most so many bins of equal width (a whole number) for the turns of stops."""
    turns = [turn for policy in report.policies for turn in policy.stops]
    first, last = min(turns, default=0), max(turns, default=0)
    width = -(-(last - first + 1) // most)
    return list(range(first, last + width + 1, width))


def span(first: int, last: int) -> str:
    """Return a number, or from which to which."""
    return str(first) if first == last else f"{first} to {last}"


def by_set(policy: PolicyFigures) -> Grid:
    """Return what a policy makes of every set, and of all."""
    rows = [_set_row(item, _groups(policy, item.set)) for item in policy.sets]
    rows.append(_set_row(SetFigures("all", policy.total.runs, policy.rates), [policy.total]))
    columns = (
        "set",
        "#runs",
        "#labelled",
        "#succeeded",
        "#stopped",
        "#succeeded, stopped",
        "#of them at work",
        "at work, 95 %",
        "#refused, had succeeded",
        "#turns",
        "#turns saved",
        "#recovered calls",
    )
    return Grid(f"{policy.policy}: by set", columns, tuple(rows))


def _groups(policy: PolicyFigures, name: str) -> list[GroupFigures]:
    return [group for group in policy.groups if group.set == name]


def _set_row(item: SetFigures, groups: Sequence[GroupFigures]) -> tuple[str, ...]:
    def total(field: str) -> int:
        return sum(getattr(group, field) for group in groups)

    return (
        clean_line(item.set),
        str(total("runs")),
        str(total("labelled")),
        str(total("successes")),
        str(total("stopped")),
        str(total("stopped_successes")),
        str(total("stopped_successes_working")),
        interval(item.rates.working_stop_rate),
        str(total("denied_succeeded")),
        str(total("turns")),
        f"{total('turns_saved')} ({percent(item.rates.turns_saved_share)})",
        str(total("recovered_calls")),
    )


def by_group(policy: PolicyFigures) -> Grid:
    """Return what a policy makes of every model of every set, and of every task where tasks are told apart."""
    columns = (
        "set",
        "model",
        "task",
        "#runs",
        "#succeeded",
        "#stopped",
        "#succeeded, stopped",
        "#of them at work",
        "#turns",
        "#turns saved",
        "#tokens saved",
        "#USD saved",
    )
    rows = tuple(map(_group_row, policy.groups[:MOST_ROWS]))
    return Grid(f"{policy.policy}: by model{_cut(len(policy.groups))}", columns, rows)


def _group_row(group: GroupFigures) -> tuple[str, ...]:
    return (
        clean_line(group.set),
        clean_line(group.model),
        clean_line(group.task if len(group.task) <= MOST_TASK else f"{group.task[: MOST_TASK - 3]}..."),
        str(group.runs),
        str(group.successes),
        str(group.stopped),
        str(group.stopped_successes),
        str(group.stopped_successes_working),
        str(group.turns),
        str(group.turns_saved),
        "" if group.tokens_saved is None else str(group.tokens_saved),
        "" if group.usd_saved is None else f"{group.usd_saved:.2f}",
    )


def unread(report: BacktestReport) -> Iterable[Grid]:
    """Yield tables of what could not be read, and of files that are no recordings, where there are any."""
    if report.read_errors:
        rows = tuple(
            (clean_line(place(item.source, item.line)), clean_line(item.reason))
            for item in report.read_errors[:MOST_ROWS]
        )
        yield Grid(f"What could not be read{_cut(report.read_error_count)}", ("where", "why"), rows)
    if report.skipped:
        rows = tuple((clean_line(item.source), clean_line(item.reason)) for item in report.skipped[:MOST_ROWS])
        yield Grid(f"Files that are no recordings{_cut(len(report.skipped))}", ("where", "why"), rows)


def _cut(count: int) -> str:
    return f" (the first {MOST_ROWS} of {count})" if count > MOST_ROWS else ""


def by_rule(policy: PolicyFigures) -> Grid:
    """Return what every rule of a policy did."""
    rows = tuple(
        (
            clean_line(rule.rule),
            str(rule.runs),
            str(rule.hints),
            str(rule.denies),
            str(rule.stopped),
            str(rule.stopped_successes),
            str(rule.stopped_successes_working),
            str(rule.turns_saved),
            str(rule.wishes),
        )
        for rule in policy.rules
    )
    columns = (
        "rule",
        "#runs",
        "#hints",
        "#refusals",
        "#stops",
        "#of successes",
        "#at work",
        "#turns saved",
        "#wishes in shadow",
    )
    return Grid(f"{policy.policy}: by rule", columns, rows)


def by_landmark(policy: PolicyFigures) -> Grid:
    """Return how runs that were alive after a turn ended, those stopped by then against the others."""
    columns = (
        "alive after turn",
        "#stopped by then",
        "of them succeeded",
        "#not stopped",
        "of them succeeded",
        "difference within sets and models",
    )
    return Grid(f"{policy.policy}: landmarks", columns, tuple(map(_landmark_row, policy.landmarks)))


def _landmark_row(mark: LandmarkFigures) -> tuple[str, ...]:
    difference = "" if mark.difference is None else signed(mark.difference.value, mark.difference.bounds)
    return (
        str(mark.turn),
        str(mark.flagged.trials),
        share(mark.flagged),
        str(mark.unflagged.trials),
        share(mark.unflagged),
        difference,
    )


def transitions(policy: PolicyFigures, baseline: str) -> Grid:
    """Return how the strongest action of runs changes from the baseline to a policy."""
    rows = tuple(
        (item.before, item.after, str(item.succeeded), str(item.failed), str(item.unlabelled))
        for item in policy.transitions
    )
    columns = (f"under {baseline}", f"under {policy.policy}", "#succeeded", "#failed", "#not labelled")
    return Grid(f"{policy.policy}: from {baseline}", columns, rows)


def samples(policy: PolicyFigures) -> Grid:
    """Return some runs worth looking at."""
    rows = tuple(
        (
            item.kind.replace("_", " "),
            clean_line(item.run),
            clean_line(place(item.source, item.line)),
            str(item.turn or ""),
            clean_line(item.rule),
        )
        for item in policy.samples
    )
    return Grid(f"{policy.policy}: runs to look at", ("what", "run", "where", "#turn", "rule"), rows)


def place(source: str, line: int) -> str:
    """Return `file:line`, or the file alone where it has no lines."""
    return f"{source}:{line}" if line else source


def percent(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.1f} %"


def share(rate: Rate) -> str:
    """Return a rate with its interval."""
    return "" if rate.value is None else bounded(rate.value, Bounds(rate.low, rate.high))


def bounded(value: float, bounds: Bounds | None) -> str:
    """Return a share with its interval, where it has one."""
    return percent(value) + (f" [{percent(bounds.low)}, {percent(bounds.high)}]" if bounds else "")


def interval(rate: Rate) -> str:
    """Return the interval of a rate; nothing where there is nothing to go by."""
    if not rate.trials:
        return ""
    return f"<= {100 * rate.high:.2f} %" if not rate.events else f"{100 * rate.low:.2f} to {100 * rate.high:.2f} %"


def signed(value: float, bounds: Bounds) -> str:
    """Return a difference in percentage points with its interval."""
    return f"{100 * value:+.1f} [{100 * bounds.low:+.1f}, {100 * bounds.high:+.1f}]"
