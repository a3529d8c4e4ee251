"""The journal: every event of a run with its content, clock value and the decision it led to, as JSON lines.

Knows: the line format and how to write it.
Must not know: how a journal is read as a recording or replayed, policies, the loop.

A line is `{"v", "type", "run", "now", "payload", "faults", "decision"}`. `type` is `run` or `resume` (how the run was
made) or the name of the `Run` method that was called, with its arguments as `payload` (`stopped`: with the reason it
gave). `faults` maps `hook/rule` to `timeout` for rules that ran over their time; a replay forces them.

The standard `json` module writes the lines, with ASCII escapes: msgspec fails on lone surrogates and writes NaN as
null, and either would make a replay differ.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol

import msgspec

from policyengine.decision import Decision, Note
from policyengine.errors import UsageError
from policyengine.jsontext import converted
from policyengine.log import log
from policyengine.messages import (
    Batch,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from policyengine.outcome import Outcome
from policyengine.parsing.verdict import Verdict
from policyengine.runstate import StopReason
from policyengine.shared.pools import Grant

VERSION = 1

RUN = "run"
RESUME = "resume"

ARGUMENTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "start": (("task", str),),
    "user_message": (("text", str), ("injected", bool)),
    "plan": (("active", bool),),
    "next_step": (),
    "begin_iteration": (),
    "shared": (("grants", tuple[Grant, ...]),),
    "before_model_call": (("request", ModelRequest),),
    "after_model_response": (("response", ModelResponse),),
    "after_provider_error": (("error", ProviderError),),
    "after_parse": (("verdict", Verdict),),
    "add_warning": (("kind", str), ("data", dict[str, Any])),
    "before_tool_call": (("call", ToolCall), ("batch", Batch)),
    "set_aside": (("call", ToolCall), ("code", str)),
    "human_answered": (
        ("call", ToolCall),
        ("answer", str),
        ("rule", str),
        ("by", str),
        ("at", float),
        ("text", str),
    ),
    "after_tool_call": (("call", ToolCall), ("result", ToolResult)),
    "end_iteration": (("calls", int), ("usable", bool)),
    "stopped": (("reason", StopReason),),
    "end": (("outcome", Outcome),),
}
"""The reporting methods of `Run` with the names and types of their arguments, as the journal spells them."""

LATER: dict[str, dict[str, Any]] = {"human_answered": {"by": "", "at": 0.0, "text": ""}}
"""What arguments mean that older journals do not have."""


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must be equal when a journal is replayed: a decision without its timings and its place in a file.

    `wanted` maps each rule that had an opinion to what it wanted before its mode was applied, as `action:code`; where
    an event asks at two hooks, `hook/rule` stands for a rule at the other one.
    """

    hook: str
    action: str = "allow"
    code: str = ""
    decided_by: str = ""
    observed: float | None = None
    limit: float | None = None
    message: str = ""
    notes: tuple[Note, ...] = ()
    wanted: dict[str, tuple[str, ...]] = {}
    conflicts: tuple[str, ...] = ()


def content(decision: Decision) -> Content:
    """Return the content of a decision."""
    control = decision.control
    return Content(
        hook=decision.hook,
        action=decision.action,
        code=control.code if control else "",
        decided_by=decision.decided_by,
        observed=control.observed if control else None,
        limit=control.limit if control else None,
        message=decision.message,
        notes=decision.notes,
        wanted=_wanted(decision),
        conflicts=decision.conflicts,
    )


def _wanted(decision: Decision) -> dict[str, tuple[str, ...]]:
    wanted: dict[str, tuple[str, ...]] = {}
    for vote in decision.votes:
        if vote.raw:
            elsewhere = vote.hook and vote.hook != decision.hook
            wanted[f"{vote.hook}/{vote.rule}" if elsewhere else vote.rule] = tuple(
                f"{action.name}:{action.code}" for action in vote.raw
            )
    return wanted


class Line(msgspec.Struct, frozen=True):
    """One line of a journal. `payload` is plain data."""

    v: int
    type: str
    run: str
    now: float = 0.0
    payload: dict[str, Any] = {}
    faults: dict[str, str] = {}
    decision: Content | None = None


class Writable(Protocol):
    """An open text file, as far as the writer needs it."""

    def write(self, text: str, /) -> Any:
        """Write `text`."""
        raise NotImplementedError

    def flush(self) -> Any:
        """Hand what was written to the system."""
        raise NotImplementedError


def writable(file: Any, what: str) -> Any:
    """Return an open file. Raises UsageError for what nothing can be written to, such as a path."""
    if callable(getattr(file, "write", None)) and not isinstance(file, PathLike):
        return file
    given = f"the path {str(file)!r}" if isinstance(file, str | PathLike) else type(file).__name__
    raise UsageError(f'{what} is written to an open text file, not to {given}: give open(path, "a", encoding="utf-8")')


