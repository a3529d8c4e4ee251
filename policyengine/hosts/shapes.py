"""Replies of models in the shapes that people hold them in: texts, message mappings, objects of an SDK.

Knows: the chat form of messages and calls. Must not know: any SDK; attributes and keys count, never types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policyengine.errors import UsageError
from policyengine.messages import ModelResponse, ToolCall, Usage
from policyengine.parsing.strict import StrictError, loads


class Reply(msgspec.Struct, frozen=True):
    """What a reply holds: its text, its calls, and `usage`, `finish_reason`, `reasoning`, `model` where it has them."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    facts: dict[str, Any] = {}


def read_reply(reply: Any) -> Reply:
    """Return what a reply holds: a text, a message, or a completion with `choices`.

    Raises:
        UsageError: it is none of them.
    """
    if reply is None or isinstance(reply, str):
        return Reply(reply or "")
    if isinstance(reply, ModelResponse):
        known = {name: getattr(reply, name) for name in ("reasoning", "finish_reason", "usage", "model")}
        return Reply(reply.text, reply.tool_calls, known)
    facts: dict[str, Any] = {}
    choices = get(reply, "choices")
    if choices:
        facts["usage"] = usage_of(get(reply, "usage"))
        facts["model"] = str(get(reply, "model") or "")
        facts["finish_reason"] = str(get(choices[0], "finish_reason") or "")
        reply = get(choices[0], "message")
    content, calls = get(reply, "content"), get(reply, "tool_calls")
    if content is None and calls is None and get(reply, "role") is None:
        raise UsageError(f"a reply is a text, a message or a completion, not {type(reply).__name__}")
    reasoning = get(reply, "reasoning_content") or get(reply, "reasoning")
    if isinstance(reasoning, str):
        facts["reasoning"] = reasoning
    return Reply(_text(content), calls_of(calls or ()), facts)


def calls_of(calls: Iterable[Any], prefix: str = "") -> tuple[ToolCall, ...]:
    """Return calls as `ToolCall`s; those without an id get one that starts with `prefix`."""
    return tuple(_call(call, f"{prefix}-{index}" if prefix else "") for index, call in enumerate(calls))


def read_call(id: str, name: str, arguments: str) -> ToolCall:
    """Return a call with its arguments where they can be read."""
    try:
        return ToolCall(id, name, arguments, loads(arguments))
    except StrictError:
        return ToolCall(id, name, arguments)


def usage_of(usage: Any) -> Usage | None:
    """Return the tokens of a request under any of their usual names."""
    if usage is None or isinstance(usage, Usage):
        return usage
    prompt = _number(usage, "prompt_tokens", "input_tokens")
    completion = _number(usage, "completion_tokens", "output_tokens")
    return Usage(prompt, completion, _number(usage, "total_tokens"))


def _number(usage: Any, *names: str) -> int | None:
    return next((value for name in names if isinstance(value := get(usage, name), int)), None)


def _call(call: Any, id: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call if call.id or not id else msgspec.structs.replace(call, id=id)
    if isinstance(call, tuple | list) and len(call) in (2, 3):
        *given, name, args = call
        return _made(str(given[0]) if given else id, name, args)
    function = get(call, "function")
    holder = call if function is None else function
    name = get(holder, "name")
    if not isinstance(name, str):
        raise UsageError(f"a call is (name, args), a ToolCall or a mapping with a name, not {type(call).__name__}")
    args = get(holder, "arguments")
    for other in ("args", "input"):
        args = get(holder, other) if args is None else args
    return _made(str(get(call, "id") or id), name, args)


def _made(id: str, name: str, args: Any) -> ToolCall:
    if isinstance(args, str):
        return read_call(id, name, args)
    args = {} if args is None else args
    return ToolCall(id, name, json.dumps(args, ensure_ascii=False, default=str), args)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Iterable):
        raise UsageError(f"the content of a message is a text or a list of parts, not {type(content).__name__}")
    return "".join(part if isinstance(part, str) else str(get(part, "text") or "") for part in content)


def get(value: Any, name: str) -> Any:
    """Return a field of a mapping or of an object, or `None`."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
