"""What a hook may answer. Frozen values; the driver carries them out, never the extension.

Knows: the lattice of control actions and the facts each action carries.
Must not know: who returned it, how it is rendered, what happens next.

An extension does not build these itself: the `run` it is given has one method per action (`run.stop(...)`), which
fills in the message kind. Returning `None` means "no opinion".
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from policyengine.messages import Compaction


class Action(msgspec.Struct, frozen=True, tag_field="action", omit_defaults=True):
    """Facts common to all actions.

    `code` is the machine reason (`repeat`, `max_steps`, ...); `kind` names the prompt template of the message;
    `observed` and `limit` say what was measured against which threshold; `data` are further template variables.
    """

    name: ClassVar[str] = ""
    rank: ClassVar[int] = 0

    code: str
    kind: str = ""
    observed: float | None = None
    limit: float | None = None
    data: dict[str, Any] = {}


class Record(Action, tag="record", frozen=True):
    """Write to the decision log only."""

    name = "record"


class Hint(Action, tag="hint", frozen=True):
    """Add a note to the history at the next boundary where every tool call is answered."""

    name = "hint"


class Rewrite(Action, tag="rewrite", frozen=True):
    """Replace fields of the payload before it is used. `changes` maps field names to new values."""

    name = "rewrite"
    rank = 1

    changes: dict[str, Any] = {}


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the driver does before it repeats a request that failed.

    `name` is one of `REMEDIES`; `wait_s` is in seconds, `model` the model to ask instead, `max_tokens` the new cap of
    the answer, `compaction` how the history is shortened.
    """

    name: str
    wait_s: float = 0.0
    model: str = ""
    max_tokens: int | None = None
    compaction: Compaction | None = None


REMEDIES = (
    "wait",
    "compact",
    "fallback_model",
    "reduce_max_tokens",
    "disable_thinking",
    "restore_reasoning",
    "repair_history",
    "truncate_results",
    "drop_media",
    "prune_duplicate_rounds",
)
"""Remedies that our loop carries out."""


class Retry(Action, tag="retry", frozen=True):
    """Ask the model again within the same iteration, with one notice that is never stored.

    After a request that failed there is no notice but a `remedy` (or none: the same request again).
    """

    name = "retry"
    rank = 2

    remedy: Remedy | None = None


class Ask(Action, tag="ask", frozen=True):
    """Wait for a human before the call runs."""

    name = "ask"
    rank = 3


class Deny(Action, tag="deny", frozen=True):
    """Do not run the call; answer it with an error result that says why."""

    name = "deny"
    rank = 4


class WindDown(Action, tag="wind_down", frozen=True):
    """Ask the model for its final answer; refuse tool calls for a bounded number of rounds, then stop."""

    name = "wind_down"
    rank = 5


class EndStep(Action, tag="end_step", frozen=True):
    """End the current step. Without a plan there is one implicit step, so the run ends."""

    name = "end_step"
    rank = 6


class Stop(Action, tag="stop", frozen=True):
    """End the run with a typed reason."""

    name = "stop"
    rank = 7


ALLOW = "allow"
CONTROL: tuple[type[Action], ...] = (Stop, EndStep, WindDown, Deny, Ask, Retry, Rewrite)
"""Control actions, strictest first. Hints and records accumulate beside them."""

RANKS: dict[str, int] = {ALLOW: 0, **{action.name: action.rank for action in CONTROL}}
"""Strictness of every control action by name; a higher number is stricter."""

AnyAction = Record | Hint | Rewrite | Retry | Ask | Deny | WindDown | EndStep | Stop
Answer = AnyAction | tuple[AnyAction, ...] | list[AnyAction] | None
"""What a deciding hook may return: nothing, one action or several."""
