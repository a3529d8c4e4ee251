"""Which reasoning of earlier responses goes back to the provider: a rule of the model, not of the adapter.

Knows: the fields in which providers put reasoning. Must not know: requests, policies.

Stored messages are never touched: what is left out is left out of a copy. Nothing is ever made up; a model that needs
reasoning that is not there must be asked not to think (`ModelRequest.thinking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from policyengine.messages import Message

FIELDS = ("reasoning", "reasoning_content", "reasoning_details", "reasoning_signature", "thinking_blocks", "thinking")
"""Members of an assistant message that hold reasoning or vouch for it."""

BLOCKS = ("thinking", "redacted_thinking", "reasoning")
"""Types of content blocks that hold reasoning."""

PLACES = ("content", "output")
"""Where such blocks stand: in a message's content, or among the items of a response."""


def pass_reasoning(messages: Sequence[Message], rule: str) -> Sequence[Message]:
    """Return the messages as they are sent under `rule` (`replay`, `with_calls` or `drop`)."""
    if rule == "replay":
        return messages
    return [message if _kept(message, rule) else _without(message) for message in messages]


def _kept(message: Message, rule: str) -> bool:
    return message.raw is None or message.role != "assistant" or (rule == "with_calls" and bool(message.tool_calls))


def _without(message: Message) -> Message:
    raw = {name: value for name, value in (message.raw or {}).items() if name not in FIELDS}
    for name in PLACES:
        if isinstance(blocks := raw.get(name), list):
            raw[name] = [block for block in blocks if not _is_reasoning(block)]
    return message if raw == message.raw else msgspec.structs.replace(message, raw=raw)


def _is_reasoning(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in BLOCKS
