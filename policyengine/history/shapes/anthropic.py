"""Anthropic messages: calls and results are blocks, results stand first in the user message that follows.

Knows: the form. Must not know: which rules a provider has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policyengine.history.views import Call, Edit, Result, View, listed, mapped, state_of_object, text_of

NAME = "anthropic"
KEYED = True
JOINED = True
RUNS = False
NAME_PATTERN = r"[a-zA-Z0-9_-]{1,128}"

_THINKING = ("thinking", "redacted_thinking")


def view(message: Mapping[str, Any], index: int) -> View:
    """Return the common view of a message."""
    content = message.get("content")
    blocks = [mapped(block) for block in listed(content)]
    kinds = [block.get("type") for block in blocks]
    texts = [place for place, kind in enumerate(kinds) if kind == "text"]
    empty = tuple(place for place in texts if blocks[place].get("text", True) in ("", None))
    if isinstance(content, str) or content is None:
        hollow = not text_of(content).strip()
    else:
        hollow = all(text_of(block.get("text", "x")).strip() == "" for block in blocks) and len(texts) == len(blocks)
    if message.get("role") != "assistant":
        return _view_of_user(blocks, index, empty, hollow)
    thinking = tuple(place for place, kind in enumerate(kinds) if kind in _THINKING)
    return View(
        index,
        model=True,
        calls=tuple(_call(block, index, place) for place, block in enumerate(blocks) if kinds[place] == "tool_use"),
        empty=empty,
        hollow=hollow,
        reasoning=bool(thinking),
        thinking=thinking,
        unsigned=tuple(
            place for place in thinking if kinds[place] == "thinking" and not blocks[place].get("signature")
        ),
        leads=bool(thinking) and thinking[0] == 0,
    )


def _view_of_user(blocks: list[Mapping[str, Any]], index: int, empty: tuple[int, ...], hollow: bool) -> View:
    results = []
    other = not blocks
    for place, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            results.append(Result(index, place, text_of(block.get("tool_use_id")), late=other, mute=_is_mute(block)))
        else:
            other = True
    return View(index, results=tuple(results), other=other, empty=empty, hollow=hollow)


def _is_mute(result: Mapping[str, Any]) -> bool:
    """Return whether a result is an error without content; one that is no error may be empty."""
    if result.get("is_error") is not True:
        return False
    parts = listed(result.get("content"))
    if not parts:
        return result.get("content") in (None, "", [], ())
    return all(mapped(part).get("type") == "text" and part.get("text") in (None, "") for part in parts)


def _call(block: Mapping[str, Any], index: int, part: int) -> Call:
    name = text_of(block.get("name"))
    return Call(index, part, text_of(block.get("id")), name, state_of_object(block.get("input")))


def edited(message: Mapping[str, Any], edit: Edit) -> dict[str, Any] | None:
    """Return the message with the changes, or `None` if nothing is left of it."""
    content = message.get("content")
    old = [{"type": "text", "text": content}] if isinstance(content, str) and content.strip() else listed(content)
    blocks: list[Any] = list(edit.first)
    for place, block in enumerate(old):
        if place in edit.drop:
            continue
        if place in edit.results:
            block = edit.results[place]
        elif place in edit.ids or place in edit.names or place in edit.arguments:
            block = dict(block)
            if place in edit.ids:
                block["id"] = edit.ids[place]
            if place in edit.names:
                block["name"] = edit.names[place]
            if place in edit.arguments:
                block["input"] = edit.arguments[place]
        blocks.append(block)
    return {**message, "content": blocks} if blocks else None


def result(message: Mapping[str, Any], part: int) -> Mapping[str, Any]:
    """Return one result of a message as it is stored."""
    return mapped(listed(message["content"])[part])


def renamed(result: Mapping[str, Any], id: str | None, name: str | None) -> Mapping[str, Any]:
    """Return a result that answers another id; results name no tool."""
    return result if id is None else {**result, "tool_use_id": id}


def worded(result: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return a mute result with a text as its content."""
    return {**result, "content": text}


def synthetic(message: Mapping[str, Any], call: Call, id: str, name: str, text: str) -> Mapping[str, Any]:
    """Return a result that says that there was none."""
    return {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": True}


def carrier(message: Mapping[str, Any] | None, results: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a message of nothing but results."""
    return {"role": "user", **(message or {}), "content": list(results)}


def takes_results(message: Mapping[str, Any]) -> bool:
    """Return whether results may be put in front of what a message says."""
    return message.get("role") == "user"


def raw_arguments(message: Mapping[str, Any], part: int) -> Any:
    """Return the arguments of a call as they are stored."""
    return mapped(listed(message["content"])[part]).get("input")
