"""How a run ended, as a value.

Knows: the facts handed to the caller. Must not know: how they came about.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from policyengine.messages import Message
from policyengine.runstate import StopReason

OutcomeStatus = Literal["completed", "stopped", "waiting", "failed", "cancelled"]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a run.

    `completed`: the model gave its answer (`output`). `stopped`: a guard ended the run (`stop` says which and why;
    `output` is the last text of the model, if any: a partial result, never a success). `waiting`: the run waits for
    a human. `failed`: the provider failed and nothing could be done (`error`). `cancelled`: the caller ended it.
    `iterations` are rounds begun, `calls` tool calls judged, `executed` tool calls that were started; tokens are what
    the provider reported.
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
