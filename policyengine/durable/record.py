"""What is kept of a run: its head, its state, its messages, and the results of calls under way.

Knows: kinds, keys, and how each is written. Must not know: when it is written, whose run it is.

The head is small and says everything a list of runs shows. Messages are kept in parts that are only ever added to, so
that what an effect costs does not grow with the run; where a history was shortened, its parts are written anew.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from policyengine.identity import call_identity
from policyengine.jsontext import decode, encode
from policyengine.messages import Message, ToolCall, ToolResult
from policyengine.outcome import Outcome
from policyengine.runstate import StopReason
from policyengine.stores import StoreError, Values

T = TypeVar("T")

VERSION = 1
HEADS = "run_head"
STATES = "run_state"
MESSAGES = "run_messages"
RESULTS = "run_result"
OUTCOMES = "run_outcome"

SHOWN = 200
"""Characters of a task that the head shows."""

RunStatus = Literal["running", "waiting", "completed", "stopped", "failed", "cancelled"]


class AskedCall(msgspec.Struct, frozen=True):
    """A call a human is asked about; `digest` is that of its tool and arguments."""

    id: str
    tool: str
    arguments: str
    digest: str


class Asked(msgspec.Struct, frozen=True):
    """A question to a human: why it is asked, about which calls, and the digest of all of them together."""

    reason: StopReason
    calls: tuple[AskedCall, ...]
    digest: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a human answered: `digest` is that of the question they saw, `text` goes to the model with a refusal."""

    approved: bool
    digest: str
    text: str = ""
    by: str = ""
    at: float = 0.0


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a run for whoever looks at it; times are seconds since 1970 by the store's clock.

    `owner` works on the run until `until`; empty if nobody does. `parts` is the number of parts its messages are kept
    in, `turn` that of its commits. `policy` and `digest` are those in force at the latest effect. `origin` is what the
    caller put beside it (the options of a command line). `stop` and `error` say how it ended, `asked` and `answer` what
    a human is asked.
    """

    run_id: str
    version: int = VERSION
    status: RunStatus = "running"
    agent: str = ""
    conversation: str = ""
    task: str = ""
    task_digest: str = ""
    phase: str = "new"
    iteration: int = 0
    calls: int = 0
    policy: str = ""
    digest: str = ""
    created: float = 0.0
    updated: float = 0.0
    owner: str = ""
    until: float = 0.0
    parts: int = 0
    turn: int = 0
    asked: Asked | None = None
    answer: Answer | None = None
    stop: StopReason | None = None
    error: str = ""
    origin: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in this run: a run that waits for a human's answer has not ended."""
        return self.status not in ("running", "waiting") or (self.status == "waiting" and self.phase == "done")


def asked_about(calls: tuple[ToolCall, ...], reason: StopReason) -> Asked:
    """Return the question whether `calls` may run."""
    shown = []
    for call in calls:
        arguments = call.arguments or encode(call.args).decode("utf-8", "backslashreplace")
        shown.append(AskedCall(call.id, call.name, arguments, call_identity(call.name, call.args, call.arguments)))
    whole = call_identity(reason.code, [[call.id, call.digest] for call in shown])
    return Asked(reason, tuple(shown), whole)


def read_head(values: Values, run_id: str) -> Head | None:
    """Return the head of a run, or `None`. Raises StoreError."""
    kept = values.get(HEADS, run_id)
    if kept is None:
        return None
    head = _read(kept, Head, run_id)
    if head.version != VERSION:
        raise StoreError(f"run {run_id!r} was kept as version {head.version}; this engine reads {VERSION}")
    return head


def write_head(values: Values, head: Head) -> None:
    """Keep the head of a run. Raises StoreError."""
    values.put(HEADS, head.run_id, encode(head))


def read_messages(values: Values, head: Head) -> list[Message]:
    """Return the messages of a run. Raises StoreError, also where a part is missing."""
    found: list[Message] = []
    for number in range(head.parts):
        part = values.get(MESSAGES, f"{head.run_id}/{number}")
        if part is None:
            raise StoreError(f"run {head.run_id!r}: part {number} of its {head.parts} parts of messages is missing")
        found += _read(part, list[Message], head.run_id)
    return found


def write_messages(values: Values, run_id: str, number: int, messages: list[Message]) -> None:
    """Keep messages as a part. Raises StoreError."""
    values.put(MESSAGES, f"{run_id}/{number}", encode(messages))


def read_results(values: Values, head: Head, count: int) -> dict[int, ToolResult]:
    """Return the results that were kept of the `count` calls under way, by their place. Raises StoreError."""
    kept = {place: values.get(RESULTS, _place(head, place)) for place in range(count)}
    return {place: _read(result, ToolResult, head.run_id) for place, result in kept.items() if result is not None}


def write_result(values: Values, head: Head, place: int, result: ToolResult) -> None:
    """Keep the result of the call at a place of the batch under way. Raises StoreError."""
    values.put(RESULTS, _place(head, place), encode(result))


def forget_result(values: Values, head: Head, place: int) -> None:
    """Forget the result of a call: it is part of the messages now. Raises StoreError."""
    values.delete(RESULTS, _place(head, place))


def read_outcome(values: Values, head: Head) -> Outcome | None:
    """Return how a run ended, or `None` if it has not. Raises StoreError."""
    kept = values.get(OUTCOMES, head.run_id)
    if kept is None:
        return None
    return msgspec.structs.replace(_read(kept, Outcome, head.run_id), messages=tuple(read_messages(values, head)))


def write_outcome(values: Values, run_id: str, outcome: Outcome) -> None:
    """Keep how a run ended; its messages are kept already. Raises StoreError."""
    values.put(OUTCOMES, run_id, encode(msgspec.structs.replace(outcome, messages=())))


def forget_run(values: Values, head: Head) -> None:
    """Forget everything of a run. Raises StoreError."""
    for kind in (HEADS, STATES, OUTCOMES):
        values.delete(kind, head.run_id)
    for number in range(head.parts):
        values.delete(MESSAGES, f"{head.run_id}/{number}")
    for key in values.keys(RESULTS, f"{head.run_id}/{head.turn}/"):
        values.delete(RESULTS, key)


def _place(head: Head, place: int) -> str:
    """Return the key of a result: that of the same place in an earlier batch has another one."""
    return f"{head.run_id}/{head.turn}/{place}"


def _read(data: bytes, kind: type[T], run_id: str) -> T:
    try:
        return decode(data, kind)
    except msgspec.DecodeError as error:
        raise StoreError(f"what is kept of run {run_id!r} is damaged: {error}") from error
