"""Items of the Responses form, as the Agents SDK passes them, in our form, and what the engine puts among them.

Knows: both forms. Must not know: runs, decisions, when a request is sent.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
)

from policyengine import messages as ours
from policyengine.hosts.shapes import get, read_call
from policyengine.identity import content_mark

ENDING_ID = "msg_policyengine"
"""The id of the message with which the engine ends a run in the model's place."""


OUTSIDE = frozenset(
    {"custom_tool_call", "computer_call", "shell_call", "local_shell_call", "apply_patch_call", "mcp_approval_request"}
)
"""Types of items on which the SDK acts itself, beside calls of functions."""

_STRUCTURED = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_NEEDS = {"text": ("text",), "image": ("image_url", "file_id"), "file": ("file_data", "file_url", "file_id")}
_IDS = ("id", "call_id", "status")


def as_items(given: str | Sequence[Any]) -> list[Any]:
    """Return what a run or a request is given as items."""
    return [user_item(given)] if isinstance(given, str) else list(given)


def user_item(text: str) -> dict[str, Any]:
    """Return a text as a message of the user."""
    return {"role": "user", "content": text}


def assistant_item(text: str) -> dict[str, Any]:
    """Return a text as a message of the model."""
    return {"role": "assistant", "content": text}


def call_items(call: ours.ToolCall, answer: str) -> list[dict[str, Any]]:
    """Return a call and its answer."""
    sent = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": sendable(call)}
    return [sent, {"type": "function_call_output", "call_id": call.id, "output": answer}]


def sendable(call: ours.ToolCall) -> str:
    """Return the arguments of a call as JSON of an object: a provider refuses anything else."""
    return json.dumps(call.args if isinstance(call.args, dict) else {}, ensure_ascii=False)


def task_of(given: str | Sequence[Any]) -> str:
    """Return what the user said last."""
    said = (text_of(get(item, "content")) for item in reversed(as_items(given)) if get(item, "role") == "user")
    return next(said, "")


def text_of(content: Any) -> str:
    """Return the text of a content, an output, or a list of such parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, map(text_of, content)))
    text = get(content, "text") or get(content, "refusal")
    if isinstance(text, str):
        return text
    if get(content, "type") or not isinstance(content, Mapping):
        return "" if get(content, "type") else str(content)
    return json.dumps(content, ensure_ascii=False, default=str)


def result_text(output: Any) -> str:
    """Return what a tool handed back as text: that of parts which the SDK sends as parts, anything else as JSON."""
    parts = _parts(output)
    if parts is not None:
        return text_of(parts)
    if isinstance(output, Mapping | list | tuple):
        return json.dumps(output, ensure_ascii=False, default=str)
    return "" if output is None else str(output)


def beside_of(output: Any) -> str:
    """Return what stands for the images and files that a tool handed back."""
    others = [part for part in _parts(output) or () if get(part, "type") != "text"]
    return " ".join(mark_of_item(part) for part in others)


def _parts(output: Any) -> list[Any] | None:
    """Return the parts that the SDK sends as such; `None` for any other value, which it sends as a text."""
    parts = list(output) if isinstance(output, list | tuple) else [output]
    known = all(isinstance(part, _STRUCTURED) or _is_part(part) for part in parts)
    return parts if parts and known else None


def _is_part(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    needs = _NEEDS.get(kind) if isinstance(kind, str) else None
    return needs is not None and any(isinstance(part.get(name), str) for name in needs)


def outside_in(output: Iterable[Any]) -> list[Any]:
    """Return the calls of a response that the SDK runs outside the guards: those of tools that are no functions."""
    return [item for item in output if get(item, "type") in OUTSIDE]


def calls_in(output: Iterable[Any]) -> list[ResponseFunctionToolCall]:
    """Return the items of a response that call functions, hand-offs included."""
    return [item for item in output if get(item, "type") == "function_call"]


def call_of(item: ResponseFunctionToolCall) -> ours.ToolCall:
    """Return a call in our form."""
    return read_call(item.call_id, item.name, item.arguments)


def said_in(output: Iterable[Any]) -> str:
    """Return the text that a response says to the user."""
    return "\n".join(filter(None, (text_of(get(item, "content")) for item in output if get(item, "type") == "message")))


def thought_in(output: Iterable[Any]) -> str:
    """Return the reasoning that a response shows."""
    return "\n".join(text_of(get(item, "summary")) for item in output if get(item, "type") == "reasoning")


def usage_of(usage: Any) -> ours.Usage | None:
    """Return the tokens of a response, where the provider reports them."""
    if usage is None or not usage.total_tokens:
        return None
    return ours.Usage(usage.input_tokens, usage.output_tokens, usage.total_tokens)


def outputs_in(items: Iterable[Any]) -> dict[str, str]:
    """Return the results that stand in a history, by the id of their call."""
    found = (item for item in items if get(item, "type") == "function_call_output")
    return {get(item, "call_id"): text_of(get(item, "output")) for item in found}


def mark_of(item: Any) -> str:
    """Return a mark by which an item of a history is known again."""
    data = item if isinstance(item, Mapping) else getattr(item, "__dict__", item)
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]


def mark_of_item(item: Any) -> str:
    """Return a word that stands for an item or a part, whatever its ids."""
    data = dict(item) if isinstance(item, Mapping) else item.model_dump(mode="json")
    said = {key: value for key, value in data.items() if key not in _IDS and value is not None}
    return content_mark(str(data.get("type")), json.dumps(said, sort_keys=True, default=str))


def with_notes(items: Sequence[Any], notes: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a history with notes where they were said first: each behind the item that its `after` marks.

    A note whose item is gone is left out; none stands between calls and their results.
    """
    places = {mark_of(item): place for place, item in enumerate(items)}
    behind: dict[int, list[Any]] = {}
    for note in notes:
        place = places.get(note["after"])
        if place is not None:
            behind.setdefault(_settled(items, place), []).append(user_item(note["text"]))
    made: list[Any] = []
    for place, item in enumerate(items):
        made += [item, *behind.get(place, ())]
    return made


def _settled(items: Sequence[Any], place: int) -> int:
    open_calls: set[str] = set()
    for at, item in enumerate(items):
        if get(item, "type") == "function_call":
            open_calls.add(get(item, "call_id"))
        elif get(item, "type") == "function_call_output":
            open_calls.discard(get(item, "call_id"))
        if at >= place and not open_calls:
            return at
    return len(items) - 1


def ending_item(text: str, *, structured: bool) -> ResponseOutputMessage:
    """Return the message that ends a run.

    Where the agent owes an object of a type, a text would be no such object: then it is a refusal, which the SDK raises
    as `ModelRefusalError` or gives to `error_handlers["model_refusal"]`.
    """
    content: Any = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    if structured:
        content = ResponseOutputRefusal(refusal=text, type="refusal")
    return ResponseOutputMessage(id=ENDING_ID, type="message", role="assistant", status="completed", content=[content])


def stream_of(output: Sequence[Any]) -> list[Any]:
    """Return the events of a stream that holds these items."""
    response = Response(
        id="resp_policyengine",
        created_at=time.time(),
        model="policyengine",
        object="response",
        output=list(output),
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
    )
    done = [
        ResponseOutputItemDoneEvent(type="response.output_item.done", item=item, output_index=at, sequence_number=at)
        for at, item in enumerate(output)
    ]
    return [*done, ResponseCompletedEvent(type="response.completed", response=response, sequence_number=len(done))]
