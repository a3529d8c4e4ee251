"""The meta-check of an extension's schema refuses what Cerberus would let pass; validation has no soft spots."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from policyengine.policy.schema import OVERLAY, POLICY
from policyengine.policy.validate import check_extension_schema
from policyengine.policy.validator import check

NUMBER = {"type": "integer", "min": 1, "max": 9}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"n": NUMBER},
        {"n": {**NUMBER, "default": 3, "meta": {"stricter": "lower"}}},
        {"n": {"type": "number", "min": 0, "max": 1.5, "default": 0.5, "meta": {"stricter": "higher"}}},
        {"n": {"type": "integer", "allowed": [1, 2, 4]}},
        {"n": {**NUMBER, "nullable": True, "default": None}},
        {"s": {"type": "string", "allowed": ["a", "b"], "default": "a"}},
        {"s": {"type": "string", "check_with": "regex"}, "t": {"type": "string", "check_with": "duration"}},
        {"b": {"type": "boolean", "default": False}},
        {"l": {"type": "list", "schema": {"type": "string"}, "default": [], "meta": {"stricter": "subset"}}},
        {"l": {"type": "list", "schema": {"type": "dict", "schema": {"n": {**NUMBER, "default": 2}}}}},
        {"l": {"type": ["string", "list"], "schema": {"type": "string"}}},
        {"d": {"type": "dict", "schema": {"n": NUMBER}, "default": {"n": 2}}},
        {"d": {"type": "dict", "keysrules": {"type": "string"}, "valuesrules": NUMBER}},
        {"d": {"type": "dict", "valuesrules": {"type": "dict", "schema": {"type": {"type": "string"}}}}},
        {"type": {"type": "string"}, "schema": {"type": "dict", "schema": {"min": NUMBER}}},
    ],
)
def test_a_sound_schema_passes(schema: dict[str, Any]) -> None:
    assert check_extension_schema(schema) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "must be a mapping"),
        ({"n": {}}, "`type` must be one of"),
        ({"n": {"min": 1, "max": 2}}, "`type` must be one of"),
        ({"n": 5}, "must be a mapping such as"),
        ({"n": {"type": "float", "min": 0, "max": 1}}, "`type` must be one of"),
        ({"n": {"type": "date"}}, "`type` must be one of"),
        ({"n": {"type": []}}, "`type` must be one of"),
        ({"n": {"type": [["integer"]]}}, "`type` must be one of"),
        ({"n": {"type": "integer"}}, "needs `min` and `max`"),
        ({"n": {"type": "integer", "min": 1}}, "needs `min` and `max`"),
        ({"n": {"type": "number", "min": 0, "max": float("inf")}}, "needs `min` and `max`"),
        ({"n": {"type": "number", "min": float("nan"), "max": 1}}, "needs `min` and `max`"),
        ({"n": {"type": "integer", "min": False, "max": 1}}, "needs `min` and `max`"),
        ({"n": {"type": "integer", "min": 5, "max": 1}}, "`min` is above `max`"),
        ({"n": {**NUMBER, "default": True}}, "default is not valid"),
        ({"n": {**NUMBER, "default": 10}}, "default is not valid"),
        ({"n": {"type": "number", "min": 0, "max": 1, "default": float("nan")}}, "default is not valid"),
        ({"d": {"type": "dict", "schema": {"n": NUMBER}, "default": {"m": 1}}}, "default is not valid"),
        ({"d": {"type": "dict", "schema": {"n": {**NUMBER, "default": 0}}}}, "d.n: the default is not valid"),
        (
            {"d": {"type": "dict", "valuesrules": {"type": "dict", "schema": {"n": {**NUMBER, "default": 0}}}}},
            "not valid",
        ),
        ({"d": {"type": "dict"}}, "needs `schema`"),
        ({"d": {"type": "dict", "keysrules": {"type": "string"}}}, "would accept any value"),
        ({"d": {"type": "dict", "schema": {"n": NUMBER}, "valuesrules": NUMBER}}, "either"),
        ({"d": {"type": "dict", "schema": {"type": "string"}}}, "d.type: the rules of a field must be a mapping"),
        ({"d": {"type": "dict", "schema": {"n": {"type": "integer"}}}}, "d.n: a number needs"),
        ({"d": {"type": "dict", "valuesrules": {"min": 1}}}, "`type` must be one of"),
        ({"l": {"type": "list"}}, "a list needs `schema`"),
        ({"l": {"type": "list", "schema": {"field": {"type": "string"}}}}, "rules of one item"),
        ({"l": {"type": "list", "schema": {"type": {"type": "string"}}}}, "`type` must be one of"),
        ({"l": {"type": "list", "schema": {"type": "integer"}}}, "needs `min` and `max`"),
        ({"l": {"type": ["list", "dict"], "schema": {"type": "string"}}}, "cannot be both"),
        ({"n": {**NUMBER, "coerce": int}}, "'coerce' is not supported"),
        ({"n": {**NUMBER, "check_with": len}}, "'check_with' is not supported"),
        ({"s": {"type": "string", "check_with": len}}, "check_options"),
        ({"n": {"anyof": [NUMBER]}}, "`type` must be one of"),
        ({"n": {**NUMBER, "anyof": [NUMBER]}}, "'anyof' is not supported"),
        ({"d": {"type": "dict", "schema": {"n": NUMBER}, "allow_unknown": True}}, "'allow_unknown' is not supported"),
        ({"n": {**NUMBER, "minimum": 1}}, "'minimum' is not supported"),
        ({"s": {"type": "string", "regex": "("}}, "cannot be compiled"),
        ({"s": {"type": "string", "allowed": []}}, "must be a list that is not empty"),
        ({"n": {**NUMBER, "meta": {"stricter": "smaller"}}}, "`meta.stricter` must be one of"),
        ({"n": {**NUMBER, "meta": {"stricter": ["lower"]}}}, "`meta.stricter` must be one of"),
        ({"n": {**NUMBER, "meta": {"stricter": "subset"}}}, "does not fit integer"),
        ({"n": {**NUMBER, "meta": "lower"}}, "`meta` must be a mapping"),
        ({"n": {**NUMBER, "required": True, "default": 2}}, "cannot have a default"),
        ({"$n": NUMBER}, "does not start with $"),
        ({5: NUMBER}, "a field name is a string"),
        ({"n": {**NUMBER, "required": "yes"}}, "not a valid schema"),
    ],
)
def test_an_unsound_schema_is_refused_with_its_field(schema: Any, said: str) -> None:
    found = check_extension_schema(schema)
    assert any(said in line for line in found), found


@pytest.mark.parametrize("value", [True, False, 1.0, float("nan"), "5", None, [5]])
def test_an_integer_is_nothing_else(value: object) -> None:
    assert [error.rule for error in check({"n": NUMBER}, {"n": value})] in (["type"], ["nullable"])


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), -float("inf"), "1"])
def test_a_number_is_finite_and_no_boolean(value: object) -> None:
    assert [error.rule for error in check({"n": {"type": "number", "min": 0, "max": 9}}, {"n": value})] == ["type"]


def test_huge_integers_are_compared_and_do_not_overflow() -> None:
    assert [error.rule for error in check({"n": {"type": "number", "min": 0, "max": 9}}, {"n": 10**400})] == ["max"]


def test_unknown_and_missing_fields_are_errors_at_every_level() -> None:
    inner = {"type": "dict", "schema": {"n": {**NUMBER, "required": True}}}
    schema = {"d": inner, "l": {"type": "list", "schema": inner}, "v": {"type": "dict", "valuesrules": inner}}
    data = {"x": 1, "d": {"m": 1}, "l": [{"m": 1}], "v": {"k": {}}}
    found = sorted(".".join(map(str, error.document_path)) for error in check(schema, data))
    assert found == ["d.m", "d.n", "l.0.m", "l.0.n", "v.k.n", "x"]


def test_validations_in_parallel_do_not_disturb_each_other() -> None:
    schema = {"n": NUMBER}
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(100):
            if bool(check(schema, {"n": value})) != (value > 9):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (5, 50, 6, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def untyped(rule: Any, path: str) -> list[str]:
    found = [] if "type" in rule else [path]
    schema = rule.get("schema")
    if isinstance(schema, dict):
        inner = {"[]": schema} if isinstance(schema.get("type"), str | list) else schema
        found += [place for key, value in inner.items() for place in untyped(value, f"{path}.{key}")]
    for part in ("keysrules", "valuesrules"):
        if part in rule:
            found += untyped(rule[part], f"{path}.*")
    return found


def test_every_field_of_the_core_schemas_has_a_type() -> None:
    assert [place for schema in (POLICY, OVERLAY) for key, rule in schema.items() for place in untyped(rule, key)] == []
