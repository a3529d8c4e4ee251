"""Gemini contents: calls and responses are parts, matched by number and name; ids are optional.

Knows: the form, in both spellings (`functionCall` and `function_call`). Must not know: which rules a provider has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policyengine.history.views import Call, Edit, Result, View, listed, mapped, state_of_object, text_of

NAME = "gemini"
KEYED = False
JOINED = True
RUNS = False
NAME_PATTERN = r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"

_CALL = ("functionCall", "function_call")
_RESPONSE = ("functionResponse", "function_response")
_SIGNATURE = ("thoughtSignature", "thought_signature")


def view(message: Mapping[str, Any], index: int) -> View:
    """Return the common view of a message."""
    parts = [mapped(part) for part in listed(message.get("parts"))]
    empty = tuple(place for place, part in enumerate(parts) if _is_empty(part))
    hollow = len(empty) == len(parts)
    if message.get("role") == "model":
        calls = [_call(part, index, place) for place, part in enumerate(parts) if _key(part, _CALL)]
        return View(index, model=True, calls=tuple(calls), empty=empty, hollow=hollow)
    results = []
    other = not parts
    for place, part in enumerate(parts):
        if key := _key(part, _RESPONSE):
            response = mapped(part[key])
            results.append(Result(index, place, text_of(response.get("id")), text_of(response.get("name"))))
        else:
            other = True
    return View(index, results=tuple(results), other=other, empty=empty, hollow=hollow)


def _key(part: Mapping[str, Any], keys: tuple[str, str]) -> str:
    return next((key for key in keys if key in part), "")


def _is_empty(part: Mapping[str, Any]) -> bool:
    # A stream ends with an empty text that carries the signature, and the signature must come back.
    return part.get("text") == "" and not _key(part, _SIGNATURE) and part.keys() <= {"text", "thought"}


def _call(part: Mapping[str, Any], index: int, place: int) -> Call:
    call = mapped(part[_key(part, _CALL)])
    args = call.get("args")
    signed = any(part.get(key) for key in _SIGNATURE)
    state = "ok" if args is None else state_of_object(args)
    return Call(index, place, text_of(call.get("id")), text_of(call.get("name")), state, signed)


def edited(message: Mapping[str, Any], edit: Edit) -> dict[str, Any] | None:
    """Return the message with the changes, or `None` if nothing is left of it."""
    parts: list[Any] = list(edit.first)
    for place, part in enumerate(listed(message.get("parts"))):
        if place in edit.drop:
            continue
        if place in edit.results:
            part = edit.results[place]
        elif place in edit.ids or place in edit.names or place in edit.arguments:
            key = _key(part, _CALL)
            call = dict(mapped(part[key]))
            if place in edit.ids:
                call["id"] = edit.ids[place]
            if place in edit.names:
                call["name"] = edit.names[place]
            if place in edit.arguments:
                call["args"] = edit.arguments[place]
            part = {**part, key: call}
        parts.append(part)
    return {**message, "parts": parts} if parts else None


def result(message: Mapping[str, Any], part: int) -> Mapping[str, Any]:
    """Return one result of a message as it is stored."""
    return mapped(listed(message["parts"])[part])


def renamed(result: Mapping[str, Any], id: str | None, name: str | None) -> Mapping[str, Any]:
    """Return a result that answers another id, or names another tool."""
    key = _key(result, _RESPONSE)
    response = dict(mapped(result[key]))
    if id is not None:
        response["id"] = id
    if name is not None:
        response["name"] = name
    return {**result, key: response}


def worded(result: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return the result as it is: errors have no mark of their own here, so none is mute."""
    return result


def synthetic(message: Mapping[str, Any], call: Call, id: str, name: str, text: str) -> Mapping[str, Any]:
    """Return a result that says that there was none, in the spelling of the call."""
    key = _RESPONSE[_CALL.index(_key(mapped(listed(message["parts"])[call.part]), _CALL))]
    response = {"name": name, "response": {"error": text}}
    return {key: {"id": id, **response} if id else response}


def carrier(message: Mapping[str, Any] | None, results: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a message of nothing but results."""
    return {"role": "user", **(message or {}), "parts": list(results)}


def takes_results(message: Mapping[str, Any]) -> bool:
    """Return whether results may be put in front of what a message says: responses are a content of their own."""
    return False


def raw_arguments(message: Mapping[str, Any], part: int) -> Any:
    """Return the arguments of a call as they are stored."""
    stored = mapped(listed(message["parts"])[part])
    return mapped(stored[_key(stored, _CALL)]).get("args")
