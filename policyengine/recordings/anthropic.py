"""Reader for messages in the form of Anthropic's API.

Knows: a list of messages with content blocks, `{"messages": [...]}`, a list of either, JSON lines of any of these, and
request logs: `{"model", "system", "messages", "response"}` (or `{"request", "response"}`) a line.
Must not know: any one harness.

A result failed if its block says `is_error`. A text in the same message as a result is the harness's, as no user spoke
between. What the provider ran itself inside a response (server tools) is no call of the agent and is left out, as are
system prompts. An image in a result is written as its checksum, so that another image is another result.

In a request log a request that continues an earlier one adds only its new messages to that run; a response that no
later request contains was dropped by its client, unless it is the last. An object around the messages may carry `id`,
`model`, `task`, `label` (true or false, also written as in an index) and `error`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple
from zlib import crc32

from policyengine.messages import Usage
from policyengine.recordings.conversation import RawCall, lacking
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
from policyengine.recordings.sidecar import label_of
from policyengine.recordings.tape import Tape, count, json_text, object_call

NAME = "anthropic"

IDS = ("id", "run_id", "conversation_id", "task_id")
BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})
"""Types of content blocks that no other format has."""


class Said(NamedTuple):
    """What the content of one response says."""

    text: str
    reasoning: str
    calls: list[RawCall]


class Answer(NamedTuple):
    """A `tool_result` block."""

    call_id: str
    text: str
    failed: bool


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like messages of Anthropic's API, or a log of requests."""
    first = value[0] if isinstance(value, list) and value else value
    if _is_log(first):
        return True
    return has_blocks(value) or has_blocks(first)


def run_a_line(value: Any) -> bool:
    """Return whether a file of lines with this first value has a run of its own on every line."""
    return not _is_log(value) and not _is_message(value)


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield every conversation of a file."""
    if _is_log(document.first) or (isinstance(document.first, list) and _is_log(next(iter(document.first), None))):
        yield from _read_log(document)
        return
    stem = PurePath(document.source).stem
    if document.lines and _is_message(document.first):
        values, end = document.whole()
        # What follows a broken line may answer calls that were on it.
        messages = [value for line, value in values if end is None or line < end]
        yield recording(messages, document.source, values[0][0], stem)
        return
    for line, value in document.values:
        several = isinstance(value, list) and bool(value) and not _is_message(value[0])
        for place, run in enumerate(value if several else [value]):
            name = f"{stem}#{line - 1}" if document.lines else stem
            yield from told(recording(run, document.source, line, f"{name}#{place}" if several else name), run)


def recording(run: Any, source: str, line: int, name: str) -> Recording | Unreadable:
    """Return one conversation as a recording; `name` is its id where it names none itself."""
    about: Mapping[str, Any] = run if isinstance(run, dict) else {}
    try:
        tape = Tape()
        if _is_message(run):
            run = [run]
        elif not isinstance(run, list) and "messages" not in about:
            raise ShapeError("neither a list of messages nor an object with `messages`")
        model = text_or_empty(about.get("model"))
        if nothing := lacking(run):
            raise ShapeError(nothing)
        for message in sequence(about.get("messages", run), "messages"):
            add(tape, message, model)
        return _described(tape, about, source, line, name)
    except ShapeError as error:
        return Unreadable(source, line, str(error))


def _described(tape: Tape, about: Mapping[str, Any], source: str, line: int, name: str, error: str = "") -> Recording:
    return Recording(
        id=own_id(about, name),
        source=source,
        format=NAME,
        events=tape.events,
        ended=tape.ended,
        label=known_label(about),
        group=text_or_empty(about.get("model")),
        task=text_or_empty(about.get("task")) or tape.task,
        error=text_or_empty(about.get("error")) or error,
        line=line,
    )


def own_id(about: Mapping[str, Any], name: str) -> str:
    """Return the id that a run has of itself, `name` if it has none."""
    return next((str(about[key]) for key in IDS if isinstance(about.get(key), str | int)), name)


def known_label(about: Mapping[str, Any]) -> bool | None:
    """Return the label of a run, nothing if it has none or one that is none."""
    try:
        return label_of(about.get("label"))
    except ShapeError:
        return None


def told(found: Recording | Unreadable, run: Any) -> Iterator[Recording | Unreadable]:
    """Yield what was read of a run, and what is wrong with its label if it is read without it."""
    yield found
    try:
        label_of(run.get("label") if isinstance(run, dict) else None)
    except ShapeError as error:
        if isinstance(found, Recording):
            yield Unreadable(found.source, found.line, str(error))


def add(tape: Tape, value: Any, model: str = "") -> None:
    """Add one message to a run; raises `ShapeError` for what is none."""
    message = mapping(value, "a message")
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        said = read_blocks(content)
        tape.model(
            said.text,
            said.calls,
            reasoning=said.reasoning,
            finish_reason=text_or_empty(message.get("stop_reason")),
            usage=tokens(message.get("usage")),
            model=text_or_empty(message.get("model")) or model,
        )
    elif role == "user":
        text, answers = read_user(content)
        for answer in answers:
            tape.tool(answer.call_id, "", answer.text, status="error" if answer.failed else "ok")
        if text or not answers:
            tape.user(text, injected=bool(answers))
    elif role != "system":
        raise ShapeError(f"a message has the role {role!r}")


def read_blocks(content: Any) -> Said:
    """Return what the content of a response says; blocks that are neither text, thought nor call say nothing."""
    if isinstance(content, str):
        return Said(content, "", [])
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[RawCall] = []
    for value in sequence(content, "content"):
        block = mapping(value, "a content block")
        kind = block.get("type")
        if kind == "text":
            texts.append(string(block.get("text"), "text of a block"))
        elif kind == "tool_use":
            calls.append(object_call(block.get("id"), block.get("name"), block.get("input")))
        elif kind == "thinking":
            thoughts.append(string(block.get("thinking"), "thinking of a block"))
    return Said("".join(texts), "".join(thoughts), calls)


def read_user(content: Any) -> tuple[str, list[Answer]]:
    """Return the text of a user message, and the results in it."""
    if isinstance(content, str):
        return content, []
    texts: list[str] = []
    answers: list[Answer] = []
    for value in sequence(content, "content"):
        block = mapping(value, "a content block")
        if block.get("type") == "tool_result":
            call_id = string(block.get("tool_use_id"), "tool_use_id")
            answers.append(Answer(call_id, result_text(block.get("content")), block.get("is_error") is True))
        else:
            texts.append(_block_text(block))
    return "".join(texts), answers


def result_text(content: Any) -> str:
    """Return the text of a result: a string, or blocks."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_block_text(mapping(block, "a content block")) for block in sequence(content, "content"))


