"""Put environment variables in the place of `{$env: NAME, default: VALUE}`.

Knows: how such a node is written, which value a schema makes of a text, what may be said about it.
Must not know: where settings stand, how layers merge.

The value of a variable may be a secret: it goes into the policy's settings and nowhere else. Problems, provenance and
whatever is printed name the variable. No problem shows a default either. A variable is read once per load.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policyengine.policy.model import Layer
from policyengine.policy.nodes import Node, Source, Sources, mapping, walk
from policyengine.policy.problems import Problem
from policyengine.policy.schema import Schema, is_fixed, is_options
from policyengine.policy.validate import validate
from policyengine.policy.validator import TYPE_NAMES, Number, check
from policyengine.policy.wording import KeyPath, dotted, listed

ENV, DEFAULT = "$env", "default"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}\Z")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})\Z", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?\Z", re.ASCII)
_SCALARS = ("boolean", "integer", "number", "string")


class Environment:
    """The variables as they are at one load: each is looked up once.

    `variables` are those of the process where none are given. `used` maps every name that was asked for to its text,
    `None` where it is not set.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = os.environ if variables is None else variables
        self.used: dict[str, str | None] = {}

    def text(self, name: str) -> str | None:
        """Return the text of a variable, or `None` where it is not set."""
        if name not in self.used:
            self.used[name] = self._variables.get(name)
        return self.used[name]


class Resolved(msgspec.Struct, frozen=True):
    """Settings with every variable replaced, and what was wrong with some: these settings are left out.

    `missing` are the paths of what was left out; `values` are names and texts, to keep them out of messages.
    """

    node: Node
    problems: list[Problem]
    missing: frozenset[str] = frozenset()
    values: dict[str, str] = {}


def is_variable(node: Node) -> bool:
    """Return whether a node, as it was written, stands for a variable."""
    return ENV in node.fields


def variable_of(node: Node) -> str | None:
    """Return the name of the variable that a resolved node has its value from, or `None`."""
    written = node.history[-1].value if node.history else None
    return str(written[ENV]) if isinstance(written, dict) and ENV in written else None


def form_fault(node: Node) -> tuple[str, str] | None:
    """Return what is wrong with the form of a variable's node and under which key, or `None`."""
    name, default = node.fields[ENV], node.fields.get(DEFAULT)
    if unknown := [key for key in node.fields if key not in (ENV, DEFAULT)]:
        return "a variable is written `{$env: NAME}` or `{$env: NAME, default: VALUE}`", unknown[0]
    if not isinstance(name.data, str) or not _NAME.match(name.data):
        return "the name of a variable has letters, digits and underscores", ENV
    if default is not None and default.children is not None:
        return "the default of a variable is one value: a text, a number, true or false", DEFAULT
    return None


def resolve(
    schema: Schema, node: Node, sources: Sources, environment: Environment, path: KeyPath = (), owner: str = ""
) -> Resolved:
    """Return the mapping `node`, which stands at `path`, with the value of every variable below it.

    The schema says what type a text becomes. What does not fit is a problem that names the variable and not its value.
    """
    if not any(is_variable(child) for _, child in walk(node)):
        return Resolved(node, [])
    resolver = _Resolver(sources, environment, owner)
    done = resolver.parts({"type": "dict", "schema": schema}, node, path)
    assert done is not None  # only a list is left out
    return Resolved(done, resolver.problems, frozenset(resolver.missing), resolver.values)


def unresolved(node: Node) -> Node:
    """Return settings of which nobody knows the types, with every variable as one value that is not looked up."""
    if is_variable(node):
        return Node(node.data, node.at, node.length, node.key_at, node.key_length, None, node.layers)
    if isinstance(node.children, dict):
        return mapping({key: unresolved(child) for key, child in node.children.items()}, node)
    if isinstance(node.children, tuple):
        return _sequence(tuple(map(unresolved, node.children)), node)
    return node


def hide_defaults(root: Node, source: Source) -> None:
    """Keep the lines on which defaults of variables stand out of every problem: a default may be a secret as well."""
    for _, node in walk(root):
        if is_variable(node) and DEFAULT in node.fields:
            source.hide(node.fields[DEFAULT].at.line)


