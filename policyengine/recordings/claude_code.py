"""Reader for sessions of Claude Code.

Knows: JSON lines of `user` and `assistant` records around messages of Anthropic's API, among records of other types.
Must not know: other harnesses.

All `assistant` lines with one `message.id` are one response: their blocks are one batch, at the place of the first
line, with the usage of the last (it is repeated, never added up). The main line of a session is one run and every
sidechain (a subagent) another; a line whose `uuid` was read before is a copy. A result failed if its block says
`is_error`; a call that the user refused is `denied`, one that was dropped because another of its batch failed is
`not_run`. Injected are records with `isMeta` or `isCompactSummary`, a text beside a result, and what starts with one
of `HARNESS`. Left out: what the harness itself says as the model (its last error is the run's error), and records of
every other type: progress (repeats subagents and hooks), system, attachments, snapshots, queued input, summaries,
titles. Branches of a session are read in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from policyengine.messages import Status
from policyengine.recordings.anthropic import Answer, read_blocks, read_user, tokens
from policyengine.recordings.conversation import RawCall
from policyengine.recordings.model import Document, Recording, ShapeError, Unreadable, mapping, text_or_empty
from policyengine.recordings.tape import Tape, number

NAME = "claude_code"

SYNTHETIC = "<synthetic>"
"""The model of a message that the harness wrote itself."""

HARNESS = (
    "[Request interrupted by user",
    "<task-notification>",
    "<local-command-stdout>",
    "<local-command-stderr>",
    "<bash-stdout>",
    "<bash-stderr>",
    "<system-reminder>",
)
"""How texts start that the harness sends in the user's name."""

REFUSED = "User rejected tool use"
REFUSAL = "The user doesn't want to proceed with this tool use."
DROPPED = "Sibling tool call errored"

_ALONE = {"file-history-snapshot": "messageId", "summary": "leafUuid"}
"""Types of records that name no session, and a key that they have."""


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a line of a session."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return False
    if kind in _ALONE:
        return _ALONE[kind] in value
    if kind in ("user", "assistant"):
        return {"uuid", "sessionId", "message"} <= value.keys()
    return "sessionId" in value and not {"role", "messages", "payload"} & value.keys()


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the runs of a session: the main line first, then its sidechains. A broken line loses what is on it."""
    session = _Session(PurePath(document.source).stem)
    for line, value in document.values:
        try:
            session.add(mapping(value, "a line"), line)
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))
    if not session.runs:
        yield Unreadable(document.source, 0, "the session has no messages")
    for run in session.runs.values():
        yield run.recording(document.source)


@dataclass(slots=True)
class _Response:
    """One response, collected from its lines."""

    at: Any
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[RawCall] = field(default_factory=list)
    message: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Heard:
    """A user record: its text, and the results in it."""

    at: Any
    text: str
    injected: bool
    answers: list[Answer]
    result: Any


@dataclass(slots=True)
class _Run:
    """One line of a session: the main one or a sidechain."""

    id: str
    line: int
    happened: list[_Response | _Heard] = field(default_factory=list)
    responses: dict[str, _Response] = field(default_factory=dict)
    error: str = ""

    def recording(self, source: str) -> Recording:
        """Return the run as events."""
        tape = Tape()
        model = ""
        for item in self.happened:
            if isinstance(item, _Response):
                model = text_or_empty(item.message.get("model")) or model
                _add_response(tape, item)
            else:
                _add_heard(tape, item)
        return Recording(
            id=self.id,
            source=source,
            format=NAME,
            events=tape.events,
            ended=tape.ended,
            group=model,
            task=tape.task,
            error=self.error,
            line=self.line,
        )


class _Session:
    """A file while it is read."""

    def __init__(self, stem: str) -> None:
        self.runs: dict[str, _Run] = {}
        self._stem = stem
        self._roots: dict[str, str] = {}
        self._seen: set[str] = set()

    def add(self, record: Mapping[str, Any], line: int) -> None:
        """Take one line."""
        kind = record.get("type")
        side = self._side(record)
        if kind not in ("user", "assistant"):
            return
        message = mapping(record.get("message"), "message")
        uuid = text_or_empty(record.get("uuid"))
        if uuid and uuid in self._seen:
            return
        self._seen.add(uuid)
        at = record.get("timestamp")
        if kind == "user":
            run = self._run(record, side, line)
            run.happened.append(_heard(record, message, at))
        elif message.get("model") == SYNTHETIC:
            if record.get("isApiErrorMessage") is True:
                self._run(record, side, line).error = read_blocks(message.get("content")).text
        else:
            said = read_blocks(message.get("content"))
            run = self._run(record, side, line)
            run.error = ""
            key = text_or_empty(message.get("id")) or uuid or str(line)
            response = run.responses.get(key)
            if response is None:
                response = run.responses[key] = _Response(at)
                run.happened.append(response)
            response.texts.append(said.text)
            response.thoughts.append(said.reasoning)
            response.calls += said.calls
            response.message = message

    def _side(self, record: Mapping[str, Any]) -> str:
        """Return the name of the sidechain of a record, empty for the main line."""
        if record.get("isSidechain") is not True:
            return ""
        agent = text_or_empty(record.get("agentId"))
        if agent:
            return agent
        # Older versions name no agent: the sidechain is known by its first record.
        uuid, parent = text_or_empty(record.get("uuid")), text_or_empty(record.get("parentUuid"))
        return self._roots.setdefault(uuid, self._roots.get(parent, uuid or "sidechain"))

    def _run(self, record: Mapping[str, Any], side: str, line: int) -> _Run:
        run = self.runs.get(side)
        if run is None:
            session = text_or_empty(record.get("sessionId")) or self._stem
            run = self.runs[side] = _Run(f"{session}/{side}" if side else session, line)
        return run


def _heard(record: Mapping[str, Any], message: Mapping[str, Any], at: Any) -> _Heard:
    text, answers = read_user(message.get("content"))
    meta = record.get("isMeta") is True or record.get("isCompactSummary") is True
    injected = meta or bool(answers) or text.startswith(HARNESS)
    return _Heard(at, text, injected, answers, record.get("toolUseResult"))


def _add_response(tape: Tape, response: _Response) -> None:
    message = response.message
    tape.model(
        "".join(response.texts),
        response.calls,
        reasoning="".join(response.thoughts),
        finish_reason=text_or_empty(message.get("stop_reason")),
        usage=tokens(message.get("usage")),
        model=text_or_empty(message.get("model")),
        at=response.at,
    )


def _add_heard(tape: Tape, heard: _Heard) -> None:
    about = heard.result if isinstance(heard.result, dict) and len(heard.answers) == 1 else {}
    told = number(about.get("durationMs", about.get("totalDurationMs")))
    for answer in heard.answers:
        tape.tool(
            answer.call_id,
            "",
            answer.text,
            status=_status(answer, heard.result),
            duration_s=None if told is None else told / 1000,
            at=heard.at,
        )
    if heard.text or not heard.answers:
        tape.user(heard.text, injected=heard.injected, at=heard.at)


def _status(answer: Answer, result: Any) -> Status:
    if not answer.failed:
        return "ok"
    if result == REFUSED or answer.text.startswith(REFUSAL):
        return "denied"
    if result == DROPPED or answer.text.removeprefix("<tool_use_error>").startswith(DROPPED):
        return "not_run"
    return "error"
