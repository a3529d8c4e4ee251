"""What a Python function takes, as JSON Schema, and how arguments become the objects it wants.

Knows: type hints, docstrings, `msgspec`; pydantic models by their methods. Must not know: tools, calls, guards.

Arguments are converted only where a hint asks for more than JSON has (a dataclass, an enum, a date); whether plain
values fit is for the policy to say (`parsing.arguments`).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as types

from policyengine.errors import UsageError

_PLAIN = (
    types.AnyType,
    types.NoneType,
    types.BoolType,
    types.IntType,
    types.FloatType,
    types.StrType,
    types.LiteralType,
)
_REF = "#/$defs/{name}"
_SECTION = re.compile(r"^(?:Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?):?\s*$")
_GOOGLE = re.compile(r"^ {1,8}(\*{0,2}\w+)(?: ?\([^)]*\))?: *(.*)$")
_SPHINX = re.compile(r"^:param (?:[^:]* )?(\w+): *(.*)$")


class Signature(NamedTuple):
    """The schema of a function's arguments, and the types of those that have to be converted."""

    schema: dict[str, Any]
    converted: dict[str, Any]


def signature_of(function: Callable[..., Any], name: str) -> Signature:
    """Return what a function takes.

    Raises:
        UsageError: it has no signature to read.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the tool {name!r} has no signature to read; wrap it in a function with `def`") from error
    hints, told = _hints(function), _told(function)
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    converted: dict[str, Any] = {}
    required = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(parameter.name, Any)
        schema, defined, rich = _schema(hint)
        definitions |= defined
        about = _about(hint) or told.get(parameter.name, "")
        if about:
            schema = {**schema, "description": about}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, bool | int | float | str):
            schema = {**schema, "default": _plain_default(parameter.default)}
        properties[parameter.name] = schema
        if rich:
            converted[parameter.name] = hint
    made: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        made["additionalProperties"] = False  # the function would raise at an argument that it does not have
    if definitions:
        made["$defs"] = definitions
    return Signature(made, converted)


def description_of(function: Any) -> str:
    """Return what a docstring says before it comes to arguments and results."""
    kept = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line) or line.startswith((":param", ":return", ":raises", ":rtype")):
            break
        kept.append(line)
    return "\n".join(kept).strip()


def convert(arguments: dict[str, Any], converted: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as the objects a function wants.

    Raises:
        ValueError: one of them does not fit; the message says which.
    """
    made = dict(arguments)
    for name, hint in converted.items():
        if name in made:
            try:
                made[name] = msgspec.convert(made[name], hint, dec_hook=_decode)
            except (msgspec.ValidationError, ValueError) as error:
                raise ValueError(f"argument {name!r}: {error}") from error
    return made


def _hints(function: Any) -> dict[str, Any]:
    target = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except Exception:  # noqa: BLE001 - annotations are foreign code, and only an aid
        return {}


def _schema(hint: Any) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return the schema of a hint, what it refers to, and whether values of it have to be converted.

    A hint that is understood by nobody says nothing, and its values are passed on as they are.
    """
    try:
        (schema,), defined = msgspec.json.schema_components([hint], schema_hook=_foreign, ref_template=_REF)
        rich = not _is_plain(types.type_info(hint))
    except Exception:  # noqa: BLE001 - annotations are foreign code, and only an aid
        return {}, {}, False
    return _hoisted(schema, defined), defined, rich


def _hoisted(schema: dict[str, Any], defined: dict[str, Any]) -> dict[str, Any]:
    """Move the definitions that pydantic nests to where references look for them."""
    for place in (schema, *list(defined.values())):
        defined |= place.pop("$defs", {})
        for key in ("items", "additionalProperties"):
            if isinstance(inner := place.get(key), dict):
                defined |= inner.pop("$defs", {})
        for inner in place.get("anyOf", ()):
            defined |= inner.pop("$defs", {})
    return schema


def _foreign(kind: Any) -> dict[str, Any]:
    if _is_pydantic(kind):
        return dict(kind.model_json_schema())
    raise NotImplementedError


def _decode(kind: Any, value: Any) -> Any:
    if _is_pydantic(kind):
        return kind.model_validate(value)
    raise NotImplementedError


def _is_pydantic(kind: Any) -> bool:
    return callable(getattr(kind, "model_json_schema", None)) and callable(getattr(kind, "model_validate", None))


def _is_plain(info: Any) -> bool:
    """Return whether JSON's own values are all that a hint asks for."""
    match info:
        case types.Metadata():
            return _is_plain(info.type)
        case types.ListType():
            return _is_plain(info.item_type)
        case types.DictType():
            return _is_plain(info.value_type)
        case types.UnionType():
            return all(map(_is_plain, info.types))
        case types.TypedDictType():
            return all(_is_plain(field.type) for field in info.fields)
        case types.CustomType():
            return not _is_pydantic(info.cls)
    return isinstance(info, _PLAIN)


def _about(hint: Any) -> str:
    """Return the text that stands with a hint: `Annotated[str, "what it is"]`, or a field with a description."""
    if get_origin(hint) is not Annotated:
        return ""
    for note in get_args(hint)[1:]:
        text = note if isinstance(note, str) else getattr(note, "description", None)
        if isinstance(text, str) and text:
            return text
    return ""


def _told(function: Any) -> dict[str, str]:
    """Return what a docstring says about each argument, in one of the two usual forms."""
    told: dict[str, str] = {}
    inside, last, depth = False, "", 0
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            inside, last = line.strip(" :") in ("Args", "Arguments", "Parameters"), ""
            continue
        found = _SPHINX.match(line) or (_GOOGLE.match(line) if inside else None)
        indent = len(line) - len(line.lstrip())
        if found is not None and (not last or indent <= depth):
            last, depth = found.group(1).lstrip("*"), indent
            told[last] = found.group(2).strip()
        elif last and line.strip() and indent > depth:
            told[last] = f"{told[last]} {line.strip()}".strip()
        elif not line.strip():
            last = ""
    return told


def _plain_default(value: Any) -> Any:
    return getattr(value, "value", value)
