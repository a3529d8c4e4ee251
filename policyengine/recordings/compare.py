"""Where two journals part: the first event at which two runs did not do the same.

Knows: what of a journal line counts as a difference, and how a line is told in facts.
Must not know: how a difference is shown, policies, why a run did what it did.

Both journals are read side by side, line by line, and reading ends at the first difference. Kept are only the messages
of the current history and the latest result of each run.

What changes from run to run without meaning anything does not count: ids, times, durations, token counts, the
provider's own mappings, and what `policyengine.identity` masks in texts. Calls are compared by their identity.
"""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from policyengine.identity import call_identity, masked_fingerprint
from policyengine.messages import Message, ToolCall, ToolResult, ToolSpec
from policyengine.recordings.loading import NotJsonError, decode
from policyengine.telemetry.journal import (
    ARGUMENTS,
    RESUME,
    RUN,
    Content,
    Decoder,
    JournalError,
    Line,
    RequestPart,
)

MAX_LINE_BYTES = 256 * 1024 * 1024
"""A longer line is no event of a run, and would have to be held in memory."""

EVENTS: dict[str, str] = {
    RUN: "setup",
    "start": "task",
    "user_message": "user message",
    "begin_iteration": "round",
    "before_model_call": "request",
    "after_model_response": "response",
    "after_provider_error": "provider error",
    "after_parse": "parse",
    "add_warning": "warning",
    "before_tool_call": "call",
    "after_tool_call": "result",
    "end_iteration": "end of round",
    "stopped": "stop",
    "end": "end",
}
"""What the lines of a journal are called here; a type that is not listed is called by its own name."""


class UnreadableRunError(ValueError):
    """A run cannot be compared. `reason` names the journal, `equal` how many events before it were the same."""

    def __init__(self, reason: str, equal: int = 0) -> None:
        self.reason = reason
        self.equal = equal
        super().__init__(reason)


class Field(msgspec.Struct, frozen=True):
    """One fact of an event in both runs. `same` leaves out what does not count; `identical` does not."""

    name: str
    a: Any
    b: Any
    same: bool

    @property
    def identical(self) -> bool:
        """Whether both are equal to the letter."""
        return _dumped(self.a) == _dumped(self.b)


class Answer(msgspec.Struct, frozen=True):
    """The latest result before a difference, and where it stands."""

    line: int
    iteration: int
    call: ToolCall
    result: ToolResult

    @property
    def shape(self) -> str:
        """What the text of the result looks like."""
        return shape_of(self.result.text)


class Difference(msgspec.Struct, frozen=True):
    """The first event at which two runs are not the same.

    `event` is one of the values of `EVENTS`, `decision` (the event was the same, and what the engine made of it was
    not), `next event` (other things happened) or `length` (one journal ends here). `at` tells what both had in common
    there. `line_a` and `line_b` are null where a journal has ended.
    """

    event: str
    iteration: int
    fields: tuple[Field, ...]
    at: str = ""
    line_a: int | None = None
    line_b: int | None = None
    previous_a: Answer | None = None
    previous_b: Answer | None = None


class Comparison(msgspec.Struct, frozen=True):
    """Two runs compared: how many events were the same, the last of them and its round, and the difference, if any."""

    run_a: str
    run_b: str
    events: int
    last: str
    iteration: int
    difference: Difference | None


def compare_runs(a: Path, b: Path, run_a: str = "", run_b: str = "", *, exact: bool = False) -> Comparison:
    """Compare two recorded runs up to their first difference.

    `run_a` and `run_b` choose a run of a journal that has several: its id, the beginning of it, or its number from 1.
    With `exact` everything that a line holds counts.

    Raises:
        UnreadableRunError: there is no such run, or a journal cannot be read up to the first difference.
    """
    left, right = _Side(a, chosen_run(a, run_a), exact), _Side(b, chosen_run(b, run_b), exact)
    equal, last, iteration = 0, "", 0
    found = None
    try:
        for one, other in zip_longest(left.moments(), right.moments()):
            found = _judged(one, other, exact, left, right)
            if found is not None:
                break
            equal, last, iteration = equal + 1, EVENTS.get(one.line.type, one.line.type), one.iteration
            left.passed(one)
            right.passed(other)
    except UnreadableRunError as error:
        raise UnreadableRunError(error.reason, equal) from None
    return Comparison(left.run, right.run, equal, last, iteration, found)


