"""Build the messages of a history so that it is always valid.

Knows: what a provider accepts: legal names, JSON arguments, every call answered.
Must not know: guards, phases, who decides.
"""

from __future__ import annotations

import json
import re

import msgspec

from policyengine.decision import Decision
from policyengine.history.views import state_of_text
from policyengine.messages import HistoryWarning, Message, ModelResponse, ToolCall, ToolResult
from policyengine.parsing.repair import encodable
from policyengine.results import NO_OUTPUT

ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
UNUSABLE_NAME = "unusable_call"
UNREADABLE = "unreadable_arguments"


def user(text: str) -> Message:
    """Return a message of the user."""
    return Message("user", text)


def note(text: str, rule: str) -> Message:
    """Return a note that a rule adds in the user's role; `origin` marks it as injected."""
    return Message("user", text, origin=f"rule:{rule}")


def with_ids(response: ModelResponse, iteration: int) -> ModelResponse:
    """Return the response with an id on every call, unique in its batch: some servers send none, or send them twice."""
    seen: set[str] = set()
    given = {call.id for call in response.tool_calls}
    calls = []
    for index, call in enumerate(response.tool_calls):
        if not call.id or call.id in seen:
            call = msgspec.structs.replace(call, id=_unused(f"call-{iteration}-{index}", seen | given))
        seen.add(call.id)
        calls.append(call)
    if tuple(calls) == response.tool_calls:
        return response
    return msgspec.structs.replace(response, tool_calls=tuple(calls), raw=None)


def _unused(id: str, taken: set[str]) -> str:
    while id in taken:
        id += "x"
    return id


def assistant(response: ModelResponse, protocol: str) -> Message:
    """Return the response as a message: the provider's mapping verbatim, unless a call in it is illegal."""
    if protocol == "text":
        if not response.tool_calls:
            return Message("assistant", response.text, raw=response.raw)
        # Structured calls in the text protocol: nobody would answer their ids, so they are written as it has them.
        asked = [json.dumps({"tool_name": call.name, "tool_args": call.args or {}}) for call in response.tool_calls]
        return Message("assistant", "\n".join([*filter(str.strip, [response.text]), *asked]))
    calls = tuple(_legal(call) for call in response.tool_calls)
    raw = response.raw if calls == response.tool_calls else None
    return Message("assistant", response.text, calls, raw=raw)


def tool(call: ToolCall, result: ToolResult, protocol: str, told: str = "") -> Message:
    """Return the answer to a call; in the text protocol it comes in the user's role, as JSON.

    `told` is what the model reads, where that is not simply the text of the result.
    """
    text = told or result.text
    if not text.strip():
        text = NO_OUTPUT if result.status == "ok" else f"({result.status})"
    if protocol == "text":
        return Message("user", json.dumps({"tool_name": call.name, "result": text}, ensure_ascii=False), origin="tool")
    return Message("tool", text, tool_call_id=call.id, name=_legal(call).name, origin=_origin(result))


def unusable(response: ModelResponse, protocol: str, warning: HistoryWarning) -> list[Message]:
    """Return the messages for a response that cannot be acted on: itself, an answer to every call, the warning.

    A response without text and calls leaves only the warning: providers refuse empty messages.
    """
    messages = []
    if response.text.strip() or (response.tool_calls and protocol == "native"):
        messages.append(assistant(response, protocol))
    if protocol == "native":
        for call in response.tool_calls:
            text = json.dumps({"status": "error", "error": {"code": warning.kind, "message": warning.text}})
            messages.append(Message("tool", text, tool_call_id=call.id, name=_legal(call).name, origin="loop"))
    messages.append(Message("user", warning.text.strip() or f"({warning.kind})", origin=f"warning:{warning.kind}"))
    return messages


def refusal(decision: Decision) -> str:
    """Return the text of the result of a refused call; never empty."""
    return decision.message or f"Refused by {decision.decided_by}."


def _origin(result: ToolResult) -> str:
    return "" if result.ran else "loop"


def _legal(call: ToolCall) -> ToolCall:
    """Return the call with a name and arguments that providers accept."""
    name = ILLEGAL.sub("_", call.name)[:64] or UNUSABLE_NAME
    arguments = _sendable(call)
    if name == call.name and arguments == call.arguments:
        return call
    return msgspec.structs.replace(call, name=name, arguments=arguments)


def _sendable(call: ToolCall) -> str:
    """Return the arguments as the text of an object, as whoever reads JSON strictly would take it.

    That is the text that the model sent, or what was made of it, or else an object that holds it as a text.
    """
    if state_of_text(call.arguments) == "ok":
        return call.arguments
    try:
        read = json.dumps(call.args)
    except (TypeError, ValueError, RecursionError):
        read = ""
    if state_of_text(read) == "ok":
        return read
    text, _ = encodable(call.arguments[:2000])
    return json.dumps({UNREADABLE: text})
