"""Reader for OpenHands V1 event logs: one conversation per file, one event per line.

Knows: the kinds of events of the OpenHands software agent SDK, in the older form (a result's text under `output`,
`content` or `message`, with `error`) and the newer one (`content` blocks with `is_error`).
Must not know: other harnesses.

Actions with one `llm_response_id` are one response. A result goes to the action it names, else to the call it names. A
call failed where its result says so (`error`, `is_error`), its exit code is above zero, or the harness answered in its
place; -1 as an exit code means that the command still runs. What the user or a hook rejected was denied. A message is
the user's if its `source` says so. Events that only tell about the conversation (`LEFT_OUT`) are no events of a run;
of a condensation, only the history of the requests knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from policyengine.messages import ModelResponse, Status, ToolCall, ToolError, ToolResult
from policyengine.recordings.clock import Clock
from policyengine.recordings.conversation import RawCall, openai_call, reasoning_of, text_of
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ShapeError,
    ToolAnswered,
    Unreadable,
    UserSaid,
    ending,
    mapping,
    string,
    text_or_empty,
)

NAME = "openhands_v1"

ACTION = "ActionEvent"
MESSAGE = "MessageEvent"
FAILED_RUN = "ConversationErrorEvent"
ANSWERS = frozenset({"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"})
LEFT_OUT = frozenset(
    {
        "SystemPromptEvent",
        "Condensation",
        "CondensationRequest",
        "CondensationSummaryEvent",
        "ConversationStateUpdateEvent",
        "HookExecutionEvent",
        "InterruptEvent",
        "LLMCompletionLogEvent",
        "PauseEvent",
        "SecurityAnalysisEvent",
        "StreamingDeltaEvent",
        "TokenEvent",
    }
)
KINDS = ANSWERS | LEFT_OUT | {ACTION, MESSAGE, FAILED_RUN}


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like an event of an OpenHands V1 conversation."""
    return (
        isinstance(value, dict)
        and isinstance(kind := value.get("kind"), str)
        and kind in KINDS
        and value.keys() >= {"id", "timestamp", "source"}
    )


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield what cannot be understood of a file, then its run."""
    log = _Log()
    first = 0
    for line, value in document.values:
        first = first or line
        try:
            log.add(mapping(value, "an event"))
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))
    happened = tuple(log.events)
    yield Recording(
        id=PurePath(document.source).stem,
        source=document.source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        error=log.error,
        line=first,
    )


class _Log:
    """The events of one conversation so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.error = ""
        self._clock = Clock()
        self._responses: dict[str, int] = {}
        self._by_action: dict[str, str] = {}
        self._by_call: dict[str, str] = {}
        self._taken: set[str] = set()
        self._open: set[str] = set()

    def add(self, event: Mapping[str, Any]) -> None:
        """Take the next event; raises `ShapeError` for one that cannot be understood."""
        kind = string(event.get("kind"), "kind of an event")
        at = self._clock.at(event.get("timestamp"))
        if kind == ACTION:
            self._act(event, at)
        elif kind == MESSAGE:
            self._message(event, at)
        elif kind in ANSWERS:
            self._answer(event, at)
        elif kind == FAILED_RUN:
            self.error = string(event.get("detail"), "detail") or string(event.get("code"), "code") or FAILED_RUN
        elif kind not in LEFT_OUT:
            raise ShapeError(f"an event of the unknown kind {kind!r}")

    def _act(self, event: Mapping[str, Any], at: float | None) -> None:
        action, response_id = string(event.get("id"), "id"), string(event.get("llm_response_id"), "llm_response_id")
        raw, thought = _call(event), text_of(event.get("thought"))
        call_id = next(name for name in _names(raw.id or action) if name not in self._taken)
        call = ToolCall(call_id, raw.name, raw.arguments, raw.args)
        place = self._responses.get(response_id) if response_id else None
        if place is None:
            self._responses[response_id] = len(self.events)
            self.events.append(ModelSaid(ModelResponse(thought, (call,), reasoning_of(event)), at))
        else:
            said = self.events[place]
            assert isinstance(said, ModelSaid)
            whole = msgspec.structs.replace(
                said.response, text=said.response.text + thought, tool_calls=(*said.response.tool_calls, call)
            )
            self.events[place] = msgspec.structs.replace(said, response=whole)
        self._by_action[action] = self._by_call[raw.id or action] = call_id
        self._taken.add(call_id)
        self._open.add(call_id)

    def _message(self, event: Mapping[str, Any], at: float | None) -> None:
        message = mapping(event.get("llm_message"), "llm_message")
        text = text_of(message.get("content"))
        if message.get("role") == "assistant":
            self.events.append(ModelSaid(ModelResponse(text, reasoning=reasoning_of(message)), at))
        else:
            self.events.append(UserSaid(text, event.get("source") != "user", at))

    def _answer(self, event: Mapping[str, Any], at: float | None) -> None:
        action, call = string(event.get("action_id"), "action_id"), string(event.get("tool_call_id"), "tool_call_id")
        call_id = self._by_action.get(action) if action else self._by_call.get(call)
        if call_id is None:
            raise ShapeError("a result of an action that is not in the file")
        if call_id not in self._open:
            raise ShapeError("a second result of one action")
        result = _result(event, call_id)
        self._open.remove(call_id)
        self.events.append(ToolAnswered(call_id, result, at))


def _names(call_id: str) -> Iterator[str]:
    yield call_id
    number = 1
    while True:
        number += 1
        yield f"{call_id}~{number}"


def _call(event: Mapping[str, Any]) -> RawCall:
    call = mapping(event.get("tool_call"), "tool_call")
    raw = openai_call(call if "function" in call else {"id": call.get("id"), "function": call})
    return raw._replace(id=raw.id or string(event.get("tool_call_id"), "tool_call_id"))


def _result(event: Mapping[str, Any], call_id: str) -> ToolResult:
    if event["kind"] == "UserRejectObservation":
        return ToolResult(call_id, string(event.get("rejection_reason"), "rejection_reason"), "denied")
    if event["kind"] == "AgentErrorEvent":
        failure = string(event.get("error"), "error")
        return ToolResult(call_id, failure, "error", ToolError("tool_failed", failure))
    held = mapping(event.get("observation"), "observation")
    error = held.get("error")
    said = text_or_empty(error)
    code = _exit_code(held)
    status: Status = "ok"
    if held.get("timeout") is True:
        status = "timeout"
    elif said or error is True or held.get("is_error") is True or (code or 0) > 0:
        status = "error"
    return ToolResult(
        call_id,
        said or _text(held),
        status,
        ToolError("tool_failed", said) if said else None,
        exit_code=code,
    )


def _exit_code(held: Mapping[str, Any]) -> int | None:
    metadata = held.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    code = held.get("exit_code") if code is None else code
    return code if isinstance(code, int) and not isinstance(code, bool) and code >= 0 else None


def _text(held: Mapping[str, Any]) -> str:
    text = next((text_of(held[key]) for key in ("output", "content", "message") if held.get(key)), "")
    metadata = held.get("metadata")
    if not isinstance(metadata, dict):
        return text
    return f"{string(metadata.get('prefix'), 'prefix')}{text}{string(metadata.get('suffix'), 'suffix')}"
