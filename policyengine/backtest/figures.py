"""Sums turned into what is reported: rates with intervals, landmark and stratified comparisons.

Knows: what each figure means. Must not know: how it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policyengine.backtest.facts import digest
from policyengine.backtest.stats import Bounds, Difference, Stratum, exact, ratio_bounds, stratified
from policyengine.backtest.tally import (
    LANDMARKS,
    Groups,
    Key,
    Landmark,
    RuleTally,
    Sample,
    SampleKind,
    Tally,
    Transition,
    Transitions,
)
from policyengine.recordings.model import Skipped, Unreadable


class Rate(msgspec.Struct, frozen=True):
    """`events` of `trials` with the exact 95 % interval (one-sided where there are none or nothing but events)."""

    events: int
    trials: int
    value: float | None
    low: float
    high: float


class GroupFigures(msgspec.Struct, frozen=True):
    """What a policy makes of the runs of one set and model.

    Turns are model responses; those saved come after the one in which the run would have ended. `stopped_successes` are
    successful runs that would have been stopped, `stopped_successes_working` those of them that made a new call
    afterwards. `tokens_saved` and `usd_saved` are `None` where no recording has usage or no price is known.
    """

    set: str
    model: str
    task: str
    runs: int
    labelled: int
    successes: int
    intervened: int
    stopped: int
    stopped_labelled: int
    stopped_successes: int
    stopped_successes_working: int
    denied_succeeded: int
    calls: int
    turns: int
    turns_saved: int
    tokens: int | None
    tokens_saved: int | None
    usd: float | None
    usd_saved: float | None
    recovered_calls: int


class Rates(msgspec.Struct, frozen=True):
    """The rates that decide: of successful runs stopped, of those stopped at work, of runs stopped, of turns saved."""

    false_stop_rate: Rate
    working_stop_rate: Rate
    stop_rate: Rate
    turns_saved_share: float
    turns_saved_bounds: Bounds | None


class LandmarkFigures(msgspec.Struct, frozen=True):
    """Labelled runs alive after a turn: those stopped by then against the others.

    Raw comparisons of stopped and other runs mislead, because longer runs fail more often and have more time to be
    stopped. Here all runs have lived equally long; `difference` compares within sets and models as well.
    """

    turn: int
    flagged: Rate
    unflagged: Rate
    difference: Difference | None


class RuleFigures(msgspec.Struct, frozen=True):
    """What one rule did over all runs."""

    rule: str
    hints: int
    denies: int
    wishes: int
    runs: int
    stopped: int
    stopped_successes: int
    stopped_successes_working: int
    turns_saved: int


class SampleFigures(msgspec.Struct, frozen=True):
    """A run worth looking at."""

    kind: SampleKind
    run: str
    source: str
    line: int
    turn: int
    rule: str


class SetFigures(msgspec.Struct, frozen=True):
    """The rates of one set over all its models."""

    set: str
    runs: int
    rates: Rates


class TransitionFigures(msgspec.Struct, frozen=True):
    """Runs whose strongest action was `before` under the baseline and is `after` under the policy."""

    before: str
    after: str
    succeeded: int
    failed: int
    unlabelled: int


class PolicyFigures(msgspec.Struct, frozen=True):
    """What one policy makes of the input.

    Runs by turn: `lengths` are how long they are, `stops` where they would be stopped, `ends` how long they would be.
    """

    policy: str
    source: str
    digest: str
    groups: tuple[GroupFigures, ...]
    total: GroupFigures
    rates: Rates
    sets: tuple[SetFigures, ...]
    landmarks: tuple[LandmarkFigures, ...]
    rules: tuple[RuleFigures, ...]
    samples: tuple[SampleFigures, ...]
    lengths: dict[int, int]
    stops: dict[int, int]
    ends: dict[int, int]
    transitions: tuple[TransitionFigures, ...] = ()


class ReadError(msgspec.Struct, frozen=True):
    """What could not be read: `line` from 1, 0 for a whole file."""

    source: str
    line: int
    reason: str


class BacktestReport(msgspec.Struct, frozen=True):
    """The outcome of a backtest.

    `read_errors` lists at most the first ten thousand, `read_error_count` counts all; `skipped` are files that are no
    recordings. `baseline` names the policy that transitions start from.
    """

    runs: int
    read_errors: tuple[ReadError, ...]
    read_error_count: int
    skipped: tuple[Skipped, ...]
    seconds: float
    policies: tuple[PolicyFigures, ...]
    baseline: str | None = None


def rate(events: int, trials: int) -> Rate:
    """Return a proportion with its interval."""
    bounds = exact(events, trials)
    return Rate(events, trials, events / trials if trials else None, bounds.low, bounds.high)


def rates(tally: Tally) -> Rates:
    """Return the rates of a tally."""
    share = tally.turns_saved / tally.turns if tally.turns else 0.0
    return Rates(
        rate(tally.stopped_successes, tally.successes),
        rate(tally.stopped_successes_working, tally.successes),
        rate(tally.stopped, tally.runs),
        share,
        ratio_bounds(
            tally.runs,
            tally.turns_saved,
            tally.turns,
            tally.saved_squared,
            tally.saved_times_turns,
            tally.turns_squared,
        ),
    )


def group_figures(key: Key, tally: Tally) -> GroupFigures:
    """Return the figures of one group."""
    return GroupFigures(
        set=key.set,
        model=key.model,
        task=key.task,
        runs=tally.runs,
        labelled=tally.labelled,
        successes=tally.successes,
        intervened=tally.intervened,
        stopped=tally.stopped,
        stopped_labelled=tally.stopped_labelled,
        stopped_successes=tally.stopped_successes,
        stopped_successes_working=tally.stopped_successes_working,
        denied_succeeded=tally.denied_succeeded,
        calls=tally.calls,
        turns=tally.turns,
        turns_saved=tally.turns_saved,
        tokens=tally.tokens if tally.metered else None,
        tokens_saved=tally.tokens_saved if tally.metered else None,
        usd=tally.nano / 1e9 if tally.priced else None,
        usd_saved=tally.nano_saved / 1e9 if tally.priced else None,
        recovered_calls=tally.recovered_calls,
    )


def policy_figures(
    name: str, source: str, digest: str, groups: Groups, transitions: Transitions | None = None
) -> PolicyFigures:
    """Return everything that is reported of one policy."""
    listed = groups.sorted()
    total = groups.total()
    sets: dict[str, Tally] = {}
    for key, tally in listed:
        sets.setdefault(key.set, Tally()).merge(tally)
    return PolicyFigures(
        policy=name,
        source=source,
        digest=digest,
        groups=tuple(group_figures(key, tally) for key, tally in listed),
        total=group_figures(Key("", ""), total),
        rates=rates(total),
        sets=tuple(SetFigures(name, tally.runs, rates(tally)) for name, tally in sorted(sets.items())),
        landmarks=landmarks(listed),
        rules=tuple(_rule(name, tally) for name, tally in _by_effect(total.rules)),
        samples=tuple(_sample(kind, sample) for kind, kept in sorted(total.samples.items()) for sample in kept),
        lengths=dict(sorted(total.lengths.items())),
        stops=dict(sorted(total.stops.items())),
        ends=dict(sorted(total.ends.items())),
        transitions=tuple(_transition(key, item) for key, item in sorted((transitions or {}).items())),
    )


def landmarks(groups: Sequence[tuple[Key, Tally]]) -> tuple[LandmarkFigures, ...]:
    """Return the landmark comparisons, stratified by group; turns that no labelled run outlived are left out."""
    found = []
    for turn in LANDMARKS:
        marks = [mark for _, tally in groups if (mark := tally.landmarks.get(turn)) is not None]
        if not marks:
            continue
        total = Landmark()
        for mark in marks:
            total.merge(mark)
        difference = stratified(
            Stratum(mark.flagged, mark.flagged_successes, mark.unflagged, mark.unflagged_successes) for mark in marks
        )
        flagged = rate(total.flagged_successes, total.flagged)
        found.append(LandmarkFigures(turn, flagged, rate(total.unflagged_successes, total.unflagged), difference))
    return tuple(found)


def without_tasks(report: BacktestReport) -> BacktestReport:
    """Return the report with digests in place of tasks, which may be texts that a user wrote."""

    def told_apart(group: GroupFigures) -> GroupFigures:
        return msgspec.structs.replace(group, task=digest((group.task,))) if group.task else group

    policies = (
        msgspec.structs.replace(policy, groups=tuple(map(told_apart, policy.groups))) for policy in report.policies
    )
    return msgspec.structs.replace(report, policies=tuple(policies))


def read_errors(unreadable: Sequence[Unreadable]) -> tuple[ReadError, ...]:
    """Return what could not be read in the form of the report."""
    return tuple(ReadError(item.source, item.line, item.reason) for item in unreadable)


def _by_effect(rules: dict[str, RuleTally]) -> list[tuple[str, RuleTally]]:
    return sorted(rules.items(), key=lambda pair: (-pair[1].stopped, -pair[1].runs, pair[0]))


def _rule(name: str, tally: RuleTally) -> RuleFigures:
    return RuleFigures(name, *(getattr(tally, field) for field in tally.__struct_fields__))


def _sample(kind: SampleKind, sample: Sample) -> SampleFigures:
    return SampleFigures(kind, sample.run, sample.source, sample.line, sample.turn, sample.rule)


def _transition(key: str, transition: Transition) -> TransitionFigures:
    before, after = key.split(">")
    return TransitionFigures(before, after, transition.succeeded, transition.failed, transition.unlabelled)
