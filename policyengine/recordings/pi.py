"""Reader for sessions of the coding agent pi.

Knows: JSON lines of which the first is `{"type": "session"}`; messages of the roles `user`, `assistant` and
`toolResult`; a result with `isError` failed.
Must not know: other harnesses.

A response that the user aborted or that ended in an error is kept only where it has text or calls: the model did not
choose to say nothing. The error of the last one is the run's. A summary that replaces older messages, and a message of
an extension, are the harness's own. Commands that the user typed (`bashExecution`), changes of model or of thinking,
labels and further bookkeeping are left out. Branches of a session are read in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.messages import Usage
from policyengine.recordings.anthropic import result_text
from policyengine.recordings.conversation import RawCall
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
from policyengine.recordings.tape import Tape, count, number, object_call

NAME = "pi_sessions"

BROKEN_OFF = ("aborted", "error")
"""Values of `stopReason` of a response that the model did not end itself."""

LEFT_OUT = ("bashExecution", "branchSummary", "compactionSummary")


def sniff(value: Any) -> bool:
    """Return whether a decoded value is the first line of a session."""
    return isinstance(value, dict) and value.get("type") == "session" and {"id", "timestamp", "cwd"} <= value.keys()


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the session of a file. A broken line loses what is on it; reading goes on."""
    session = _Session(document.first if isinstance(document.first, dict) else {})
    first = 0
    for line, value in document.values:
        first = first or line
        try:
            session.add(mapping(value, "a line"))
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))
    yield session.recording(document.source, first)


class _Session:
    """One session while it is read."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._id = head.get("id")
        self._model = head.get("modelId")
        self._error = ""
        self._tape = Tape()

    def recording(self, source: str, line: int) -> Recording:
        """Return what was read."""
        return Recording(
            id=text_or_empty(self._id) or PurePath(source).stem,
            source=source,
            format=NAME,
            events=self._tape.events,
            ended=self._tape.ended,
            group=text_or_empty(self._model),
            task=self._tape.task,
            error=self._error,
            line=line,
        )

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take one line."""
        at = entry.get("timestamp")
        match entry.get("type"):
            case "message":
                self._message(mapping(entry.get("message"), "message"), at)
            case "compaction":
                self._tape.user(string(entry.get("summary"), "summary"), injected=True, at=at)
            case "custom_message":
                self._tape.user(result_text(entry.get("content")), injected=True, at=at)
            case "model_change" if self._model is None:
                self._model = entry.get("modelId")

    def _message(self, message: Mapping[str, Any], at: Any) -> None:
        told = number(message.get("timestamp"))
        at = told / 1000 if told is not None else at
        role = message.get("role")
        if role == "assistant":
            self._response(message, at)
        elif role == "user":
            self._tape.user(result_text(message.get("content")), at=at)
        elif role == "toolResult":
            self._tape.tool(
                string(message.get("toolCallId"), "toolCallId"),
                string(message.get("toolName"), "toolName"),
                result_text(message.get("content")),
                status="error" if message.get("isError") is True else "ok",
                at=at,
            )
        elif role in ("custom", "hookMessage"):
            self._tape.user(result_text(message.get("content")), injected=True, at=at)
        elif role not in LEFT_OUT:
            raise ShapeError(f"a message has the role {role!r}")

    def _response(self, message: Mapping[str, Any], at: Any) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[RawCall] = []
        for item in sequence(message.get("content"), "content"):
            block = mapping(item, "a content block")
            kind = block.get("type")
            if kind == "text":
                texts.append(string(block.get("text"), "text of a block"))
            elif kind == "thinking":
                thoughts.append(string(block.get("thinking"), "thinking of a block"))
            elif kind == "toolCall":
                calls.append(object_call(block.get("id"), block.get("name"), block.get("arguments")))
        text = "".join(texts)
        stop = string(message.get("stopReason"), "stopReason")
        broken_off = stop in BROKEN_OFF
        self._error = string(message.get("errorMessage"), "errorMessage") or stop if broken_off else ""
        if broken_off and not calls and not text.strip():
            return
        self._tape.model(
            text,
            calls,
            reasoning="".join(thoughts),
            finish_reason=stop,
            usage=_usage(message.get("usage")),
            model=string(message.get("model"), "model"),
            at=at,
        )


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt = count(value.get("input")) + count(value.get("cacheRead")) + count(value.get("cacheWrite"))
    completion = count(value.get("output"))
    total = count(value.get("totalTokens")) or prompt + completion
    return Usage(prompt, completion, total) if total else None
