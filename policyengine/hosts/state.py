"""What a host's run remembers, and what an adapter is told: plain data.

Knows: open calls, the end that is coming. Must not know: how anything is decided.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from policyengine.actions import Remedy
from policyengine.decision import Note
from policyengine.messages import ModelRequest, ToolCall, ToolResult
from policyengine.outcome import Outcome
from policyengine.runstate import StopReason


def with_place(text: str, rule: str, at: str) -> str:
    """Return a text with the rule that it comes from, and where that stands; as it is where neither is known."""
    place = ", ".join(part for part in (rule, at) if part)
    return f"{text} ({place})" if place else text


def farewell(stop: StopReason) -> str:
    """Return what the user reads of a run that a rule ended: its message, unless that was meant for the model."""
    if stop.message and stop.action != "wind_down":
        return stop.message
    return f"The run was ended: {with_place(stop.code, stop.rule, stop.at)}."


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an adapter does next where no call is concerned.

    `send`: add `notes` to the history and send the request (`request`, where a rule changed it). `end`: the run is over
    for the reason `stop`; tell the user, call no model. `again` (after a failed request): apply `remedy` and send it
    once more. `fail` (after a failed request): nothing can be done, let the failure take its course.
    """

    action: Literal["send", "end", "again", "fail"] = "send"
    notes: tuple[Note, ...] = ()
    request: ModelRequest | None = None
    stop: StopReason | None = None
    remedy: Remedy | None = None


class Ruling(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of one call.

    `run`: run `call`, which a rule may have `changed`, and report the result. `refuse` and `not_run`: give the model
    `text` as the result, and report nothing. `ask`: put the question `text` to a human and report the answer with
    `approve`. `code`, `rule` and `at` (`file:line` of the rule) say why; `digest` names what was judged, so that what
    is approved is what runs.
    """

    call: ToolCall
    action: Literal["run", "refuse", "not_run", "ask"] = "run"
    text: str = ""
    code: str = ""
    rule: str = ""
    changed: bool = False
    digest: str = ""
    at: str = ""

    @property
    def shown(self) -> str:
        """The text with the rule and where it stands, for a human."""
        return with_place(self.text, self.rule, self.at)

    @property
    def runs(self) -> bool:
        """Whether the call may run as it stands."""
        return self.action == "run"


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of one response.

    `calls`: follow `rulings`, one for each call in its order. `final`: `text` is the answer of the run, unless the
    user goes on. `unusable`: nothing of it runs, the model is to be asked again; the warning waits among the notes.
    `retry`: ask again at once, with `notice`, and store neither. `ended`: the run is over for the reason `stop`; the
    rulings hold a text for every call.
    """

    kind: Literal["calls", "final", "unusable", "retry", "ended"]
    rulings: tuple[Ruling, ...] = ()
    text: str = ""
    notice: str = ""
    stop: StopReason | None = None

    def ruling(self, call_id: str) -> Ruling:
        """Return the ruling on a call. Raises KeyError for one that the response does not have."""
        for ruling in self.rulings:
            if ruling.call.id == call_id:
                return ruling
        raise KeyError(call_id)


class OpenCall(msgspec.Struct):
    """One call that was judged. `result` is set for a call that will not run, `reported` once the rules know it."""

    call: ToolCall
    result: ToolResult | None = None
    ask: bool = False
    reported: bool = False
    changed: bool = False
    rule: str = ""
    at: str = ""
    question: str = ""
    round: int = 0


class HostState(msgspec.Struct):
    """Everything beside the run's own state; saved with it.

    `open` are the calls of rounds that are not complete. `in_round` says that a round has begun, `responded` that its
    response came, `calls` how many calls it made. `ending` is decided and comes once all calls are answered.
    `recent` are calls that were answered lately, for results that come late.
    """

    open: list[OpenCall] = []
    recent: dict[str, ToolCall] = {}
    in_round: bool = False
    responded: bool = False
    usable: bool = True
    calls: int = 0
    attempt: int = 0
    asked_again: int = 0
    final: bool = False
    text: str = ""
    ending: StopReason | None = None
    winding_down: StopReason | None = None
    wound_after: int = 0
    refusals_left: int = 0
    undelivered: list[Note] = []
    rounds: int = 0
    executed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    outcome: Outcome | None = None
    failures: int = 0
    extra: Any = None