def _judged(one: _Moment | None, other: _Moment | None, exact: bool, left: _Side, right: _Side) -> Difference | None:
    try:
        found = _difference(one, other, exact)
    except RecursionError:
        place = f"{left.path}:{one.number}" if one else f"{right.path}:{other.number if other else 0}"
        raise UnreadableRunError(f"{place}: nested too deeply") from None
    if found is None:
        return None
    if found.event == "decision" and one and other:
        # The result itself was the same; it is what the decision was about.
        left.passed(one)
        right.passed(other)
    return msgspec.structs.replace(found, previous_a=left.answer, previous_b=right.answer)


# ---- the runs of a journal


class _Head(msgspec.Struct):
    run: str
    type: str
    v: int


_head = msgspec.json.Decoder(_Head).decode


def runs_of(path: Path) -> tuple[str, ...]:
    """Return the ids of the runs in a journal, in the order in which they begin, as far as it can be read."""
    found: dict[str, None] = {}
    for _, text in _lines(path):
        try:
            found.setdefault(_head(text).run)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue  # reported with its line when the run is read
    return tuple(found)


def chosen_run(path: Path, wanted: str) -> str:
    """Return the id of the run that was asked for: by id, by number from 1, or by the beginning of its id."""
    runs = runs_of(path)
    if not runs and not path.stat().st_size:
        raise UnreadableRunError(f"{path}: the file is empty")
    if not runs:
        raise UnreadableRunError(f"{path}: not a journal: no line of it is an event of a run")
    if not wanted:
        if len(runs) > 1:
            raise UnreadableRunError(f"{path} holds {len(runs)} runs ({_listed(runs)}); choose one with --run")
        return runs[0]
    if wanted in runs:
        return wanted
    if wanted.isdecimal() and len(wanted) < 10 and 1 <= int(wanted) <= len(runs):
        return runs[int(wanted) - 1]
    near = [run for run in runs if run.startswith(wanted)]
    if len(near) == 1:
        return near[0]
    if near:
        raise UnreadableRunError(f"{path}: {len(near)} runs begin with {wanted!r}: {_listed(near)}")
    raise UnreadableRunError(f"{path} has no run {wanted!r}; its runs: {_listed(runs)}")


def _listed(runs: tuple[str, ...] | list[str]) -> str:
    shown = [f"{run[:24]}..." if len(run) > 27 else run for run in runs[:8]]
    return ", ".join(shown) + (", ..." if len(runs) > 8 else "")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableRunError(f"{path}: not a regular file")
        with path.open("rb") as file:
            number = 0
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    raise UnreadableRunError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes")
                if text.strip():
                    yield number, text
    except OSError as error:
        raise UnreadableRunError(f"{path}: {error.strerror or type(error).__name__}") from None


# ---- one run, event by event


class _Moment(msgspec.Struct, frozen=True):
    """One line of a run. `arguments` are typed; a request has its message list, which `kept` messages begin."""

    number: int
    iteration: int
    line: Line
    arguments: Mapping[str, Any]
    whole: Any = None


