"""Reader for traces in OpenTelemetry's conventions for generative AI.

Knows: OTLP JSON exports of spans and of log records (one document, or one export a line), and lines of spans as a
console exporter writes them; messages in the attributes `gen_ai.input.messages` and `gen_ai.output.messages`, or in
the older events `gen_ai.user.message`, `gen_ai.tool.message`, `gen_ai.choice`; spans of executed tools.
Must not know: any one instrumentation or backend.

A run is one `gen_ai.conversation.id`, else one trace; an agent invoked within another is a run of its own. Spans count
in the order of their start. Every request holds the history, so of each only what follows the last response is new;
what the first one holds before that is read as if it had been recorded. A result is what the next request says, else
what the span of its tool says; a call failed if that span has the status of an error or an `error.type`. A text in one
message with results is the harness's. A request that failed is no response; the error of the last one is the run's.

Left out: system prompts, choices after the first, what a provider ran itself, traces without a single `gen_ai` span,
and spans of other work (agents, embeddings, retrieval). Without recorded content there is only what the spans of the
tools tell, and where they tell nothing the run is unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, takewhile
from pathlib import PurePath
from typing import Any, get_args

from policyengine.messages import Status, Usage
from policyengine.recordings.conversation import RawCall, first_count, raw_call
from policyengine.recordings.loading import NotJsonError, decode
from policyengine.recordings.model import (
    Document,
    Recording,
    ShapeError,
    Unreadable,
    mapping,
    sequence,
    string,
    text_or_empty,
)
from policyengine.recordings.tape import Tape, json_text, object_call

NAME = "otel_genai"

PREFIX = "gen_ai."
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
TOOL, AGENT = "execute_tool", "invoke_agent"
MODEL = frozenset({"chat", "generate_content", "text_completion"})
"""Names of operations (`gen_ai.operation.name`) that ask a model."""

HARNESS = "policyengine"
"""The `name` of a message in our own spans that a rule or the loop wrote (see `telemetry.spans`)."""

_STATUSES: dict[str, Status] = {name: name for name in get_args(Status)}
"""What our own spans say became of a call."""

CHOICE = "gen_ai.choice"
DETAILS = "gen_ai.client.inference.operation.details"
ROLES = {
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.system.message": "system",
}
"""Events of the older conventions, and the role that each stands for."""

ASSISTANT = frozenset({"assistant", "model"})
EXPORTS = ("resourceSpans", "resourceLogs", "resourceMetrics")
TRACE, SPAN = frozenset({"traceId", "trace_id"}), frozenset({"spanId", "span_id"})
NANO = 1e-9


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like an export of OTLP, a span or a log record."""
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return False
    if any(isinstance(value.get(name), list) for name in EXPORTS):
        return True
    context = value.get("context", value)
    named = isinstance(context, dict) and bool(TRACE & context.keys()) and bool(SPAN & context.keys())
    return named and "attributes" in value


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the runs of a file. A broken line loses its spans; reading goes on."""
    traces = _Traces()
    for line, value in document.values:
        for entry in value if isinstance(value, list) else [value]:
            try:
                traces.add(entry, line)
            except ShapeError as error:
                yield Unreadable(document.source, line, str(error))
    runs = traces.runs()
    if not runs:
        yield Unreadable(document.source, 0, "none of the spans is a request to a model")
    for name, spans in runs.items():
        line = min(span.line for span in spans)
        try:
            yield _recording(name or PurePath(document.source).stem, spans, document.source, line)
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))


# ---- spans


@dataclass(slots=True)
class _Event:
    """An event of a span, or a log record that names one. `body` are the fields of the event."""

    name: str
    body: Mapping[str, Any]


@dataclass(slots=True)
class _Span:
    """One span, whatever way it was written. Times are in seconds."""

    trace: str
    id: str
    parent: str
    line: int
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[_Event]
    failed: bool
    why: str

    @property
    def operation(self) -> str:
        """What the span did; told by its attributes where the name of the operation is missing."""
        named = self.text("gen_ai.operation.name")
        if named:
            return named
        if OUTPUT in self.attributes or any(event.name == CHOICE for event in self.events):
            return "chat"
        return TOOL if "gen_ai.tool.call.id" in self.attributes else ""

    def text(self, *names: str) -> str:
        """Return the first of these attributes that is a text."""
        return next((held for name in names if isinstance(held := self.attributes.get(name), str) and held), "")


@dataclass(slots=True)
class _Traces:
    """All spans of a file, and the log records that belong to them."""

    spans: dict[tuple[str, str], _Span] = field(default_factory=dict)
    records: dict[tuple[str, str], list[_Event]] = field(default_factory=dict)

    def add(self, value: Any, line: int) -> None:
        """Take an export, a span or a log record."""
        entry = mapping(value, "an export or a span")
        if any(name in entry for name in EXPORTS):
            for span in _inside(entry, "resourceSpans", "scopeSpans", "spans"):
                self._span(span, line)
            for record in _inside(entry, "resourceLogs", "scopeLogs", "logRecords"):
                self._record(record)
        elif "body" in entry or "event_name" in entry or "eventName" in entry:
            self._record(entry)
        else:
            self._span(entry, line)

    def runs(self) -> dict[str, list[_Span]]:
        """Return the spans of every run, in the order of their start."""
        for key, events in self.records.items():
            if key in self.spans:
                self.spans[key].events += events
        for span in self.spans.values():
            for event in span.events:
                if event.name == DETAILS:
                    span.attributes.update(event.body)
        used = {span.trace for span in self.spans.values() if any(key.startswith(PREFIX) for key in span.attributes)}
        conversations = {
            span.trace: name for span in self.spans.values() if (name := span.text("gen_ai.conversation.id"))
        }
        runs: dict[str, list[_Span]] = {}
        for span in sorted(self.spans.values(), key=lambda span: span.start):
            if span.trace in used and (span.operation in MODEL or span.operation == TOOL):
                own = span.text("gen_ai.conversation.id") or conversations.get(span.trace, span.trace)
                inner = self._inner_agent(span)
                runs.setdefault(f"{own}/{inner}" if inner else own, []).append(span)
        return runs

    def _inner_agent(self, span: _Span) -> str:
        """Return the span of the agent that did this, if another agent had invoked it; else nothing."""
        agents: list[str] = []
        met = {span.id}
        above = self.spans.get((span.trace, span.parent))
        while above is not None and above.id not in met:
            met.add(above.id)
            if above.operation == AGENT:
                agents.append(above.id)
            above = self.spans.get((above.trace, above.parent))
        return agents[0] if len(agents) > 1 else ""

    def _span(self, value: Any, line: int) -> None:
        entry = mapping(value, "a span")
        context = mapping(entry.get("context", entry), "context of a span")
        key = _ids(context)
        if key in self.spans:
            return  # exported twice
        attributes = _attributes(entry.get("attributes"))
        start = _time(entry.get("startTimeUnixNano", entry.get("start_time")))
        end = _time(entry.get("endTimeUnixNano", entry.get("end_time")))
        failed, why = _status(entry.get("status"))
        kind = attributes.get("error.type")
        self.spans[key] = _Span(
            trace=key[0],
            id=key[1],
            parent=_hex(entry.get("parentSpanId", entry.get("parent_span_id", entry.get("parent_id")))),
            line=line,
            start=start,
            end=max(start, end),
            attributes=attributes,
            events=[_event(mapping(event, "an event")) for event in sequence(entry.get("events"), "events")],
            failed=failed or isinstance(kind, str),
            why=why or text_or_empty(kind),
        )

    def _record(self, value: Any) -> None:
        entry = mapping(value, "a log record")
        name = entry.get("eventName", entry.get("event_name"))
        attributes = _attributes(entry.get("attributes"))
        name = name if isinstance(name, str) and name else attributes.get("event.name")
        if not isinstance(name, str) or not name.startswith(PREFIX):
            return
        body = _structured(_value(entry.get("body")))
        event = _Event(name, {**attributes, **body} if isinstance(body, dict) else attributes)
        self.records.setdefault(_ids(entry), []).append(event)


def _inside(export: Mapping[str, Any], resources: str, scopes: str, items: str) -> Iterator[Any]:
    for resource in sequence(export.get(resources), resources):
        held = mapping(resource, f"an entry of {resources}")
        for scope in sequence(held.get(scopes), scopes):
            yield from sequence(mapping(scope, f"an entry of {scopes}").get(items), items)


def _ids(entry: Mapping[str, Any]) -> tuple[str, str]:
    return _hex(entry.get("traceId", entry.get("trace_id"))), _hex(entry.get("spanId", entry.get("span_id")))


def _hex(value: Any) -> str:
    return string(value, "an id").removeprefix("0x")


def _event(entry: Mapping[str, Any]) -> _Event:
    attributes = _attributes(entry.get("attributes"))
    body = _structured(attributes.get("gen_ai.event.content"))
    return _Event(string(entry.get("name"), "name of an event"), body if isinstance(body, dict) else attributes)


def _attributes(value: Any) -> dict[str, Any]:
    """Return attributes as a mapping, from a mapping or from the key-value pairs of OTLP."""
    if isinstance(value, dict):
        return dict(value)
    pairs: dict[str, Any] = {}
    for item in sequence(value, "attributes"):
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            raise ShapeError("an attribute is no pair of key and value")
        pairs[item["key"]] = _value(item.get("value"))
    return pairs


def _value(value: Any) -> Any:
    """Return an OTLP value as plain data; what is no such value is plain already."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    kind, held = next(iter(value.items()))
    if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        return held
    if kind == "intValue":  # written as a text, since JSON numbers lose digits
        return int(held) if isinstance(held, str) and held.isascii() and held.isdigit() and len(held) < 20 else held
    if kind == "arrayValue" and isinstance(held, dict):
        return [_value(item) for item in sequence(held.get("values"), "values")]
    if kind == "kvlistValue" and isinstance(held, dict):
        return _attributes(held.get("values"))
    return value


