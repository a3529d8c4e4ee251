"""Fill in defaults that nobody wrote, keeping where every value came from.

Knows: `default` in a schema. Must not know: policies, extensions.

A default on a mapping is the default of the whole mapping: as soon as the field is given, only the defaults of its
own fields apply. A field without a default stays absent.
"""

from __future__ import annotations

from typing import Any

from policyengine.policy.model import Layer
from policyengine.policy.nodes import BUILT_IN, Node, built_in, mapping


def fill(schema: dict[str, Any], node: Node) -> Node:
    """Return the mapping `node` with every default of `schema` that it does not set."""
    fields = dict(node.fields)
    for name, rule in schema.items():
        given = fields.get(name)
        if given is None:
            if "default" in rule:
                fields[name] = _inside(rule, built_in(rule["default"]))
        else:
            fields[name] = _given(rule, given)
    return mapping(fields, node)


def _given(rule: dict[str, Any], node: Node) -> Node:
    filled = _inside(rule, node)
    default = rule.get("default")
    if default is None or isinstance(default, dict):
        return filled
    history = (Layer(default, BUILT_IN), *filled.layers)
    return Node(filled.data, filled.at, filled.length, filled.key_at, filled.key_length, filled.children, history)


def _inside(rule: dict[str, Any], node: Node) -> Node:
    """Fill in defaults of the fields of a mapping, of its values, or of the items of a list."""
    if isinstance(node.children, dict):
        if "schema" in rule:
            return fill(rule["schema"], node)
        values = rule.get("valuesrules")
        if values and _holds_defaults(values):
            return mapping({key: _inside(values, child) for key, child in node.children.items()}, node)
    elif isinstance(node.children, tuple) and _holds_defaults(rule.get("schema", {})):
        items = tuple(_inside(rule["schema"], item) for item in node.children)
        data = [item.data for item in items]
        return Node(data, node.at, node.length, node.key_at, node.key_length, items, node.history)
    return node


def _holds_defaults(rule: dict[str, Any]) -> bool:
    return any(name in rule for name in ("schema", "valuesrules"))
