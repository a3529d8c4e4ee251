"""Cerberus, set up so that it lets nothing pass.

Knows: Cerberus and its traps. Must not know: what is validated, positions, how errors are worded.

One validator per validation (a shared one gives wrong verdicts under threads); no normalization; unknown keys are
always errors; `integer` and `number` refuse booleans and numbers that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import cerberus
from cerberus import errors as rules
from cerberus.schema import UnvalidatedSchema

from policyengine.patterns import blows_up, trouble_of
from policyengine.policy.days import day
from policyengine.policy.durations import seconds
from policyengine.policy.pointers import pointer_trouble
from policyengine.policy.schema import Schema

TYPE_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "dict": "a mapping",
    "list": "a list",
}
"""Every type a schema may use, as messages call it."""


class _Finite(type):
    """Makes `isinstance` mean "a finite number of one of these types and not a boolean"."""

    types: tuple[type, ...]

    def __instancecheck__(cls, value: object) -> bool:
        return type(value) in cls.types and (isinstance(value, int) or math.isfinite(value))  # type: ignore[arg-type]


class _Integer(metaclass=_Finite):
    types = (int,)


class Number(metaclass=_Finite):
    """For `isinstance`: a finite number that is not a boolean."""

    types = (int, float)


class _Raw(rules.BaseErrorHandler):  # type: ignore[misc]
    """Hands out Cerberus' error objects instead of texts."""

    def __call__(self, found: Any) -> list[Any]:
        return list(found)


class StrictValidator(cerberus.Validator):  # type: ignore[misc]
    """A validator with types that mean what they say and checks for texts."""

    types_mapping = {
        "string": cerberus.TypeDefinition("string", (str,), ()),
        "integer": cerberus.TypeDefinition("integer", (_Integer,), ()),
        "number": cerberus.TypeDefinition("number", (Number,), ()),
        "boolean": cerberus.TypeDefinition("boolean", (bool,), ()),
        "dict": cerberus.TypeDefinition("dict", (Mapping,), ()),
        "list": cerberus.TypeDefinition("list", (list, tuple), ()),
    }

    def _check_with_duration(self, field: Any, value: Any) -> None:
        if isinstance(value, str) and seconds(value) is None:
            self._error(field, "duration")

    def _check_with_day(self, field: Any, value: Any) -> None:
        if isinstance(value, str) and day(value) is None:
            self._error(field, "day")

    def _check_with_form(self, field: Any, value: Any) -> None:
        trouble = form_trouble(value) if isinstance(value, Mapping) else None
        if trouble:
            self._error(field, f"form:{trouble}")

    def _check_with_pointer(self, field: Any, value: Any) -> None:
        trouble = pointer_trouble(value) if isinstance(value, str) else ""
        if trouble:
            self._error(field, f"pointer:{trouble}")

    def _check_with_regex(self, field: Any, value: Any) -> None:
        trouble = trouble_of(value) if isinstance(value, str) else None
        if trouble:
            self._error(field, f"regex:{trouble}")
        elif isinstance(value, str) and blows_up(value):
            self._error(field, "blowup")


def form_trouble(form: Mapping[str, Any]) -> str | None:
    """Return what contradicts itself in one entry of `parsing.forms`, or `None`."""
    kind = form.get("form")
    worded = kind in ("tag", "line", "call")
    if worded and "word" not in form:
        return f"a form `{kind}` needs its `word`"
    if kind in ("python", "prose") and set(form) - {"form", "answer"}:
        return f"a form `{kind}` takes nothing but `form` and `answer`"
    if kind == "prose" and form.get("answer") is not True:
        return "a form `prose` is the final answer: write `answer: true`"
    if kind == "python" and form.get("answer"):
        return "a form `python` is never the final answer"
    if "payload" in form and kind != "line":
        return "only a form `line` takes a `payload`"
    if "payload" in form and form["payload"] == form.get("argument", "text"):
        return "`payload` and `argument` need different names"
    return None


def prepare(schema: Schema) -> Any:
    """Return a schema in the form that Cerberus checks only once, for several validations.

    Raises cerberus.SchemaError if the schema is wrong.
    """
    return StrictValidator(dict(schema)).schema


def trusted(schema: Schema) -> Any:
    """Return a schema that ships with this package, so that Cerberus does not check the schema itself any more.

    That check takes longer than everything else about loading a policy, and of our own schemas it always says the
    same: the tests have it done. Without it Cerberus takes a wrong schema for a lenient one, so this is for no other.
    """
    return UnvalidatedSchema(schema)


def check(schema: Any, data: Mapping[str, Any]) -> list[Any]:
    """Return Cerberus' errors for `data`, groups resolved into their members.

    Raises cerberus.SchemaError if the schema itself is wrong.
    """
    validator = StrictValidator(schema, error_handler=_Raw, allow_unknown=False, purge_unknown=False)
    validator.validate(data, normalize=False)
    return list(_members(validator.errors))


def _members(found: Any) -> Iterator[Any]:
    for error in found:
        if error.is_group_error:
            yield from _members(error.child_errors)
        else:
            yield error
