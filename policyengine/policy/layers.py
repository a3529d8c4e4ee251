"""Merge the layers of a policy, keeping every value that a setting had.

Knows: how maps, lists and scalars merge, layer operators, provenance. Must not know: which settings exist, except that
`extensions` holds rules and `tools` holds patterns.

Maps merge by key; scalars and lists replace. `{$delete: true}` removes; `$append`, `$prepend` and `$remove` change a
list of a lower layer, `$replace` is the same as writing the list. A bare null is an error. `requires.block` only grows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from policyengine.policy.environment import ENV, form_fault, is_variable
from policyengine.policy.files import LayerFile
from policyengine.policy.model import Layer
from policyengine.policy.nodes import Node, Sources, mapping, walk
from policyengine.policy.problems import Problem
from policyengine.policy.wording import KeyPath, dotted, shown, suggestion

DELETE = "$delete"
_GLUED = re.compile(r"([\w-]{1,50}):([^\s:]{1,50})\Z")
"""A key that is a key and its value: `{effect:read}` has no value in YAML."""
BLOCK = ("requires", "block")
"""The list that only grows: what one layer blocks, no layer above can use."""
LIST_OPERATORS = ("$append", "$prepend", "$remove", "$replace")
_OPERATORS = (DELETE, *LIST_OPERATORS)


class Merged:
    """What the layers make together: `root`, what was removed on the way, and the problems of merging."""

    def __init__(self, layers: Sequence[LayerFile], sources: Sources) -> None:
        self._sources = sources
        self._overlay = False
        self.problems: list[Problem] = []
        self.removed: dict[KeyPath, tuple[Layer, ...]] = {}
        for layer in layers:
            self._scan(layer.settings)
        root = Node({}, layers[-1].root.at, children={})
        if not self.problems:
            for layer in layers:
                self._overlay = layer.kind == "Overlay"
                root = self._fields(root, layer.settings, ())
        self.root = root

    def _report(self, code: str, message: str, node: Node, path: KeyPath, **facts: Any) -> None:
        self.problems.append(self._sources.at_key(code, message, node, path, **facts))

    def _scan(self, settings: Node) -> None:
        """Find nulls and malformed operators anywhere in a layer."""
        for path, node in walk(settings):
            if node.data is None:
                advice = "write `{}` for an empty mapping, or `{$delete: true}` to remove what a lower layer says"
                if path and isinstance(path[-1], str) and (glued := _GLUED.match(path[-1])):
                    advice = f"put a blank after the colon: `{glued[1]}: {glued[2]}`"
                self._report("M305", "a bare null says nothing", node, path, help=advice)
            marks = [key for key in node.fields if key.startswith("$")]
            if is_variable(node):
                self._scan_variable(node, path)
            elif marks:
                self._scan_operator(node, path, marks)

    def _scan_variable(self, node: Node, path: KeyPath) -> None:
        fault = form_fault(node)
        if fault is None and not path:
            fault = "a variable stands for one value, not for a whole file", ENV
        if fault is not None:
            message, key = fault
            self._report("M308", message, node.fields[key], (*path, key))

    def _scan_operator(self, node: Node, path: KeyPath, marks: list[str]) -> None:
        first = node.fields[marks[0]]
        if unknown := [key for key in marks if key not in _OPERATORS]:
            advice = suggestion(unknown[0], _OPERATORS)
            self._report("M308", "unknown operator", node.fields[unknown[0]], (*path, unknown[0]), help=advice)
        elif len(marks) < len(node.fields):
            self._report("M308", "operators and ordinary keys cannot be mixed", first, (*path, marks[0]))
        elif not path or isinstance(path[-1], int):
            self._report("M308", "an operator cannot stand here", first, (*path, marks[0]))
        elif DELETE in marks and (len(marks) > 1 or node.fields[DELETE].data is not True):
            self._report("M308", "the way to remove is `{$delete: true}`, alone", first, (*path, marks[0]))
        elif "$replace" in marks and len(marks) > 1:
            self._report("M308", "`$replace` stands alone", first, (*path, marks[0]))
        else:
            for key in marks:
                if key != DELETE and not isinstance(node.fields[key].children, tuple):
                    self._report("M308", "a list operator needs a list", node.fields[key], (*path, key))

    def _fields(self, base: Node, over: Node, path: KeyPath) -> Node:
        """Return the mapping `over` laid over the mapping `base`."""
        fields, added = dict(base.fields), dict[str, Node]()
        for key, child in over.fields.items():
            here = (*path, key)
            lower = fields.get(key)
            result = self._fresh(child, here, fields) if lower is None else self._over(lower, child, here)
            if result is None:
                fields.pop(key, None)
            elif lower is None:
                added[key] = result
            else:
                fields[key] = result
        # The first pattern under `tools` that matches wins, and a later layer is the more specific one.
        merged = {**added, **fields} if path == ("tools",) else {**fields, **added}
        return mapping(merged, over, (*base.layers, *over.layers) if path else ())

    def _over(self, base: Node, over: Node, path: KeyPath) -> Node | None:
        operators = _operators(over)
        if _unblocks(base, operators, path):
            place, where = over.fields[operators[0]], (*path, operators[0])
            self._report("M316", "what a lower layer blocks stays blocked", place, where)
            return base
        if path == BLOCK and not operators and not _list(base):
            return base  # its type is wrong; that must be said, and not be mended from above
        if path == BLOCK and not operators and _list(over):
            return self._operate(base, mapping({"$append": over}, over), path)
        if operators == (DELETE,):
            self.removed[path] = (*base.layers, Layer(over.data, over.where))
            return None
        if operators:
            return self._operate(base, over, path)
        if _merges(base) and _merges(over):
            if len(path) == 2 and path[0] == "extensions" and _used(base, path) != _used(over, path, _used(base, path)):
                return self._reused(base, over, path)
            return self._fields(base, over, path)
        fresh = self._fresh(over, path, {})
        if fresh is None:
            return None
        return _with_history(fresh, (*base.layers, *over.layers))

    def _reused(self, base: Node, over: Node, path: KeyPath) -> Node:
        """A rule that now uses another extension starts anew: what was said to the old one means nothing to it."""
        kept = {key: child for key, child in base.fields.items() if key not in ("with", "at")}
        return _with_history(self._fields(mapping(kept, base), over, path), over.layers)

    def _fresh(self, node: Node, path: KeyPath, siblings: dict[str, Node]) -> Node | None:
        """Return a node that no lower layer has, operators resolved."""
        operators = _operators(node)
        if operators == (DELETE,):
            advice = suggestion(str(path[-1]), siblings)
            self._report("M307", "there is nothing to remove here", node, path, help=advice)
            return None
        if operators == ("$replace",):
            replaced = node.fields["$replace"]
            return Node(replaced.data, replaced.at, replaced.length, node.key_at, node.key_length, replaced.children)
        if operators:
            advice = "no lower layer sets this list; write the whole list"
            self._report("M309", "there is no list to change here", node, path, help=advice)
            return None
        is_rule = len(path) == 2 and path[0] == "extensions"
        if is_rule and self._overlay and _merges(node) and "use" not in node.fields:
            advice = suggestion(str(path[1]), siblings, "rules")
            note = "to add a rule, say which extension it uses: `use: NAME`"
            self._report("M306", "the target has no such rule", node, path, help=advice, note=note)
        if not isinstance(node.children, dict) or not any(map(_operators, (child for _, child in walk(node)))):
            return node
        fields = {key: self._fresh(child, (*path, key), {}) for key, child in node.fields.items()}
        return mapping({key: child for key, child in fields.items() if child is not None}, node)

    def _operate(self, base: Node, over: Node, path: KeyPath) -> Node:
        if "$replace" not in over.fields and not isinstance(base.children, tuple):
            note = f"the lower layer says {shown(base.data)} at {base.at}"
            self._report("M309", "the lower layer has no list here", over, path, note=note)
            return base
        items = () if "$replace" in over.fields else base.items
        for key, operand in over.fields.items():
            if key == "$prepend":
                items = (*operand.items, *items)
            elif key == "$remove":
                items = self._without(items, operand, (*path, key))
            else:
                items = (*items, *operand.items)
        data = [item.data for item in items]
        history = (*base.layers, Layer(data, over.where))
        return Node(data, over.at, over.length, over.key_at, over.key_length, items, history)

    def _without(self, items: tuple[Node, ...], operand: Node, path: KeyPath) -> tuple[Node, ...]:
        for index, unwanted in enumerate(operand.items):
            kept = tuple(item for item in items if not _equal(item.data, unwanted.data))
            if len(kept) == len(items):
                names = [item.data for item in items if isinstance(item.data, str)]
                advice = suggestion(unwanted.data, names, "entries") if isinstance(unwanted.data, str) else ""
                message = f"{shown(unwanted.data)} is not in the list"
                self.problems.append(self._sources.at_value("M312", message, unwanted, (*path, index), help=advice))
            items = kept
        return items


def _with_history(node: Node, history: tuple[Layer, ...]) -> Node:
    return Node(node.data, node.at, node.length, node.key_at, node.key_length, node.children, history)


def _operators(node: Node) -> tuple[str, ...]:
    return tuple(key for key in node.fields if key.startswith("$") and key != ENV)


def _list(node: Node) -> bool:
    return isinstance(node.children, tuple)


def _unblocks(base: Node, operators: tuple[str, ...], path: KeyPath) -> bool:
    """Return whether operators would take away what a lower layer blocks."""
    if path == BLOCK:
        return bool({DELETE, "$replace", "$remove"}.intersection(operators))
    return path == BLOCK[:1] and operators == (DELETE,) and BLOCK[1] in base.fields


def _merges(node: Node) -> bool:
    """Return whether a node is a mapping that merges by key; a variable is one value."""
    return isinstance(node.children, dict) and not is_variable(node)


def _used(rule: Node, path: KeyPath, default: str | None = None) -> Any:
    use = rule.fields.get("use")
    return use.data if use is not None else default or path[1]


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def provenance(root: Node, removed: dict[KeyPath, tuple[Layer, ...]]) -> dict[str, tuple[Layer, ...]]:
    """Return the layers of every key path below `root`, and of what was removed and not set again.

    The items of a list have no paths of their own; a removed path ends in a layer with the value `{$delete: true}`.
    """
    found: dict[str, tuple[Layer, ...]] = {}
    stack: list[tuple[KeyPath, Node]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if path:
            found[dotted(path)] = node.layers
        stack += [((*path, key), child) for key, child in reversed(node.fields.items())]
    for path, layers in removed.items():
        found.setdefault(dotted(path), layers)
    return found
