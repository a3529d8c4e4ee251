"""What comes of all units put together, in whatever order they arrive.

Knows: that sums do not depend on the order, and that lists are put in the order of the input at the end.
Must not know: who worked on a unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policyengine.backtest.figures import BacktestReport, ReadError, policy_figures, read_errors
from policyengine.backtest.judge import MOST_ERRORS, Assignment, Judged
from policyengine.backtest.tally import Groups, Transitions, merge_transitions
from policyengine.recordings.model import Skipped, Unreadable


class Merged(msgspec.Struct):
    """The sums so far. Errors and skipped files stand under the number of their unit; `listed` errors are kept."""

    groups: list[Groups]
    transitions: list[Transitions]
    runs: int = 0
    errors: int = 0
    listed: int = 0
    unreadable: dict[int, list[Unreadable]] = {}
    skipped: dict[int, list[Skipped]] = {}

    def add(self, judged: Judged) -> None:
        """Add what came of one unit."""
        self.runs += judged.runs
        for kept, more in zip(self.groups, judged.groups, strict=True):
            kept.merge(more)
        for before, after in zip(self.transitions, judged.transitions, strict=True):
            merge_transitions(before, after)
        self.errors += judged.errors
        self.note(judged.number, judged.unreadable, judged.skipped)

    def note(self, number: int, unreadable: Sequence[Unreadable], skipped: Sequence[Skipped]) -> None:
        """Keep what was not read in a unit; beyond the limit, the last of the input gives way, whenever it came."""
        if unreadable:
            self.unreadable[number] = list(unreadable)
            self.listed += len(unreadable)
            while self.listed > MOST_ERRORS:
                last = max(self.unreadable)
                left = self.unreadable[last][: MOST_ERRORS - self.listed]
                self.listed -= len(self.unreadable.pop(last)) - len(left)
                if left:
                    self.unreadable[last] = left
        if skipped:
            self.skipped[number] = list(skipped)

    def not_read(self) -> tuple[tuple[ReadError, ...], tuple[Skipped, ...]]:
        """Return what was not read, in the order of the input."""
        unreadable = [item for _, items in sorted(self.unreadable.items()) for item in items]
        return read_errors(unreadable), tuple(item for _, items in sorted(self.skipped.items()) for item in items)


def empty(assignment: Assignment, skipped: Sequence[Skipped] = (), unreadable: Sequence[Unreadable] = ()) -> Merged:
    """Return the sums of nothing, beside what is in no unit of the input."""
    count = len(assignment.policies)
    transitions: list[Transitions] = [{} for _ in range(count - 1)] if assignment.baseline else []
    merged = Merged([Groups() for _ in range(count)], transitions, errors=len(unreadable))
    merged.note(-1, unreadable, skipped)
    return merged


def report(merged: Merged, assignment: Assignment, seconds: float) -> BacktestReport:
    """Return the report of the sums."""
    unreadable, skipped = merged.not_read()
    figures = []
    for index, policy in enumerate(assignment.policies):
        transitions = merged.transitions[index - 1] if assignment.baseline and index else None
        figures.append(policy_figures(policy.name, policy.source, policy.digest, merged.groups[index], transitions))
    return BacktestReport(
        runs=merged.runs,
        read_errors=unreadable,
        read_error_count=merged.errors,
        skipped=skipped,
        seconds=round(seconds, 3),
        policies=tuple(figures),
        baseline=assignment.policies[0].name if assignment.baseline else None,
    )
