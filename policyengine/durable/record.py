"""What is kept of a run: its head, its state, its messages, and the results of calls under way.

Knows: kinds, keys, and how each is written. Must not know: when it is written, whose run it is.

The head is small and says everything a list of runs shows. Messages are kept in parts that are only ever added to, so
that what an effect costs does not grow with the run; where a history was shortened, its parts are written anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
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

ANSWERS = 20
"""How many of the latest answers a head keeps: it is read and written at every effect."""

SHOWN = 200
"""Characters of a task that the head shows."""


class _Held(msgspec.Struct):
    """What is read of the head of any version."""

    owner: str = ""
    until: float = 0.0
    lease_s: float = 0.0


RunStatus = Literal["running", "waiting", "completed", "stopped", "failed", "cancelled"]


class AskedCall(msgspec.Struct, frozen=True):
    """A call a human is asked about: `arguments` are those it would run with, `digest` is that of them and its tool.

    `written` is what the model wrote instead, where that means something else.
    """

    id: str
    tool: str
    arguments: str
    digest: str
    written: str = ""


class Asked(msgspec.Struct, frozen=True):
    """A question to a human: why it is asked, about which calls, and the digest of all of them together."""

    reason: StopReason
    calls: tuple[AskedCall, ...]
    digest: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a human answered: `digest` is that of the question they saw, `text` goes to the model with a refusal.

    `tools` are those of the calls that were asked about, `by` and `at` who answered and when.
    """

    approved: bool
    digest: str
    text: str = ""
    by: str = ""
    at: float = 0.0
    tools: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a run for whoever looks at it; times are seconds since 1970 by the store's clock.

    `owner` works on the run until `until`, and takes it for `lease_s` each time; empty if nobody does. `parts` is the
    number of parts its messages are kept in, `turn` that of its commits. `policy` and `digest` are those in force at
    the latest effect. `origin` is what the caller put beside it (the options of a command line). `stop` and `error` say
    how it ended, `asked` and `answer` what a human is asked and answered, `questions` how often one was, `answers` the
    latest answers that were kept, the one to the question that waits included.
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
    lease_s: float = 0.0
    parts: int = 0
    turn: int = 0
    questions: int = 0
    asked: Asked | None = None
    answer: Answer | None = None
    answers: tuple[Answer, ...] = ()
    stop: StopReason | None = None
    error: str = ""
    origin: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in this run: a run that waits for a human's answer has not ended."""
        return self.status not in ("running", "waiting") or (self.status == "waiting" and self.phase == "done")


def asked_about(calls: tuple[ToolCall, ...], reason: StopReason, number: int = 0) -> Asked:
    """Return question `number` of a run, whether `calls` may run.

    The number is part of the digest: an answer that comes twice is none to the next question, even if that one is about
    calls that look the same.
    """
    shown = []
    for call in calls:
        args = call.args if call.args is not None else {}
        digest = call_identity(call.name, args)
        differs = call.arguments and call_identity(call.name, None, call.arguments) != digest
        arguments = json.dumps(args, ensure_ascii=False, default=str)
        shown.append(AskedCall(call.id, call.name, arguments, digest, call.arguments if differs else ""))
    whole = call_identity(reason.code, [number, *([call.id, call.digest] for call in shown)])
    return Asked(reason, tuple(shown), whole)


