"""What a policy or a naive rule would have done to recorded runs, counted.

Knows: recordings, replay, labels. Must not know: how figures are printed, where the sets are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.naive import History, Rule, history
from policyengine.engine import Engine
from policyengine.recordings.model import Recording
from policyengine.replay import ReplayReport, replay
from policyengine.run import Report

BEFORE_TOOLS = frozenset({"before_model_call", "after_model_response", "after_parse", "before_tool_call"})
"""Hooks at which a stop keeps the turn's own calls from running."""


class Recorded(NamedTuple):
    """A recorded run beside its plain history."""

    recording: Recording
    history: History


class Outcome(NamedTuple):
    """What became of one run.

    `stopped` says whether it would have been ended, `reason` why (code and action), `turns_after` how many recorded
    turns come after that, and `new_after` whether they hold a call that the run had not made before. `refused` are the
    calls that would have been refused before that, `refused_ok` those of them that had succeeded, `refused_new` those
    of the latter whose answer the same call had not had before.
    """

    label: bool | None
    turns: int
    stopped: bool
    reason: str = ""
    turns_after: int = 0
    new_after: bool = False
    refused: int = 0
    refused_ok: int = 0
    refused_new: int = 0


class Totals(NamedTuple):
    """The outcomes of a set of runs, added up. `after` holds (turns after the stop, turns) of every run."""

    runs: int
    labelled: int
    successes: int
    stopped: int
    failing_stopped: int
    successful_stopped: int
    successful_new: int
    refused: int
    refused_ok: int
    refused_new: int
    after: tuple[tuple[int, int], ...]
    reasons: dict[str, tuple[int, int]]
    """For every reason: failing and successful runs stopped for it."""

    @property
    def failures(self) -> int:
        """Runs labelled as failed."""
        return self.labelled - self.successes


def with_history(recordings: Iterable[Recording]) -> list[Recorded]:
    """Return runs as both the engine and the naive rules see them."""
    return [Recorded(recording, history(recording)) for recording in recordings]


def policy_outcomes(runs: Sequence[Recorded], policy: str) -> list[Outcome]:
    """Replay every run under a policy, which is the name of a shipped one or a path."""
    denied: list[str] = []

    def note(report: Report) -> None:
        if report.hook == "before_tool_call" and report.decision.action == "deny":
            denied.append(report.payload[0].id)

    engine = Engine(policy, enforce_time=False, sinks=[note])
    outcomes = []
    for run in runs:
        denied.clear()
        outcomes.append(_replayed(run, replay(run.recording, engine), denied))
    return outcomes


def rule_outcomes(runs: Sequence[Recorded], rule: Rule) -> list[Outcome]:
    """Ask a naive rule about every run. It only stops: it refuses nothing."""
    return [outcome_at(run, rule(run.history)) for run in runs]


def outcome_at(run: Recorded, turn: int | None) -> Outcome:
    """Return what becomes of a run that is stopped after a turn and its calls, or never."""
    if turn is None:
        return Outcome(run.recording.label, run.history.turns, False)
    return _stopped(run, turn, turn + 1, "")


def add_up(outcomes: Sequence[Outcome]) -> Totals:
    """Return the totals of outcomes."""
    stopped = [outcome for outcome in outcomes if outcome.stopped]
    successful = [outcome for outcome in stopped if outcome.label is True]
    failing = [outcome for outcome in stopped if outcome.label is False]
    bad, good = Counter(outcome.reason for outcome in failing), Counter(outcome.reason for outcome in successful)
    return Totals(
        runs=len(outcomes),
        labelled=sum(outcome.label is not None for outcome in outcomes),
        successes=sum(outcome.label is True for outcome in outcomes),
        stopped=len(stopped),
        failing_stopped=len(failing),
        successful_stopped=len(successful),
        successful_new=sum(outcome.new_after for outcome in successful),
        refused=sum(outcome.refused for outcome in outcomes),
        refused_ok=sum(outcome.refused_ok for outcome in outcomes),
        refused_new=sum(outcome.refused_new for outcome in outcomes),
        after=tuple((outcome.turns_after, outcome.turns) for outcome in outcomes),
        reasons={reason: (bad[reason], good[reason]) for reason in sorted(bad | good)},
    )


def _replayed(run: Recorded, report: ReplayReport, denied: Sequence[str]) -> Outcome:
    # A replay goes on after the stop, and so do its decisions; the report only lists interventions before it.
    refused = sum(intervention.action == "deny" for intervention in report.interventions)
    new = _new_answers(run.history, frozenset(denied[:refused]))
    stop = report.stop
    if stop is None:
        outcome = Outcome(run.recording.label, run.history.turns, False)
    else:
        last = report.interventions[-1]  # what stops a run is the last intervention
        first_lost = stop.iteration + (last.hook not in BEFORE_TOOLS)
        # A stop before the request saves that turn as well; later in the turn it has been paid for.
        paid = stop.iteration - (last.hook == "before_model_call")
        outcome = _stopped(run, paid, first_lost, f"{stop.code} ({last.action})")
    return outcome._replace(refused=refused, refused_ok=report.denied_succeeded, refused_new=new)


def _new_answers(history: History, refused: frozenset[str]) -> int:
    """Return how many refused calls had succeeded with a result that the same call had not had before."""
    had: set[tuple[str, str | None]] = set()
    count = 0
    for made in history.calls:
        answer = (made.call, made.result)
        count += made.id in refused and made.result is not None and not made.failed and answer not in had
        had.add(answer)
    return count


def _stopped(run: Recorded, paid: int, first_lost: int, reason: str) -> Outcome:
    """Return the outcome of a run that ends after `paid` turns, with every call from turn `first_lost` on lost."""
    turns, calls = run.history.turns, run.history.calls
    known = {made.call for made in calls if made.turn < first_lost}
    new = any(made.call not in known for made in calls if made.turn >= first_lost)
    return Outcome(run.recording.label, turns, True, reason, turns - paid, new)
