"""JSON Schema (2020-12) of policy files, made from the Cerberus schemas of the core and of extensions.

Knows: what both kinds of schema can say, layer operators, variables. Must not know: where extensions come from, files.

One file is described, not what its layers make together. So what a lower layer may have given is not required (only a
policy that extends nothing must have all options that its rules need), and any setting may be removed by
`{$delete: true}`. What no JSON Schema can say is left to `policyengine check`: whether a
regular expression can be compiled, how long a duration may be, whether a year has a 29th of February, whether names,
ids and versions exist, what the layers make together, rules between several options, and the checks of extensions'
own. A whole number may be written `1.0` by JSON Schema, and not in a policy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from policyengine.extension import Extension
from policyengine.policy.about import ABOUT
from policyengine.policy.pointers import POINTER
from policyengine.policy.schema import (
    MAX_RULES,
    OVERLAY_HEADER,
    POLICY_HEADER,
    RULE,
    SETTINGS,
    Schema,
    is_fixed,
)
from policyengine.policy.validator import TYPE_NAMES
from policyengine.policy.wording import KeyPath

DIALECT = "https://json-schema.org/draft/2020-12/schema"

DURATION = r"^(?!0*(\.0*)?[mhs])[0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h)$"
"""A duration above zero; that it is at most 24 hours cannot be said."""

DAY = r"^[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))$"
"""A day; in which years February has 29 cannot be said."""

_PATTERNS = {"duration": DURATION, "pointer": POINTER, "day": DAY}
"""How texts look that a check of ours looks at."""

FILE = r"[/\\]|\.(yaml|yml|json5|json)$"
"""What tells a file under `extends` from the name of a shipped policy."""

_TYPES = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "dict": "object",
    "list": "array",
}
_SCALARS = {"string", "integer", "number", "boolean"}
_STRICTER = {"lower": "lower is stricter", "higher": "higher is stricter"}

_DELETE: Schema = {"const": True, "description": "Remove what lower layers say here."}
_LIST_OPERATORS = {
    "$append": "Add at the end of the list of the lower layer.",
    "$prepend": "Add at the beginning of the list of the lower layer.",
    "$remove": "Take out of the list of the lower layer.",
    "$replace": "The same as writing the list.",
}
_ANY_OPERATOR = r"^\$(append|prepend|remove|replace)$"
_DEFS: Schema = {
    "delete": {
        "type": "object",
        "description": "Remove what lower layers say here.",
        "properties": {"$delete": {"const": True}},
        "required": ["$delete"],
        "additionalProperties": False,
    },
    "variable": {
        "type": "object",
        "description": "The value of an environment variable; an error where it is not set and has no default.",
        "properties": {
            "$env": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,199}$", "description": "Its name."},
            "default": {"type": ["string", "number", "boolean"], "description": "The value where it is not set."},
        },
        "required": ["$env"],
        "additionalProperties": False,
    },
}


class Found(Protocol):
    """What is told of an extension: see `policyengine.policy.load.Found`."""

    @property
    def cls(self) -> type[Extension]: ...  # noqa: D102
    @property
    def hooks(self) -> tuple[str, ...]: ...  # noqa: D102


def file_schema(
    extensions: Sequence[Found], shipped: Iterable[str] = (), others: Mapping[str, Schema] | None = None
) -> Schema:
    """Return the schema of policy and overlay files that may use these extensions.

    `shipped` are the names of shipped policies, `others` the schemas of other kinds of files by kind.
    """
    kinds = {"Overlay": _kind_of("Overlay"), **{kind: _kind_of(kind) for kind in others or {}}}
    chosen: Schema = {"$ref": "#/$defs/Policy"}
    for kind, test in reversed(kinds.items()):
        chosen = {"if": test, "then": {"$ref": f"#/$defs/{kind}"}, "else": chosen}
    settings = _Converter().fields(SETTINGS, ())
    settings["extensions"] = _rules(extensions)
    return {
        "$schema": DIALECT,
        "title": "policyengine: policy files",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"kind": {"enum": ["Policy", *kinds], "description": ABOUT["kind"]}},
        **chosen,
        "$defs": {
            "Policy": _policy(settings, extensions, sorted(shipped)),
            "Overlay": _kind(OVERLAY_HEADER, settings),
            **(others or {}),
            "settings": settings,
            "rule": _rule(extensions),
            "options": {found.cls.name: options_schema(found.cls, layered=True) for found in extensions},
            **_DEFS,
        },
    }


def options_schema(cls: type[Extension], *, layered: bool = False) -> Schema:
    """Return the schema of an extension's options; `layered` as they stand in a file, else all together."""
    made = _Converter(layered=layered, own=True).mapping({"type": "dict", "schema": cls.options}, ("with",))
    made["description"] = _summary(cls)
    if layered:
        return made
    return {"$schema": DIALECT, "title": f"options of {cls.name}", **made}


