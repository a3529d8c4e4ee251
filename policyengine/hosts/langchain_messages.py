"""LangChain's messages and requests in our form, and back.

Knows: both forms. Must not know: runs, decisions, when a message is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from langchain.agents.middleware import ModelRequest as LangChainRequest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from policyengine.identity import content_mark
from policyengine.messages import Message, ModelRequest, ToolCall, ToolSpec, Usage

SOURCE = "policyengine"
"""The key in a message's `additional_kwargs` that marks it as ours; its value names the rule, or is `end`."""


def text_of(message: BaseMessage) -> str:
    """Return the text of a message, without images and other parts."""
    return str(message.text)


def beside_of(message: BaseMessage) -> str:
    """Return what stands for the parts of a message that are no text, the same for the same parts."""
    if isinstance(message.content, str):
        return ""
    parts = [part for part in message.content if isinstance(part, dict) and part.get("type") != "text"]
    return " ".join(content_mark(str(part.get("type")), _without_ids(part)) for part in parts)


def _without_ids(part: dict[str, Any]) -> str:
    said = {key: value for key, value in part.items() if key not in ("id", "index")}
    return json.dumps(said, sort_keys=True, default=str)


def note_message(text: str, rule: str) -> HumanMessage:
    """Return a note as a message of the user, marked as ours."""
    return HumanMessage(text, additional_kwargs={SOURCE: rule or "note"})


def is_ours(message: BaseMessage) -> bool:
    """Return whether the engine put a message into the history."""
    return SOURCE in message.additional_kwargs


def refusal(call: ToolCall, text: str) -> ToolMessage:
    """Return the answer to a call that does not run."""
    return ToolMessage(text, tool_call_id=call.id, name=call.name, status="error", additional_kwargs={SOURCE: "end"})


def task_of(messages: Sequence[AnyMessage]) -> str:
    """Return what the user said last."""
    said = (text_of(message) for message in reversed(messages) if isinstance(message, HumanMessage))
    return next(said, "")


def last_response(messages: Sequence[AnyMessage]) -> tuple[AIMessage | None, dict[str, ToolMessage]]:
    """Return the latest response, and the answers behind it by the id of their call."""
    answers: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message, answers
        if isinstance(message, ToolMessage):
            answers[message.tool_call_id] = message
    return None, {}


def calls_of(message: AIMessage, answered: Iterable[str] = ()) -> tuple[ToolCall, ...]:
    """Return the calls of a response that have no answer, those with unreadable arguments at the end."""
    done = set(answered)
    calls = [_call(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
    calls += [ToolCall(call["id"] or "", call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    return tuple(call for call in calls if call.id not in done)


def with_calls(message: AIMessage, calls: Sequence[ToolCall], answered: Iterable[str] = ()) -> AIMessage:
    """Return a response whose open calls are `calls`, which stand for those of `calls_of` one by one.

    So the graph sees only calls that it can run or that get an answer, each under an id of its own. The arguments that
    the model sent stay where they could be read.
    """
    done = set(answered)
    sent = [call for call in message.tool_calls if call["id"] not in done]
    kept: list[Any] = [call for call in message.tool_calls if call["id"] in done]
    for at, call in enumerate(calls):
        args = call.args if isinstance(call.args, dict) else {}
        made = sent[at] if at < len(sent) else {"name": call.name, "args": args, "type": "tool_call"}
        kept.append({**made, "id": call.id})
    return message.model_copy(update={"tool_calls": kept, "invalid_tool_calls": []})


def named(message: AIMessage) -> AIMessage:
    """Return a response that has an id, so that it is known again."""
    return message if message.id else message.model_copy(update={"id": f"run-{uuid4()}"})


def usage_of(message: AIMessage) -> Usage | None:
    """Return the tokens of a response, where the model reports them."""
    usage = message.usage_metadata
    return Usage(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) if usage else None


def finish_reason_of(message: AIMessage) -> str:
    """Return why a response ended, in the provider's words."""
    facts = message.response_metadata
    return str(facts.get("finish_reason") or facts.get("stop_reason") or "")


def model_of(message: AIMessage) -> str:
    """Return the model that gave a response, where it says so."""
    facts = message.response_metadata
    return str(facts.get("model_name") or facts.get("model") or "")


def request_of(request: LangChainRequest[Any]) -> ModelRequest:
    """Return a request in our form."""
    system = [Message("system", text_of(request.system_message))] if request.system_message is not None else []
    messages = (*system, *map(message_of, request.messages))
    tools = tuple(ToolSpec(tool_name(tool), getattr(tool, "description", "") or "") for tool in request.tools)
    model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
    return ModelRequest(messages, tools, model=model if isinstance(model, str) else "")


def tool_name(tool: Any) -> str:
    """Return the name of a tool on offer; those of providers are mappings."""
    if isinstance(tool, dict):
        return str(tool.get("name") or tool.get("function", {}).get("name") or tool.get("type") or "")
    return str(tool.name)


def message_of(message: AnyMessage) -> Message:
    """Return a message in our form."""
    text, origin = text_of(message), f"rule:{message.additional_kwargs[SOURCE]}" if is_ours(message) else ""
    if isinstance(message, AIMessage):
        return Message("assistant", text, calls_of(message), origin=origin)
    if isinstance(message, ToolMessage):
        return Message("tool", text, tool_call_id=message.tool_call_id, name=message.name or "", origin=origin)
    return Message("system" if isinstance(message, SystemMessage) else "user", text, origin=origin)


def plain(value: Any) -> Any:
    """Return Structs as plain data."""
    return msgspec.to_builtins(value)


def _call(id: str, name: str, args: Any) -> ToolCall:
    return ToolCall(id, name, json.dumps(args, ensure_ascii=False, default=str), args)
