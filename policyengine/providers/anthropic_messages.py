"""Anthropic's Messages: content in blocks, thinking blocks signed.

Knows: the form of requests, responses and events. Must not know: clients, failures of connections.

The blocks of a response go back as they came, thinking and signatures included (`raw` is the message). A block is only
left out where a rule of the model says so, or where nothing may be thought about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from policyengine.history.reasoning import pass_reasoning
from policyengine.history.views import listed, mapped, text_of
from policyengine.messages import Message, ModelRequest, ModelResponse, ToolCall, ToolSpec, Usage
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
    message_text,
    object_of,
    raw_of,
)

MAX_TOKENS = 8192
"""How long an answer may be where nobody says: the protocol demands a number."""

LEAST_BUDGET = 1024
"""The provider takes no smaller budget for thinking."""

_PROMPT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_INPUT = "\0input"
"""Under which key the text of a call's input grows; no field is named so."""


def connect(provider: Provider) -> SdkModel:
    """Return the model of a provider that speaks Messages."""
    return SdkModel(provider, MessagesAdapter())


class MessagesAdapter:
    """Messages through the package `anthropic`."""

    package = "anthropic"
    sync_client = "Anthropic"
    async_client = "AsyncAnthropic"

    def resource(self, client: Any) -> Any:
        """Return the method that sends a request."""
        return client.messages.create

    def body(self, provider: Provider, request: ModelRequest) -> Body:
        """Return a request as Messages have it."""
        # The provider refuses to be told which tool to call while it thinks.
        if request.tool_choice and request.thinking:
            request = msgspec.structs.replace(request, thinking=False)
        limit = limit_of(provider, request) or MAX_TOKENS
        messages = request.messages if request.thinking else tuple(pass_reasoning(request.messages, "drop"))
        leading = next((place for place, item in enumerate(messages) if item.role != "system"), len(messages))
        body: Body = {
            "model": request.model or provider.model,
            "max_tokens": limit,
            "system": "\n\n".join(item.text for item in messages[:leading] if item.text.strip()) or None,
            "messages": _turns(messages[leading:]),
        }
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
            body["tool_choice"] = _choice(request.tool_choice)
        made = merged(provider, request, body, ("thinking",))
        return _within(made, limit)

    def read(self, body: Mapping[str, Any], model: str) -> ModelResponse:
        """Return the response in a body."""
        content = body.get("content")
        if body.get("type") == "error" or body.get("error") or not isinstance(content, list):
            raise declared_failure(body, "the response holds no content")
        blocks = [mapped(block) for block in content]
        text = "".join(text_of(block.get("text")) for block in blocks if block.get("type") == "text")
        finish = text_of(body.get("stop_reason"))
        if finish == "refusal":
            raise blocked(finish, text)
        calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
        thoughts = (text_of(block.get("thinking")) for block in blocks if block.get("type") == "thinking")
        raw = {"role": "assistant", "content": [_without_input_text(block) for block in blocks]}
        usage = _usage(mapped(body.get("usage")))
        return ModelResponse(text, calls, "\n".join(filter(None, thoughts)), finish, usage, model, raw)

    def more(self, body: Body, answer: Mapping[str, Any]) -> Body | None:
        """Return the request that has the provider go on with a turn that it paused; `None` where it did not."""
        content = answer.get("content")
        if answer.get("stop_reason") != "pause_turn" or not isinstance(content, list) or not content:
            return None
        turns, said = list(body["messages"]), [_without_input_text(mapped(block)) for block in content]
        if turns and turns[-1]["role"] == "assistant":
            said = [*turns.pop()["content"], *said]
        return {**body, "messages": [*turns, {"role": "assistant", "content": said}]}

    def joined(self, answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the parts of a turn that was paused as one."""
        usage: dict[str, int] = {}
        for answer in answers:
            for name, count in mapped(answer.get("usage")).items():
                if isinstance(count, int) and not isinstance(count, bool):
                    usage[name] = usage.get(name, 0) + count
        content = [block for answer in answers for block in listed(answer.get("content"))]
        return {**answers[-1], "content": content, "usage": usage}

    def assembler(self) -> Assembler:
        """Return what puts the events of a stream together."""
        return MessagesAssembler()


class MessagesAssembler:
    """Events of a message, put together by block."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._open: set[int] = set()
        self._ended = False
        self._events = 0

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        self._events += 1
        index = event.get("index") if isinstance(event.get("index"), int) else 0
        match event.get("type"):
            case "error":
                raise declared_failure(event, "the stream reports an error")
            case "message_start":
                self._message = dict(mapped(event.get("message")))
            case "content_block_start":
                self._blocks[index or 0] = dict(mapped(event.get("content_block")))
                self._open.add(index or 0)
            case "content_block_delta":
                _grow(self._blocks.setdefault(index or 0, {}), mapped(event.get("delta")))
            case "content_block_stop":
                self._open.discard(index or 0)
            case "message_delta":
                self._message |= {name: item for name, item in mapped(event.get("delta")).items() if item is not None}
                told = {name: item for name, item in mapped(event.get("usage")).items() if item is not None}
                self._message["usage"] = {**mapped(self._message.get("usage")), **told}
            case "message_stop":
                self._ended = True

    def whole(self) -> Mapping[str, Any]:
        """Return the message; raises `RequestError` if no event ended it."""
        if not self._ended or self._open or not self._message.get("stop_reason"):
            raise cut(f"{self._events} events, no end")
        return {**self._message, "content": [self._blocks[place] for place in sorted(self._blocks)]}


def _grow(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, item in delta.items():
        if name == "type":
            continue
        if name == "partial_json":
            block[_INPUT] = block.get(_INPUT, "") + text_of(item)
        elif name == "citation":
            block["citations"] = [*listed(block.get("citations")), item]
        elif isinstance(item, str) and isinstance(block.get(name), str):
            block[name] += item
        else:
            block[name] = item


def _call(block: Mapping[str, Any]) -> ToolCall:
    """Return a call with the text of its arguments: what a stream sent is kept as it was, whatever it is."""
    given = block.get("input")
    arguments = text_of(block.get(_INPUT)) or json.dumps({} if given is None else given, ensure_ascii=False)
    return ToolCall(text_of(block.get("id")), text_of(block.get("name")), arguments)


def _without_input_text(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as it would have come without a stream."""
    if _INPUT not in block:
        return dict(block)
    plain = {name: item for name, item in block.items() if name != _INPUT}
    return {**plain, "input": object_of(block[_INPUT], None)}


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with the results of one response in one message, as the provider wants them."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = _blocks(message)
        if not blocks:
            continue
        if turns and role == "user" == turns[-1]["role"]:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> tuple[str, list[Any]]:
    raw = raw_of(message, _is_messages)
    if message.role == "assistant":
        if raw is not None:
            return "assistant", [block for block in raw["content"] if not _is_empty(block)]
        said = [{"type": "text", "text": message.text}] if message.text.strip() else []
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": object_of(call.arguments, call.args)}
            for call in message.tool_calls
        ]
        return "assistant", [*said, *calls]
    if raw is not None:
        return "user", list(raw["content"])
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message_text(message)}
        return "user", [result]
    return "user", [{"type": "text", "text": message_text(message)}]


def _is_messages(raw: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a message in blocks, and none that another protocol has left in the history."""
    content = raw.get("content")
    if not isinstance(content, list) or "tool_calls" in raw or "output" in raw:
        return False
    kinds = [str(mapped(block).get("type")) for block in content]
    return bool(kinds) and not any(kind in ("image_url", "refusal") or kind.startswith("input_") for kind in kinds)


def _is_empty(block: Any) -> bool:
    return mapped(block).get("type") == "text" and not text_of(block.get("text")).strip()


def _within(body: Body, limit: int) -> Body:
    """Return a body whose budget for thinking leaves room for an answer; a room that is too small is for the answer."""
    thinking = body.get("thinking")
    budget = mapped(thinking).get("budget_tokens")
    most = body.get("max_tokens", limit)
    if not isinstance(budget, int) or budget < most:
        return body
    if most <= LEAST_BUDGET:
        return {name: item for name, item in body.items() if name != "thinking"}
    return {**body, "thinking": {**mapped(thinking), "budget_tokens": max(LEAST_BUDGET, most // 2)}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    about = {"description": spec.description} if spec.description else {}
    schema = spec.parameters or {"type": "object", "properties": {}}
    return {"name": spec.name, **about, "input_schema": schema}


def _choice(wanted: str) -> dict[str, Any] | None:
    if not wanted:
        return None
    return {"type": "any"} if wanted == "required" else {"type": "tool", "name": wanted}


def _usage(usage: Mapping[str, Any]) -> Usage | None:
    """Return the tokens of a request; those that were read from or written to a cache were part of the prompt."""
    counts = [usage.get(name) for name in _PROMPT]
    known = [count for count in counts if isinstance(count, int) and not isinstance(count, bool)]
    if not known:
        return None
    written = usage.get("output_tokens")
    completion = written if isinstance(written, int) else None
    return Usage(sum(known), completion, sum(known) + (completion or 0))
