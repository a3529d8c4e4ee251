"""A request object: which tool it names and with which arguments.

Knows: the table of request shapes. Must not know: text, tags, how the object was read.

The table is Agent Zero's: the name is `tool_name`, else `tool`, else `name` beside `"type": "function"`; the arguments
are `tool_args`, else `args`, else `parameters` beside that type; `actions` wraps exactly one request. A name `a:b`
gives the argument `action`, as `method` does; a given `action` wins, then the suffix, then `method`. Other systems'
shapes (`aliases`) are `{"name", "arguments" | "parameters"}` and envelopes around them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from policyengine.parsing.names import Tools, resolve
from policyengine.parsing.repair import mend_whole
from policyengine.parsing.strict import StrictError, loads

ENVELOPES = ("function", "tool_call", "function_call")
LISTS = ("tool_calls",)
SCHEMA_WORDS = frozenset(
    ["$defs", "$schema", "additionalProperties", "description", "properties", "required", "strict", "title", "type"]
)
"""The members of a JSON schema that declares the arguments of a tool."""


class ShapeError(ValueError):
    """An object that is no request; `reason` is a content-free machine reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Shape(NamedTuple):
    """What a request object asks for."""

    name: str
    args: dict[str, Any]
    repairs: tuple[str, ...] = ()


def request(value: Any, tools: Tools, *, aliases: bool, repairing: bool = False) -> Shape:
    """Return what a request object asks for.

    Raises:
        ShapeError: it is not a request, or could be read as two.
    """
    if not isinstance(value, dict):
        raise ShapeError("not_an_object")
    name = value.get("tool_name")
    args = value.get("tool_args")
    if not name or type(name) is not str or type(args) is not dict:
        value, unwrapped = _unwrapped(value, aliases)
        name = _name(value, aliases)
        args, read = _arguments(value, aliases, repairing)
        unwrapped += read
    else:
        unwrapped = ()
    if not name or name.isspace():
        raise ShapeError("name_missing")
    _check_meant(name, args, tools, unwrapped)
    if ":" in name or "method" in args:
        return _with_action(name, args, tools, unwrapped)
    return Shape(name, args, unwrapped)


def _check_meant(name: str, args: dict[str, Any], tools: Tools, repairs: tuple[str, ...]) -> None:
    """Refuse the declaration of a tool, and no arguments where the tool needs some."""
    if "empty_arguments" in repairs and tools.required(resolve(name, tools).text):
        raise ShapeError("arguments_missing")
    declares = args.get("type") == "object" or isinstance(args.get("properties"), dict)
    if declares and args.keys() <= SCHEMA_WORDS:
        declared = tools.properties(resolve(name, tools).text) or {}
        if not args.keys() & declared.keys():
            raise ShapeError("tool_declaration")


def requests_in(value: Any) -> tuple[list[Any], str]:
    """Return the objects that may each be a request, and the name of the repair if they stand in a list."""
    if isinstance(value, list):
        return value, "unwrap_array"
    if isinstance(value, dict) and not value.get("name"):
        for key in LISTS:
            if isinstance(value.get(key), list) and len(value[key]) > 1:
                return value[key], f"unwrap_{key}"
    return [value], ""


def looks_like_request(value: Any) -> bool:
    """Return whether an object names a tool at all, whatever else is wrong with it."""
    return isinstance(value, dict) and any(key in value for key in ("tool_name", "tool_args", "tool", "actions"))


def _unwrapped(value: dict[str, Any], aliases: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Take the one request out of a wrapper."""
    if not value.get("tool_name") and not value.get("tool") and "actions" in value:
        return _only(value["actions"], "actions"), ()
    if not aliases:
        return value, ()
    repairs: tuple[str, ...] = ()
    for key in LISTS:
        if key in value and not value.get("name"):
            value, repairs = _only(value[key], key), (f"unwrap_{key}",)
    for key in ENVELOPES:
        if isinstance(value.get(key), dict) and not value.get("name"):
            value, repairs = value[key], (*repairs, f"unwrap_{key}_envelope")
    return value, repairs


def _only(wrapped: Any, key: str) -> dict[str, Any]:
    if not isinstance(wrapped, list) or len(wrapped) != 1 or not isinstance(wrapped[0], dict):
        raise ShapeError(f"{key}_not_exactly_one")
    return wrapped[0]


def _name(value: dict[str, Any], aliases: bool) -> str:
    for key in ("tool_name", "tool"):
        name = value.get(key)
        if isinstance(name, str) and name:
            return name
    name = value.get("name")
    named = value.get("type") == "function" or (aliases and ("arguments" in value or "parameters" in value))
    if named and isinstance(name, str) and name:
        return name
    raise ShapeError("name_missing")


def _arguments(value: dict[str, Any], aliases: bool, repairing: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    for key in ("tool_args", "args"):
        if isinstance(value.get(key), dict):
            return value[key], ()
    if aliases and "arguments" in value and "parameters" in value:
        raise ShapeError("two_argument_members")
    parameters = value.get("parameters")
    if isinstance(parameters, dict) and (aliases or value.get("type") == "function"):
        return parameters, ()
    if aliases:
        for key in ("arguments", "parameters", "tool_args", "args"):
            if isinstance(value.get(key), dict):
                return value[key], ()
            if isinstance(value.get(key), str):
                return _decoded(value[key], repairing)
    raise ShapeError("arguments_not_object")


def _decoded(text: str, repairing: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read arguments that were sent as JSON text, as they are in a provider's own format."""
    repairs: tuple[str, ...] = ()
    if not text.strip():
        return {}, ("empty_arguments",)
    try:
        value, repairs = mend_whole(text, ended=False) if repairing else (loads(text), ())
    except StrictError as error:
        is_object = text.lstrip().startswith("{")
        raise ShapeError(error.reason if is_object else "arguments_not_object") from error
    if not isinstance(value, dict):
        raise ShapeError("arguments_not_object")
    return value, ("unwrap_json_string", *repairs)


def _with_action(name: str, args: dict[str, Any], tools: Tools, repairs: tuple[str, ...]) -> Shape:
    """Split `tool:action`, and let a `method` stand for an action; what is said first in the table wins."""
    args = dict(args)
    if ":" in name and not tools.registered(name):
        name, _, suffix = name.partition(":")
        if not name.strip() or not suffix.strip():
            raise ShapeError("half_a_name")
        if "action" in args:
            repairs = (*repairs, "name_suffix_ignored")
        else:
            args["action"] = suffix
    method = args.get("method")
    if isinstance(method, str) and method:
        args.setdefault("action", method)
    return Shape(name, args, repairs)
