"""Replay the runs of a unit under every policy and add up what comes of it.

Knows: units, policies in force, tallies. Must not know: processes, rates, how anything is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from policyengine.backtest.facts import RunFacts, digest, facts_of, plain
from policyengine.backtest.tally import Groups, Key, Sample, Transition, Transitions, step
from policyengine.backtest.work import Unit, written
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.identity import remembering
from policyengine.prices import bundled_prices
from policyengine.recordings.model import Recording, Skipped, Unreadable
from policyengine.recordings.readers import read_file, readers_for
from policyengine.recordings.sidecar import Indexes
from policyengine.replay import replay

MOST_ERRORS = 10_000
"""How many read errors are kept; all are counted."""


class PolicySource(msgspec.Struct, frozen=True):
    """A policy as it is given: a shipped name or a file, overlays on it, and folders of extensions.

    `name` is how figures call it. `digest` is that of the policy when the backtest began; a worker that reads another
    one does not go on.
    """

    name: str
    source: str
    overlays: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    digest: str = ""

    def engine(self) -> Engine:
        """Return an engine with this policy in force.

        Raises:
            ConfigError: it cannot be used.
            UsageError: it is not the policy that it was when the backtest began.
        """
        engine = Engine(self.source, overlays=self.overlays, folders=self.folders)
        if self.digest and engine.snapshot.digest != self.digest:
            raise UsageError(f"the policy {self.name} was changed while the backtest was running")
        return engine


class Assignment(msgspec.Struct, frozen=True):
    """What every worker needs: the policies (the first is the baseline, if there is one), and how runs are grouped.

    Beside set and model, runs may be told apart `by` their task, or by which of two halves of all tasks it belongs to.
    """

    policies: tuple[PolicySource, ...]
    baseline: bool = False
    by: Literal["", "task", "fold"] = ""
    format: str = ""
    protocol: str = "native"


class Judged(msgspec.Struct):
    """What came of a unit: groups for every policy, transitions for every one but the baseline, what was not read.

    `errors` counts all that was unreadable, of which only the first are kept.
    """

    number: int
    runs: int = 0
    errors: int = 0
    groups: list[Groups] = []
    transitions: list[Transitions] = []
    unreadable: list[Unreadable] = []
    skipped: list[Skipped] = []


class Look(NamedTuple):
    """One run that was judged, for whoever wants to see each of them."""

    recording: Recording
    facts: tuple[RunFacts, ...]


class Judge:
    """Judges units under the policies of an assignment."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self._engines = [policy.engine() for policy in assignment.policies]
        self._readers = readers_for(assignment.format, assignment.protocol)
        self._price = bundled_prices()
        self._indexes = Indexes()

    def judge(self, unit: Unit) -> Judged:
        """Return what all policies make of the runs of a unit."""
        count = len(self._engines)
        judged = Judged(unit.number, groups=[Groups() for _ in range(count)])
        judged.transitions = [{} for _ in range(count - 1)] if self.assignment.baseline else []
        for piece in unit.pieces:
            for item in read_file(piece.path, piece.source, piece.part, readers=self._readers, indexes=self._indexes):
                match item:
                    case Unreadable():
                        judged.errors += 1
                        if len(judged.unreadable) < MOST_ERRORS:
                            judged.unreadable.append(written(item))
                    case Skipped():
                        judged.skipped.append(written(item))
                    case Recording():
                        with remembering() if len(self._engines) > 1 else nullcontext():
                            self.run(item, judged)
        return judged

    def run(self, recording: Recording, judged: Judged) -> Look:
        """Add one run to what came of a unit."""
        judged.runs += 1
        key = Key(plain(recording.set), plain(recording.group), part_of(recording, self.assignment.by))
        name, source = plain(recording.id), plain(recording.source)
        mark = digest((recording.set, recording.source, recording.id, str(recording.line)))
        found: list[RunFacts] = []
        for engine, groups in zip(self._engines, judged.groups, strict=True):
            facts = facts_of(recording, replay(recording, engine), self._price)
            sample = Sample(mark, name, source, recording.line, facts.stop_turn or 0, facts.stop_rule)
            groups.of(key).add(facts, sample, found[0] if found and self.assignment.baseline else None)
            found.append(facts)
        for transitions, after in zip(judged.transitions, found[1:], strict=bool(judged.transitions)):
            name = step(found[0].strongest, after.strongest)
            transitions.setdefault(name, Transition()).count(recording.label)
        return Look(recording, tuple(found))


FOLDS = ("A", "B")
"""The halves into which tasks are divided by a hash."""

ALONE = " by run"
"""Follows the half of a run without a task, which counts as a task of its own by its id."""


def part_of(recording: Recording, by: Literal["", "task", "fold"]) -> str:
    """Return what a run is told apart by: nothing, its task, or the half that its task belongs to."""
    if by == "fold":
        task, alone = (recording.task, "") if recording.task else (recording.id, ALONE)
        return FOLDS[int(digest(("fold", recording.set, task)), 16) % 2] + alone
    return plain(recording.task) if by == "task" else ""


def sources(
    policies: Iterable[str], overlays: Iterable[str] = (), folders: Iterable[str] = ()
) -> tuple[PolicySource, ...]:
    """Return policies as they were given, loaded once to know their digests.

    Raises:
        ConfigError: one cannot be used.
    """
    found: list[PolicySource] = []
    for source in policies:
        made = PolicySource(_name(source), source, tuple(overlays), tuple(folders))
        found.append(msgspec.structs.replace(made, digest=made.engine().snapshot.digest))
    return tuple(found)


def _name(source: str) -> str:
    path = Path(source)
    return path.stem if path.suffix else source