def redacted(text: str, values: Mapping[str, str]) -> str:
    """Return a text of foreign code with `$env NAME` where it quotes the value of a variable."""
    for name, value in sorted(values.items(), key=lambda item: -len(item[1])):
        if value:
            text = re.sub(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", f"$env {name}", text)
    return text


class _Resolver:
    def __init__(self, sources: Sources, environment: Environment, owner: str) -> None:
        self._sources = sources
        self._environment = environment
        self._owner = owner
        self.problems: list[Problem] = []
        self.missing: set[str] = set()
        self.values: dict[str, str] = {}

    def parts(self, rule: Mapping[str, Any], node: Node, path: KeyPath) -> Node | None:
        """Return a mapping or list with its parts resolved: a mapping without what cannot be, a list only whole."""
        if isinstance(node.children, dict):
            fields = {key: self._part(_below(rule, key), child, (*path, key)) for key, child in node.children.items()}
            return mapping({key: child for key, child in fields.items() if child is not None}, node)
        if isinstance(node.children, tuple):
            inner = _below(rule, 0)
            items = [self._part(inner, child, (*path, index)) for index, child in enumerate(node.children)]
            known = tuple(item for item in items if item is not None)
            if len(known) < len(items):
                self.missing.add(dotted(path))
                return None
            return _sequence(known, node)
        return node

    def _part(self, rule: Mapping[str, Any] | None, node: Node, path: KeyPath) -> Node | None:
        if not self._owner and is_options(path) and not is_variable(node):
            return node  # the extension's own schema says what becomes of these
        if not is_variable(node):
            return self.parts(rule or {}, node, path)
        if rule is None:  # an unknown setting: its validation will say so
            return unresolved(node)
        found = self._value(rule, node, path)
        if found is None:
            self.missing.add(dotted(path))
        return found

    def _value(self, rule: Mapping[str, Any], node: Node, path: KeyPath) -> Node | None:
        name, default = str(node.fields[ENV].data), node.fields.get(DEFAULT)
        types = _types(rule)
        if not self._owner and is_fixed(path):
            return self._refuse("E811", "what a policy is made of does not depend on a variable", node, path)
        if not set(types).intersection(_SCALARS):
            expected = " or ".join(TYPE_NAMES.get(kind, kind) for kind in types)
            return self._refuse("E810", f"$env {name} is one value, and this setting is {expected}", node, path)
        if default is not None:
            key = path[-1] if isinstance(path[-1], str) else "item"
            alone = mapping({key: default}, default)
            wrong = validate({key: _alone(rule)}, alone, self._sources, path[:-1], owner=self._owner)
            if wrong:
                message = f"the default of $env {name} must be {wanted(rule)}"
                self.problems.append(msgspec.structs.replace(wrong[0], message=message, help="", source_line=""))
                return None
        text = self._environment.text(name)
        if text is None:
            if default is not None:
                if isinstance(default.data, str):
                    self.values[name] = default.data
                history = (*node.layers, Layer(default.data, default.at))
                return Node(default.data, default.at, default.length, node.key_at, node.key_length, None, history)
            advice = f"set it, or write `{{$env: {name}, default: VALUE}}`"
            return self._refuse("E808", f"the environment variable {name} is not set", node, path, help=advice)
        self.values[name] = text
        for kind in _SCALARS:
            value = _converted(text, kind) if kind in types else None
            if value is not None and not check({"value": _alone(rule)}, {"value": value}):
                return Node(value, node.at, node.length, node.key_at, node.key_length, None, node.layers)
        return self._refuse("E809", f"$env {name} must be {wanted(rule)}", node, path)

    def _refuse(self, code: str, message: str, node: Node, path: KeyPath, **facts: Any) -> Node | None:
        self.problems.append(self._sources.at_value(code, message, node.fields[ENV], path, **facts))
        return None


def _sequence(items: tuple[Node, ...], like: Node) -> Node:
    data = [item.data for item in items]
    return Node(data, like.at, like.length, like.key_at, like.key_length, items, like.layers)


def _below(rule: Mapping[str, Any], key: str | int) -> Mapping[str, Any] | None:
    """Return the rules of a part of a mapping or list; `None` where there are none."""
    inner = rule.get("schema")
    if isinstance(key, int):
        allowed = {"allowed": rule["allowed"]} if "allowed" in rule else {}
        return {**inner, **allowed} if isinstance(inner, Mapping) else None
    if "valuesrules" in rule:
        values: Mapping[str, Any] = rule["valuesrules"]
        return values
    return inner.get(key) if isinstance(inner, Mapping) and "list" not in _types(rule) else None


def _types(rule: Mapping[str, Any]) -> list[str]:
    declared = rule.get("type", [])
    return [declared] if isinstance(declared, str) else list(declared)


def _alone(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules of a value without those that only its neighbours can break."""
    return {name: part for name, part in rule.items() if name not in ("required", "dependencies", "excludes")}


def _converted(text: str, kind: str) -> Any:
    if kind == "boolean":
        return {"true": True, "false": False}.get(text)
    if kind == "integer":
        return int(text) if _INTEGER.match(text) else None
    if kind == "number":
        value = float(text) if _NUMBER.match(text) else None
        return int(value) if value is not None and isinstance(value, Number) and _INTEGER.match(text) else value
    return text


def wanted(rule: Mapping[str, Any]) -> str:
    """Return in words what a value must be."""
    return ", ".join(_wanted(rule))


def _wanted(rule: Mapping[str, Any]) -> Iterator[str]:
    form = rule.get("check_with")
    if "allowed" in rule:
        yield f"one of {listed(map(str, rule['allowed']))}"
        return
    if form == "duration":
        yield "a duration such as 250ms, 10s, 2m or 1h, at most 24h"
        return
    if form == "day":
        yield "a day such as 2026-12-31"
        return
    if form == "regex":
        yield "a regular expression that cannot take for ever"
        return
    if form == "pointer":
        yield "a JSON pointer to content of a line of the decision log, such as /call/arguments/token"
        return
    yield " or ".join(TYPE_NAMES[kind] for kind in _types(rule) if kind in _SCALARS)
    if "min" in rule:
        yield f"{rule['min']} to {rule['max']}" if "max" in rule else f"at least {rule['min']}"
    if "minlength" in rule or "maxlength" in rule:
        yield f"{rule.get('minlength', 0)} to {rule.get('maxlength', 'any number of')} characters"
    if "regex" in rule:
        yield f"of the form {rule['regex']}"
