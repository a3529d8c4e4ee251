"""Check the `options` schema that an extension declares, when the extension is registered.

Knows: which schemas leave no value unchecked. Must not know: any particular extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import cerberus

from policyengine.patterns import trouble_of
from policyengine.policy.validator import TYPE_NAMES, Number, StrictValidator, check
from policyengine.policy.wording import KeyPath, dotted

_RULES_OF = {
    "string": {"allowed", "forbidden", "minlength", "maxlength", "regex", "check_with"},
    "integer": {"allowed", "forbidden", "min", "max"},
    "number": {"allowed", "forbidden", "min", "max"},
    "boolean": {"allowed"},
    "dict": {"schema", "keysrules", "valuesrules", "minlength", "maxlength"},
    "list": {"schema", "minlength", "maxlength", "allowed", "contains"},
}
_ALWAYS = {"type", "default", "required", "nullable", "meta", "dependencies", "excludes"}
_STRICTER = {"lower": {"integer", "number"}, "higher": {"integer", "number"}, "subset": {"list"}, "superset": {"list"}}
_MARKS: dict[str, tuple[Any, ...]] = {
    "absent": ("loosest",),
    "surely": (True, False),
    "keys": ("patterns",),
    "of": ("tools",),
}
"""What else `meta` may say, with its values: for comparing options (see `directions`), and of what a list is."""
_CHECKS = ("duration", "regex")


def check_extension_schema(schema: Any) -> list[str]:
    """Return what is wrong with the `options` schema of an extension, each with the path of its field.

    Every field needs a type, every number bounds, every container rules for what it holds; defaults must be valid
    against their own rules. Cerberus itself would accept much of what is refused here and let values pass later.
    """
    if not isinstance(schema, Mapping):
        return ["options must be a mapping of field names to rules"]
    found = list(_check_fields(schema, ()))
    if not found:
        try:
            StrictValidator(dict(schema))
        except cerberus.SchemaError as error:
            found.append(f"not a valid schema: {error}")
    return found or list(_check_defaults(schema, ()))


def _check_fields(schema: Any, path: KeyPath) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield f"{dotted(path)}: `schema` must be a mapping of field names to rules"
        return
    for name, rule in schema.items():
        if not isinstance(name, str) or not name or name.startswith("$"):
            yield f"{dotted((*path, str(name)))}: a field name is a string that does not start with $"
        else:
            yield from _check_rule(rule, (*path, name))


def _check_rule(rule: Any, path: KeyPath) -> Iterator[str]:
    where = dotted(path)
    if not isinstance(rule, Mapping):
        yield f"{where}: the rules of a field must be a mapping such as {{type: integer}}"
        return
    types = _types_of(rule)
    if types is None:
        yield f"{where}: `type` must be one of {', '.join(TYPE_NAMES)} (or a list of them)"
        return
    allowed = _ALWAYS.union(*(_RULES_OF[name] for name in types))
    for name in rule:
        if name not in allowed:
            yield f"{where}: rule {name!r} is not supported for {' or '.join(types)}"
    for check_one in (_check_bounds, _check_container, _check_meta, _check_text_rules):
        yield from check_one(rule, types, path)


def _types_of(rule: Mapping[str, Any]) -> list[str] | None:
    declared = rule.get("type")
    types = [declared] if isinstance(declared, str) else declared
    if (
        not isinstance(types, list | tuple)
        or not types
        or not all(isinstance(name, str) and name in TYPE_NAMES for name in types)
    ):
        return None
    return list(types)


def _check_bounds(rule: Mapping[str, Any], types: list[str], path: KeyPath) -> Iterator[str]:
    where = dotted(path)
    if not {"integer", "number"} & set(types):
        return
    if "allowed" in rule and "min" not in rule and "max" not in rule:
        return
    low, high = rule.get("min"), rule.get("max")
    if not isinstance(low, Number) or not isinstance(high, Number):
        yield f"{where}: a number needs `min` and `max`, both finite"
    elif low > high:  # type: ignore[operator]
        yield f"{where}: `min` is above `max`"


def _check_container(rule: Mapping[str, Any], types: list[str], path: KeyPath) -> Iterator[str]:
    where = dotted(path)
    if "dict" in types and "list" in types:
        yield f"{where}: a field cannot be both a mapping and a list, because `schema` means different things for them"
        return
    if "list" in types:
        if "schema" not in rule:
            yield f"{where}: a list needs `schema`, the rules of its items"
        elif isinstance(rule["schema"], Mapping) and "type" not in rule["schema"]:
            # Cerberus accepts this when it checks the schema and raises RuntimeError when it meets a value.
            yield f"{where}: `schema` of a list holds the rules of one item, such as {{type: dict, schema: ...}}"
        else:
            yield from _check_rule(rule["schema"], (*path, "[]"))
    if "dict" in types:
        if not {"schema", "keysrules", "valuesrules"} & set(rule):
            yield f"{where}: a mapping needs `schema`, or `keysrules` and `valuesrules`"
        if "schema" in rule and {"keysrules", "valuesrules"} & set(rule):
            yield f"{where}: a mapping has either `schema` or `keysrules` and `valuesrules`"
        if "schema" in rule:
            yield from _check_fields(rule["schema"], path)
        if "keysrules" in rule and "valuesrules" not in rule:
            yield f"{where}: `keysrules` without `valuesrules` would accept any value"
        for part in ("keysrules", "valuesrules"):
            if part in rule:
                yield from _check_rule(rule[part], (*path, "*"))


def _check_meta(rule: Mapping[str, Any], types: list[str], path: KeyPath) -> Iterator[str]:
    where, meta = dotted(path), rule.get("meta", {})
    if not isinstance(meta, Mapping):
        yield f"{where}: `meta` must be a mapping"
        return
    if rule.get("required") and "default" in rule:
        yield f"{where}: a required field cannot have a default"
    for mark, values in _MARKS.items():
        if mark in meta and not any(type(meta[mark]) is type(value) and meta[mark] == value for value in values):
            yield f"{where}: `meta.{mark}` must be {' or '.join(map(_shown, values))}"
    stricter = meta.get("stricter")
    if stricter is None:
        return
    is_duration = rule.get("check_with") == "duration" and stricter in ("lower", "higher")
    if not isinstance(stricter, str) or stricter not in _STRICTER:
        yield f"{where}: `meta.stricter` must be one of {', '.join(_STRICTER)}"
    elif not (is_duration or set(types) & _STRICTER[stricter]):
        yield f"{where}: `meta.stricter: {stricter}` does not fit {' or '.join(types)}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_text_rules(rule: Mapping[str, Any], types: list[str], path: KeyPath) -> Iterator[str]:
    where = dotted(path)
    if "regex" in rule:
        trouble = trouble_of(rule["regex"]) if isinstance(rule["regex"], str) else "not a text"
        if trouble:
            yield f"{where}: `regex` cannot be compiled: {trouble}"
    if "check_with" in rule and rule["check_with"] not in _CHECKS:
        yield f"{where}: `check_with` must be one of {', '.join(_CHECKS)}; other checks belong in check_options()"
    if "allowed" in rule and (not isinstance(rule["allowed"], list | tuple) or not rule["allowed"]):
        yield f"{where}: `allowed` must be a list that is not empty"


def _check_defaults(schema: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    for name, rule in schema.items():
        where = dotted((*path, name))
        if "default" in rule:
            for error in check({name: rule}, {name: rule["default"]}):
                place = dotted((*path, *error.document_path))
                yield f"{where}: the default is not valid: {place} breaks the rule `{error.rule or 'unknown field'}`"
        for nested in (rule.get("schema"), *(_nested(rule.get(part)) for part in ("schema", "valuesrules"))):
            if isinstance(nested, Mapping) and all(isinstance(inner, Mapping) for inner in nested.values()):
                yield from _check_defaults(nested, (*path, name))


def _nested(rule: Any) -> Any:
    return rule.get("schema") if isinstance(rule, Mapping) and "type" in rule else None
