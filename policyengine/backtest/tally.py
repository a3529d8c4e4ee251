"""Sums over runs that can be merged: in any order, from any number of processes, with the same result.

Knows: what is added up. Must not know: rates, intervals (see `figures`), where runs come from.

Everything is a whole number (money in billionths of a dollar), so that no order of adding makes a difference. The size
of a tally does not grow with the number of runs: lengths are counted per turn, samples are the few runs with the
smallest digests.
"""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from policyengine.backtest.facts import RunFacts, Strongest, number

LANDMARKS = (2, 3, 5, 8, 10, 15, 20, 30, 50, 75, 100)
"""Turns at which runs that are still alive are compared."""

SAMPLES = 5
"""How many runs of each kind are named."""

LONGEST = 10_000
"""Longer runs are counted as this long in the histograms of lengths."""

SampleKind = Literal[
    "stopped_working", "stopped_finished", "stopped_failed", "stopped_unlabelled", "denied_succeeded", "recovered"
]


class Sample(msgspec.Struct, frozen=True, order=True):
    """A run worth looking at; they are sorted by digest, so that the choice is arbitrary but always the same."""

    digest: str
    run: str
    source: str
    line: int
    turn: int
    rule: str


class _Counts(msgspec.Struct):
    """Whole numbers that are added up one by one."""

    def merge(self, other: Self) -> None:
        """Add the counts of another part of the input."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class RuleTally(_Counts):
    """What one rule did: interventions, the runs it intervened in, and those it would have ended."""

    hints: int = 0
    denies: int = 0
    wishes: int = 0
    runs: int = 0
    stopped: int = 0
    stopped_successes: int = 0
    stopped_successes_working: int = 0
    turns_saved: int = 0


class Landmark(_Counts):
    """Labelled runs that lived beyond a turn: those the policy would have stopped by then, and the others."""

    flagged: int = 0
    flagged_successes: int = 0
    unflagged: int = 0
    unflagged_successes: int = 0


class Tally(msgspec.Struct):
    """What one policy makes of a group of runs.

    `metered` are the runs whose recording has usage, `priced` those whose model has a known price. The three sums of
    squares are for the interval of the share of turns saved, of which runs are the units. `lengths` are runs by their
    last turn, `stops` by the turn they would be stopped in, `ends` by the last turn they would have had.

    `decisions` is a digest of all interventions. Against the baseline: `changed` are the runs that are decided
    otherwise, `gained` the turns saved beyond its own, with the sums for their interval.
    """

    runs: int = 0
    labelled: int = 0
    successes: int = 0
    turns: int = 0
    calls: int = 0
    intervened: int = 0
    stopped: int = 0
    stopped_labelled: int = 0
    stopped_successes: int = 0
    stopped_successes_working: int = 0
    stopped_working: int = 0
    denied_runs: int = 0
    denied_succeeded: int = 0
    recovered_calls: int = 0
    turns_saved: int = 0
    turns_squared: int = 0
    saved_squared: int = 0
    saved_times_turns: int = 0
    metered: int = 0
    tokens: int = 0
    tokens_saved: int = 0
    priced: int = 0
    nano: int = 0
    nano_saved: int = 0
    decisions: int = 0
    changed: int = 0
    gained: int = 0
    gained_squared: int = 0
    gained_times_turns: int = 0
    lengths: dict[int, int] = {}
    stops: dict[int, int] = {}
    ends: dict[int, int] = {}
    landmarks: dict[int, Landmark] = {}
    rules: dict[str, RuleTally] = {}
    samples: dict[SampleKind, list[Sample]] = {}

    def add(self, facts: RunFacts, sample: Sample, before: RunFacts | None = None) -> None:
        """Count one run; `sample` names it, `before` is what the baseline makes of it."""
        self.runs += 1
        self.turns += facts.turns
        self.turns_squared += facts.turns * facts.turns
        self.calls += facts.calls
        self.intervened += facts.strongest != "nothing"
        self.denied_runs += facts.strongest == "deny"
        self.denied_succeeded += facts.denied_succeeded
        self.recovered_calls += facts.recovered
        length = min(facts.turns, LONGEST)
        self.lengths[length] = self.lengths.get(length, 0) + 1
        end = length if facts.stop_turn is None else min(length, facts.stop_turn)
        self.ends[end] = self.ends.get(end, 0) + 1
        self._add_usage(facts)
        self._add_decisions(facts, sample, before)
        if facts.label is not None:
            self.labelled += 1
            self.successes += facts.label
            self._add_landmarks(facts)
        if facts.stop_turn is not None:
            self._add_stop(facts, facts.stop_turn)
        for rule in facts.rules:
            tally = self._rule(rule.rule)
            tally.hints += rule.hints
            tally.denies += rule.denies
            tally.wishes += rule.wishes
            tally.runs += rule.rule != facts.stop_rule and bool(rule.hints or rule.denies)
        for kind in _kinds(facts):
            _keep(self.samples.setdefault(kind, []), [sample])

    def _add_usage(self, facts: RunFacts) -> None:
        if facts.tokens is not None:
            self.metered += 1
            self.tokens += facts.tokens
            self.tokens_saved += facts.tokens_saved or 0
        if facts.nano is not None:
            self.priced += 1
            self.nano += facts.nano
            self.nano_saved += facts.nano_saved or 0

    def _add_decisions(self, facts: RunFacts, sample: Sample, before: RunFacts | None) -> None:
        if facts.decisions:
            self.decisions += number((sample.digest, str(facts.decisions)))
        if before is not None:
            more = facts.saved - before.saved
            self.changed += facts.decisions != before.decisions
            self.gained += more
            self.gained_squared += more * more
            self.gained_times_turns += more * facts.turns

    def _add_stop(self, facts: RunFacts, turn: int) -> None:
        success = facts.label is True
        self.stopped += 1
        self.stopped_labelled += facts.label is not None
        self.stopped_successes += success
        self.stopped_working += facts.working
        self.stopped_successes_working += success and facts.working
        self.turns_saved += facts.saved
        self.saved_squared += facts.saved * facts.saved
        self.saved_times_turns += facts.saved * facts.turns
        self.stops[min(turn, LONGEST)] = self.stops.get(min(turn, LONGEST), 0) + 1
        rule = self._rule(facts.stop_rule)
        rule.runs += 1
        rule.stopped += 1
        rule.stopped_successes += success
        rule.stopped_successes_working += success and facts.working
        rule.turns_saved += facts.saved

    def _add_landmarks(self, facts: RunFacts) -> None:
        for turn in LANDMARKS:
            if facts.turns <= turn:
                return
            mark = self.landmarks.get(turn)
            if mark is None:
                mark = self.landmarks[turn] = Landmark()
            if facts.stop_turn is not None and facts.stop_turn <= turn:
                mark.flagged += 1
                mark.flagged_successes += facts.label is True
            else:
                mark.unflagged += 1
                mark.unflagged_successes += facts.label is True

    def _rule(self, name: str) -> RuleTally:
        found = self.rules.get(name)
        if found is None:
            found = self.rules[name] = RuleTally()
        return found

    def merge(self, other: Tally) -> None:
        """Add the runs of another tally."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kept, more in ((self.lengths, other.lengths), (self.stops, other.stops), (self.ends, other.ends)):
            for turn, count in more.items():
                kept[turn] = kept.get(turn, 0) + count
        for turn, mark in other.landmarks.items():
            self.landmarks.setdefault(turn, Landmark()).merge(mark)
        for rule, tally in other.rules.items():
            self._rule(rule).merge(tally)
        for kind, samples in other.samples.items():
            _keep(self.samples.setdefault(kind, []), samples)


