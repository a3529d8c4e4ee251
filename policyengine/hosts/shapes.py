"""Replies of models in the shapes that people hold them in: texts, message mappings, objects of an SDK.

Knows: the chat form of messages and calls, and Anthropic's. Must not know: any SDK; attributes and keys count, never
types. What may hold calls and is not understood raises: a call that nobody sees would run unjudged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from policyengine.errors import UsageError
from policyengine.messages import ModelResponse, ToolCall, Usage
from policyengine.parsing.strict import StrictError, loads


class Reply(msgspec.Struct, frozen=True):
    """What a reply holds: its text, its calls, and `usage`, `finish_reason`, `reasoning`, `model` where it has them.

    `blocks` says that calls are blocks of the content, and that results have to be. `holders` are the calls as they
    stand in the reply, where they have ids there.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    facts: dict[str, Any] = {}
    blocks: bool = False
    holders: tuple[Any, ...] = ()


SAID = frozenset({"text", "output_text", "input_text", "refusal"})
THOUGHT = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})
NO_CALL = frozenset({"image", "image_url", "audio", "file", "document", "server_tool_use", "container_upload"})
"""Types of parts that are no call of ours: what a provider runs itself was run when the reply came."""

ELSEWHERE = ("toolCalls", "tool_uses", "toolUses", "function_calls", "functionCalls")
"""Where other forms keep calls; such a reply has to be translated first."""

SHAPES = "a text, a chat message, a completion with one choice, an Anthropic message or a ModelResponse"


def read_reply(reply: Any) -> Reply:
    """Return what a reply holds: a text, a message (of chat or of Anthropic), or a completion with `choices`.

    Raises:
        UsageError: it is none of them, or holds a part that is not known.
    """
    if reply is None or isinstance(reply, str):
        return Reply(reply or "")
    if isinstance(reply, ModelResponse):
        known = {name: getattr(reply, name) for name in ("reasoning", "finish_reason", "usage", "model")}
        return Reply(reply.text, reply.tool_calls, known)
    facts: dict[str, Any] = {}
    choices = get(reply, "choices")
    if choices:
        if len(choices) > 1:
            raise UsageError(f"the completion has {len(choices)} choices: give the message of the one that you take")
        facts["usage"] = usage_of(get(reply, "usage"))
        facts["model"] = str(get(reply, "model") or "")
        facts["finish_reason"] = str(get(choices[0], "finish_reason") or "")
        reply = get(choices[0], "message")
    content, calls = get(reply, "content"), get(reply, "tool_calls")
    elsewhere = next((name for name in ELSEWHERE if isinstance(reply, Mapping) and reply.get(name)), "")
    if elsewhere or (content is None and calls is None and get(reply, "role") is None):
        what = type(reply).__name__ + (f" with {elsewhere!r}" if elsewhere else "")
        raise UsageError(f"a reply is {SHAPES}, not {what}; or give its text and `calls=[(name, args), ...]`")
    legacy = get(reply, "function_call")
    holders = list(calls or ())
    calls = [legacy] if legacy and not holders else holders
    text, made, thought = _parts(content)
    reasoning = get(reply, "reasoning_content") or get(reply, "reasoning") or thought
    if isinstance(reasoning, str) and reasoning:
        facts["reasoning"] = reasoning
    blocks = bool(made) or get(reply, "type") == "message"
    if blocks and not choices:
        facts |= _anthropic(reply)
    return Reply(text, calls_of(calls or made), facts, blocks and not calls, tuple(made if not calls else holders))


def _anthropic(reply: Any) -> dict[str, Any]:
    """Return the facts of a message of Anthropic's form, where it has them."""
    found = {
        "usage": usage_of(get(reply, "usage")),
        "model": str(get(reply, "model") or ""),
        "finish_reason": str(get(reply, "stop_reason") or ""),
    }
    return {name: value for name, value in found.items() if value}


def name_calls(holders: Iterable[Any], ids: Iterable[str]) -> None:
    """Give the calls of a reply these ids where they have others: answers must find their calls in the history."""
    for holder, wanted in zip(holders, ids, strict=False):
        if get(holder, "id") == wanted:
            continue
        if isinstance(holder, MutableMapping):
            holder["id"] = wanted
            continue
        with suppress(AttributeError, TypeError, ValueError):  # one that cannot be changed stays as it is
            holder.id = wanted


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


def _parts(content: Any) -> tuple[str, list[Any], str]:
    """Return what a content holds: the text, the blocks that are calls, the thoughts."""
    if content is None or isinstance(content, str):
        return content or "", [], ""
    if not isinstance(content, Iterable) or isinstance(content, Mapping | bytes):
        raise UsageError(f"the content of a message is a text or a list of parts, not {type(content).__name__}")
    said, calls, thought = [], [], []
    for part in content:
        kind = "text" if isinstance(part, str) else get(part, "type")
        if kind == "tool_use":
            calls.append(part)
        elif kind in THOUGHT:
            thought.append(_string(part, "thinking", "text", "reasoning"))
        elif kind in SAID or (kind is None and isinstance(get(part, "text"), str)):
            said.append(part if isinstance(part, str) else _string(part, "text", "refusal"))
        elif kind not in NO_CALL and not str(kind).endswith("_tool_result"):
            raise UsageError(f"a part of the reply is of the type {kind!r}, which may be a call; a reply is {SHAPES}")
    return "".join(said), calls, "\n".join(filter(None, thought))


def _string(part: Any, *names: str) -> str:
    return next((value for name in names if isinstance(value := get(part, name), str)), "")


def get(value: Any, name: str) -> Any:
    """Return a field of a mapping or of an object, or `None`."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
