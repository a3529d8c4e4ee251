"""What must hold for every schema and all arguments of a tool.

Knows: schemas, values that nearly fit them. Must not know: how arguments are repaired.

What a schema accepts is asked of the validator itself, without our own code in between.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jsonschema_rs

from benchmarks.fuzz.source import Source, happens, pick, strings
from policyengine.arguments import Arguments, SchemaError, validate_arguments

KEYS = ("a", "b", "c", "args", "x y", "\ud800")
ENVELOPES = ("arguments", "args", "parameters")
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
TEXTS = (
    *("", "a", "A", "B", "5", "-3", "20.0", "1e9", "1e999", "007", "true", "False", "null", "NaN", "Infinity", " "),
    *("[1]", '["a"]', '[["a"], "[1]"]', '{"a": 1}', '{"a": "[1]"}', '["{\\"a\\": \\"5\\"}"]', "[", "{", "[a-z]*"),
    *('["[1]"]', '["[\\"[2]\\"]"]', '[["[]"]]', '{"a": "[1]", "b": "5"}', '[{"a": "[\\"[3]\\"]"}]', "[5", "[]"),
    *('{"a": 1, "a": 2}', '{"args": {"a": 5}}', '"5"', "\ud800", "a" * 40 + "!", "x\n\t\x00\ufeff"),
)
NUMBERS = (0, 1, -1, 5, 2.0, 0.5, -0.0, 1e308, 10**30, 2**63, 10**2000, math.nan, math.inf)
LEAVES: tuple[Any, ...] = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "number", "minimum": 0},
    {},
    True,
    False,
    {"enum": ["a", "A", "b", 1, None]},
    {"enum": ["open", "closed"]},
    {"const": "a"},
    {"enum": ["\ud800", "b"]},
    {"$ref": "#"},
    {"$ref": "#/$defs/d"},
    {"$ref": "#/$defs/e%20f"},
    {"type": "string", "minLength": 2, "pattern": "^a"},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": ["string", "array"]},
    {"type": ["integer", "null"]},
    {"type": ["object", "string"]},
    {"type": "array", "uniqueItems": True, "minItems": 1},
    {"type": "array", "items": {"type": ["string", "array"]}},
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "array"]}}]},
    {"type": "object", "properties": {"a": {"type": ["string", "array"]}, "b": {"type": "integer"}}},
    {"type": "integer", "exclusiveMinimum": 3, "multipleOf": 2},
)
LARGEST = 2**4000
"""Larger integers are refused whatever the schema says."""

REMOTE = ("https://schemas.example/a.json", "file:///etc/hostname", "other.json#/a", "//schemas.example/a#/b")


class Case(NamedTuple):
    """A schema with arguments. `remote` says that it refers to another document; `free` is the text of `text`."""

    schema: dict[str, Any]
    args: Any
    aliases: dict[str, list[str]]
    remote: bool = False
    free: str | None = None


def generate(source: Source) -> Case:
    """Return a case."""
    schema: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
    for key in KEYS[: source.number(0, 4)]:
        schema["properties"][key] = _schema(source, 3)
    if happens(source, 2):
        schema["required"] = [pick(source, ("text", *KEYS)) for _ in range(source.number(0, 2))]
        schema["required"] = list(dict.fromkeys(schema["required"]))
    if happens(source, 2):
        schema["additionalProperties"] = pick(source, (False, True, {"type": "integer"}, {"type": ["string", "array"]}))
    if happens(source, 8):
        schema[pick(source, ("anyOf", "oneOf", "allOf"))] = [_schema(source, 2) for _ in range(source.number(1, 3))]
    schema["$defs"] = {"d": _schema(source, 2), "e f": _schema(source, 1)}
    remote = happens(source, 30)
    if remote:
        schema["properties"]["r"] = {"$ref": pick(source, REMOTE)}
    args: Any = {key: _fitting(source, part, 4) for key, part in schema["properties"].items() if not happens(source, 4)}
    if happens(source, 4):
        args[pick(source, KEYS)] = _value(source, 3)
    free = args.pop("text", None)
    if free is not None:
        free = args["text"] = pick(source, TEXTS) if happens(source, 2) else source.text(12)
    aliases = {"a": ["x y", "alias"]} if happens(source, 4) else {}
    return Case(schema, _sent(source, args), aliases, remote, free)


def check(case: Case) -> None:
    """Put the arguments to the schema.

    Raises:
        AssertionError: an answer that must not be.
    """
    schema, args = case.schema, case.args
    before = repr((schema, args))
    try:
        outcome = validate_arguments(schema, args, aliases=case.aliases)
    except SchemaError:
        assert case.remote or _validator(schema) is None, "a schema that is none, but nothing is wrong with it"
        return
    assert not case.remote, "a reference to another document was followed, or never looked at"
    assert repr((schema, args)) == before, "what was given was changed"
    assert validate_arguments(schema, args, aliases=case.aliases) == outcome
    _check_unchanged(case, outcome)
    if not outcome.ok:
        assert outcome.errors
        assert outcome.hint.strip()
        assert not outcome.repairs
        json.dumps([[error.path, error.code, error.message, error.help] for error in outcome.errors]).encode()
        outcome.hint.encode()
        return
    assert not outcome.errors
    assert outcome.repairs or outcome.args is args or not _is_plain(args)
    assert _accepts(schema, outcome.args) is not False, ("not what the schema accepts", outcome)
    again = validate_arguments(schema, outcome.args, aliases=case.aliases)
    assert (again.ok, repr(again.args), again.repairs) == (True, repr(outcome.args), ()), ("not done", outcome, again)
    _check_texts(case, outcome)


def _check_unchanged(case: Case, outcome: Arguments) -> None:
    """What the schema accepts stays as it is.

    Documented exceptions: a list written as text where lists are allowed, too, an envelope, and an alias.
    """
    args = case.args
    if not _is_plain(args) or not _accepts(case.schema, args):
        return
    excused = {"parse_json_string"} if any(text.lstrip()[:1] == "[" for text in strings(args)) else set()
    aliases = {name for names in case.aliases.values() for name in names}
    if args.keys() & aliases or (len(args) == 1 and set(args) <= set(ENVELOPES)):
        return
    assert outcome.ok, outcome
    assert {repair.name for repair in outcome.repairs} <= excused, outcome
    assert outcome.repairs or outcome.args is args, outcome


def _check_texts(case: Case, outcome: Arguments) -> None:
    """Free text stays as it is, and no string comes from nowhere."""
    if case.free is not None and "text" in outcome.args:
        # JSON text joins two halves of a pair that stand side by side.
        joined = case.free.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        assert outcome.args["text"] in (case.free, joined), ("free text was changed", outcome)
    known = {*strings(case.schema), *strings(_thawed(case.args)), *case.aliases}
    waiting = list(known)
    while waiting:
        try:
            inner = strings(json.loads(waiting.pop()))
        except (ValueError, RecursionError):
            continue
        waiting += set(inner) - known
        known.update(inner)
    assert set(strings(outcome.args)) <= known, ("text from nowhere", outcome)


def _is_plain(args: Any) -> bool:
    """Return whether arguments are an object of plain, finite JSON data that is not deep."""
    if type(args) is not dict:
        return False
    try:
        json.dumps(args, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return False
    if any(type(key) is not str for key in _keys(args)) or _depth(args) > 60:
        return False
    return _thawed(args) == args and not any(abs(number) > LARGEST for number in _numbers(args))


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, items), default=0)


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return [key for item in value for key in _keys(item)] if isinstance(value, list) else []


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        return [found for item in (value.values() if isinstance(value, dict) else value) for found in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


def _thawed(value: Any, depth: int = 0) -> Any:
    if depth > 100:
        return None
    if isinstance(value, Mapping):
        return {key: _thawed(item, depth + 1) for key, item in value.items()}
    return [_thawed(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value


def _accepts(schema: dict[str, Any], args: Any) -> bool | None:
    """Return what the validator says, `None` where it cannot say anything (half a pair of surrogates)."""
    validator = _validator(schema)
    try:
        return None if validator is None else bool(validator.is_valid(args))
    except ValueError:
        return None


def _validator(schema: dict[str, Any]) -> Any:
    def refuse(uri: str) -> Any:
        raise ValueError(uri)

    try:
        return jsonschema_rs.validator_for(schema, validate_formats=False, retriever=refuse)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


# ---- schemas


def _schema(source: Source, depth: int) -> Any:
    kind = source.number(0, 9) if depth else 0
    if kind <= 3:
        return pick(source, LEAVES)
    if kind == 4:
        return {"type": "array", "items": _schema(source, depth - 1)}
    if kind <= 6:
        part: dict[str, Any] = {
            "type": "object",
            "properties": {key: _schema(source, depth - 1) for key in KEYS[: source.number(1, 3)]},
        }
        if happens(source, 3):
            part["required"] = [pick(source, KEYS)]
        if happens(source, 3):
            part["additionalProperties"] = pick(source, (False, {"type": "number"}))
        return part
    if kind == 7:
        return {"anyOf": [_schema(source, depth - 1), {"type": "null"}]}
    if kind == 8:
        name = pick(source, ("anyOf", "oneOf", "allOf"))
        return {name: [_schema(source, depth - 1) for _ in range(source.number(1, 3))]}
    inner = _schema(source, depth - 1)
    return pick(
        source,
        (
            {"not": inner},
            {"type": "object", "patternProperties": {"^a": inner}},
            {"type": "array", "prefixItems": [inner], "items": {"type": "integer"}},
            {"type": "array", "contains": inner},
            {"if": {"type": "string"}, "then": inner},
            {"type": "object", "propertyNames": {"maxLength": 2}, "minProperties": 1},
        ),
    )


# ---- arguments


def _fitting(source: Source, part: Any, depth: int) -> Any:
    """Return a value that nearly fits a part of a schema."""
    if not isinstance(part, dict) or depth == 0 or happens(source, 6):
        return _value(source, depth)
    value: Any
    options = part.get("anyOf") or part.get("oneOf") or part.get("allOf")
    kind = part.get("type")
    if options:
        value = _fitting(source, pick(source, options), depth)
    elif "enum" in part:
        value = pick(source, part["enum"])
        value = value.swapcase() if isinstance(value, str) and happens(source, 3) else value
    elif kind == "object":
        members = part.get("properties", {}).items()
        value = {key: _fitting(source, inner, depth - 1) for key, inner in members if not happens(source, 4)}
    elif kind == "array":
        value = [_fitting(source, part.get("items"), depth - 1) for _ in range(source.number(0, 3))]
    else:
        value = _scalar(source, kind)
    return _text(value) if happens(source, 5) else value


def _scalar(source: Source, kind: Any) -> Any:
    wanted = pick(source, kind) if isinstance(kind, list) else kind
    if wanted == "boolean":
        return pick(source, (True, False, "true", "False"))
    if wanted in ("integer", "number"):
        return pick(source, (*NUMBERS, "5", "20.0", "1e9"))
    return None if wanted == "null" else pick(source, TEXTS)


def _value(source: Source, depth: int) -> Any:
    kind = source.number(0, 6 if depth else 4)
    if kind == 0:
        return pick(source, TEXTS)
    if kind == 1:
        return pick(source, (None, True, False))
    if kind == 2:
        return pick(source, NUMBERS)
    if kind == 3:
        return source.text(8)
    if kind == 4:
        return pick(source, ((1, "a"), b"a", {1, 2}, {1: 2}, float, -5)) if happens(source, 6) else source.number(-9, 9)
    if kind == 5:
        return [_value(source, depth - 1) for _ in range(source.number(0, 3))]
    return {pick(source, KEYS): _value(source, depth - 1) for _ in range(source.number(0, 3))}


def _sent(source: Source, args: dict[str, Any]) -> Any:
    """Return arguments as they may come: as they are, as text, in an envelope, or hardly at all."""
    kind = source.number(0, 30)
    if kind <= 18:
        return args
    if kind <= 22:
        return _text(args)
    if kind <= 24:
        return {pick(source, ENVELOPES): _text(args) if happens(source, 2) else args}
    if kind == 25:
        return MappingProxyType(args)
    if kind == 26:
        args["c"] = args  # holds itself
        return args
    if kind == 27:
        deep: Any = args
        for _ in range(source.number(1, 200)):
            deep = [deep]
        return {"a": deep}
    if kind == 28:
        return {"a": [dict(args) for _ in range(source.number(1, 300))]}
    if kind == 29:
        return _text(args)[: source.number(0, 40)]
    return pick(source, (None, "", " ", [], "null", args.get("a"), 5))


def _text(args: Any) -> str:
    try:
        return json.dumps(args)
    except (TypeError, ValueError):
        return json.dumps(repr(args))
