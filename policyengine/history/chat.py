"""Our own messages as mappings in a provider's form, and mappings as our messages.

Knows: `Message` and the form of chat completions. Must not know: checks, repairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from policyengine.errors import UsageError
from policyengine.history.views import listed, mapped, text_of
from policyengine.messages import Message, ToolCall

CHAT = "openai_chat"


def as_mappings(messages: Sequence[Mapping[str, Any] | Message], shape: str) -> list[Mapping[str, Any]]:
    """Return a history as mappings.

    Raises:
        UsageError: a message is neither a mapping nor a `Message`, is plainly in another shape, or a `Message` is not
            known in another form than that of chat completions.
    """
    if isinstance(messages, Mapping | str):
        raise UsageError(f"a history is a list of messages, not a {type(messages).__name__}")
    made = [_as_mapping(message, index, shape) for index, message in enumerate(messages)]
    for index, message in enumerate(made):
        other = _other_shape(message, shape)
        if other:
            raise UsageError(
                f"message {index} is not in the shape {shape!r} but looks like {other!r}: say so by `shape`"
            )
    return made


def _other_shape(message: Mapping[str, Any], shape: str) -> str:
    """Return the shape that a message is in if it can be in that one only; empty where there is no such sign.

    What is read in a wrong shape is not seen, so it would be valid, or dropped.
    """
    if message.get("role") == "tool" or "tool_calls" in message:
        found = CHAT
    elif message.get("type") in ("function_call", "function_call_output"):
        found = "openai_responses"
    elif isinstance(message.get("parts"), list) and "content" not in message:
        found = "gemini"
    elif any(isinstance(block, Mapping) and block.get("type") in BLOCKS for block in listed(message.get("content"))):
        found = "anthropic"
    else:
        return ""
    return "" if found == shape else found


BLOCKS = ("tool_use", "tool_result")
"""Types of content blocks that only Anthropic's messages have."""


def _as_mapping(message: Mapping[str, Any] | Message, index: int, shape: str) -> Mapping[str, Any]:
    if isinstance(message, Mapping):
        return message
    if not isinstance(message, Message):
        raise UsageError(f"message {index} is a {type(message).__name__}, neither a mapping nor a Message")
    if shape == CHAT:
        return _raw(message) or _built(message)
    if message.raw is None:
        raise UsageError(f"message {index} has no raw mapping, so it is known in the shape {CHAT} only")
    return message.raw


def _raw(message: Message) -> Mapping[str, Any] | None:
    """Return the provider's mapping if it is a chat message with the calls that the typed view has."""
    raw = message.raw
    if raw is None or raw.get("role") != message.role or len(listed(raw.get("tool_calls"))) != len(message.tool_calls):
        return None
    return raw


def _built(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        named = {"name": message.name} if message.name else {}
        return {"role": "tool", "tool_call_id": message.tool_call_id, **named, "content": message.text}
    if not message.tool_calls:
        return {"role": message.role, "content": message.text}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments or _written(call.args)},
        }
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": message.text or None, "tool_calls": calls}


def _written(args: Any) -> str:
    return "" if args is None else json.dumps(args)


def as_message(mapping: Mapping[str, Any], old: Message | None, shape: str) -> Message:
    """Return a changed or new mapping as a message that keeps what only `old` knows. What is new is the loop's."""
    origin = old.origin if old else "loop"
    if shape != CHAT:
        return Message(old.role if old else "user", old.text if old else "", origin=origin, raw=dict(mapping))
    content = mapping.get("content")
    text = content if isinstance(content, str) else old.text if old and content else ""
    return Message(
        mapping["role"],
        text,
        tuple(map(_call, map(mapped, listed(mapping.get("tool_calls"))))),
        text_of(mapping.get("tool_call_id")),
        text_of(mapping.get("name")),
        origin,
        dict(mapping) if old and _raw(old) is not None else None,
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = mapped(call.get("function") or call.get("custom"))
    arguments = text_of(function.get("arguments") or function.get("input"))
    try:
        args = json.loads(arguments)
    except (ValueError, RecursionError):
        args = None
    return ToolCall(text_of(call.get("id")), text_of(function.get("name")), arguments, args)
