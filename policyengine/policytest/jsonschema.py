"""JSON Schema of files of kind `PolicyTest`.

Knows: what the shape of such a file does not say: which keys an expectation of each form has. Must not know: policies.

Left to `policyengine test` is whether rules and tools exist.
"""

from __future__ import annotations

from policyengine.policy.jsonschema import whole_schema
from policyengine.policy.schema import Schema
from policyengine.policytest.about import ABOUT_TESTS
from policyengine.policytest.shape import FILE, FORMS


def suite_schema() -> Schema:
    """Return the schema of a whole file."""
    schema = whole_schema(FILE, ABOUT_TESTS)
    schema["properties"]["tests"]["items"]["properties"]["expect"]["items"] |= _forms()
    return schema


def _forms() -> Schema:
    """Return what an expectation must be: its form is that of the first key of `FORMS` that it has."""
    *others, answer = FORMS
    made: Schema = {
        "required": [answer],
        "propertyNames": {"enum": list(FORMS[answer])},
        "allOf": [_one_of("action", "wants"), _one_of("at", "call")],
    }
    for form in reversed(others):
        then = {"propertyNames": {"enum": list(FORMS[form])}}
        made = {"if": {"required": [form]}, "then": then, "else": made}
    return made


def _one_of(*names: str) -> Schema:
    return {"oneOf": [{"required": [name]} for name in names]}