def told(answer: Answer) -> str:
    """Return what a human answered, who and when, as it is said to people; the text they gave is left out."""
    by = f" by {answer.by}" if answer.by else ""
    when = datetime.fromtimestamp(answer.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{'approved' if answer.approved else 'rejected'}{by}, {when}"


def row_key(run_id: str, *place: int) -> str:
    """Return the key of what is kept of a run in several rows; without a place, what all its keys begin with.

    An id may hold a slash itself: it is quoted, so that no row of the run `a` can be one of the run `a/1`.
    """
    return "/".join([run_id.replace("%", "%25").replace("/", "%2F"), *(map(str, place) if place else [""])])


def read_head(values: Values, run_id: str) -> Head | None:
    """Return the head of a run, or `None`. Raises StoreError."""
    kept = values.get(HEADS, run_id)
    if kept is None:
        return None
    head = _read(kept, Head, run_id)
    if head.version != VERSION:
        raise StoreError(f"run {run_id!r} was kept as version {head.version}; this engine reads {VERSION}")
    return head


def read_holder(values: Values, run_id: str) -> Head:
    """Return who holds a run whose head cannot be read otherwise; nobody, if even that cannot be. Raises StoreError."""
    try:
        held = decode(values.get(HEADS, run_id) or b"{}", _Held)
    except msgspec.DecodeError:
        held = _Held()
    except StoreError as error:
        if error.transient:
            raise
        held = _Held()
    return Head(run_id, owner=held.owner, until=held.until, lease_s=held.lease_s)


def write_head(values: Values, head: Head) -> None:
    """Keep the head of a run. Raises StoreError."""
    values.put(HEADS, head.run_id, _written(head))


def read_messages(values: Values, head: Head) -> list[Message]:
    """Return the messages of a run. Raises StoreError, also where a part is missing."""
    found: list[Message] = []
    keys = [row_key(head.run_id, number) for number in range(head.parts)]
    parts = values.get_many(MESSAGES, keys)
    for number, key in enumerate(keys):
        part = parts.get(key)
        if part is None:
            raise StoreError(f"run {head.run_id!r}: part {number} of its {head.parts} parts of messages is missing")
        found += _read(part, list[Message], head.run_id)
    return found


def write_messages(values: Values, run_id: str, number: int, messages: list[Message]) -> None:
    """Keep messages as a part. Raises StoreError."""
    values.put(MESSAGES, row_key(run_id, number), _written(messages))


def read_results(values: Values, head: Head, count: int) -> dict[int, ToolResult]:
    """Return the results that were kept of the `count` calls under way, by their place. Raises StoreError."""
    places = {_place(head, place): place for place in range(count)}
    kept = values.get_many(RESULTS, places)
    return {places[key]: _read(result, ToolResult, head.run_id) for key, result in kept.items()}


def write_result(values: Values, head: Head, place: int, result: ToolResult) -> None:
    """Keep the result of the call at a place of the batch under way. Raises StoreError."""
    values.put(RESULTS, _place(head, place), _written(result))


def forget_result(values: Values, head: Head, place: int) -> None:
    """Forget the result of a call: it is part of the messages now. Raises StoreError."""
    values.delete(RESULTS, _place(head, place))


def read_outcome(values: Values, head: Head, messages: Sequence[Message] | None = None) -> Outcome | None:
    """Return how a run ended, or `None` if it has not; its `messages`, if they were read before. Raises StoreError."""
    kept = values.get(OUTCOMES, head.run_id)
    if kept is None:
        return None
    found = messages if messages is not None else read_messages(values, head)
    return msgspec.structs.replace(_read(kept, Outcome, head.run_id), messages=tuple(found))


def write_outcome(values: Values, run_id: str, outcome: Outcome) -> None:
    """Keep how a run ended; its messages are kept already. Raises StoreError."""
    values.put(OUTCOMES, run_id, _written(msgspec.structs.replace(outcome, messages=())))


def forget_run(values: Values, head: Head) -> None:
    """Forget everything of a run. Raises StoreError."""
    for kind in (HEADS, STATES, OUTCOMES):
        values.delete(kind, head.run_id)
    for number in range(head.parts):
        values.delete(MESSAGES, row_key(head.run_id, number))
    for key in values.keys(RESULTS, row_key(head.run_id)):
        values.delete(RESULTS, key)


def _place(head: Head, place: int) -> str:
    """Return the key of a result: that of the same place in an earlier batch has another one."""
    return row_key(head.run_id, head.turn, place)


def _written(value: Any) -> bytes:
    """Return what is kept as JSON. A null may stand for an infinity, which must be read back as it was."""
    data = encode(value)
    return encode(value, exact=False) if b"null" in data else data


def _read(data: bytes, kind: type[T], run_id: str) -> T:
    try:
        return decode(data, kind)
    except msgspec.DecodeError as error:
        raise StoreError(f"what is kept of run {run_id!r} is damaged: {error}") from error