def whole_schema(shape: Schema, about: Mapping[str, str]) -> Schema:
    """Return the schema of a file that has no layers and takes no variables, with a line about each key by path."""
    return _Converter(layered=False, variables=False, about=about).mapping({"type": "dict", "schema": shape}, ())


def _kind_of(name: str) -> Schema:
    return {"properties": {"kind": {"const": name}}, "required": ["kind"]}


def _kind(header: Schema, settings: Schema) -> Schema:
    plain = _Converter(layered=False, variables=False)
    required = [name for name, rule in header.items() if rule.get("required")]
    properties = plain.fields(header, ()) | {name: {"$ref": f"#/$defs/settings/{name}"} for name in settings}
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _policy(settings: Schema, extensions: Sequence[Found], shipped: list[str]) -> Schema:
    policy = _kind(POLICY_HEADER, settings)
    parent = {"anyOf": [{"enum": shipped}, {"type": "string", "pattern": FILE}]} if shipped else {"type": "string"}
    about = {"description": ABOUT["extends"]}
    policy["properties"]["extends"] = {"anyOf": [parent, {"type": "array", "minItems": 1, "items": parent}], **about}
    needed = {
        found.cls.name: needs
        for found in extensions
        if (needs := _needs({"type": "dict", "schema": found.cls.options}))
    }
    # What must be given can come from below, where there is something below.
    policy["if"] = {"not": {"required": ["extends"]}}
    own = _needs({"type": "dict", "schema": SETTINGS}).get("properties", {})
    policy["then"] = {"properties": {**own, "extensions": _complete(needed)}}
    return policy


def _complete(needed: Mapping[str, Schema]) -> Schema:
    """Return what rules must have in a policy that extends nothing."""
    cases = [{"if": _uses(name), "then": _with_all(needs)} for name, needs in needed.items()]
    own = {name: {"if": _names_nothing(), "then": _with_all(needs)} for name, needs in needed.items()}
    parts = [_needs({"type": "dict", "schema": RULE}), *cases]
    every = {"if": {"not": {"required": ["$delete"]}}, "then": {"allOf": parts}}
    return {
        "properties": {name: {"allOf": [case, every]} for name, case in own.items()},
        "additionalProperties": every,
    }


def _with_all(needs: Schema) -> Schema:
    given = {"required": ["with"]} if "required" in needs else {}
    return {**given, "properties": {"with": needs}}


def _needs(rule: Mapping[str, Any]) -> Schema:
    """Return what must be given of a mapping and of those in it, beside what is said of a file with layers."""
    made: Schema = {}
    if _types(rule) != ["dict"]:
        return made
    inner: Mapping[str, Any] = rule.get("schema") or {}
    required = [name for name, field in inner.items() if field.get("required")]
    below = {name: needs for name, field in inner.items() if (needs := _needs(field))}
    values = _needs(rule.get("valuesrules") or {})
    made |= {"required": required} if required else {}
    made |= {"properties": below} if below else {}
    made |= {"additionalProperties": values} if values else {}
    made |= {"minProperties": rule["minlength"]} if rule.get("minlength") else {}
    return made


def _uses(name: str) -> Schema:
    return {"properties": {"use": {"const": name}}, "required": ["use"]}


def _names_nothing() -> Schema:
    return {"not": {"anyOf": [{"required": ["use"]}, {"required": ["$delete"]}]}}


# ---- rules


def _rules(extensions: Sequence[Found]) -> Schema:
    """Return the schema of `extensions:`: a rule is judged by what it uses, or by its id where it does not say."""
    ids = {
        found.cls.name: {
            "description": _summary(found.cls),
            "allOf": [{"$ref": "#/$defs/rule"}, {"if": _names_nothing(), "then": _made_of(found)}],
        }
        for found in extensions
    }
    return {
        "type": "object",
        "description": ABOUT["extensions"],
        "maxProperties": MAX_RULES,
        "propertyNames": _names(SETTINGS["extensions"]["keysrules"], extra=("$delete",)),
        "properties": {**ids, "$delete": _DELETE},
        "additionalProperties": {"$ref": "#/$defs/rule"},
    }