_NUMBERS = tuple(field.name for field in msgspec.structs.fields(Tally) if field.type is int)


def _kinds(facts: RunFacts) -> list[SampleKind]:
    kinds: list[SampleKind] = []
    if facts.stop_turn is not None:
        if facts.label is not True:
            kinds.append("stopped_unlabelled" if facts.label is None else "stopped_failed")
        else:
            kinds.append("stopped_working" if facts.working else "stopped_finished")
    if facts.denied_succeeded:
        kinds.append("denied_succeeded")
    if facts.recovered:
        kinds.append("recovered")
    return kinds


def _keep(kept: list[Sample], more: list[Sample]) -> None:
    """Add samples to a sorted list, and keep the smallest."""
    if len(kept) == SAMPLES and all(sample >= kept[-1] for sample in more):
        return
    kept[:] = sorted({*kept, *more})[:SAMPLES]


class Key(msgspec.Struct, frozen=True, order=True):
    """A group of runs: a set, a model, and a task where tasks are told apart (else empty)."""

    set: str
    model: str
    task: str = ""


class Groups(msgspec.Struct):
    """The tallies of one policy, by group."""

    tallies: dict[str, tuple[Key, Tally]] = {}

    def of(self, key: Key) -> Tally:
        """Return the tally of a group, made if there is none."""
        name = f"{key.set}\0{key.model}\0{key.task}"
        found = self.tallies.get(name)
        if found is None:
            found = self.tallies[name] = (key, Tally())
        return found[1]

    def merge(self, other: Groups) -> None:
        """Add the groups of another part of the input."""
        for key, tally in other.tallies.values():
            self.of(key).merge(tally)

    def sorted(self) -> list[tuple[Key, Tally]]:
        """Return all groups in the order of their names."""
        return sorted(self.tallies.values(), key=lambda pair: pair[0])

    def total(self) -> Tally:
        """Return the sum over all groups."""
        total = Tally()
        for _, tally in self.tallies.values():
            total.merge(tally)
        return total


class Transition(_Counts):
    """How many runs went from one strongest action under the baseline to another under a policy, by label."""

    succeeded: int = 0
    failed: int = 0
    unlabelled: int = 0

    def count(self, label: bool | None) -> None:
        """Count one run."""
        if label is None:
            self.unlabelled += 1
        elif label:
            self.succeeded += 1
        else:
            self.failed += 1


Transitions = dict[str, Transition]
"""Keyed `before>after` by strongest action."""


def step(before: Strongest, after: Strongest) -> str:
    """Return the key of a transition."""
    return f"{before}>{after}"


def merge_transitions(kept: Transitions, more: Transitions) -> None:
    """Add the transitions of another part of the input."""
    for key, transition in more.items():
        kept.setdefault(key, Transition()).merge(transition)