class _Side:
    """One of the two runs while it is read."""

    def __init__(self, path: Path, run: str, exact: bool) -> None:
        self.path = path
        self.run = run
        self.iteration = 0
        self.answer: Answer | None = None
        self._exact = exact
        self._decoder = Decoder()
        self._history: list[Message] = []
        self._tools: tuple[ToolSpec, ...] = ()

    def moments(self) -> Iterator[_Moment]:
        """Yield the events of the run in order."""
        for number, text in _lines(self.path):
            try:
                value = self._decoded(text, number)
                line = self._decoder.line(value, number)
                if line.run != self.run:
                    continue
                if line.type == RESUME:
                    self._resumed(line, number)
                    if not self._exact:
                        continue
                if line.type == "begin_iteration":
                    self.iteration += 1
                arguments = self._arguments(line, number)
            except JournalError as error:
                raise UnreadableRunError(f"{self.path}:{error.line}: {error.reason}") from None
            except RecursionError:
                raise UnreadableRunError(f"{self.path}:{number}: nested too deeply") from None
            yield _Moment(number, self.iteration, line, arguments, value if self._exact else None)

    def passed(self, moment: _Moment) -> None:
        """Remember what both runs had in common."""
        if moment.line.type == "after_tool_call":
            given = moment.arguments
            self.answer = Answer(moment.number, moment.iteration, given["call"], given["result"])

    def _decoded(self, text: bytes, number: int) -> Any:
        try:
            return decode(text)
        except NotJsonError as error:
            cut = not text.endswith(b"\n")
            raise JournalError(number, "the line is cut off" if cut else str(error)) from None

    def _resumed(self, line: Line, number: int) -> None:
        """Count on from where the run was saved."""
        try:
            state = decode(base64.b64decode(line.payload["saved"], validate=True))["state"]
            self.iteration = int(state.get("iteration", 0))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise JournalError(number, "the saved run cannot be read") from None

    def _arguments(self, line: Line, number: int) -> Mapping[str, Any]:
        if line.type not in ARGUMENTS:
            return line.payload
        if line.type != "before_model_call":
            return self._decoder.arguments(line, number)
        # The decoder builds the whole history for every request, which here would cost its length each time.
        try:
            part = msgspec.convert(line.payload["request"], RequestPart)
        except KeyError as error:
            raise JournalError(number, f"{line.type} lacks {error}") from None
        except msgspec.ValidationError as error:
            raise JournalError(number, f"{line.type}: {error}") from None
        if not 0 <= part.kept <= len(self._history):
            reason = f"the request keeps {part.kept} messages of {len(self._history)}"
            raise JournalError(number, f"{line.type}: {reason}")
        del self._history[part.kept :]
        self._history.extend(part.messages)
        if part.tools is not None:
            self._tools = part.tools
        return {"part": part, "history": self._history, "tools": self._tools}


# ---- what differs


def _difference(one: _Moment | None, other: _Moment | None, exact: bool) -> Difference | None:
    if one is None or other is None or one.line.type != other.line.type:
        events = (Field("event", _told(one), _told(other), False),)
        return _found("next event" if one and other else "length", events, one, other)
    event = EVENTS.get(one.line.type, one.line.type)
    if exact:
        names = dict.fromkeys([*one.whole, *other.whole])
        fields = tuple(_plain(name, one.whole.get(name), other.whole.get(name)) for name in names)
        return _found(event, fields, one, other) if not _same(fields) else None
    fields = tuple(_fields(one, other))
    if not _same(fields):
        return _found(event, fields, one, other)
    decided = tuple(_decision_fields(one.line.decision, other.line.decision))
    if not _same(decided):
        return _found("decision", decided, one, other, _told(one))
    return None


def _same(fields: tuple[Field, ...]) -> bool:
    return all(field.same for field in fields)


def _found(
    event: str, fields: tuple[Field, ...], one: _Moment | None, other: _Moment | None, at: str = ""
) -> Difference:
    line_a, line_b = (moment.number if moment else None for moment in (one, other))
    return Difference(event, _rounds(one, other), fields, at, line_a, line_b)


def _rounds(one: _Moment | None, other: _Moment | None) -> int:
    return min(moment.iteration for moment in (one, other) if moment is not None)


WHO_AND_WHEN = ("by", "at")
"""What is told of a human who answered and is nothing that the run does."""


def _fields(one: _Moment, other: _Moment) -> Iterator[Field]:
    a, b = one.arguments, other.arguments
    match one.line.type:
        case "run":
            yield _plain("agent", a.get("agent", ""), b.get("agent", ""))
            yield _plain("protocol", a.get("protocol", "native"), b.get("protocol", "native"))
        case "before_model_call":
            yield from _request_fields(a, b)
        case "after_model_response":
            yield from _response_fields(a["response"], b["response"])
        case "after_parse":
            yield from _verdict_fields(a["verdict"], b["verdict"])
        case "after_provider_error":
            yield from _members(a["error"], b["error"], "code status message retry_same_request remedies")
        case "before_tool_call":
            yield from _call_fields(a["call"], b["call"])
            yield _plain("index in batch", a["batch"].index, b["batch"].index)
        case "after_tool_call":
            yield from _call_fields(a["call"], b["call"])
            yield from _result_fields(a["result"], b["result"])
        case "stopped":
            yield from _stop_fields(a["reason"], b["reason"])
        case "end":
            yield from _outcome_fields(a["outcome"], b["outcome"])
        case _:
            for name in dict.fromkeys([*a, *b]):
                if name not in WHO_AND_WHEN:
                    yield _text(name, _builtins(a.get(name)), _builtins(b.get(name)))