class JournalWriter:
    """Writes the events of one or more runs to an open text file, one line each, flushed at once.

    A request is written as what is new in it: messages and tools that the run's previous request had too are counted,
    not repeated. When the file cannot be written, that is logged once and the run goes on unrecorded.
    """

    def __init__(self, file: Writable) -> None:
        self._file = writable(file, "a journal")
        self._lock = threading.Lock()
        self._requests: dict[str, ModelRequest] = {}
        self._broken = False

    def begin(
        self, run_id: str, *, agent: str = "", protocol: str = "native", conversation: str = "", policy: str = ""
    ) -> None:
        """Record how a new run was made; `policy` is name and digest of the one in force."""
        self._write(
            {
                "v": VERSION,
                "type": RUN,
                "run": run_id,
                "payload": {"agent": agent, "protocol": protocol, "conversation": conversation, "policy": policy},
            }
        )

    def resume(self, run_id: str, saved: bytes) -> None:
        """Record that a saved run goes on here; `saved` is what `Run.save` returned."""
        state = base64.b64encode(saved).decode("ascii")
        self._write({"v": VERSION, "type": RESUME, "run": run_id, "payload": {"saved": state}})

    def event(
        self, run_id: str, name: str, payload: tuple[Any, ...], now: float, faults: dict[str, str], decision: Decision
    ) -> None:
        """Record one call of a reporting method of `Run`, and the decision it led to."""
        with self._lock:
            if name == "before_model_call":
                payload = (self._new_part(run_id, payload[0]),)
            elif name == "end":
                self._requests.pop(run_id, None)
        named = {argument: value for (argument, _), value in zip(ARGUMENTS[name], payload, strict=True)}
        line = {
            "v": VERSION,
            "type": name,
            "run": run_id,
            "now": now,
            "payload": named,
            "faults": faults,
            "decision": content(decision),
        }
        self._write(line)

    def _new_part(self, run_id: str, request: ModelRequest) -> dict[str, Any]:
        before = self._requests.get(run_id)
        self._requests[run_id] = request
        kept = common_prefix(before.messages, request.messages) if before else 0
        part: dict[str, Any] = {
            "kept": kept,
            "messages": request.messages[kept:],
            "attempt": request.attempt,
            "purpose": request.purpose,
            "model": request.model,
            "tool_choice": request.tool_choice,
        }
        if before is None or before.tools != request.tools:
            part["tools"] = request.tools
        return part

    def _write(self, line: dict[str, Any]) -> None:
        text = encode(line)
        with self._lock:
            if self._broken:
                return
            try:
                self._file.write(text + "\n")
                self._file.flush()
            except (OSError, ValueError) as error:  # ValueError: the file was closed
                self._broken = True
                log().error("the journal cannot be written, recording ends: {}", error)


def common_prefix(before: tuple[Message, ...], after: tuple[Message, ...]) -> int:
    """Return how many messages at the beginning of both histories are the same."""
    count = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and old != new:
            break
        count += 1
    return count


def encode(line: Mapping[str, Any]) -> str:
    """Return a journal line as JSON text in ASCII.

    A payload that cannot be written (nested too deeply) is replaced by `{"lost": reason}`: recording must not end
    a run.
    """
    try:
        return json.dumps(msgspec.to_builtins(line, enc_hook=_plain), separators=(",", ":"))
    except (RecursionError, TypeError, ValueError) as error:
        lost = {**line, "payload": {"lost": type(error).__name__}}
        return json.dumps(msgspec.to_builtins(lost, enc_hook=_plain), separators=(",", ":"))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


class JournalError(ValueError):
    """A journal cannot be replayed. `line` is counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


class Decoder:
    """Turns the payloads of journal lines back into the arguments of `Run` methods, line by line in file order."""

    def __init__(self) -> None:
        self._requests: dict[str, ModelRequest] = {}

    def line(self, value: Any, number: int) -> Line:
        """Return a decoded JSON value as a journal line."""
        try:
            line = converted(value, Line)
        except msgspec.ValidationError as error:
            raise JournalError(number, str(error)) from None
        if line.v != VERSION:
            raise JournalError(number, f"journal version {line.v}; this program reads version {VERSION}")
        if line.type not in ARGUMENTS and line.type not in (RUN, RESUME):
            raise JournalError(number, f"unknown type {line.type!r}")
        if "lost" in line.payload:
            raise JournalError(number, f"the payload was not recorded ({line.payload['lost']})")
        return line

    def arguments(self, line: Line, number: int) -> dict[str, Any]:
        """Return the arguments of the method that a line records."""
        try:
            if line.type == "before_model_call":
                return {"request": self._request(line)}
            payload = {**LATER.get(line.type, {}), **line.payload}
            return {name: converted(payload[name], kind) for name, kind in ARGUMENTS[line.type]}
        except KeyError as error:
            raise JournalError(number, f"{line.type} lacks {error}") from None
        except msgspec.ValidationError as error:
            raise JournalError(number, f"{line.type}: {error}") from None

    def _request(self, line: Line) -> ModelRequest:
        part = line.payload["request"]
        new = converted(part, RequestPart)
        before = self._requests.get(line.run) or ModelRequest(())
        request = ModelRequest(
            messages=before.messages[: new.kept] + new.messages,
            tools=before.tools if new.tools is None else new.tools,
            attempt=new.attempt,
            purpose=new.purpose,
            model=new.model,
            tool_choice=new.tool_choice,
        )
        self._requests[line.run] = request
        return request


class RequestPart(msgspec.Struct, frozen=True):
    """A request as a line holds it: how many messages of the one before it are `kept`, and what is new."""

    kept: int
    messages: tuple[Message, ...]
    attempt: int = 1
    purpose: str = "main"
    model: str = ""
    tool_choice: str = ""
    tools: tuple[ToolSpec, ...] | None = None
