"""What a remedy does to a history: repair, shorten results, drop media, prune rounds that repeat each other.

Knows: messages. Must not know: why a request failed, when a remedy is used.

Every function returns a new list; one that equals the old says that there was nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from policyengine.history.repair import repair_history
from policyengine.identity import call_identity
from policyengine.messages import Message

LONGEST_RESULT = 4_000
"""Characters to which a result is cut where results are what fills the window."""

SPARED = 100
"""A text that is longer by no more than this is left alone: the note about the cut must not be cut the next time."""

MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "document")
"""Types of content parts that are not text."""

DROPPED = "[left out: the request was too large]"


def repair(messages: Sequence[Message]) -> list[Message]:
    """Pair calls and results as providers want them."""
    return list(repair_history(tuple(messages)).messages)


def restore_reasoning(messages: Sequence[Message]) -> list[Message]:
    """Return the messages unchanged: reasoning is kept verbatim, and what was never there is never made up."""
    return list(messages)


def truncate_results(messages: Sequence[Message]) -> list[Message]:
    """Cut long results in their middle; the cut says so and never makes a text longer (Agent Zero A14)."""
    return [_truncated(message) if _is_result(message) else message for message in messages]


def drop_media(messages: Sequence[Message]) -> list[Message]:
    """Put a word in the place of every image, sound, video and file."""
    return [_without_media(message) for message in messages]


def prune_duplicate_rounds(messages: Sequence[Message]) -> list[Message]:
    """Leave only the first and the last of rounds that follow one another and have the same calls and results.

    Some providers refuse a history that loops; there only pruning helps.
    """
    rounds = _rounds(messages)
    kept: list[Message] = []
    for number, (signature, part) in enumerate(rounds):
        before = rounds[number - 1][0] if number else None
        after = rounds[number + 1][0] if number + 1 < len(rounds) else None
        if signature is None or signature != before or signature != after:
            kept += part
    return kept


def _rounds(messages: Sequence[Message]) -> list[tuple[Any, list[Message]]]:
    """Return the messages in rounds: an assistant message with calls and what answers it, or any other message."""
    rounds: list[tuple[Any, list[Message]]] = []
    at = 0
    while at < len(messages):
        end = at + 1
        signature: Any = None
        if messages[at].tool_calls:
            while end < len(messages) and messages[end].role == "tool":
                end += 1
            calls = tuple(call_identity(call.name, call.args or call.arguments) for call in messages[at].tool_calls)
            signature = (calls, tuple(message.text for message in messages[at + 1 : end]))
        rounds.append((signature, list(messages[at:end])))
        at = end
    return rounds


def _is_result(message: Message) -> bool:
    return message.role == "tool" or message.origin == "tool"


def _truncated(message: Message) -> Message:
    if len(message.text) <= LONGEST_RESULT + SPARED:
        return message
    note = f"\n[{len(message.text) - LONGEST_RESULT} characters left out]\n"
    half = LONGEST_RESULT // 2
    return msgspec.structs.replace(message, text=message.text[:half] + note + message.text[-half:], raw=None)


def _without_media(message: Message) -> Message:
    raw = message.raw or {}
    content = raw.get("content")
    parts = [_part_without_media(part) for part in content] if isinstance(content, list) else content
    return message if parts == content else msgspec.structs.replace(message, raw={**raw, "content": parts})


def _part_without_media(part: Any) -> Any:
    """Return a content part, or a word in its place; the result of a tool may hold parts of its own."""
    if not isinstance(part, dict):
        return part
    kind, inner = part.get("type"), part.get("content")
    if kind in MEDIA:
        return {"type": "input_text" if str(kind).startswith("input_") else "text", "text": DROPPED}
    if kind != "tool_result" or not isinstance(inner, list):
        return part
    return {**part, "content": [_part_without_media(item) for item in inner]}


CHANGES: dict[str, Callable[[Sequence[Message]], list[Message]]] = {
    "repair_history": repair,
    "restore_reasoning": restore_reasoning,
    "truncate_results": truncate_results,
    "drop_media": drop_media,
    "prune_duplicate_rounds": prune_duplicate_rounds,
}
"""The remedies that change a history, by name."""
