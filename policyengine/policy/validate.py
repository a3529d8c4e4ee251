"""Validate a node against a schema and say what is wrong, where.

Knows: how every rule of a schema is explained. Must not know: files, layers, extensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cerberus import errors as rules

from policyengine.policy.metaschema import check_extension_schema
from policyengine.policy.nodes import Node, Sources
from policyengine.policy.problems import Position, Problem
from policyengine.policy.schema import MODES, RULE, Schema
from policyengine.policy.validator import TYPE_NAMES, check
from policyengine.policy.wording import KeyPath, closest, listed, shown, suggestion

__all__ = ["check_extension_schema", "fields_at", "rule_at", "validate"]


def validate(
    schema: Schema,
    node: Node,
    sources: Sources,
    path: KeyPath = (),
    *,
    owner: str = "",
    defined: Position | None = None,
    prepared: Any = None,
) -> list[Problem]:
    """Return every problem of the mapping `node`, which stands at `path`.

    `owner` is the extension whose options these are, and `defined` where its rule was first written, for messages.
    `prepared` is the schema as `validator.prepare` returns it, where it is used more than once.
    """
    flooded = [
        _flood(node.find(place)[0], sources, (*path, *place), names) for place, names in floods(schema, node.data)
    ]
    if flooded:
        return flooded
    reporter = _Reporter(schema, node, sources, path, owner, defined)
    return [reporter.problem(error) for error in check(prepared or schema, node.data)]


MAX_UNKNOWN = 100
"""With more unknown settings in one mapping they are counted, not listed: each is compared with all known ones."""

MAX_UNKNOWN_IN_ALL = 400
"""The same for all mappings together: Cerberus takes quadratic time for errors."""


def floods(schema: Schema, data: Any) -> Iterator[tuple[KeyPath, list[str]]]:
    """Yield every mapping that has too many unknown settings, by its path, with their names.

    Where only all together are too many, that is the first mapping that has one, with the names of all.
    """
    found = list(_unknown({"type": "dict", "schema": schema}, data, ()))
    flooded = [(path, names) for path, names in found if len(names) > MAX_UNKNOWN]
    everything = [name for _, names in found for name in names]
    if not flooded and len(everything) > MAX_UNKNOWN_IN_ALL:
        flooded = [(found[0][0], everything)]
    yield from flooded


def _unknown(rule: Mapping[Any, Any], data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, list[str]]]:
    below = rule.get("schema")
    if isinstance(data, Mapping):
        known = below if isinstance(below, Mapping) else {}
        others = rule.get("valuesrules")
        unknown = [str(key) for key in data if key not in known] if others is None and "schema" in rule else []
        if unknown:
            yield path, unknown
        for key, value in data.items():
            form = known.get(key, others)
            if isinstance(form, Mapping) and isinstance(value, dict | list):
                yield from _unknown(form, value, (*path, key))
    elif isinstance(data, list | tuple) and isinstance(below, Mapping):
        for index, value in enumerate(data):
            yield from _unknown(below, value, (*path, index))


def _flood(node: Node, sources: Sources, path: KeyPath, names: list[str]) -> Problem:
    message = f"{len(names)} unknown settings, from {shown(names[0])} to {shown(names[-1])}"
    return sources.at_key("S204", message, node, path, help="remove them, then the rest is checked")


class _Reporter:
    """Says what a Cerberus error means, and where."""

    def __init__(
        self, schema: Schema, node: Node, sources: Sources, path: KeyPath, owner: str, defined: Position | None
    ) -> None:
        self._schema = schema
        self._node = node
        self._sources = sources
        self._path = path
        self._owner = owner
        self._defined = defined

    def problem(self, error: Any) -> Problem:
        """Return the problem for one error."""
        below: KeyPath = tuple(error.document_path)
        node, found = self._node.find(below)
        path: KeyPath = (*self._path, *below)
        if error.code == rules.UNKNOWN_FIELD.code:
            return self._unknown(node, path, below)
        if error.code == rules.REQUIRED_FIELD.code or not found:
            return self._missing(node, path, below)
        at = self._sources.at_value
        if "keysrules" in error.schema_path:
            return self._sources.at_key("S206", f"the key {shown(path[-1])} {_expected(error)}", node, path)
        if error.code == rules.BAD_TYPE.code:
            return self._bad_type(error, node, path)
        if error.code in (rules.UNALLOWED_VALUE.code, rules.UNALLOWED_VALUES.code):
            return self._not_allowed(error, node, path)
        if error.code in (rules.MIN_VALUE.code, rules.MAX_VALUE.code):
            return at("S205", f"{shown(error.value)} {_expected(error)}", node, path, help=self._bounds(error))
        if error.code == rules.CUSTOM.code:
            return self._custom(error, node, path)
        if error.code in (rules.DEPENDENCIES_FIELD.code, rules.EXCLUDES_FIELD.code):
            return at("S215", _expected(error), node, path)
        return at("S206", f"{shown(error.value)} {_expected(error)}", node, path)

    def _bounds(self, error: Any) -> str:
        meta = rule_at(self._schema, tuple(error.document_path)).get("meta") or {}
        said = meta.get("below", "") if error.code == rules.MIN_VALUE.code else ""
        return str(said) or self._threshold(error)

    def _missing(self, node: Node, path: KeyPath, below: KeyPath) -> Problem:
        allowed = list(rule_at(self._schema, below).get("allowed") or ())
        advice = f"write `{path[-1]}: {allowed[0]}`" if len(allowed) == 1 else ""
        return self._sources.at_key("S203", "the setting is missing", node, path, help=advice)

    def _unknown(self, node: Node, path: KeyPath, below: KeyPath) -> Problem:
        name = str(below[-1])
        accepts = f"{self._owner} accepts" if self._owner else "accepts"
        advice = suggestion(name, fields_at(self._schema, below[:-1]), accepts)
        if not self._owner and path[:1] == ("extensions",):
            if name in ("on", "true"):
                advice = "the key is `at`; `on` is a boolean for many YAML readers"
            elif len(path) == 3 and closest(name, RULE) is None:
                advice += "; options of the extension stand under `with`"
        note = ""
        if self._defined and self._defined.file != node.where.file:
            note = f"rule defined in {self._defined}, extended here"
        return self._sources.at_key("S204", "unknown setting", node, path, help=advice, note=note)

    def _bad_type(self, error: Any, node: Node, path: KeyPath) -> Problem:
        form = (rule_at(self._schema, tuple(error.document_path)).get("meta") or {}).get("form", "")
        value = error.value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if form == "duration" and number:
            advice = f"write {shown(value)}ms, {shown(value)}s, {shown(value)}m or {shown(value)}h"
            return self._sources.at_value("S207", "a duration needs a unit", node, path, help=advice)
        if form == "mode" and isinstance(value, bool):
            return self._mode(node, path)
        types = [error.constraint] if isinstance(error.constraint, str) else list(error.constraint)
        expected = " or ".join(TYPE_NAMES.get(name, name) for name in types)
        return self._sources.at_value(
            "S201", f"must be {expected}, not {shown(value)}", node, path, help=_type_advice(types, value, path)
        )

    def _mode(self, node: Node, path: KeyPath) -> Problem:
        advice = f"write `mode: disabled` (known: {listed(MODES)})"
        return self._sources.at_value("S213", f"there is no mode {shown(node.data)}", node, path, help=advice)

    def _not_allowed(self, error: Any, node: Node, path: KeyPath) -> Problem:
        rule = rule_at(self._schema, tuple(error.document_path))
        is_mode = isinstance(error.value, str) and (rule.get("meta") or {}).get("form") == "mode"
        if is_mode and error.value.casefold() in ("off", "no", "false", "none"):
            return self._mode(node, path)
        code = {"apiVersion": "S209", "kind": "S210"}.get(str(path[-1]), "S202") if len(path) == 1 else "S202"
        names = [str(name) for name in error.constraint]
        wrong = [item for item in error.value if item not in error.constraint] if isinstance(error.value, list) else []
        value = wrong[0] if wrong else error.value
        advice = suggestion(value, names, "allowed") if isinstance(value, str) else f"allowed: {listed(names)}"
        return self._sources.at_value(code, f"{shown(value)} is not allowed", node, path, help=advice)

    def _threshold(self, error: Any) -> str:
        if self._owner and error.code == rules.MIN_VALUE.code and error.value < 1:
            return "to switch the rule off, write `mode: disabled`"
        return ""

    def _custom(self, error: Any, node: Node, path: KeyPath) -> Problem:
        what = str(error.info[0])
        if what.startswith("form:"):
            return self._sources.at_value("S215", what.removeprefix("form:"), node, path)
        if what.startswith("pointer:"):
            message = f"{shown(error.value)} is no mask: {what.removeprefix('pointer:')}"
            return self._sources.at_value("S217", message, node, path)
        if what == "blowup":
            message = f"{shown(error.value)} may take for ever: its repeats can share a text in too many ways"
            advice = 'let the inner one keep what it took: "(?:a++)+" instead of "(?:a+)+"'
            return self._sources.at_value("S208", message, node, path, help=advice)
        if what == "day":
            message = f"{shown(error.value)} is not a day"
            return self._sources.at_value("S216", message, node, path, help='write "2026-12-31", in quotes')
        if what == "duration":
            return self._sources.at_value(
                "S207",
                f"{shown(error.value)} is not a duration",
                node,
                path,
                help="write 250ms, 10s, 2m or 1h; at most 24h",
            )
        return self._sources.at_value(
            "S208", f"{shown(error.value)} is not a regular expression: {what.removeprefix('regex:')}", node, path
        )


def _type_advice(types: list[str], value: Any, path: KeyPath) -> str:
    if "boolean" in types and isinstance(value, str) and value.casefold() in ("yes", "no", "on", "off", "y", "n"):
        return f"write {'true' if value.casefold() in ('yes', 'on', 'y') else 'false'}"
    if "dict" in types and isinstance(value, str) and re.match(r"[\w-]+:\S", value):
        return "put a blank after the colon"
    if "dict" in types and isinstance(value, list):
        return "write `key: value` lines without leading dashes"
    if types == ["string"] and not isinstance(value, str | dict | list):
        return f'write "{shown(value)}" if this is meant as a text'
    if isinstance(value, str) and _quoted(value, types):
        return f"write {value} without quotes"
    if types == ["list"] and not isinstance(value, dict):
        return f"write [{shown(value)}]"
    return ""


def _quoted(text: str, types: list[str]) -> bool:
    """Return whether a text is a value of one of the types that was put in quotes."""
    number = {"integer": r"-?(0|[1-9][0-9]{0,17})", "number": r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?"}
    forms = {**number, "boolean": "true|false"}
    return any(re.fullmatch(forms[name], text, re.ASCII) for name in types if name in forms)


def _expected(error: Any) -> str:
    limit = shown(error.constraint)
    texts = {
        rules.MIN_VALUE.code: f"is too small: at least {limit}",
        rules.MAX_VALUE.code: f"is too large: at most {limit}",
        rules.MIN_LENGTH.code: "must not be empty" if error.constraint == 1 else f"is too short: at least {limit}",
        rules.MAX_LENGTH.code: f"is too long: at most {limit}",
        rules.REGEX_MISMATCH.code: f"does not have the form {str(error.constraint).removesuffix('$')}",
        rules.EMPTY_NOT_ALLOWED.code: "must not be empty",
        rules.DEPENDENCIES_FIELD.code: f"also needs {limit}",
        rules.EXCLUDES_FIELD.code: f"cannot stand together with {', '.join(map(str, error.info[:1]))}",
        rules.UNALLOWED_VALUE.code: f"is not one of {', '.join(map(str, error.constraint or ()))}"
        if isinstance(error.constraint, list | tuple)
        else "",
    }
    return texts.get(error.code) or f"breaks the rule `{error.rule}`"


def rule_at(schema: Schema, path: KeyPath) -> Schema:
    """Return the rules of a field by its path; empty where there is none."""
    rule: Schema = {"type": "dict", "schema": schema}
    for key in path:
        if isinstance(key, int):
            rule = rule.get("schema") or {}
        elif "valuesrules" in rule and key not in (rule.get("schema") or {}):
            rule = rule["valuesrules"]
        else:
            rule = (rule.get("schema") or {}).get(key) or {}
    return rule


def fields_at(schema: Schema, path: KeyPath) -> list[str]:
    """Return the names of the fields that a mapping at this path may have."""
    return list(rule_at(schema, path).get("schema") or {})
