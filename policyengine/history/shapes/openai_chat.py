"""Chat completions: calls in `tool_calls`, each result a message of its own.

Knows: the form. Must not know: which rules a provider has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from policyengine.history.views import WHOLE, Call, Edit, Result, View, listed, mapped, state_of_text, text_of

NAME = "openai_chat"
KEYED = True
JOINED = False
RUNS = False
NAME_PATTERN = r"[a-zA-Z0-9_-]{1,64}"

_TEXTS = ("text", "input_text", "output_text")
_SPEAKS = (
    "refusal",
    "audio",
    "function_call",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
)
"""Fields that make an assistant message without content and calls say something."""


def view(message: Mapping[str, Any], index: int) -> View:
    """Return the common view of a message."""
    role = message.get("role")
    if role == "tool":
        result = Result(index, WHOLE, text_of(message.get("tool_call_id")), text_of(message.get("name")))
        return View(index, results=(result,), other=False)
    content = message.get("content")
    empty = tuple(place for place, part in enumerate(listed(content)) if _is_empty(part))
    if role != "assistant":
        return View(index, empty=empty)
    calls = tuple(_call(mapped(call), index, place) for place, call in enumerate(listed(message.get("tool_calls"))))
    if calls and content == "":
        empty = (WHOLE,)
    return View(
        index,
        model=True,
        calls=calls,
        empty=empty,
        hollow=_says_nothing(message),
        reasoning=message.get("reasoning_content") is not None,
    )


def _says_nothing(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if content not in (None, "") and not (isinstance(content, list | tuple) and all(map(_is_empty, content))):
        return False
    return not message.get("tool_calls") and not any(message.get(field) for field in _SPEAKS)


def _is_empty(part: Any) -> bool:
    return mapped(part).get("type") in _TEXTS and part.get("text", True) in ("", None)


def _call(call: Mapping[str, Any], index: int, part: int) -> Call:
    id = text_of(call.get("id"))
    if call.get("type") == "custom":
        return Call(index, part, id, text_of(mapped(call.get("custom")).get("name")), signed=_is_signed(call))
    function = mapped(call.get("function"))
    state = state_of_text(function.get("arguments"))
    return Call(index, part, id, text_of(function.get("name")), state, _is_signed(call))


def _is_signed(call: Mapping[str, Any]) -> bool:
    extra = mapped(call.get("extra_content"))
    places = (mapped(extra.get("google")), extra, mapped(call.get("provider_specific_fields")), call)
    return any(place.get(key) for place in places for key in ("thought_signature", "thoughtSignature"))


def edited(message: Mapping[str, Any], edit: Edit) -> dict[str, Any] | None:
    """Return the message with the changes, or `None` if nothing is left of it."""
    if message.get("role") == "tool":
        return None if WHOLE in edit.drop else dict(edit.results.get(WHOLE, message))
    changed = dict(message)
    if edit.strip_reasoning:
        changed.pop("reasoning_content", None)
    if edit.ids or edit.names or edit.arguments:
        changed["tool_calls"] = [
            _edited_call(mapped(call), place, edit) for place, call in enumerate(listed(message["tool_calls"]))
        ]
    if edit.drop:
        left = [part for place, part in enumerate(listed(message.get("content"))) if place not in edit.drop]
        changed["content"] = left or None
    return None if _says_nothing(changed) else changed


def _edited_call(call: Mapping[str, Any], place: int, edit: Edit) -> Mapping[str, Any]:
    if place not in edit.ids and place not in edit.names and place not in edit.arguments:
        return call
    changed: dict[str, Any] = {"type": "function", **call}
    if place in edit.ids:
        changed["id"] = edit.ids[place]
    kind = "custom" if call.get("type") == "custom" else "function"
    inner = dict(mapped(call.get(kind)))
    if place in edit.names:
        inner["name"] = edit.names[place]
    if place in edit.arguments:
        inner["arguments"] = json.dumps(edit.arguments[place])
    if kind == "function" or inner:
        changed[kind] = inner
    return changed


def result(message: Mapping[str, Any], part: int) -> Mapping[str, Any]:
    """Return one result of a message as it is stored."""
    return message


def renamed(result: Mapping[str, Any], id: str | None, name: str | None) -> Mapping[str, Any]:
    """Return a result that answers another id, or names another tool."""
    changed = dict(result)
    if id is not None:
        changed["tool_call_id"] = id
    if name is not None and result.get("name"):
        changed["name"] = name
    return changed


def worded(result: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return the result as it is: errors have no mark of their own here, so none is mute."""
    return result


def synthetic(message: Mapping[str, Any], call: Call, id: str, name: str, text: str) -> Mapping[str, Any]:
    """Return a result that says that there was none."""
    return {"role": "tool", "tool_call_id": id, "content": text}


def carrier(message: Mapping[str, Any] | None, results: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Results are messages of their own here: a result carries itself."""
    return dict(results[0])


def takes_results(message: Mapping[str, Any]) -> bool:
    """Return whether results may be put in front of what a message says."""
    return False


def raw_arguments(message: Mapping[str, Any], part: int) -> Any:
    """Return the arguments of a call as they are stored."""
    return mapped(mapped(listed(message["tool_calls"])[part]).get("function")).get("arguments")
