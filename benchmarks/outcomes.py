"""What a policy or a naive rule would have done to recorded runs, counted.

Knows: recordings, replay, labels. Must not know: how figures are printed, where the sets are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.naive import History, Rule, history
from policyengine.engine import Engine
from policyengine.recordings.model import Recording
from policyengine.replay import ReplayReport, replay

BEFORE_TOOLS = frozenset({"before_model_call", "after_model_response", "after_parse", "before_tool_call"})
"""Hooks at which a stop keeps the turn's own calls from running."""


class Recorded(NamedTuple):
    """A recorded run beside its plain history."""

    recording: Recording
    history: History


class Outcome(NamedTuple):
    """What became of one run.

    `stopped` says whether it would have been ended, `turns_after` how many recorded turns come after that, and
    `new_after` whether they hold a call that the run had not made before.
    """

    label: bool | None
    turns: int
    stopped: bool
    turns_after: int = 0
    new_after: bool = False


class Totals(NamedTuple):
    """The outcomes of a set of runs, added up. `after` holds (turns after the stop, turns) of every run."""

    runs: int
    labelled: int
    successes: int
    stopped: int
    successful_stopped: int
    successful_new: int
    after: tuple[tuple[int, int], ...]


def with_history(recordings: Iterable[Recording]) -> list[Recorded]:
    """Return runs as both the engine and the naive rules see them."""
    return [Recorded(recording, history(recording)) for recording in recordings]


def policy_outcomes(runs: Sequence[Recorded], policy: str) -> list[Outcome]:
    """Replay every run under a policy, which is the name of a shipped one or a path."""
    engine = Engine(policy, enforce_time=False)
    return [_replayed(run, replay(run.recording, engine)) for run in runs]


def rule_outcomes(runs: Sequence[Recorded], rule: Rule) -> list[Outcome]:
    """Ask a naive rule about every run. It only stops: it refuses nothing."""
    return [outcome_at(run, rule(run.history)) for run in runs]


def outcome_at(run: Recorded, turn: int | None) -> Outcome:
    """Return what becomes of a run that is stopped after a turn and its calls, or never."""
    if turn is None:
        return Outcome(run.recording.label, run.history.turns, False)
    return _stopped(run, turn, turn + 1)


def add_up(outcomes: Sequence[Outcome]) -> Totals:
    """Return the totals of outcomes."""
    stopped = [outcome for outcome in outcomes if outcome.stopped]
    successful = [outcome for outcome in stopped if outcome.label is True]
    return Totals(
        runs=len(outcomes),
        labelled=sum(outcome.label is not None for outcome in outcomes),
        successes=sum(outcome.label is True for outcome in outcomes),
        stopped=len(stopped),
        successful_stopped=len(successful),
        successful_new=sum(outcome.new_after for outcome in successful),
        after=tuple((outcome.turns_after, outcome.turns) for outcome in outcomes),
    )


def _replayed(run: Recorded, report: ReplayReport) -> Outcome:
    stop = report.stop
    if stop is None:
        return outcome_at(run, None)
    hook = report.interventions[-1].hook  # what stops a run is the last intervention
    # A stop before the request saves that turn as well; later in the turn it has been paid for.
    return _stopped(run, stop.iteration - (hook == "before_model_call"), stop.iteration + (hook not in BEFORE_TOOLS))


def _stopped(run: Recorded, paid: int, first_lost: int) -> Outcome:
    """Return the outcome of a run that ends after `paid` turns, with every call from turn `first_lost` on lost."""
    turns, calls = run.history.turns, run.history.calls
    known = {made.call for made in calls if made.turn < first_lost}
    new = any(made.call not in known for made in calls if made.turn >= first_lost)
    return Outcome(run.recording.label, turns, True, turns - paid, new)
