"""OpenAI's Responses: input and output are one list of items, reasoning among them.

Knows: the form of requests, items and events. Must not know: clients, failures of connections.

The history is ours, so `previous_response_id` is not used. The items of a response go back as they came, encrypted
reasoning included (`raw` is `{"output": items}`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from policyengine.history.reasoning import pass_reasoning
from policyengine.history.views import listed, mapped, text_of
from policyengine.messages import Message, ModelRequest, ModelResponse, ToolCall, ToolSpec, Usage
from policyengine.providers.config import Provider
from policyengine.providers.openai_chat import THINKING
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
    raw_of,
)

ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Events that end a stream; a stream without one was cut."""


def connect(provider: Provider) -> SdkModel:
    """Return the model of a provider that speaks Responses."""
    return SdkModel(provider, ResponsesAdapter())


class ResponsesAdapter:
    """Responses through the package `openai`."""

    package = "openai"
    sync_client = "OpenAI"
    async_client = "AsyncOpenAI"

    def resource(self, client: Any) -> Any:
        """Return the method that sends a request."""
        return client.responses.create

    def body(self, provider: Provider, request: ModelRequest) -> Body:
        """Return a request as Responses have it."""
        messages = request.messages if request.thinking else pass_reasoning(request.messages, "drop")
        body: Body = {
            "model": request.model or provider.model,
            "input": [item for message in messages for item in _items(message)],
            "max_output_tokens": limit_of(provider, request),
        }
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
            choice = request.tool_choice
            body["tool_choice"] = choice or None if choice in ("", "required") else {"type": "function", "name": choice}
        return merged(provider, request, body, THINKING)

    def read(self, body: Mapping[str, Any], model: str) -> ModelResponse:
        """Return the response in a body."""
        status = body.get("status")
        output = body.get("output")
        if body.get("error") or status in ("failed", "cancelled") or not isinstance(output, list):
            raise declared_failure(body, f"the response is {status or 'no response'}")
        items = list(map(mapped, output))
        parts = [
            mapped(part) for item in items if item.get("type") == "message" for part in listed(item.get("content"))
        ]
        text = "".join(text_of(part.get("text") or part.get("refusal")) for part in parts)
        reason = text_of(mapped(body.get("incomplete_details")).get("reason"))
        if reason == "content_filter":
            raise blocked(reason, text)
        calls = tuple(_call(item) for item in items if item.get("type") == "function_call")
        finish = (reason or "length") if status == "incomplete" else "tool_calls" if calls else "completed"
        usage = _usage(mapped(body.get("usage")))
        return ModelResponse(text, calls, _reasoning(items), finish, usage, model, {"output": items})

    def assembler(self) -> Assembler:
        """Return what waits for the end of a stream."""
        return ResponsesAssembler()


class ResponsesAssembler:
    """Events of a response. The last one holds all of it; items are kept for servers that leave them out there."""

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}
        self._end: Mapping[str, Any] | None = None
        self._events = 0

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        self._events += 1
        kind = event.get("type")
        if kind == "error" or event.get("error"):
            raise declared_failure({**event, "error": event.get("error") or True}, "the stream reports an error")
        if kind == "response.output_item.done":
            index = event.get("output_index")
            self._items[index if isinstance(index, int) else len(self._items)] = mapped(event.get("item"))
        if kind in ENDS:
            self._end = mapped(event.get("response"))

    def whole(self) -> Mapping[str, Any]:
        """Return the response; raises `RequestError` if no event ended it."""
        if self._end is None:
            raise cut(f"{self._events} events, no end")
        if self._items and not self._end.get("output"):
            return {**self._end, "output": [self._items[place] for place in sorted(self._items)]}
        return self._end


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message as items: its own as they came, else made from what we know of it."""
    raw = raw_of(message, _is_responses)
    if raw is not None and isinstance(raw.get("output"), list):
        yield from _own(raw["output"])
    elif raw is not None and "type" in raw:
        yield raw
    elif message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message_text(message)}
    else:
        if raw is not None or message.text.strip() or not message.tool_calls:
            yield {"role": message.role, "content": raw["content"] if raw is not None else message_text(message)}
        for call in message.tool_calls:
            yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments or "{}"}


def _own(output: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the items of a response; without their ids where the reasoning that belongs to them was left out.

    The provider looks up an item by its id, and refuses it without the reasoning that it was stored with.
    """
    whole = any(mapped(item).get("type") == "reasoning" for item in output)
    for item in output:
        yield item if whole else {name: value for name, value in item.items() if name != "id"}


def _is_responses(raw: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a response's output, an item, or a message that says something in parts."""
    if isinstance(raw.get("output"), list) or raw.get("type") in ("message", "function_call_output"):
        return True
    parts = [mapped(part) for part in listed(raw.get("content"))]
    return bool(parts) and all(str(part.get("type")).startswith("input_") for part in parts)


def _tool(spec: ToolSpec) -> dict[str, Any]:
    parameters = spec.parameters or {"type": "object", "properties": {}}
    about = {"description": spec.description} if spec.description else {}
    # Without a word Responses check arguments strictly, and refuse schemas that are not written for that.
    return {"type": "function", "name": spec.name, **about, "parameters": parameters, "strict": False}


def _call(item: Mapping[str, Any]) -> ToolCall:
    return ToolCall(text_of(item.get("call_id")), text_of(item.get("name")), text_of(item.get("arguments")))


def _reasoning(items: list[Mapping[str, Any]]) -> str:
    thoughts = []
    for item in items:
        if item.get("type") == "reasoning":
            parts = [*listed(item.get("summary")), *listed(item.get("content"))]
            thoughts += [text_of(mapped(part).get("text")) for part in parts]
    return "\n".join(filter(None, thoughts))


def _usage(usage: Mapping[str, Any]) -> Usage | None:
    if not isinstance(usage.get("input_tokens"), int):
        return None
    return Usage(usage.get("input_tokens"), usage.get("output_tokens"), usage.get("total_tokens"))