def _structured(value: Any) -> Any:
    """Return a value that may be written as JSON text as data."""
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except NotJsonError:
        return value


def _time(value: Any) -> float:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value * NANO if 0 <= value < 1e20 else 0.0
    if not isinstance(value, str):
        return 0.0
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _status(value: Any) -> tuple[bool, str]:
    if not isinstance(value, dict):
        return False, ""
    code = value.get("code", value.get("status_code"))
    why = value.get("message", value.get("description"))
    failed = code == 2 or (isinstance(code, str) and code.removeprefix("StatusCode.").endswith("ERROR"))
    return failed, why if failed and isinstance(why, str) else ""


# ---- messages


@dataclass(slots=True)
class _Message:
    """A message, whatever convention wrote it. `answers` are ids, names and texts of results.

    `injected` is what our own spans say of texts in the user's role that a rule or the loop wrote.
    """

    role: str
    text: str = ""
    reasoning: str = ""
    calls: list[RawCall] = field(default_factory=list)
    answers: list[tuple[str, str, str]] = field(default_factory=list)
    finish: str = ""
    injected: bool = False


def _messages(value: Any, what: str) -> list[_Message]:
    held = _structured(value)
    return [_message(mapping(item, f"a message of {what}")) for item in sequence(held, what)]


def _message(value: Mapping[str, Any]) -> _Message:
    if "parts" not in value:
        return _chat_message(value)
    message = _Message(string(value.get("role"), "role"), finish=text_or_empty(value.get("finish_reason")))
    message.injected = value.get("name") == HARNESS
    texts: list[str] = []
    for item in sequence(value["parts"], "parts"):
        part = mapping(item, "a part")
        match part.get("type"):
            case "text":
                texts.append(_flat(part.get("content")))
            case "reasoning" | "thinking":
                message.reasoning += _flat(part.get("content"))
            case "tool_call":
                message.calls.append(_call(part))
            case "tool_call_response":
                text = _flat(part.get("response", part.get("result")))
                message.answers.append((text_or_empty(part.get("id")), text_or_empty(part.get("name")), text))
    message.text = "".join(texts)
    return message


