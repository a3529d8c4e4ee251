"""Arguments against schemas: strict first, repaired where one reading is left, refused with every reason otherwise."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from policyengine import Arguments, UsageError, validate_arguments
from policyengine.arguments import SchemaError, check_schema
from policyengine.arguments.coerce import MAX_WORK
from policyengine.arguments.plain import MAX_DEPTH, MAX_NODES
from policyengine.arguments.schema import CompiledSchema
from policyengine.messages import freeze

STRINGS = {"type": "array", "items": {"type": "string"}}
INTEGERS = {"type": "array", "items": {"type": "integer"}}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def opened(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def either(*parts: Any) -> dict[str, Any]:
    return {"anyOf": list(parts)}


def of(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def exact(value: Any) -> str:
    """Tells `1`, `1.0` and `true` apart."""
    return repr(value)


def repairs(outcome: Arguments) -> list[tuple[str, str]]:
    return [(repair.path, repair.name) for repair in outcome.repairs]


def errors(outcome: Arguments) -> list[tuple[str, str]]:
    return [(error.path, error.code) for error in outcome.errors]


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": closed("name", name=of("string"), children=of("array", items={"$ref": "#/$defs/node"}))},
}
SHAPES = {
    "oneOf": [
        closed("kind", "size", kind={"const": "square"}, size=of("number")),
        closed("kind", "radius", kind={"const": "circle"}, radius=of("number")),
    ]
}

REPAIRED = {
    "an object as JSON text": (
        opened("where", where=of("object")),
        {"where": '{"a": 1}'},
        {"where": {"a": 1}},
        [("where", "parse_json_string")],
    ),
    "JSON text inside JSON text": (
        opened(jobs=of("array", items=opened(tags=STRINGS))),
        {"jobs": '[{"tags": "[\\"a\\"]"}]'},
        {"jobs": [{"tags": ["a"]}]},
        [("jobs", "parse_json_string"), ("jobs[0].tags", "parse_json_string")],
    ),
    "an array as JSON text, nullable": (
        opened(urls=either(STRINGS, of("null"))),
        {"urls": '["u"]'},
        {"urls": ["u"]},
        [("urls", "parse_json_string")],
    ),
    "an array as JSON text where text is allowed too": (
        opened(paths=either(of("string"), STRINGS)),
        {"paths": '["a.py", "b.py"]'},
        {"paths": ["a.py", "b.py"]},
        [("paths", "parse_json_string")],
    ),
    "the same with a list of types, below": (
        opened(jobs=of("array", items=opened(paths=of(["string", "array"])))),
        {"jobs": [{"paths": "[1]"}]},
        {"jobs": [{"paths": [1]}]},
        [("jobs[0].paths", "parse_json_string")],
    ),
    "the same through a reference": (
        {
            **opened(paths={"$ref": "#/$defs/p"}),
            "$defs": {"p": {"oneOf": [of("string"), {"$ref": "#/$defs/l"}]}, "l": STRINGS},
        },
        {"paths": ' ["a"]'},
        {"paths": ["a"]},
        [("paths", "parse_json_string")],
    ),
    "an array as JSON text in an array as JSON text": (
        opened(paths=either(of("string"), of("array", items=of(["string", "array"])))),
        {"paths": '["[1]", "a"]'},
        {"paths": [[1], "a"]},
        [("paths", "parse_json_string"), ("paths[0]", "parse_json_string")],
    ),
    "an array as JSON text in an alternative, beside what fails": (
        {**opened(n=of("integer")), "anyOf": [opened(paths=of(["string", "array"]))]},
        {"n": "5", "paths": "[1]"},
        {"n": 5, "paths": [1]},
        [("n", "string_to_number"), ("paths", "parse_json_string")],
    ),
    "an array as JSON text in arguments that were wrapped as text": (
        opened(paths=of(["string", "array"])),
        {"arguments": '{"paths": "[1]"}'},
        {"paths": [1]},
        [("arguments", "parse_json_string"), ("arguments", "unwrap_envelope"), ("paths", "parse_json_string")],
    ),
    "wrapped arguments beside a null": (
        opened(title=of("string"), n=of("integer")),
        {"args": {"title": "t"}, "n": None},
        {"title": "t"},
        [("n", "drop_null_optional"), ("args", "unwrap_envelope")],
    ),
    "text in a parsed container is converted": (
        opened(ids=INTEGERS),
        {"ids": '["1", 2]'},
        {"ids": [1, 2]},
        [("ids", "parse_json_string"), ("ids[0]", "string_to_number")],
    ),
    "the whole arguments as JSON text": (
        opened("a", a=of("integer")),
        '{"a": 1}',
        {"a": 1},
        [("", "parse_json_string")],
    ),
    "no arguments at all": (opened(a=of("integer")), None, {}, [("", "empty_arguments")]),
    "an empty text of arguments": (opened(a=of("integer")), " ", {}, [("", "empty_arguments")]),
    "True in another case": (
        opened(live=of("boolean")),
        {"live": "True"},
        {"live": True},
        [("live", "string_to_boolean")],
    ),
    "FALSE in a list": (
        opened(flags=of("array", items=of("boolean"))),
        {"flags": [True, "FALSE"]},
        {"flags": [True, False]},
        [("flags[1]", "string_to_boolean")],
    ),
    "false, nullable": (
        opened(live=either(of("boolean"), of("null"))),
        {"live": "false"},
        {"live": False},
        [("live", "string_to_boolean")],
    ),
    "an integer": (opened(limit=of("integer")), {"limit": "20"}, {"limit": 20}, [("limit", "string_to_number")]),
    "a negative integer": (
        opened(limit=of("integer")),
        {"limit": "-3"},
        {"limit": -3},
        [("limit", "string_to_number")],
    ),
    "an integer with an empty fraction": (
        opened(limit=of("integer")),
        {"limit": "20.0"},
        {"limit": 20},
        [("limit", "string_to_number")],
    ),
    "a number": (opened(lat=of("number")), {"lat": "52.5"}, {"lat": 52.5}, [("lat", "string_to_number")]),
    "a number with exponent": (
        opened(lat=of("number")),
        {"lat": "1e-3"},
        {"lat": 0.001},
        [("lat", "string_to_number")],
    ),
    "an integer for a number stays one": (
        opened(lat=of("number")),
        {"lat": "52"},
        {"lat": 52},
        [("lat", "string_to_number")],
    ),
    "a large integer keeps its digits": (
        opened(id=of("integer")),
        {"id": "12345678901234567890123"},
        {"id": 12345678901234567890123},
        [("id", "string_to_number")],
    ),
    "an integer from a list of them": (
        opened(level={"enum": [1, 2, 3]}),
        {"level": "2"},
        {"level": 2},
        [("level", "string_to_number")],
    ),
    "a number where a list is possible too": (
        opened(lines=either(of("integer"), INTEGERS)),
        {"lines": "7"},
        {"lines": 7},
        [("lines", "string_to_number")],
    ),
    "a scalar for a nullable array": (
        opened(urls=either(STRINGS, of("null"))),
        {"urls": "u"},
        {"urls": ["u"]},
        [("urls", "wrap_scalar")],
    ),
    "an integer for an array": (opened(ids=INTEGERS), {"ids": 7}, {"ids": [7]}, [("ids", "wrap_scalar")]),
    "the text of an integer for an array": (
        opened(ids=INTEGERS),
        {"ids": "7"},
        {"ids": [7]},
        [("ids", "wrap_scalar"), ("ids[0]", "string_to_number")],
    ),
    "an enum member in another case for an array": (
        opened(kinds=of("array", items={"enum": ["bug", "task"]})),
        {"kinds": "Bug"},
        {"kinds": ["bug"]},
        [("kinds", "wrap_scalar"), ("kinds[0]", "enum_case")],
    ),
    "null for an optional field": (
        closed("q", q=of("string"), limit=of("integer")),
        {"q": "x", "limit": None},
        {"q": "x"},
        [("limit", "drop_null_optional")],
    ),
    "null in an alternative": (
        opened(filter=either(closed("f", f=of("string"), op=of("string")), of("null"))),
        {"filter": {"f": "a", "op": None}},
        {"filter": {"f": "a"}},
        [("filter.op", "drop_null_optional")],
    ),
    "null next to one that is allowed": (
        opened(a=of(["string", "null"]), b=of("string")),
        {"a": None, "b": None},
        {"a": None},
        [("b", "drop_null_optional")],
    ),
    "an enum through a reference": (
        {**opened(state={"$ref": "#/definitions/s"}), "definitions": {"s": {"enum": ["open", "closed"]}}},
        {"state": "Open"},
        {"state": "open"},
        [("state", "enum_case")],
    ),
    "one of several constants": (
        opened(state={"oneOf": [{"const": "open"}, {"const": "closed"}]}),
        {"state": "CLOSED"},
        {"state": "closed"},
        [("state", "enum_case")],
    ),
    "an enum, nullable": (
        opened(state=either({"enum": ["open"]}, of("null"))),
        {"state": "OPEN"},
        {"state": "open"},
        [("state", "enum_case")],
    ),
    "the alternative that the tag names": (
        opened("shape", shape=SHAPES),
        {"shape": {"kind": "circle", "radius": "2"}},
        {"shape": {"kind": "circle", "radius": 2}},
        [("shape.radius", "string_to_number")],
    ),
    "parts of allOf, each with its own field": (
        {"allOf": [opened("a", a=of("integer")), opened("b", b=of("boolean"))]},
        {"a": "1", "b": "true"},
        {"a": 1, "b": True},
        [("a", "string_to_number"), ("b", "string_to_boolean")],
    ),
    "a tree of references": (
        TREE,
        {"name": "a", "children": [{"name": "b", "children": '[{"name": "c"}]'}]},
        {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]},
        [("children[0].children", "parse_json_string")],
    ),
    "values of a map": (
        opened(limits={"type": "object", "additionalProperties": of("integer")}),
        {"limits": {"cpu": "2", "a b": 1}},
        {"limits": {"cpu": 2, "a b": 1}},
        [("limits.cpu", "string_to_number")],
    ),
    "keys that match a pattern": (
        opened(env={"type": "object", "patternProperties": {"^N_": of("integer")}}),
        {"env": {"N_A": "2", "B": "2"}},
        {"env": {"N_A": 2, "B": "2"}},
        [("env.N_A", "string_to_number")],
    ),
    "places of a tuple": (
        opened(span={"type": "array", "prefixItems": [of("integer"), of("boolean")], "items": of("number")}),
        {"span": ["1", "true", "0.5"]},
        {"span": [1, True, 0.5]},
        [("span[0]", "string_to_number"), ("span[1]", "string_to_boolean"), ("span[2]", "string_to_number")],
    ),
    "a schema of an older draft that does not say so": (
        opened(span={"type": "array", "items": [of("integer")], "additionalItems": of("boolean")}),
        {"span": ["1", "true"]},
        {"span": [1, True]},
        [("span[0]", "string_to_number"), ("span[1]", "string_to_boolean")],
    ),
    "a schema with an address of its own": (
        {
            "$id": "https://schemas.example/tool.json",
            **opened(n={"$ref": "#/$defs/n"}, m={"$ref": "https://schemas.example/tool.json#/$defs/n"}),
            "$defs": {"n": of("integer")},
        },
        {"n": "1", "m": "2"},
        {"n": 1, "m": 2},
        [("n", "string_to_number"), ("m", "string_to_number")],
    ),
    "arguments wrapped, to be repaired inside": (
        closed("live", live=of("boolean")),
        {"args": {"live": "false"}},
        {"live": False},
        [("args", "unwrap_envelope"), ("live", "string_to_boolean")],
    ),
    "arguments wrapped as text": (
        opened("title", title=of("string")),
        {"parameters": '{"title": "t"}'},
        {"title": "t"},
        [("parameters", "parse_json_string"), ("parameters", "unwrap_envelope")],
    ),
    "wrapped arguments that an open schema would ignore": (
        opened(title=of("string")),
        {"arguments": {"title": "t"}},
        {"title": "t"},
        [("arguments", "unwrap_envelope")],
    ),
    "text with half a surrogate pair stays as it is": (
        opened("text", "n", text=of("string", maxLength=3), n=of("integer")),
        {"text": "a\ud800b", "n": "1"},
        {"text": "a\ud800b", "n": 1},
        [("n", "string_to_number")],
    ),
}


@pytest.mark.parametrize(("schema", "args", "wanted", "changed"), REPAIRED.values(), ids=REPAIRED.keys())
def test_one_reading_is_left(schema, args, wanted, changed):
    given, before = copy.deepcopy(args), copy.deepcopy(schema)
    outcome = validate_arguments(schema, args)
    assert outcome.errors == ()
    assert (outcome.ok, exact(outcome.args), repairs(outcome)) == (True, exact(wanted), changed)
    assert (args, schema, outcome.hint) == (given, before, "")
    assert validate_arguments(schema, outcome.args) == Arguments(True, outcome.args)


UNCHANGED = {
    "JSON text in a string": (opened(content=of("string")), {"content": '{"a": [1, 2]}'}),
    "an array's text in a string": (opened(content=of("string")), {"content": "[1, 2]"}),
    "words in a string": (opened(content=of("string")), {"content": "false"}),
    "an object's text where text is allowed too": (opened(c=either(of("string"), of("object"))), {"c": '{"a": 1}'}),
    "text in brackets that is no JSON": (opened(p=either(of("string"), STRINGS)), {"p": "[a-z]*.py"}),
    "an array's text that does not fit the array": (opened(p=either(of("string"), STRINGS)), {"p": "[1]"}),
    "plain text where an array is possible": (opened(p=either(of("string"), STRINGS)), {"p": "a.py"}),
    "a number's text where numbers are possible": (opened(p=of(["string", "integer"])), {"p": "5"}),
    "null where it is allowed": (
        opened(a=of(["string", "null"]), b=either(of("integer"), of("null"))),
        {"a": None, "b": None},
    ),
    "undeclared properties of an open schema": (opened(a=of("integer")), {"a": 1, "b": "2", "c": None}),
    "a declared property named like an envelope": (opened(args=of("object")), {"args": {"x": 1}}),
    "a map that may hold any key": (
        {**opened(title=of("string")), "additionalProperties": True},
        {"arguments": {"title": "t"}},
    ),
    "an envelope without anything declared": (opened(title=of("string")), {"arguments": {"other": 1}}),
    "anything for an empty schema": ({}, {"a": [None, "[1]", {"b": 0.5}]}),
    "a float for an integer": (opened(n=of("integer")), {"n": 2.0}),
    "blanks and line ends": (opened(c=of("string")), {"c": " \ufeff\r\n\x00 "}),
    "a required key with half a surrogate pair": (opened("\ud800"), {"a": None, "\ud800": None}),
    "half a surrogate pair": (opened(c=of("string", pattern="^.$")), {"c": "\udfff", "\ud800": 1}),
    "an enum with half a surrogate pair": (opened(c={"enum": ["\ud800"]}), {"c": "\ud800"}),
    "large integers": (opened(n=of("integer")), {"n": 10**400}),
}


@pytest.mark.parametrize(("schema", "args"), UNCHANGED.values(), ids=UNCHANGED.keys())
def test_what_is_valid_is_not_touched(schema, args):
    outcome = validate_arguments(schema, args)
    assert outcome == Arguments(True, args)
    assert outcome.args is args


REFUSED = {
    "an enum without the member": (
        opened(f={"enum": ["markdown", "json"]}),
        {"f": "xml"},
        [("f", "enum")],
        ["markdown", "json"],
    ),
    "an enum's first member is no default": (opened(f={"enum": ["a", "b"]}), {"f": ""}, [("f", "enum")], ["f"]),
    "an enum with two members of that spelling": (
        opened(f={"enum": ["Json", "JSON"]}),
        {"f": "json"},
        [("f", "enum")],
        ["Json"],
    ),
    "part of an enum member": (opened(f={"enum": ["markdown"]}), {"f": "mark"}, [("f", "enum")], ["markdown"]),
    "a constant": (opened(f={"const": 3}), {"f": 4}, [("f", "enum")], ["3"]),
    "alternatives that list values": (
        opened(f=either({"enum": ["a", "b"]}, {"const": "c"}, of("null"))),
        {"f": "x"},
        [("f", "enum")],
        ['"a", "b", "c"'],
    ),
    "a missing field": (opened("path", path=of("string")), {}, [("path", "missing_required")], ["path", "string"]),
    "no arguments where some are required": (
        opened("path", path=of("string")),
        None,
        [("path", "missing_required")],
        ["path"],
    ),
    "a missing field below": (
        opened(options=of("array", items=opened("name", name=of("string")))),
        {"options": [{"name": "a"}, {}]},
        [("options[1].name", "missing_required")],
        ["options[1].name"],
    ),
    "null for a required field": (
        opened("path", path=of("string")),
        {"path": None},
        [("path", "type")],
        ["path", "null"],
    ),
    "null for a required array": (opened("urls", urls=STRINGS), {"urls": None}, [("urls", "type")], ["urls"]),
    "null in an array": (opened(urls=STRINGS), {"urls": [None]}, [("urls[0]", "type")], ["urls[0]"]),
    "null for an undeclared property": (
        closed("q", q=of("string")),
        {"q": "x", "z": None},
        [("z", "unexpected_property")],
        ["z"],
    ),
    "an undeclared property below": (
        opened(where=closed("city", city=of("string"))),
        {"where": {"city": "x", "town": "y"}},
        [("where.town", "unexpected_property")],
        ["where.town", "city"],
    ),
    "two undeclared properties": (
        closed(q=of("string")),
        {"a": 1, "b": 2},
        [("a", "unexpected_property"), ("b", "unexpected_property")],
        ["a", "b", "q"],
    ),
    "a misspelt property": (
        closed(recursive=of("boolean")),
        {"recursiv": True},
        [("recursiv", "unexpected_property")],
        ["recursive?"],
    ),
    "yes for a boolean": (opened(live=of("boolean")), {"live": "yes"}, [("live", "type")], ["live", "boolean"]),
    "a number for a boolean": (opened(live=of("boolean")), {"live": 0}, [("live", "type")], ["boolean"]),
    "a boolean for a number": (opened(n=of("integer")), {"n": True}, [("n", "type")], ["integer"]),
    "a number for a string": (opened(s=of("string")), {"s": 5}, [("s", "type")], ["string"]),
    "a list for a string": (opened(s=of("string")), {"s": ["a"]}, [("s", "type")], ["string"]),
    "an object for an array": (opened(s=of("array", items=of("object"))), {"s": {"a": 1}}, [("s", "type")], ["array"]),
    "empty text for an array": (opened(s=STRINGS), {"s": ""}, [("s", "type")], ["s"]),
    "a broken array": (opened(s=STRINGS), {"s": '["a", "b'}, [("s", "type")], ["s"]),
    "a text that is no object": (opened(s=of("object")), {"s": "a=1"}, [("s", "type")], ["object"]),
    "an array's text for an object": (opened(s=of("object")), {"s": "[1]"}, [("s", "type")], ["object"]),
    "an array's text with half a surrogate pair": (opened(s=STRINGS), {"s": '["\\ud800"]'}, [("s", "type")], ["s"]),
    "an object's text with one key twice": (opened(s=of("object")), {"s": '{"a": 1, "a": 2}'}, [("s", "type")], ["s"]),
    "a fault within an array's text": (
        opened(s=of("array", items=opened("n", n=of("integer")))),
        {"s": '[{"n": "many"}]'},
        [("s[0].n", "type")],
        ["s[0].n"],
    ),
    "a fault within an array's text, nullable": (
        opened(s=either(INTEGERS, of("null"))),
        {"s": '[1, "x"]'},
        [("s[1]", "type")],
        ["s[1]"],
    ),
    **{
        f"{spelling!r} for an integer": (opened(n=of("integer")), {"n": spelling}, [("n", "type")], ["n"])
        for spelling in ("", "1.5", "007", "+5", "1,000", "1_000", "0x10", "1e3", "5 items", "\u0665", " 5")
    },
    **{
        f"{spelling!r} for a number": (
            opened(n=of("number")),
            {"n": spelling},
            [("n", "non_finite_number")],
            ["n", "finite"],
        )
        for spelling in ("NaN", "Infinity", "-inf", "1e999")
    },
    "a number that is none": (opened(n=of("number")), {"n": math.nan}, [("n", "non_finite_number")], ["n", "finite"]),
    "an infinite number in an undeclared place": (
        opened("m", m=of("integer")),
        {"n": [1, math.inf]},
        [("n[1]", "non_finite_number"), ("m", "missing_required")],
        ["n[1]", "m"],
    ),
    "a pattern": (opened(s=of("string", pattern="^[a-z]+$")), {"s": "A"}, [("s", "pattern")], ["^[a-z]+$"]),
    "a range": (opened(n=of("integer", minimum=1)), {"n": 0}, [("n", "range")], ["at least 1"]),
    "a number's text out of range": (opened(n=of("integer", maximum=9)), {"n": "10"}, [("n", "type")], ["n"]),
    "a length": (opened(s=of("string", maxLength=1)), {"s": "ab"}, [("s", "length")], ["at most 1"]),
    "a count": (opened(s={**INTEGERS, "minItems": 2}), {"s": [1]}, [("s", "items")], ["at least 2"]),
    "a scalar for an array of two": (opened(s={**INTEGERS, "minItems": 2}), {"s": 1}, [("s", "type")], ["array"]),
    "alternatives of other types": (
        opened(n=either(of("integer"), STRINGS)),
        {"n": {}},
        [("n", "type")],
        ["integer", "array"],
    ),
    "the alternative that the tag names": (
        opened(shape=SHAPES),
        {"shape": {"kind": "circle", "size": 1}},
        [("shape.radius", "missing_required"), ("shape.size", "unexpected_property")],
        ["shape.radius"],
    ),
    "two alternatives at once": ({"oneOf": [opened(), opened()]}, {}, [("", "ambiguous")], ["one"]),
    "two meanings that differ": (
        opened(
            v={"anyOf": [of("array", items=of("integer")), of("array", items=of("boolean")), opened(a=of("string"))]}
        ),
        {"v": "text"},
        [("v", "type")],
        ["v"],
    ),
    "a property that is forbidden": (opened(a=False), {"a": 1}, [("a", "unexpected_property")], ["a"]),
    "a value that is excluded": (opened(a={"not": of("string")}), {"a": "x"}, [("a", "forbidden")], ["a"]),
    "an array of arguments": (opened(a=of("integer")), [1], [("", "type")], ["object"]),
    "a text of arguments that is cut off": (opened(a=of("integer")), '{"a": 1', [("", "type")], ["object"]),
    "a number of arguments, whatever the schema": ({}, 5, [("", "type")], ["object"]),
    "wrapped twice": (opened("a", a=of("integer")), {"args": {"args": {"a": 1}}}, [("a", "missing_required")], ["a"]),
    "wrapped beside another key": (
        closed("a", a=of("integer")),
        {"args": {"a": 1}, "b": 2},
        [("args", "unexpected_property"), ("b", "unexpected_property"), ("a", "missing_required")],
        ["args", "b"],
    ),
    "wrapped, with a fault inside": (closed("a", a=of("integer")), {"args": {"a": "x"}}, [("a", "type")], ["a"]),
    "wrapped under a name that is no envelope": (
        opened("a", a=of("integer")),
        {"data": {"a": 1}},
        [("a", "missing_required")],
        ["a"],
    ),
    "repairable and not": (
        closed(live=of("boolean")),
        {"live": "false", "depth": 3},
        [("live", "type"), ("depth", "unexpected_property")],
        ["live", "depth"],
    ),
    "a key that is no word": (closed(), {"a.b": 1}, [('["a.b"]', "unexpected_property")], ['["a.b"]']),
    "half a surrogate pair in a key": (closed(), {"\ud800": 1}, [('["\\ud800"]', "unexpected_property")], ["ud800"]),
    "a key that is no text": (opened(), {1: 2}, [("", "not_json")], ["keys"]),
    "a value that is no JSON": (opened(), {"a": {"b": {1}}}, [("a.b", "not_json")], ["a.b"]),
    "an integer without end": (opened(), {"a": 1 << 5000}, [("a", "range")], ["a"]),
}


@pytest.mark.parametrize(("schema", "args", "found", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_every_reason_is_reported_and_nothing_is_half_repaired(schema, args, found, told):
    before = copy.deepcopy(args)
    outcome = validate_arguments(schema, args, tool="probe")
    assert not outcome.ok
    assert sorted(errors(outcome)) == sorted(found)
    assert outcome.repairs == ()
    assert outcome.args is args if isinstance(args, dict) else outcome.args == {}
    assert repr(args) == repr(before)
    assert "probe" in outcome.hint
    assert [word for word in told if word not in outcome.hint] == []
    for text in (outcome.hint, *(f"{one.path}{one.message}{one.help}" for one in outcome.errors)):
        text.encode()


# ---- other names


PATH = opened("path", path=of("string"), limit=of("integer"))
NAMES = {"path": ("file", "filePath"), "limit": ("max",)}


@pytest.mark.parametrize(
    ("schema", "args", "wanted", "changed"),
    [
        (PATH, {"file": "a"}, {"path": "a"}, [("path", "alias")]),
        (
            PATH,
            {"file": "a", "max": "5"},
            {"path": "a", "limit": 5},
            [("path", "alias"), ("limit", "alias"), ("limit", "string_to_number")],
        ),
        (PATH, {"file": "a", "path": "b"}, {"path": "b"}, [("path", "alias")]),
        (closed("path", path=of("string")), {"path": "b", "file": "a"}, {"path": "b"}, [("path", "alias")]),
        (PATH, {"file": "a", "filePath": "a"}, {"path": "a"}, [("path", "alias"), ("path", "alias")]),
        (PATH, {"path": None, "file": "a"}, {"path": "a"}, [("path", "alias")]),
        (opened(path=of(["string", "null"])), {"path": None, "file": "a"}, {"path": None}, [("path", "alias")]),
        (opened(path=of("string")), {"file": "a"}, {"path": "a"}, [("path", "alias")]),
        (PATH, {"arguments": {"file": "a"}}, {"path": "a"}, [("arguments", "unwrap_envelope"), ("path", "alias")]),
        (PATH, {"path": "a", "other": 1}, {"path": "a", "other": 1}, []),
        (opened(path=of("string"), file=of("string")), {"file": "a"}, {"file": "a"}, []),
    ],
    ids=[
        "renamed",
        "several, then repaired",
        "the own name wins",
        "the own name wins in a closed schema",
        "two aliases with one value",
        "null gives way",
        "null that is allowed wins",
        "an optional parameter of an open schema",
        "inside an envelope",
        "no alias",
        "a declared name is no alias",
    ],
)
def test_declared_aliases_are_renamed(schema, args, wanted, changed):
    outcome = validate_arguments(schema, args, aliases=NAMES)
    assert (outcome.ok, outcome.args, repairs(outcome)) == (True, wanted, changed)


def test_only_declared_aliases_are_renamed():
    outcome = validate_arguments(closed("path", path=of("string")), {"filename": "a"}, aliases={"path": ["file"]})
    assert errors(outcome) == [("filename", "unexpected_property"), ("path", "missing_required")]
    assert validate_arguments(PATH, {"file": "a"}, aliases={"path": "file"}).args == {"path": "a"}


def test_two_aliases_with_different_values_are_an_error():
    outcome = validate_arguments(PATH, {"file": "a", "filePath": "b"}, aliases=NAMES)
    assert errors(outcome) == [("filePath", "alias_conflict"), ("path", "missing_required")]
    assert "once" in outcome.hint


def test_what_is_wrong_with_an_alias_is_said_of_the_parameter():
    outcome = validate_arguments(closed("path", path=of("string")), {"file": 5}, aliases={"path": ["file"]})
    assert errors(outcome) == [("path", "type")]
    assert outcome.args == {"file": 5}


def test_an_alias_is_not_accepted_as_an_undeclared_property():
    outcome = validate_arguments(opened(a=of("object")), {"b": None}, aliases={"a": ["b"]})
    assert (outcome.ok, outcome.args) == (True, {})
    outcome = validate_arguments(opened(a=of("object")), {"b": 1}, aliases={"a": ["b"]})
    assert errors(outcome) == [("a", "type")]


# ---- schemas


@pytest.mark.parametrize(
    ("schema", "path", "said"),
    [
        (opened(a=of("nope")), "properties.a.type", "nope"),
        (opened(a=of("string", pattern="(")), None, "regex"),
        (opened(a={"$ref": "#/$defs/missing"}), "", "missing"),
        (opened(a={"$ref": "http://schemas.example/a.json"}), "", "not followed"),
        (opened(a={"$ref": "file:///etc/hostname"}), "", "not followed"),
        ({"$schema": "https://schemas.example/draft", "type": "object"}, "", "schemas.example"),
        ({"required": True}, "required", "true"),
        ({"maximum": math.nan}, "maximum", "finite"),
        ({"const": math.inf}, "const", "finite"),
        ({"enum": [1j]}, "enum[0]", "complex"),
        ({1: 2}, "", "text"),
        ([], "", "mapping"),
        (True, "", "mapping"),
    ],
    ids=repr,
)
def test_a_schema_that_cannot_be_used_is_a_typed_error(schema, path, said):
    for use in (lambda: check_schema(schema, "probe"), lambda: validate_arguments(schema, {"a": "x"}, tool="probe")):
        with pytest.raises(SchemaError) as caught:
            use()
        assert isinstance(caught.value, UsageError)
        assert caught.value.tool == "probe"
        assert path is None or caught.value.path == path
        assert said in caught.value.detail
        assert "'probe'" in str(caught.value)


def test_a_schema_too_deep_to_read_is_a_typed_error():
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(SchemaError):
        check_schema(schema)


def test_references_that_lead_back_end():
    for schema in (
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ):
        assert validate_arguments({**schema, "required": ["a"]}, {"b": "[1]"}).ok is False
        assert validate_arguments(schema, {"b": "[1]"}).ok


def test_read_only_views_are_read_like_what_they_show():
    schema = freeze(opened(ids=INTEGERS, tags=STRINGS))
    outcome = validate_arguments(schema, freeze({"ids": ["1"], "tags": ["a"]}))
    assert (outcome.args, repairs(outcome)) == ({"ids": [1], "tags": ["a"]}, [("ids[0]", "string_to_number")])
    assert validate_arguments(schema, MappingProxyType({"ids": (1,)})) == Arguments(True, {"ids": [1]})


def test_changing_a_schema_after_use_changes_what_is_valid():
    schema = opened(a=of("integer"))
    assert validate_arguments(schema, {"a": 1}).ok
    schema["properties"]["a"]["type"] = "string"
    assert not validate_arguments(schema, {"a": 1}).ok


def test_the_validator_is_imported_only_when_arguments_are_checked():
    code = (
        "import sys, policyengine; policyengine.validate_arguments; assert 'jsonschema_rs' not in sys.modules;"
        "policyengine.validate_arguments({}, {}); assert 'jsonschema_rs' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- bounds


def test_deep_arguments_are_refused_before_any_schema_sees_them():
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    assert [code for _, code in errors(validate_arguments({}, {"a": deep}))] == ["nested_too_deep"]
    text = "[" * 100_000 + "]" * 100_000
    assert errors(validate_arguments(opened(a=STRINGS), {"a": text})) == [("a", "type")]


def test_arguments_that_hold_themselves_are_refused():
    loop: dict[str, Any] = {}
    loop["a"] = loop["b"] = loop
    outcome = validate_arguments({}, loop)
    assert {code for _, code in errors(outcome)} <= {"nested_too_deep", "too_large"}
    assert not outcome.ok


def test_more_values_than_are_ever_meant_are_refused():
    assert errors(validate_arguments({}, {"a": [0] * MAX_NODES})) == [("", "too_large")]


def test_a_part_that_cannot_stand_alone_is_not_judged():
    schema = CompiledSchema({"type": "object"})
    assert schema.accepts(("nowhere",), 1)
    assert schema.errors(("nowhere",), 1, 5) == []
    assert schema.facets(("nowhere",)) == ()


def test_many_places_are_repaired_at_once():
    rows = [{"id": str(index), "on": "true"} for index in range(3000)]
    outcome = validate_arguments(
        opened(rows=of("array", items=closed("id", id=of("integer"), on=of("boolean")))), {"rows": rows}
    )
    assert outcome.ok
    assert len(outcome.repairs) == 6000


def test_a_search_without_end_ends_as_not_repaired():
    again = {"$ref": "#/$defs/n"}
    either_way = either(of("integer"), closed(a=again), opened(a=again, b=again))
    schema = {**opened(v=again), "$defs": {"n": either_way}}
    value: Any = "x"
    for _ in range(10):
        value = {"a": value}
    outcome = validate_arguments(schema, {"v": value})
    assert not outcome.ok


def test_valid_arguments_stay_valid_when_the_search_runs_out():
    text = "[" + "x" * 64 * MAX_WORK
    assert validate_arguments(opened(a=of("string")), {"a": text}) == Arguments(True, {"a": text})


def test_errors_come_in_a_fixed_order():
    outcome = validate_arguments(closed("z", "m", z=of("integer"), m=of("integer")), {"z": "x", "a": 1})
    assert errors(outcome) == [("a", "unexpected_property"), ("m", "missing_required"), ("z", "type")]


def test_a_limit_too_large_to_read_is_a_typed_error():
    with pytest.raises(SchemaError, match=r"properties\.a\.maximum"):
        check_schema(opened(a=of("integer", maximum=10**5000)))


def test_many_errors_are_counted_not_listed():
    outcome = validate_arguments(closed(), {f"k{index}": index for index in range(500)})
    assert len(outcome.errors) == 50
    assert outcome.hint.count("\n") < 15


# ---- properties of all inputs


KEYS = st.sampled_from(["a", "b", "c", "args", "arguments", "x y", "\ud800"])
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "true",
            "False",
            "5",
            "1e9",
            "NaN",
            "null",
            "[1]",
            '["a"]',
            '{"a": 1}',
            '{"a": "[1]"}',
            "A",
            "a",
            "[",
            "\ud800",
        ]
    ),
    st.text(st.characters(codec=None), max_size=6),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)
ARGS = st.one_of(st.dictionaries(KEYS, VALUES, max_size=4), VALUES, VALUES.map(lambda value: json.dumps(value)))

LEAVES = st.one_of(
    st.sampled_from([{}, True, False]),
    st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]).map(of),
    st.lists(st.sampled_from(["string", "integer", "array", "null", "object"]), min_size=1, unique=True).map(
        lambda t: {"type": t}
    ),
    st.lists(st.sampled_from(["a", "A", "b", 1, None, "\ud800"]), min_size=1, unique=True).map(lambda e: {"enum": e}),
    st.sampled_from(
        [
            {"$ref": "#"},
            {"$ref": "#/$defs/d"},
            {"const": "a"},
            of("string", minLength=2, pattern="^a"),
            of("integer", minimum=0),
            {"type": "array", "uniqueItems": True, "minItems": 1},
        ]
    ),
)


def _with_parts(inner: Any) -> Any:
    members = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": required,
                **({} if more is None else {"additionalProperties": more}),
            },
            st.dictionaries(KEYS, inner, max_size=3),
            st.lists(KEYS, max_size=2, unique=True),
            st.none() | inner,
        ),
        inner.map(lambda items: {"type": "array", "items": items}),
        st.tuples(st.sampled_from(["anyOf", "oneOf", "allOf"]), members).map(lambda pair: {pair[0]: pair[1]}),
        inner.map(lambda part: {"not": part}),
        inner.map(lambda part: {"type": "object", "patternProperties": {"^a": part}}),
    )


SCHEMAS = st.tuples(st.recursive(LEAVES, _with_parts, max_leaves=8), LEAVES).map(
    lambda pair: {**(pair[0] if isinstance(pair[0], dict) else {"allOf": [pair[0]]}), "$defs": {"d": pair[1]}}
)


def strings_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings_of(item)]
    return [text for item in value for text in strings_of(item)] if isinstance(value, list) else []


@settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, ARGS)
def test_any_arguments_and_any_schema_give_an_answer(schema, args):
    before = repr(args)
    outcome = validate_arguments(schema, args, aliases={"a": ["x y"]})
    assert repr(args) == before
    assert outcome == validate_arguments(schema, args, aliases={"a": ["x y"]})
    if not outcome.ok:
        assert outcome.errors
        assert outcome.hint
        assert outcome.repairs == ()
        outcome.hint.encode()
        return
    assert outcome.errors == ()
    assert outcome.args is args or outcome.repairs
    assert validate_arguments(schema, outcome.args) == Arguments(True, outcome.args)
    spellings = strings_of(schema)
    known = strings_of(args) if isinstance(args, dict) else []
    for text in strings_of(outcome.args) if isinstance(args, dict) else []:
        assert text in spellings or text in known or any(_holds(one, text) for one in known)


@settings(max_examples=50)
@given(
    SCHEMAS, st.sampled_from(["https://schemas.example/a", "file:///etc/hostname", "other.json#/a", "//x.example/a"])
)
def test_no_schema_may_refer_to_another_document(schema, reference):
    with pytest.raises(SchemaError):
        check_schema({**opened(far={"$ref": reference}), "allOf": [schema]})


@settings(max_examples=50)
@given(SCHEMAS, TEXTS, VALUES)
def test_free_text_is_never_touched_whatever_is_repaired_beside_it(schema, text, value):
    properties = {"text": of("string"), "other": schema, "n": of("integer")}
    outcome = validate_arguments(
        {**opened(**properties), "$defs": schema["$defs"]}, {"text": text, "other": value, "n": "5"}
    )
    if outcome.ok:
        assert (outcome.args["text"], outcome.args["n"]) == (text, 5)


def _holds(text: str, part: str) -> bool:
    """Whether JSON `text`, or JSON text in it, holds the string `part`."""
    try:
        inner = strings_of(json.loads(text))
    except ValueError:
        return False
    return part in inner or any(_holds(one, part) for one in inner if one != text)


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(SCHEMAS, st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3))
def test_valid_arguments_are_returned_as_they_are(schema, args):
    import jsonschema_rs

    assume(not any(text.lstrip()[:1] == "[" for text in strings_of(args)))
    try:
        valid = jsonschema_rs.is_valid(schema, args)
    except ValueError:
        valid = False
    assume(valid and not _has_non_finite(args))
    outcome = validate_arguments(schema, args)
    assert outcome == Arguments(True, args)
    assert outcome.args is args


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_non_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)
