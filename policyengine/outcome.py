"""How a run ended, as a value.

Knows: the facts handed to the caller. Must not know: how they came about.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from policyengine.messages import Message, ModelResponse
from policyengine.plans.plan import Plan
from policyengine.runstate import StopReason

OutcomeStatus = Literal["completed", "stopped", "waiting", "failed", "cancelled"]


class PeerMessage(msgspec.Struct, frozen=True):
    """A message that somebody other than the user sends to a run: another agent, a program."""

    sender: str
    text: str


class FailedAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response that could not be used and was asked for again in the same iteration.

    `kind` is that of the warning it would have become, `invalid_arguments`, or `retry` where a rule asked for it;
    `details` holds the parser's reason or the validator's own words. `response` is what the model sent, untouched.
    """

    iteration: int
    attempt: int
    kind: str
    details: dict[str, Any]
    response: ModelResponse


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a run.

    `completed`: the model gave its answer (`output`), or a rule gave one in its place, which `stop` then names with
    action `rewrite`: such a text is not the model's. `stopped`: a guard ended the run (`stop` says which and why;
    `output` is the last text of the model, if any: a partial result, never a success). `waiting`: the run waits for
    a human. `failed`: the provider failed and nothing could be done (`error`). `cancelled`: the caller ended it.
    `iterations` are rounds begun, `calls` tool calls judged, `executed` tool calls that were started; tokens are what
    the provider reported. `failed_attempts` are the last responses that were asked for again. `plan` is
    the plan as it stands at the end, `undelivered` are messages of peers for which no step began any more, or has begun
    yet where the run waits.
    """

    status: OutcomeStatus
    output: str = ""
    stop: StopReason | None = None
    error: str = ""
    iterations: int = 0
    calls: int = 0
    executed: int = 0
    interventions: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    messages: tuple[Message, ...] = ()
    failed_attempts: tuple[FailedAttempt, ...] = ()
    plan: Plan | None = None
    undelivered: tuple[PeerMessage, ...] = ()
