"""What the loop is told, what it answers, and what it remembers: plain data.

Knows: the events, the effects, the state of a run under way.
Must not know: how one leads to the other (`advance`), who performs effects (`agent`).
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from policyengine.draft import Draft
from policyengine.history.compact import Cut, Size
from policyengine.messages import Message, ModelRequest, ModelResponse, ProviderError, ToolCall, ToolResult, ToolSpec
from policyengine.outcome import FailedAttempt, Outcome, PeerMessage
from policyengine.plans.plan import Plan
from policyengine.run import Run
from policyengine.runstate import StopReason
from policyengine.shared.pools import Due, Grant, Need

Phase = Literal["new", "model", "tools", "waiting", "human", "reserving", "done"]


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Event: start working on a task, along `plan` if there is one already."""

    task: str
    plan: Plan | None = None


class Responded(msgspec.Struct, frozen=True, tag=True):
    """Event: the model answered."""

    response: ModelResponse


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """Event: the request failed."""

    error: ProviderError


class ToolsDone(msgspec.Struct, frozen=True, tag=True):
    """Event: the calls of `CallTools` ended, in any order."""

    results: tuple[ToolResult, ...]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Event: a human answered `AskHuman`: whether the calls asked about may run, else what the model is to know.

    `by` and `at` say who answered and when (seconds since 1970), where that is known.
    """

    approved: bool
    text: str = ""
    by: str = ""
    at: float = 0.0


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """Event: the driver gives the run up, because the caller wants it (`cancelled`) or because it crashed (`failed`).

    `finished` are the results of calls that had ended by then; of the other calls that were running nobody knows
    whether they took effect.
    """

    why: str = "cancelled"
    finished: tuple[ToolResult, ...] = ()
    status: Literal["cancelled", "failed"] = "cancelled"


class PickedUp(msgspec.Struct, frozen=True, tag=True):
    """Event: the run goes on in another process. `results` are those of calls that were running, as far as known."""

    results: tuple[ToolResult, ...] = ()


class Waited(msgspec.Struct, frozen=True, tag=True):
    """Event: the time of `Wait` is over."""


class Reserved(msgspec.Struct, frozen=True, tag=True):
    """Event: what the shared pools said to `Reserve`, a grant for each need."""

    grants: tuple[Grant, ...] = ()


Event = Begin | Responded | RequestFailed | ToolsDone | Answered | PickedUp | Waited | Reserved | Cancelled


class CallModel(msgspec.Struct, frozen=True, tag=True):
    """Effect: send this request."""

    request: ModelRequest


class ToolJob(msgspec.Struct, frozen=True):
    """One call to run; `timeout_s` is in seconds, `None` for no limit."""

    call: ToolCall
    timeout_s: float | None = None


class CallTools(msgspec.Struct, frozen=True, tag=True):
    """Effect: run these calls; they may run in parallel."""

    jobs: tuple[ToolJob, ...]


class Wait(msgspec.Struct, frozen=True, tag=True):
    """Effect: do nothing for so many seconds, then send `Waited`."""

    seconds: float


class AskHuman(msgspec.Struct, frozen=True, tag=True):
    """Effect: ask a human whether these calls may run."""

    calls: tuple[ToolCall, ...]
    reason: StopReason


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Effect: the run is over."""

    outcome: Outcome


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """Effect: settle what the run owes to shared pools and reserve what it needs of them, then send `Reserved`."""

    needs: tuple[Need, ...] = ()
    dues: tuple[Due, ...] = ()


Effect = CallModel | CallTools | Wait | AskHuman | Reserve | Finish


class Goto(Enum):
    """Where to go on, for modules that would otherwise need each other; `advance` has the table."""

    ITERATION = "the next round begins, or what was decided in the last one is carried out"
    REQUEST = "the request for the next response is built and sent"
    FAILED = "the rules are asked about the failed request"
    DOUBTFUL = "the response in doubt is taken as it is"
    PLAN = "a plan is asked for"
    STEP = "the next step of the plan begins"
    SUMMARY = "a summary of what is to be cut off is asked for"
    REPAIR = "corrected arguments are asked for"
    BATCH = "the calls of a response are judged"


Next = Effect | Goto


class Pending(msgspec.Struct):
    """One call of the batch in work. `result` is set for a call that will not run.

    `unknown` is a call that was running when its process ended, so that nobody knows what came of it.
    """

    call: ToolCall
    result: ToolResult | None = None
    ask: bool = False
    answered: bool = False
    unknown: bool = False


class Reserving(msgspec.Struct):
    """A reservation under way, or just made (`done`): what it is for.

    After it the loop goes to `then`, the name of a `Goto`, or goes on in `phase`, whose effect had to wait. `draft` is
    the response whose calls are to be judged, or corrected.
    """

    needs: tuple[Need, ...] = ()
    dues: tuple[Due, ...] = ()
    then: str = ""
    phase: Phase = "new"
    draft: Draft | None = None
    done: bool = False


class LoopState(msgspec.Struct):
    """The loop's own plain data.

    `ending` is decided but not carried out yet; `winding_down` ends the run later; `rounds` are rounds in which the
    model answered, `requests` all requests that were answered or failed. `aside` goes with the next request and is
    never stored: the attempt that failed, and what was wrong with it; `asked_again` counts such attempts in this
    iteration. `draft` is a response whose arguments are being corrected, `repairs` how many requests this iteration
    spent on that. `recovered` says that the last call was one that had to be found amid prose.

    `model`, `max_tokens` and `thinking` are those of the next request; remedies change them. `recoveries` counts what
    was done about failed requests in this iteration, `failing` is the failure that is being dealt with, `wait_s` how
    long to wait. `doubtful` is a response that seems to hide an overflow: it counts if nothing can be done about that.
    `compacting` is a summary that was asked for, `compacted_in` the iteration of the latest one.

    `reserving` is what is being reserved of shared pools before the loop goes on.

    `planning` says that a plan is asked for, `shown` is the digest of the plan that the model was shown last,
    `summing_up` the id of the step whose summary is asked for; `inbox` waits for the next step to begin.
    """

    phase: Phase = "new"
    protocol: Literal["native", "text"] = "native"
    model: str = ""
    max_tokens: int | None = None
    thinking: bool = True
    tools: tuple[ToolSpec, ...] = ()
    messages: list[Message] = []
    attempt: int = 0
    asked_again: int = 0
    aside: tuple[Message, ...] = ()
    changes: ModelRequest | None = None
    draft: Draft | None = None
    repairs: int = 0
    recovered: bool = False
    failed: list[FailedAttempt] = []
    recoveries: int = 0
    failing: ProviderError | None = None
    doubtful: ModelResponse | None = None
    wait_s: float = 0.0
    compacting: Cut | None = None
    compacted_in: int = 0
    reserving: Reserving | None = None
    plan: Plan | None = None
    planning: bool = False
    shown: str = ""
    summing_up: str = ""
    inbox: list[PeerMessage] = []
    size: Size = msgspec.field(default_factory=Size)
    last_text: str = ""
    pending: list[Pending] = []
    ending: StopReason | None = None
    winding_down: StopReason | None = None
    wound_after: int = 0
    refusals_left: int = 0
    asking: StopReason | None = None
    rounds: int = 0
    requests: int = 0
    executed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    outcome: Outcome | None = None


class Loop:
    """A run together with the loop's state. Construct it through `Agent`, or from a saved run."""

    __slots__ = ("run", "state")

    def __init__(self, run: Run, state: LoopState) -> None:
        self.run = run
        self.state = state
