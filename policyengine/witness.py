"""What each rule was asked in a played run and what it answered, and how that is told.

Knows: reports of a run, votes. Must not know: how a run is played, tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from policyengine.actions import Action, Record
from policyengine.decision import Vote
from policyengine.messages import ToolCall
from policyengine.outcome import Outcome
from policyengine.run import Report

_SHOWN = 12


class Answer(msgspec.Struct, frozen=True):
    """One answer of one rule: in which round, at which hook, about which call.

    `call` is the number of the call from 1 over the run, and `tool` its tool; 0 and empty where the event is no call.
    """

    iteration: int
    hook: str
    vote: Vote
    call: int = 0
    tool: str = ""

    @property
    def tripped(self) -> bool:
        """Whether the rule answered with more than a record, before its mode was applied."""
        return any(not isinstance(action, Record) for action in self.vote.raw)

    @property
    def place(self) -> str:
        """Where in the run it was given."""
        about = f" (call {self.call} {self.tool})" if self.tool else ""
        return f"round {self.iteration}, {self.hook}{about}"


class Witness:
    """A sink that keeps every answer; rules that had no opinion answer too, with nothing."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, report: Report) -> None:
        """Take a report."""
        number, tool = self._call(report)
        for vote in report.decision.votes:
            self.answers.append(Answer(report.run.state.iteration, vote.hook or report.hook, vote, number, tool))

    def _call(self, report: Report) -> tuple[int, str]:
        if report.hook not in ("before_tool_call", "after_tool_call"):
            return 0, ""
        call: Any = report.payload[0]
        if not isinstance(call, ToolCall):
            return 0, ""
        if report.hook == "before_tool_call":
            self._numbers[call.id] = report.run.state.calls
        return self._numbers.get(call.id, 0), call.name


def account(answers: Sequence[Answer], rule: str, outcome: Outcome) -> str:
    """Return what a rule did in a run, and how the run ended, in a few lines."""
    own = [answer for answer in answers if answer.vote.rule == rule]
    lines = [f"  {answer.place}: {spoken(answer.vote)}" for answer in own if answer.tripped or answer.vote.error]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"  ... and {len(lines) - _SHOWN} more"]
    asked = Counter(answer.hook for answer in own)
    counts = ", ".join(f"{hook} {count}x" for hook, count in asked.items())
    lines.append(f"  asked: {counts or 'never'}{'' if lines or not own else ', it had nothing to say'}")
    others = {answer.vote.rule: answer for answer in answers if answer.vote.rule != rule and answer.tripped}
    lines += [f"  also: {other}, last in {answer.place}: {spoken(answer.vote)}" for other, answer in others.items()]
    return "\n".join([*lines, f"  the run: {ended(outcome)}"])


def spoken(vote: Vote) -> str:
    """Return an answer in words: `deny repeat (observed 5, limit 5)`, and what its mode left of it."""
    said = ", ".join(map(_spoken, vote.raw)) or "nothing"
    if vote.error:
        said = f"failed ({vote.error}), so: {said}"
    if vote.effective == vote.raw:
        return said
    if vote.exception:
        return f"{said}; without effect by the exception at {vote.exception}"
    left = ", ".join(action.name for action in vote.effective) or "nothing"
    return f"{said}; mode {vote.mode} left {left}"


def _spoken(action: Action) -> str:
    facts = {"observed": action.observed, "limit": action.limit}
    told = ", ".join(f"{name} {number:g}" for name, number in facts.items() if number is not None)
    return f"{action.name} {action.code}" + (f" ({told})" if told else "")


def ended(outcome: Outcome) -> str:
    """Return how a run ended, in words."""
    rounds = f"{outcome.iterations} round{'' if outcome.iterations == 1 else 's'}"
    if outcome.stop is not None:
        stop = outcome.stop
        facts = {"observed": stop.observed, "limit": stop.limit}
        told = ", ".join(f"{name} {number:g}" for name, number in facts.items() if number is not None)
        return f"{outcome.status} after {rounds} by {stop.rule}: {stop.code}" + (f" ({told})" if told else "")
    return f"{outcome.status} after {rounds}" + (f": {outcome.error}" if outcome.error else "")
