"""Reader for plain OpenAI-style chat messages.

Knows: a list of messages, `{"messages": [...]}`, a list of either, and JSON lines of any of these (also one message a
line). Must not know: any one harness; a tool message does not say whether its call failed.

A mapping around the messages may carry `id`, `model`, `task`, `label` (true or false) and `error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from policyengine.recordings.conversation import ROLES, events, text_of
from policyengine.recordings.model import Document, Recording, ShapeError, Unreadable, UserSaid, ending

NAME = "openai_chat"

IDS = ("id", "run_id", "conversation_id", "task_id")


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like chat messages."""
    if isinstance(value, list):
        return bool(value) and (_is_message(value[0]) or _is_run(value[0]))
    return _is_message(value) or _is_run(value)


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield every conversation of a file."""
    runs = list(_runs(document))
    stem = PurePath(document.source).stem
    for number, (line, run) in enumerate(runs):
        try:
            yield _recording(run, document.source, line, stem if len(runs) == 1 else f"{stem}#{number}")
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(role := value.get("role"), str) and role in ROLES


def _is_run(value: Any) -> bool:
    messages = value.get("messages") if isinstance(value, dict) else value
    return isinstance(messages, list) and (not messages or _is_message(messages[0]))


def _runs(document: Document) -> Iterator[tuple[int, Any]]:
    if document.lines and _is_message(document.values[0][1]):
        yield _one_message_a_line(document)
        return
    for line, value in document.values:
        if isinstance(value, list) and value and not _is_message(value[0]):
            yield from ((line, run) for run in value)
        else:
            yield line, [value] if _is_message(value) else value


def _one_message_a_line(document: Document) -> tuple[int, Any]:
    # What follows a broken line may answer calls that were on it, so only the part before it is a faithful record.
    end = min((problem.line for problem in document.broken), default=None)
    return document.values[0][0], [value for line, value in document.values if end is None or line < end]


def _recording(run: Any, source: str, line: int, name: str) -> Recording:
    about = run if isinstance(run, dict) else {}
    if not isinstance(run, list | dict) or (run is about and "messages" not in about):
        raise ShapeError("neither a list of messages nor an object with `messages`")
    happened = events(about["messages"] if about else run)
    label = about.get("label")
    first = next((event.text for event in happened if isinstance(event, UserSaid)), "")
    return Recording(
        id=next((str(about[key]) for key in IDS if isinstance(about.get(key), str | int)), name),
        source=source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        label=label if isinstance(label, bool) else None,
        group=text_of(about.get("model")) if isinstance(about.get("model"), str) else "",
        task=about["task"] if isinstance(about.get("task"), str) else first,
        error=about["error"] if isinstance(about.get("error"), str) else "",
        line=line,
    )