def _request_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Field]:
    one, other = a["part"], b["part"]
    yield from _members(one, other, "purpose attempt model tool_choice")
    if one.tools is not None or other.tools is not None:
        yield _plain("tools", _builtins(a["tools"]), _builtins(b["tools"]))
    # Up to here both histories were the same, so only what is new, or was dropped, in one of them is looked at.
    first = min(one.kept, other.kept)
    yield from _message_fields(a["history"], b["history"], first)


def _message_fields(a: list[Message], b: list[Message], first: int) -> Iterator[Field]:
    for index in range(first, max(len(a), len(b))):
        one, other = (side[index] if index < len(side) else None for side in (a, b))
        if one is None or other is None or not _same_message(one, other):
            yield Field(f"message {index + 1}", _told_message(one), _told_message(other), False)
            return
    yield _plain("messages", len(a), len(b))


def _same_message(one: Message, other: Message) -> bool:
    return (
        (one.role, one.origin, one.name) == (other.role, other.origin, other.name)
        and _same_text(one.text, other.text)
        and _same_calls(one.tool_calls, other.tool_calls)
    )


def _told_message(message: Message | None) -> Any:
    if message is None:
        return None
    told: dict[str, Any] = {"role": message.role, "text": message.text}
    if message.tool_calls:
        told["calls"] = _told_calls(message.tool_calls)
    if message.origin:
        told["origin"] = message.origin
    return told


def _response_fields(a: Any, b: Any) -> Iterator[Field]:
    yield from _members(a, b, "text")
    yield Field("calls", _told_calls(a.tool_calls), _told_calls(b.tool_calls), _same_calls(a.tool_calls, b.tool_calls))
    yield from _members(a, b, "finish_reason model reasoning")


def _verdict_fields(a: Any, b: Any) -> Iterator[Field]:
    yield from _members(a, b, "kind reason")
    yield Field("calls", _told_calls(a.calls), _told_calls(b.calls), _same_calls(a.calls, b.calls))
    yield from _members(a, b, "text repairs guess")
    yield _plain("unknown", _positions(a), _positions(b))


def _positions(verdict: Any) -> list[str]:
    return [call.name for call in verdict.calls if call.id in verdict.unknown]


def _call_fields(a: ToolCall, b: ToolCall) -> Iterator[Field]:
    yield _plain("tool", a.name, b.name)
    yield Field("arguments", _arguments_of(a), _arguments_of(b), _identity(a) == _identity(b))


def _result_fields(a: ToolResult, b: ToolResult) -> Iterator[Field]:
    yield from _members(a, b, "status exit_code")
    yield _text("shape", shape_of(a.text), shape_of(b.text))
    yield from _members(a, b, "text")
    yield _text("error", _builtins(a.error), _builtins(b.error))


def _stop_fields(a: Any, b: Any) -> Iterator[Field]:
    yield from _members(a, b, "code rule action")
    yield _number("observed", a.observed, b.observed)
    yield from _members(a, b, "limit message iteration call")


def _outcome_fields(a: Any, b: Any) -> Iterator[Field]:
    yield from _members(a, b, "status output error iterations calls executed interventions")
    stops = (_builtins(side.stop) or {} for side in (a, b))
    code_a, code_b = (f"{stop['code']} by {stop['rule']}" if stop else None for stop in stops)
    yield _plain("stop", code_a, code_b)


def _decision_fields(a: Content | None, b: Content | None) -> Iterator[Field]:
    one, other = a or Content(""), b or Content("")
    if a is not None and b is not None:
        yield _plain("hook", one.hook, other.hook)
    yield from _members(one, other, "action code")
    yield _plain("rule", one.decided_by, other.decided_by)
    yield _number("observed", one.observed, other.observed)
    yield from _members(one, other, "limit message")
    told_a, told_b = ([f"{note.rule}: {note.text}" for note in side.notes] for side in (one, other))
    yield _text("notes", told_a, told_b)


