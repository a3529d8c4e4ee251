"""Arguments written as tags: `<parameter=K>V</parameter>` and its relatives.

Knows: the tags, and that the schema says what a value is. Must not know: calls.

A value is text, byte for byte, unless the schema (or the tag) says that it is something else. It ends at the first
closing tag that is followed by the next parameter or the end of the call, so that the tag's own text may occur in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from policyengine.parsing.repair import encodable, mend_whole
from policyengine.parsing.strict import StrictError, loads

NS = r"(?:[A-Za-z][\w.-]{0,30}:|[\uff5c\u2016|]{1,2}\s?DSML\s?[\uff5c\u2016|]{1,2}\s?)?"


def parameters_at(text: str, at: int, properties: Mapping[str, Any]) -> tuple[dict[str, Any], int, tuple[str, ...]]:
    """Return the parameters that begin at `at`, the offset after them, and what was repaired.

    Raises:
        StrictError: a value has no end, or a parameter is given twice.
    """
    args: dict[str, Any] = {}
    repairs: dict[str, None] = {}
    while True:
        opened = _OPENED.match(text, at)
        if opened is None:
            return args, at, tuple(repairs)
        name = (opened.group(1) or opened.group(2) or opened.group(4)).strip()
        closing = (_PAIR_CLOSED if opened.group(4) else _CLOSED).search(text, opened.end())
        if closing is None:
            raise StrictError("truncated" if _ENDS.search(text, opened.end()) is None else "not_json", opened.start())
        if name in args:
            raise StrictError("duplicate_key", opened.start())
        value = text[opened.end() : closing.start()]
        # In the `=K` notation a line break after the opening and before the closing tag belongs to the tags.
        if opened.group(1):
            value = value.removeprefix("\n").removesuffix("\n")
        args[name], repaired = typed(value, properties.get(name), opened.group(3) or "")
        repairs.update(dict.fromkeys(repaired))
        at = closing.end()


def typed(value: str, schema: Any, declared: str = "") -> tuple[Any, tuple[str, ...]]:
    """Return a value as what it is declared to be; text stays text where nothing else is declared or can be read.

    `declared` are the other attributes of the tag (`string="false"` says JSON).
    """
    value, lone = encodable(value)
    as_json = re.search(r"\bstring\s*=\s*[\"']?(true|false)", declared)
    if as_json is not None and as_json.group(1) == "true":
        return value, lone
    types = _types(schema)
    if as_json is None and (not types or "string" in types):
        return value, lone
    try:
        found: Any = loads(value)
        repairs: tuple[str, ...] = ()
    except StrictError:
        try:
            found, repairs = mend_whole(value, ended=False)
        except StrictError:
            return value, lone
    if types and not any(type(found) in _PYTHON.get(name, ()) for name in types):
        return value, lone
    return found, (*lone, *repairs)


def _types(schema: Any) -> set[str]:
    """Return every JSON type a schema admits at its top level; empty where it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type", ())
    types = {declared} if isinstance(declared, str) else {str(item) for item in declared}
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key, ()):
            types |= _types(option)
    return types


_PYTHON: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_OPENED = re.compile(
    rf"\s*(?:<{NS}parameter\s*=\s*[\"']?([^\"'<>\n]{{1,200}})[\"']?\s*>"
    rf"|<{NS}parameter\s+name\s*=\s*[\"']?([^\"'<>\n]{{1,200}})[\"']?([^<>\n]{{0,200}})>"
    r"|<arg_key>([^<>]{1,200})</arg_key>\s*<arg_value>)"
)
_CLOSED = re.compile(
    rf"</{NS}parameter>(?=\s*(?:<{NS}parameter[\s=]|</{NS}(?:function|invoke|tool_calls?|function_calls?)\b|<?/?\Z))"
)
_PAIR_CLOSED = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</|\Z))")
_ENDS = re.compile(rf"</{NS}(?:function|invoke|tool_calls?|parameter)>")