def _rule(extensions: Sequence[Found]) -> Schema:
    made = _Converter().mapping({"type": "dict", "schema": RULE}, ("extensions", "*"))
    known = [{"const": found.cls.name, "description": _summary(found.cls)} for found in extensions]
    other = {
        "type": "string",
        "pattern": r"^[A-Za-z][\w-]*(\.[A-Za-z][\w-]*)+$",
        "description": "Of a package or folder.",
    }
    made["properties"]["use"] = {"description": ABOUT["extensions.*.use"], "anyOf": [*known, other]}
    made["allOf"] = [{"if": _uses(found.cls.name), "then": _made_of(found)} for found in extensions]
    return made


def _made_of(found: Found) -> Schema:
    """Return what a rule of this extension must be."""
    at = {"anyOf": [{"enum": list(found.hooks)}, {"items": {"enum": list(found.hooks)}, "type": "array"}, _changed()]}
    return {"properties": {"with": {"$ref": f"#/$defs/options/{_pointer(found.cls.name)}"}, "at": at}}


def _changed() -> Schema:
    return {"type": "object"}  # an operator, which the rule's own schema describes


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _summary(cls: type[Extension]) -> str:
    return (inspect.getdoc(cls) or cls.name).split("\n")[0]


# ---- one setting


class _Converter:
    """Turns Cerberus rules into JSON Schema.

    `layered`: nothing is required, and layer operators are allowed. `own`: the rules are of an extension, and no
    setting is fixed. `variables`: environment variables are allowed. `about`: lines about settings by path.
    """

    def __init__(
        self, *, layered: bool = True, own: bool = False, variables: bool = True, about: Mapping[str, str] = ABOUT
    ) -> None:
        self._lines = about
        self._layered = layered
        self._own = own
        self._variables = variables and layered

    def fields(self, schema: Mapping[str, Any], path: KeyPath) -> Schema:
        """Return the properties of a mapping."""
        return {name: self.value(rule, (*path, name)) for name, rule in schema.items()}

    def value(self, rule: Mapping[str, Any], path: KeyPath) -> Schema:
        """Return the schema of one setting as it may stand in a file."""
        about = self._about(rule, path)
        if "type" not in rule:
            return about
        types = _types(rule)
        if types == ["dict"]:
            return {**self.mapping(rule, path), **about}
        choices = [self._plain(rule, types, path)]
        if self._layered and path[-1] != "[]":
            choices += [self._operator(rule, path)] if "list" in types else []
            choices.append({"$ref": "#/$defs/delete"})
        if self._variables and _SCALARS & set(types) and (self._own or not is_fixed(_with_stars(path))):
            choices.append({"$ref": "#/$defs/variable", "properties": {"default": choices[0]}})
        return {**about, **choices[0]} if len(choices) == 1 else {**about, "anyOf": choices}

    def mapping(self, rule: Mapping[str, Any], path: KeyPath) -> Schema:
        """Return the schema of a mapping."""
        made: Schema = {"type": "object"}
        inner, removable = rule.get("schema"), self._layered and path != ("with",)
        if inner is not None:
            made["properties"] = self.fields(inner, path)
            made["additionalProperties"] = False
            required = [name for name, field in inner.items() if field.get("required")]
            if required and (not self._layered or "[]" in path):
                made["required"] = required
        elif "valuesrules" in rule:
            made["additionalProperties"] = self.value(rule["valuesrules"], (*path, "*"))
            if "keysrules" in rule:
                made["propertyNames"] = _names(rule["keysrules"], extra=("$delete",) if removable else ())
        if rule.get("check_with") == "form":
            made["allOf"] = _FORM_CASES
        if "maxlength" in rule:
            made["maxProperties"] = rule["maxlength"]
        if "minlength" in rule and not self._layered:
            made["minProperties"] = rule["minlength"]
        if removable and "[]" not in path:
            made["properties"] = {**made.get("properties", {}), "$delete": _DELETE}
            made["dependentSchemas"] = {"$delete": {"maxProperties": 1}}
        return made

    def _plain(self, rule: Mapping[str, Any], types: list[str], path: KeyPath) -> Schema:
        """Return the schema of a value that is written out."""
        names = [_TYPES[name] for name in types]
        made: Schema = {"type": names[0] if len(names) == 1 else names}
        allowed = rule.get("allowed") or (rule.get("meta") or {}).get("names")
        if allowed is not None and "list" not in types:
            return {"enum": list(allowed)}
        _bounds(made, rule, types)
        if "list" in types:
            items = self.value(rule.get("schema") or {"type": list(_TYPES)}, (*path, "[]"))
            made["items"] = {**items, "enum": list(allowed)} if allowed is not None and "anyOf" not in items else items
        if allowed is not None and "string" in types:
            made = {"anyOf": [{"enum": list(allowed)}, {**made, "type": "array"}]}
        return made

    def _operator(self, rule: Mapping[str, Any], path: KeyPath) -> Schema:
        items = self.value(rule.get("schema") or {"type": list(_TYPES)}, (*path, "[]"))
        return {
            "type": "object",
            "properties": {name: {"description": text} for name, text in _LIST_OPERATORS.items()},
            "patternProperties": {_ANY_OPERATOR: {"type": "array", "items": items}},
            "minProperties": 1,
            "dependentSchemas": {"$replace": {"maxProperties": 1}},
            "additionalProperties": False,
        }

    def _about(self, rule: Mapping[str, Any], path: KeyPath) -> Schema:
        key = ".".join("*" if part == "[]" else str(part) for part in path)
        meta = rule.get("meta") or {}
        text = str(meta.get("about") or "") if self._own else self._lines.get(key, "")
        facts = [] if _types(rule) in ([], ["dict"]) or (text and not self._own) else [_form(rule)]
        facts += [_STRICTER[meta["stricter"]]] if meta.get("stricter") in _STRICTER else []
        made: Schema = {}
        line = "; ".join(filter(None, [text.rstrip("."), *facts])) if facts else text
        if line:
            made["description"] = line if line.endswith(".") else f"{line[0].upper()}{line[1:]}."
        if "default" in rule:
            made["default"] = rule["default"]
        return made