# ---- when two values are the same


def _plain(name: str, a: Any, b: Any) -> Field:
    return Field(name, a, b, _dumped(a) == _dumped(b))


def _text(name: str, a: Any, b: Any) -> Field:
    """Compare without what is masked in texts; what is no text is compared as its JSON."""
    texts = isinstance(a, str) and isinstance(b, str)
    return Field(name, a, b, _same_text(a, b) if texts else _same_text(_dumped(a), _dumped(b)))


def _number(name: str, a: float | None, b: float | None) -> Field:
    """Compare what a rule observed: a fraction is a time or a share of it, and only a whole number counts something."""
    fractions = [value for value in (a, b) if value is not None and not float(value).is_integer()]
    return Field(name, a, b, a == b or (bool(fractions) and a is not None and b is not None))


def _members(a: Any, b: Any, names: str) -> Iterator[Field]:
    for name in names.split():
        one, other = _builtins(getattr(a, name)), _builtins(getattr(b, name))
        yield _text(name, one, other)


def _same_text(a: str, b: str) -> bool:
    return a == b or masked_fingerprint(a) == masked_fingerprint(b)


def _same_calls(a: tuple[ToolCall, ...], b: tuple[ToolCall, ...]) -> bool:
    if len(a) != len(b):
        return False
    return all(one.name == other.name and _identity(one) == _identity(other) for one, other in zip(a, b, strict=True))


def _identity(call: ToolCall) -> str:
    return call_identity("", call.args, call.arguments)


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _dumped(value: Any) -> str:
    """Return a value as text that is equal exactly where the value is."""
    return json.dumps(value, sort_keys=True, default=str)


# ---- telling


def shape_of(text: str) -> str:
    """Return what a result looks like: `nothing`, `text`, or its form as JSON with the names of its members."""
    if not text.strip():
        return "nothing"
    if text.lstrip()[:1] not in "{[":
        return "text"
    try:
        value = decode(text)
    except NotJsonError:
        return "text"
    if isinstance(value, dict):
        return _object(value)
    inner = {_object(item) if isinstance(item, dict) else _KINDS.get(type(item), "number") for item in value}
    if len(inner) != 1:
        return f"list of {len(value)}" if value else "empty list"
    return f"list of {len(value)} x {inner.pop()}"


_KINDS = {str: "text", bool: "boolean", type(None): "null", list: "list"}


def _object(value: dict[str, Any]) -> str:
    names = list(value)
    return f"object {{{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}}}"


def _told_calls(calls: tuple[ToolCall, ...]) -> list[str]:
    return [f"{call.name} {_written(call)}" for call in calls]


def _written(call: ToolCall) -> str:
    return call.arguments if call.args is None else json.dumps(call.args, ensure_ascii=False)


def _arguments_of(call: ToolCall) -> Any:
    return call.arguments if call.args is None else call.args


_TOLD: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "start": lambda given: str(given["task"]),
    "user_message": lambda given: str(given["text"]),
    "add_warning": lambda given: str(given["kind"]),
    "after_model_response": lambda given: (
        "; ".join(_told_calls(given["response"].tool_calls)) or given["response"].text
    ),
    "after_parse": lambda given: f"{given['verdict'].kind} {given['verdict'].reason}".strip(),
    "after_provider_error": lambda given: str(given["error"].code),
    "before_tool_call": lambda given: _told_calls((given["call"],))[0],
    "after_tool_call": lambda given: f"{given['call'].name} {given['result'].status}",
    "stopped": lambda given: f"{given['reason'].code} by {given['reason'].rule}",
    "end": lambda given: str(given["outcome"].status),
}


def _told(moment: _Moment | None) -> str:
    if moment is None:
        return "nothing: the journal ends here"
    name = EVENTS.get(moment.line.type, moment.line.type)
    tell = _TOLD.get(moment.line.type)
    return f"{name}: {tell(moment.arguments)}" if tell else name
