"""Chat completions, of OpenAI and of every server that speaks like it.

Knows: the form of requests, responses and the pieces of a stream. Must not know: clients, failures of connections.

What the server says about an assistant message goes back as it came (`raw`): reasoning, signatures, unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from policyengine.history.chat import CHAT, as_mappings
from policyengine.history.reasoning import pass_reasoning
from policyengine.history.views import listed, mapped, text_of
from policyengine.jsontext import encode
from policyengine.messages import ModelRequest, ModelResponse, ToolCall, ToolSpec, Usage
from policyengine.providers.config import Provider
from policyengine.providers.sdk import (
    Assembler,
    Body,
    SdkModel,
    blocked,
    cut,
    declared_failure,
    limit_of,
    merged,
    raw_of,
)
from policyengine.responses import FAILED_REASONS

THINKING = ("reasoning", "reasoning_effort", "thinking", "enable_thinking", "include_reasoning")
"""Options that ask a model to think; left out where it must not."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message in which servers put reasoning as text."""

_GROWS = frozenset(["content", "refusal", "arguments", "text", "summary", "data", "transcript", *REASONING])
"""Texts that a stream sends in pieces; any other text comes whole, and may come again."""


def connect(provider: Provider) -> SdkModel:
    """Return the model of a provider that speaks chat completions."""
    return SdkModel(provider, ChatAdapter())


class ChatAdapter:
    """Chat completions through the package `openai`."""

    package = "openai"
    sync_client = "OpenAI"
    async_client = "AsyncOpenAI"

    def resource(self, client: Any) -> Any:
        """Return the method that sends a request."""
        return client.chat.completions.create

    def body(self, provider: Provider, request: ModelRequest) -> Body:
        """Return a request as chat completions have it."""
        messages = request.messages if request.thinking else pass_reasoning(request.messages, "drop")
        own = [msgspec.structs.replace(message, raw=raw_of(message, _is_chat)) for message in messages]
        body: Body = {
            "model": request.model or provider.model,
            "messages": [dict(mapping) for mapping in as_mappings(own, CHAT)],
            provider.max_tokens_field: limit_of(provider, request),
        }
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
            body["tool_choice"] = _choice(request.tool_choice)
        if provider.stream:
            body["stream_options"] = {"include_usage": True}
        return merged(provider, request, body, THINKING)

    def read(self, body: Mapping[str, Any], model: str) -> ModelResponse:
        """Return the response in the first choice of a body."""
        choice = mapped(next(iter(listed(body.get("choices"))), None))
        message = choice.get("message")
        finish = text_of(choice.get("finish_reason"))
        if body.get("error") or not isinstance(message, dict):
            raise declared_failure(body, "the response holds no message")
        text = _text(message.get("content")) or text_of(message.get("refusal"))
        if finish in FAILED_REASONS or choice.get("error"):
            raise declared_failure(choice, f"the response ended with {finish!r}")
        if finish == "content_filter":
            raise blocked(finish, text)
        # Some servers leave out what is the same in every message, or is empty.
        raw = {"role": "assistant", **{name: item for name, item in message.items() if item is not None}}
        raw.setdefault("content", None)
        return ModelResponse(
            text,
            tuple(_call(mapped(call)) for call in listed(message.get("tool_calls"))),
            _reasoning(message),
            finish,
            _usage(mapped(body.get("usage"))),
            model,
            raw,
        )

    def assembler(self) -> Assembler:
        """Return what puts the chunks of a stream together."""
        return ChatAssembler()


