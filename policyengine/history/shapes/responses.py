"""Responses items: every call, result, reasoning and message is an item of one flat list.

Knows: the form. Must not know: which rules a provider has.

Paired are function calls and custom calls. Tools that the provider runs itself (web search and the like) are one item
with call and result; results of the provider's own tools (a screenshot, say) nobody could write in their place. Empty
texts are not refused here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from policyengine.history.views import WHOLE, Call, Edit, Result, View, mapped, state_of_text, text_of

NAME = "openai_responses"
KEYED = True
JOINED = False
RUNS = True
NAME_PATTERN = r"[a-zA-Z0-9_-]{1,128}"

_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


def view(message: Mapping[str, Any], index: int) -> View:
    """Return the common view of an item."""
    kind = message.get("type")
    if kind in _CALLS:
        return View(index, model=True, calls=(_call(message, index),), reasoning=False)
    if kind in _RESULTS:
        return View(index, results=(Result(index, WHOLE, text_of(message.get("call_id"))),), other=False)
    if kind == "reasoning":
        return View(index, model=True, reasoning=True, thinking=(WHOLE,))
    if kind == "item_reference":
        return View(index, model=True, refers=True)
    if kind in (None, "message"):
        model = message.get("role") == "assistant"
        return View(index, model=model, reasoning=False if model else None)
    if text_of(kind).endswith(("_output", "_response")):
        return View(index, other=False)
    return View(index, model=True)


def _call(item: Mapping[str, Any], index: int) -> Call:
    state = state_of_text(item.get("arguments")) if item["type"] == "function_call" else "ok"
    return Call(index, WHOLE, text_of(item.get("call_id")), text_of(item.get("name")), state)


def edited(message: Mapping[str, Any], edit: Edit) -> dict[str, Any] | None:
    """Return the item with the changes, or `None` if it goes."""
    if edit.drop:
        return None
    changed = dict(edit.results.get(WHOLE, message))
    if WHOLE in edit.ids:
        changed["call_id"] = edit.ids[WHOLE]
    if WHOLE in edit.names:
        changed["name"] = edit.names[WHOLE]
    if WHOLE in edit.arguments:
        changed["arguments"] = json.dumps(edit.arguments[WHOLE])
    return changed


def result(message: Mapping[str, Any], part: int) -> Mapping[str, Any]:
    """Return the result, which is the item itself."""
    return message


def renamed(result: Mapping[str, Any], id: str | None, name: str | None) -> Mapping[str, Any]:
    """Return a result that answers another id; results name no tool."""
    return result if id is None else {**result, "call_id": id}


def worded(result: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return the result as it is: errors have no mark of their own here, so none is mute."""
    return result


def synthetic(message: Mapping[str, Any], call: Call, id: str, name: str, text: str) -> Mapping[str, Any]:
    """Return a result that says that there was none."""
    return {"type": f"{message['type']}_output", "call_id": id, "output": text}


def carrier(message: Mapping[str, Any] | None, results: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Results are items of their own here: a result carries itself."""
    return dict(results[0])


def takes_results(message: Mapping[str, Any]) -> bool:
    """Return whether results may be put in front of what an item says."""
    return False


def raw_arguments(message: Mapping[str, Any], part: int) -> Any:
    """Return the arguments of a call as they are stored."""
    return mapped(message).get("arguments")
