"""Reader for plain OpenAI-style chat messages.

Knows: a list of messages, `{"messages": [...]}`, a list of either, and JSON lines of any of these (also one message a
line). Must not know: any one harness; a tool message does not say whether its call failed.

A mapping around the messages may carry `id`, `model`, `task`, `label` (true or false, also written as in an index) and
`error`. One without any message is not a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from policyengine.recordings import anthropic
from policyengine.recordings.conversation import ROLES, events, lacking
from policyengine.recordings.model import Document, Recording, ShapeError, Unreadable, UserSaid, ending, text_or_empty

NAME = "openai_chat"

OURS = (
    "messages as the engine keeps them (`runs export --format messages`); "
    "export the run as openai_chat, the default, to replay it"
)


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like chat messages."""
    if lacking(value):
        return False
    if isinstance(value, list):
        return _is_message(value[0]) or _is_run(value[0])
    return _is_message(value) or _is_run(value)


def read(document: Document, *, texts: bool = False) -> Iterator[Recording | Unreadable]:
    """Yield every conversation of a file; with `texts`, calls are in what the assistant wrote, as a policy declares."""
    stem = PurePath(document.source).stem
    runs = _runs(document)
    following = next(runs, None)
    alone = not document.part
    while following is not None:
        line, place, run = following
        following = next(runs, None)
        alone = alone and following is None
        name = stem if alone else f"{stem}#{place}"
        if anthropic.has_blocks(run):  # a file may begin with a conversation in which both forms look the same
            yield from anthropic.told(anthropic.recording(run, document.source, line, name), run)
            continue
        try:
            found = _recording(run, document.source, line, name, texts=texts)
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))
        else:
            yield from anthropic.told(found, run)


def run_a_line(value: Any) -> bool:
    """Return whether a file of lines with this first value has a run (not a message) on every line."""
    return not _is_message(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(role := value.get("role"), str) and role in ROLES


def _is_run(value: Any) -> bool:
    messages = value.get("messages") if isinstance(value, dict) else value
    return isinstance(messages, list) and (not messages or _is_message(messages[0]))


def _is_ours(messages: Any) -> bool:
    """Return whether messages are in the form in which the engine keeps them: their content is called `text`."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return False
    return not any("content" in message for message in messages) and any("text" in message for message in messages)


def _runs(document: Document) -> Iterator[tuple[int, str, Any]]:
    """Yield every run with its line and its place in the file.

    In a file of lines the place is that of the line, so that nobody has to know how many runs are on those before it.
    """
    if document.lines and _is_message(document.first):
        yield _one_message_a_line(document)
        return
    for line, value in document.values:
        if isinstance(value, list) and value and not _is_message(value[0]):
            above = f"{line - 1}#" if document.lines else ""
            yield from ((line, f"{above}{number}", run) for number, run in enumerate(value))
        else:
            yield line, str(line - 1), [value] if _is_message(value) else value


def _one_message_a_line(document: Document) -> tuple[int, str, Any]:
    # What follows a broken line may answer calls that were on it, so only the part before it is a faithful record.
    values, end = document.whole()
    return values[0][0], "0", [value for line, value in values if end is None or line < end]


def read_texts(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield every conversation of a file in a text protocol, which the policy knows."""
    return read(document, texts=True)


def _recording(run: Any, source: str, line: int, name: str, *, texts: bool) -> Recording:
    about = run if isinstance(run, dict) else {}
    if not isinstance(run, list | dict) or (run is about and "messages" not in about):
        raise ShapeError("neither a list of messages nor an object with `messages`")
    if nothing := lacking(run):
        raise ShapeError(nothing)
    if _is_ours(about["messages"] if about else run):
        raise ShapeError(OURS)
    happened = events(about["messages"] if about else run, undecided=texts)
    first = next((event.text for event in happened if isinstance(event, UserSaid)), "")
    return Recording(
        id=anthropic.own_id(about, name),
        source=source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        label=anthropic.known_label(about),
        group=text_or_empty(about.get("model")),
        task=about["task"] if isinstance(about.get("task"), str) else first,
        error=text_or_empty(about.get("error")),
        line=line,
        protocol="text" if texts else "native",
        undecided=texts,
    )