def _chat_message(value: Mapping[str, Any]) -> _Message:
    """Return a message of the older conventions: that of a chat."""
    role = string(value.get("role"), "role")
    text = _flat(value.get("content"))
    if role == "tool":
        call_id = text_or_empty(value.get("id")) or text_or_empty(value.get("tool_call_id"))
        return _Message(role, answers=[(call_id, text_or_empty(value.get("name")), text)])
    message = _Message(role, text, finish=text_or_empty(value.get("finish_reason")))
    for item in sequence(_structured(value.get("tool_calls")), "tool_calls"):
        entry = mapping(item, "a tool call")
        function = mapping(_structured(entry.get("function", entry)), "function of a tool call")
        message.calls.append(_call({"id": entry.get("id"), **function}))
    return message


def _call(part: Mapping[str, Any]) -> RawCall:
    arguments = part.get("arguments")
    if isinstance(arguments, dict):
        return object_call(part.get("id"), part.get("name"), arguments)
    return raw_call(part.get("id"), part.get("name"), arguments)


def _flat(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json_text(value)


def _exchange(span: _Span) -> tuple[list[_Message], _Message | None]:
    """Return what a request sent, and the first choice of its response."""
    sent = _messages(span.attributes.get(INPUT), INPUT)
    came = _messages(span.attributes.get(OUTPUT), OUTPUT)
    if sent or came:
        return sent, came[0] if came else None
    choice: _Message | None = None
    for event in span.events:
        if event.name in ROLES:
            sent.append(_chat_message({**event.body, "role": ROLES[event.name]}))
        elif event.name == CHOICE and choice is None:
            held = _structured(event.body.get("message"))
            inner = held if isinstance(held, dict) else {**event.body, "content": event.body.get("content", held)}
            finish = event.body.get("finish_reason")
            choice = _chat_message({"finish_reason": finish, **inner, "role": "assistant"})
    return sent, choice


# ---- runs


def _recording(name: str, spans: list[_Span], source: str, line: int) -> Recording:
    run = _Run()
    for place, span in enumerate(spans):
        if span.operation == TOOL:
            run.tools.append(span)
        else:
            run.request(span, spans, place)
    run.finish()
    if not run.tape:
        raise ShapeError("the spans hold no messages; their content was not recorded")
    model = next((found for span in spans if (found := _model(span))), "")
    return Recording(
        id=name,
        source=source,
        format=NAME,
        events=run.tape.events,
        ended=run.tape.ended,
        group=model,
        task=run.tape.task,
        error=run.error,
        line=line,
    )


def _told_by_tools(spans: list[_Span], place: int) -> list[RawCall]:
    """Return the calls of a response whose content was not recorded: the tools that ran before the next request."""
    tools = list(takewhile(lambda span: span.operation == TOOL, islice(spans, place + 1, None)))
    # Without their arguments all calls of a tool would look like one call, made again and again.
    return [_call_of(tool) for tool in tools if "gen_ai.tool.call.arguments" in tool.attributes]


class _Run:
    """One run while its spans are read."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.tools: list[_Span] = []
        self.error = ""
        self._asked = False
        self._told: list[_Message] = []
        self._waiting: list[RawCall] = []

    def request(self, span: _Span, spans: list[_Span], place: int) -> None:
        """Take the span of one request to a model, the one at `place`."""
        sent, choice = _exchange(span)
        sent = _after_last_response(sent) if self._asked else sent
        # A request that failed or was not recorded is followed by one with the same messages.
        known = len(self._told)
        new = sent[known:] if sent[:known] == self._told else sent
        if not any(message.answers for message in new):
            self.finish()
        self._told = sent
        self._sent(new, span)
        self.finish()
        if choice is None and span.failed:
            self.error = span.why or "error"
            return
        response = choice or _Message("assistant", calls=_told_by_tools(spans, place))
        if choice is None and not response.calls:
            return
        self.error = ""
        self._asked = True
        self._told = []
        self._respond(response, span)

    def finish(self) -> None:
        """Take what the spans of tools say about calls that no request answered."""
        for call in list(self._waiting):
            tool = self._tool(call.id, call.name)
            if tool is not None:
                text = _flat(tool.attributes.get("gen_ai.tool.call.result"))
                self._answer(call.id, call.name, text or tool.why, tool, tool.end)
        self._waiting = []
        self.tools = []

    def _sent(self, messages: list[_Message], span: _Span) -> None:
        for message in messages:
            if message.role in ASSISTANT:
                self._waiting = []
                self._respond(message, None)
                continue
            for call_id, name, text in message.answers:
                tool = self._tool(call_id, name or self._name(call_id))
                self._answer(call_id, name, text, tool, span.start if tool is None else tool.end)
            if message.role == "user" and (message.text or not message.answers):
                injected = message.injected or bool(message.answers)
                self.tape.user(message.text, injected=injected, at=span.start or None)

    def _respond(self, message: _Message, span: _Span | None) -> None:
        finish = message.finish or (_finish(span) if span is not None else "")
        self.tape.model(
            message.text,
            message.calls,
            reasoning=message.reasoning,
            finish_reason=finish,
            usage=_usage(span.attributes) if span is not None else None,
            model=_model(span) if span is not None else "",
            at=(span.end or None) if span is not None else None,
        )
        self._waiting = list(message.calls)

    def _answer(self, call_id: str, name: str, text: str, tool: _Span | None, at: float) -> None:
        self._waiting = [call for call in self._waiting if call.id != call_id or not call_id]
        failed = tool is not None and tool.failed
        told = tool.text("policyengine.tool.status") if tool is not None else ""
        own = _STATUSES.get(told)
        self.tape.tool(
            call_id,
            name,
            text,
            status=own or ("error" if failed else "ok"),
            error=tool.why if failed and tool is not None else "",
            code=(tool.text("error.type") if own and tool is not None else "") or "tool_failed",
            duration_s=tool.end - tool.start if tool is not None else None,
            at=at or None,
        )

    def _tool(self, call_id: str, name: str) -> _Span | None:
        """Return the span of a call, by its id or, where ids are missing, the first of that name."""
        for tool in self.tools:
            own = tool.text("gen_ai.tool.call.id")
            if own == call_id if own and call_id else tool.text("gen_ai.tool.name") == name:
                self.tools.remove(tool)
                return tool
        return None

    def _name(self, call_id: str) -> str:
        return next((call.name for call in self._waiting if call.id == call_id), "")


def _after_last_response(messages: list[_Message]) -> list[_Message]:
    """Return the new part of a request; all of it where the provider keeps the history itself."""
    said = [place for place, message in enumerate(messages) if message.role in ASSISTANT]
    return messages[said[-1] + 1 :] if said else messages


def _call_of(tool: _Span) -> RawCall:
    arguments = _structured(tool.attributes.get("gen_ai.tool.call.arguments"))
    held = arguments if isinstance(arguments, dict) else tool.attributes.get("gen_ai.tool.call.arguments")
    return object_call(tool.text("gen_ai.tool.call.id"), tool.text("gen_ai.tool.name"), held)


def _model(span: _Span) -> str:
    return span.text("gen_ai.response.model", "gen_ai.request.model")


def _finish(span: _Span) -> str:
    reasons = _structured(span.attributes.get("gen_ai.response.finish_reasons"))
    first = reasons[0] if isinstance(reasons, list) and reasons else reasons
    return text_or_empty(first)


def _usage(attributes: Mapping[str, Any]) -> Usage | None:
    prompt = first_count(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    completion = first_count(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
    if prompt is None and completion is None:
        return None
    return Usage(prompt, completion, prompt + completion if prompt is not None and completion is not None else None)