class ChatAssembler:
    """Chunks of a chat completion, put together by field; calls by index, or by id where a server sends no index."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._finish = ""
        self._usage: Any = None
        self._chunks = 0

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take the next chunk."""
        self._chunks += 1
        if event.get("error"):
            raise declared_failure(event, "the stream reports an error")
        self._usage = event.get("usage") or self._usage
        for choice in map(mapped, listed(event.get("choices"))):
            if choice.get("index") in (None, 0):
                self._finish = text_of(choice.get("finish_reason")) or self._finish
                delta = choice.get("delta") or choice.get("message")
                _merge(self._message, mapped(delta))

    def whole(self) -> Mapping[str, Any]:
        """Return the completion; raises `RequestError` if no chunk said why it ended."""
        if not self._finish:
            raise cut(f"{self._chunks} chunks, no finish reason")
        message = self._message
        if "tool_calls" in message:
            calls = map(mapped, listed(message["tool_calls"]))
            plain = [{name: item for name, item in call.items() if name != "index"} for call in calls]
            message = {**message, "tool_calls": plain}
        return {"choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, item in delta.items():
        old = into.get(name)
        if item is None:
            into.setdefault(name, None)
        elif isinstance(item, str) and isinstance(old, str):
            if name in _GROWS:
                into[name] = old + item
            elif item:
                into[name] = item
        elif isinstance(item, dict):
            into[name] = dict(old) if isinstance(old, dict) else {}
            _merge(into[name], item)
        elif isinstance(item, list):
            into[name] = _merge_list(old if isinstance(old, list) else [], item)
        else:
            into[name] = item


def _merge_list(old: list[Any], items: list[Any]) -> list[Any]:
    """Add items to a list; one that continues an earlier one is merged into it."""
    made = list(old)
    for item in items:
        place = _continued(made, item)
        if place is None:
            made.append({})
            place = len(made) - 1
        if isinstance(item, dict):
            _merge(made[place], item)
        else:
            made[place] = item
    return made


def _continued(made: list[Any], item: Any) -> int | None:
    """Return which item is continued: the last one of the same index, unless another id or kind says it is new."""
    if not isinstance(item, dict) or not made:
        return None
    index = item.get("index")
    for place in range(len(made) - 1, -1, -1):
        old = made[place]
        if not isinstance(old, dict) or (index is not None and old.get("index") != index):
            continue
        if item.get("type") not in (None, old.get("type"), "") and old.get("type"):
            return None
        if item.get("id") and old.get("id") and item["id"] != old["id"]:
            return None
        if index is None and (item.get("id") or _names(item)) and not _same_id(item, old):
            return None
        return place
    return None


def _names(item: Mapping[str, Any]) -> bool:
    return bool(mapped(item.get("function")).get("name"))


def _same_id(item: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return bool(item.get("id")) and item.get("id") == old.get("id")


def _is_chat(raw: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a chat message, and none that another protocol has left in the history."""
    if "output" in raw or not isinstance(raw.get("role"), str):
        return False
    blocks = [mapped(block) for block in listed(raw.get("content"))]
    foreign = ("tool_use", "tool_result", "server_tool_use", "redacted_thinking", "function_call", "message")
    return not any(block.get("type") in foreign or "signature" in block for block in blocks)


def _tool(spec: ToolSpec) -> dict[str, Any]:
    about = {"description": spec.description} if spec.description else {}
    parameters = spec.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": spec.name, **about, "parameters": parameters}}


def _choice(wanted: str) -> Any:
    if wanted in ("", "required"):
        return wanted or None
    return {"type": "function", "function": {"name": wanted}}


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = mapped(call.get("function") or call.get("custom"))
    arguments = function.get("arguments", function.get("input"))
    if isinstance(arguments, dict | list):  # some servers send the object itself
        arguments = encode(arguments).decode()
    return ToolCall(text_of(call.get("id")), text_of(function.get("name")), text_of(arguments))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(text_of(part.get("text")) for part in map(mapped, listed(content)) if part.get("type") == "text")


def _reasoning(message: Mapping[str, Any]) -> str:
    told = next((message[name] for name in REASONING if isinstance(message.get(name), str) and message[name]), "")
    if told:
        return str(told)
    thoughts = [mapped(part).get("thinking") for part in listed(message.get("content"))]
    thoughts += [
        mapped(part).get("text") or mapped(part).get("summary") for part in listed(message.get("reasoning_details"))
    ]
    return "".join(_text(thought) for thought in thoughts if thought)


def _usage(usage: Mapping[str, Any]) -> Usage | None:
    counts = [_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    return Usage(*counts) if any(count is not None for count in counts) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
