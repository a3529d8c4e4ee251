"""What a check of arguments says: repairs and errors, each with its place.

Knows: how a place is spelled. Must not know: JSON Schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

Step = str | int
"""A key of an object or an index of an array."""

_SIMPLE = re.compile(r"[^\W\d][\w$-]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Repair(msgspec.Struct, frozen=True):
    """One change that made arguments fit.

    `path` is the place (`options[0].name`, empty for the arguments as a whole). `name` is one of `alias`,
    `drop_null_optional`, `empty_arguments`, `enum_case`, `parse_json_string`, `string_to_boolean`,
    `string_to_number`, `unwrap_envelope`, `wrap_scalar`.
    """

    path: str
    name: str


class ArgumentError(msgspec.Struct, frozen=True):
    """One reason why arguments do not fit.

    `path` is the place (`options[0].name`, empty for the arguments as a whole) and `code` a machine reason.
    `message` is what the validator says, `help` a sentence for the model that names the field and what is allowed.
    """

    path: str
    code: str
    message: str
    help: str = ""


class Arguments(msgspec.Struct, frozen=True):
    """The outcome of a check.

    With `ok`, `args` are the arguments to use and `repairs` what was changed in them. Otherwise `args` are the
    original ones (empty where they are no object), `errors` every reason found and `hint` the text for the model.
    """

    ok: bool
    args: dict[str, Any]
    repairs: tuple[Repair, ...] = ()
    errors: tuple[ArgumentError, ...] = ()
    hint: str = ""


def path_text(steps: Sequence[Step]) -> str:
    """Return a place as text: `options[0].name`; keys that are no plain word are quoted in brackets."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _SIMPLE.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return printable(text)


def has_surrogate(text: str) -> bool:
    """Return whether text holds half of a surrogate pair, so that it cannot be encoded."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def printable(text: str) -> str:
    """Return text that can be encoded: lone surrogates as `\\udXXX`."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def excerpt(text: str, limit: int) -> str:
    """Return at most about `limit` characters of a text: its beginning and its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... {text[-half:]}"


def type_of(value: Any) -> str:
    """Return the JSON type of plain data."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