def _block_text(block: Mapping[str, Any]) -> str:
    kind, text = block.get("type"), block.get("text")
    if isinstance(text, str):
        return text
    return f"[{text_or_empty(kind) or 'block'} {crc32(json_text(block).encode(errors='surrogatepass')):08x}]"


def tokens(value: Any) -> Usage | None:
    """Return the tokens of a response. What was written to or read from the cache is part of the prompt."""
    if not isinstance(value, dict):
        return None
    completion = count(value.get("output_tokens"))
    prompt = count(value.get("input_tokens"))
    prompt += count(value.get("cache_creation_input_tokens")) + count(value.get("cache_read_input_tokens"))
    return Usage(prompt, completion, prompt + completion) if prompt or completion else None


# ---- recognition


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in ("user", "assistant") and "content" in value


def has_blocks(value: Any) -> bool:
    """Return whether messages have a block that only this format has, before anything that it does not have."""
    messages: Any = value.get("messages", value) if isinstance(value, dict) else value
    for message in messages if isinstance(messages, list) else [messages]:
        if not isinstance(message, dict):
            return False
        if message.get("role") == "system":
            continue
        if not _is_message(message) or "tool_calls" in message:
            return False
        content = message["content"]
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and isinstance(kind := block.get("type"), str) and kind in BLOCKS:
                return True
    return isinstance(value, dict) and "messages" in value and "system" in value


def _is_log(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(response := value.get("response"), dict):
        return False
    request = value.get("request", value)
    asked = isinstance(request, dict) and isinstance(request.get("messages"), list)
    return asked and (response.get("type") == "error" or isinstance(response.get("content"), list))


# ---- request logs


@dataclass(slots=True)
class _Thread:
    """A conversation of a request log: what its last request held, and the response to that."""

    number: int
    line: int
    about: Mapping[str, Any]
    tape: Tape = field(default_factory=Tape)
    seen: list[Any] = field(default_factory=list)
    response: Mapping[str, Any] | None = None
    error: str = ""

    def take(self, messages: list[Any], marks: list[Any], response: Any) -> None:
        """Add the messages that this request has more than the one before."""
        new = messages[len(self.seen) :]
        model = text_or_empty(self.about.get("model"))
        if self.response is not None and new and new[0].get("role") == "assistant":
            add(self.tape, self.response, model)
            new = new[1:]
        for message in new:
            add(self.tape, message, model)
        self.seen = marks
        self.error = ""
        self.response = None
        if response is not None:
            answer = mapping(response, "the response of a request")
            failure = answer.get("error")
            if isinstance(failure, dict):
                self.error = text_or_empty(failure.get("message")) or text_or_empty(failure.get("type"))
            else:
                self.response = {**answer, "role": "assistant"}


def _read_log(document: Document) -> Iterator[Recording | Unreadable]:
    threads: dict[Any, list[_Thread]] = {}
    number = 0
    for line, value in document.values:
        for entry in value if isinstance(value, list) else [value]:
            try:
                held = mapping(entry, "an entry of the log")
                request = mapping(held.get("request", held), "a request")
                messages = sequence(request.get("messages"), "messages")
                marks = [_mark(message) for message in messages]
                alike = threads.setdefault(marks[0] if marks else None, [])
                found = [thread for thread in alike if marks[: len(thread.seen)] == thread.seen]
                thread = max(found, key=lambda thread: len(thread.seen), default=None)
                if thread is None:
                    thread = _Thread(number, line, request)
                    number += 1
                    alike.append(thread)
                thread.take(messages, marks, held.get("response"))
            except ShapeError as error:
                yield Unreadable(document.source, line, str(error))
    stem = PurePath(document.source).stem
    for thread in sorted((thread for alike in threads.values() for thread in alike), key=lambda thread: thread.number):
        try:
            if thread.response is not None:
                add(thread.tape, thread.response, text_or_empty(thread.about.get("model")))
        except ShapeError as error:
            yield Unreadable(document.source, thread.line, str(error))
        name = stem if number == 1 else f"{stem}#{thread.number}"
        run = _described(thread.tape, thread.about, document.source, thread.line, name, thread.error)
        yield from told(run, thread.about)


def _mark(value: Any) -> tuple[Any, ...]:
    """Return what makes a message the same message in a later request, whatever was marked for caching."""
    message = mapping(value, "a message")
    role, content = string(message.get("role"), "role"), message.get("content")
    if isinstance(content, str):
        return (role, content)
    parts: list[str] = []
    for item in sequence(content, "content"):
        block = mapping(item, "a content block")
        keys = ("text", "thinking", "id", "tool_use_id", "data")
        parts += [text for key in keys if isinstance(text := block.get(key), str)]
    return (role, *parts)
