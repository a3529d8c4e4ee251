"""Combine the votes of all rules at one hook into one decision.

Knows: actions, modes and their precedence (docs/decisions/0003).
Must not know: hooks, pluggy, the loop, time.

The order of votes never changes the control action: the strictest wins. Order only settles which of two equally
strict votes is named as `decided_by`, and which of two rewrites is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from policyengine.actions import ALLOW, Action, AnyAction, Hint, Record, Rewrite

Mode = Literal["enforce", "warn", "shadow", "disabled"]
OnError = Literal["deny", "stop", "allow"]


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rule answered, before (`raw`) and after (`effective`) its mode was applied.

    `at` is `file:line` of the rule. `us` is its running time in microseconds. `error` says why the rule failed, if it
    did. `episode` is true when this vote opens a new stretch of wanting a hint, or the same or a stricter action.
    `hook` is where it was given: one event may ask at two hooks. `exception` is `file:line` of the exception for which
    it has no effect, if there is one.
    """

    rule: str
    use: str
    at: str
    mode: Mode
    raw: tuple[AnyAction, ...] = ()
    effective: tuple[AnyAction, ...] = ()
    us: float = 0.0
    error: str = ""
    episode: bool = False
    hook: str = ""
    exception: str = ""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text to be added to the history, and the rule that wants it."""

    rule: str
    kind: str
    text: str


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The combined answer at one hook.

    `action` is the control action by name (`allow` if nobody objected) and `control` its facts; `message` is the
    rendered text of the control action. `notes` are the rendered hints. `conflicts` are the ids of rules whose
    rewrite lost against an earlier one. `changed` is the rewritten payload, or `None` if nothing was rewritten.
    `hand_over` marks the engine's own stop at the cap of interventions, where a human takes over.
    """

    hook: str
    action: str = ALLOW
    control: AnyAction | None = None
    decided_by: str = ""
    at: str = ""
    message: str = ""
    notes: tuple[Note, ...] = ()
    votes: tuple[Vote, ...] = ()
    conflicts: tuple[str, ...] = ()
    changed: Any = None
    hand_over: bool = False

    @property
    def ending(self) -> str:
        """The control action by name, or `hand_over`."""
        return "hand_over" if self.hand_over else self.action

    @property
    def allowed(self) -> bool:
        """Whether the event may go on (a rewrite goes on too, changed)."""
        return self.control is None or self.control.rank <= Rewrite.rank


def cap(actions: Sequence[AnyAction], mode: Mode, episode: bool = True) -> tuple[AnyAction, ...]:
    """Return what `mode` leaves of a rule's answer.

    `enforce` keeps all; `warn` turns every control action into a hint with its message, given once per `episode`, and
    drops rewrites; `shadow` and `disabled` keep nothing (the vote stays in the record).
    """
    if mode == "enforce":
        return tuple(actions)
    if mode == "warn":
        return tuple(_as_hint(action) for action in actions if _advised(action, episode))
    return ()


def counted(votes: Sequence[Vote]) -> bool:
    """Return whether any vote brings a note that counts as an intervention: a rule that only warns ends nothing."""
    return any(isinstance(action, Hint) for vote in votes if vote.mode != "warn" for action in vote.effective)


def _advised(action: AnyAction, episode: bool) -> bool:
    # A rewrite and a repeated request have no message that could be a hint.
    return isinstance(action, Hint | Record) or (episode and bool(action.kind) and not isinstance(action, Rewrite))


def _as_hint(action: AnyAction) -> AnyAction:
    if isinstance(action, Hint | Record):
        return action
    return Hint(action.code, action.kind, action.observed, action.limit, {**action.data, "advisory": True})


def combine(votes: Sequence[Vote]) -> tuple[AnyAction | None, Vote | None, tuple[str, ...]]:
    """Return the strictest effective control action, the vote that holds it, and rules whose rewrite lost."""
    strictest: AnyAction | None = None
    winner: Vote | None = None
    rewriters: list[str] = []
    for vote in votes:
        for action in vote.effective:
            if isinstance(action, Rewrite):
                rewriters.append(vote.rule)
            if action.rank > (strictest.rank if strictest else 0):
                strictest, winner = action, vote
    return strictest, winner, tuple(rewriters[1:])


def hints(votes: Sequence[Vote]) -> list[tuple[str, Action]]:
    """Return every effective hint with its rule id, in policy order."""
    return [(vote.rule, action) for vote in votes for action in vote.effective if isinstance(action, Hint)]