def _types(rule: Mapping[str, Any]) -> list[str]:
    declared = rule.get("type", [])
    return [declared] if isinstance(declared, str) else list(declared)


def _form(rule: Mapping[str, Any]) -> str:
    """Return in words what a value must be."""
    if rule.get("check_with") == "duration":
        return "a duration, such as 10s"
    if "allowed" in rule:
        return "one of " + ", ".join(map(str, rule["allowed"]))
    text = " or ".join(TYPE_NAMES[name] for name in _types(rule))
    return f"{text}, {rule['min']} to {rule['max']}" if "min" in rule and "max" in rule else text


def _bounds(made: Schema, rule: Mapping[str, Any], types: list[str]) -> None:
    """Add the limits of a value. A keyword of JSON Schema only concerns values of its own type."""
    for name, word in (("min", "minimum"), ("max", "maximum")):
        if name in rule:
            made[word] = rule[name]
    for name, start in (("minlength", "min"), ("maxlength", "max")):
        if name in rule:
            made |= {f"{start}Length": rule[name]} if "string" in types else {}
            made |= {f"{start}Items": rule[name]} if "list" in types else {}
    if rule.get("check_with") in _PATTERNS:
        made["pattern"] = _PATTERNS[rule["check_with"]]
    elif "pattern" in (rule.get("meta") or {}):
        made["pattern"] = rule["meta"]["pattern"]
    elif "regex" in rule and (pattern := _pattern(rule["regex"])):
        made["pattern"] = pattern


def _names(rule: Mapping[str, Any], extra: tuple[str, ...] = ()) -> Schema:
    made: Schema = {}
    _bounds(made, rule, ["string"])
    if "allowed" in rule:
        made["enum"] = list(rule["allowed"])
    return {"anyOf": [made, {"enum": list(extra)}]} if extra and made else made


def _pattern(regex: str) -> str:
    """Return a regular expression as JSON Schema has it; empty where it is one of Python only."""
    if "(?P" in regex or regex.startswith("(?i") or "(?#" in regex:
        return ""
    body = regex.removesuffix(r"\Z").removesuffix("$").removeprefix("^")
    return f"^(?:{body})$"


def _with_stars(path: KeyPath) -> KeyPath:
    return tuple("*" if part == "[]" else part for part in path)


def _case(forms: list[str], then: Schema) -> Schema:
    return {"if": {"properties": {"form": {"enum": forms}}, "required": ["form"]}, "then": then}


_FORM_CASES = [
    _case(["tag", "line", "call"], {"required": ["word"]}),
    _case(["python", "prose"], {"propertyNames": {"enum": ["form", "answer"]}}),
    _case(["prose"], {"required": ["answer"], "properties": {"answer": {"const": True}}}),
    _case(["python"], {"properties": {"answer": {"const": False}}}),
    _case(["tag", "call", "python", "prose"], {"properties": {"payload": False}}),
]
"""What `validator.form_trouble` says of one form, as far as it concerns single keys."""
