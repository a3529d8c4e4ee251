"""Layers that add nothing.

Knows: which file says what. Must not know: what any setting means.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from policyengine.policy.environment import is_variable
from policyengine.policy.files import LayerFile, is_path
from policyengine.policy.layers import Merged
from policyengine.policy.lint.subject import Subject
from policyengine.policy.nodes import Node, walk
from policyengine.policy.problems import Problem
from policyengine.policy.wording import KeyPath

_BY_ENTRY = ("extensions", "tools", "models")
"""Sections of which every entry is a thing of its own."""


def extended_twice(subject: Subject) -> Iterator[Problem]:
    """L661: a policy extends what another one that it extends has already."""
    by_file = {layer.file: layer for layer in subject.layers}
    for layer in subject.layers:
        entries = _entries(layer)
        for index, (name, node) in enumerate(entries):
            others = entries[:index] + entries[index + 1 :]
            again = next((other for other, _ in entries[:index] if other == name), None)
            through = next((other for other, _ in others if name in _below(other, by_file)), None)
            if again is None and through is None:
                continue
            message = f"{node.data} is named twice" if again else f"{node.data} is below {_short(through)} already"
            note = "a file that is reached twice is one layer"
            yield subject.finding(
                "L661", message, ("extends",), node=node, note=note, help="leave it out", severity="info"
            )


def empty_layers(subject: Subject) -> Iterator[Problem]:
    """L662: a policy in the middle of a chain sets nothing."""
    for layer in subject.layers[:-1]:
        above = next((other for other in subject.layers if layer.file in [name for name, _ in _entries(other)]), None)
        below = _entries(layer)
        if layer.kind != "Policy" or layer.settings.fields or above is None or not below:
            continue
        node = dict(_entries(above))[layer.file]
        message = f"{node.data} sets nothing: it only extends {', '.join(str(one.data) for _, one in below)}"
        advice = "extend that directly"
        yield subject.finding("L662", message, ("extends",), node=node, help=advice, severity="info")


def given_twice(subject: Subject) -> Iterator[Problem]:
    """L663: an overlay lies on the policy twice."""
    above = [layer for layer in subject.layers if layer.kind == "Overlay"]
    for index, layer in enumerate(above):
        same = next((other for other in above[:index] if other.settings.data == layer.settings.data), None)
        if same is not None and layer.settings.fields:
            what = "is given twice" if _same_file(same.file, layer.file) else f"says the same as {same.file}"
            message = f"the overlay {layer.file} {what}"
            yield subject.finding("L663", message, (), node=layer.root, help="give it once")


def said_again(subject: Subject) -> Iterator[Problem]:
    """L664: a whole entry of an overlay says what the layers below say already.

    A value that is repeated within an entry that also changes something is not meant: a ladder is read as a whole.
    Nor is a policy that repeats what it extends: it holds on to a value that the other one may change.
    """
    for index, layer in enumerate(subject.layers[1:], start=1):
        if layer.kind != "Overlay" or any(
            other.settings.data == layer.settings.data for other in subject.layers[:index]
        ):
            continue  # `given_twice` says so
        below = Merged(subject.layers[:index], subject.sources).root
        for path, node in _units(layer):
            if _repeats(node, below, path):
                message = "the layers below say the same already"
                yield subject.finding("L664", message, path, node=node, severity="info", help="leave it out")


def _units(layer: LayerFile) -> Iterator[tuple[KeyPath, Node]]:
    for name, node in layer.settings.fields.items():
        if name in _BY_ENTRY and not is_variable(node):
            yield from (((name, key), child) for key, child in node.fields.items())
        elif name != "requires":  # every file says for itself what it needs
            yield (name,), node


def _repeats(node: Node, below: Node, path: KeyPath) -> bool:
    """Return whether every value below a node is what the lower layers say there; false for layer operators."""
    for place, found in walk(node):
        if any(key.startswith("$") for key in found.fields) and not is_variable(found):
            return False
        lower = below.get(*path, *place)
        if lower is None:
            return False
        if not isinstance(found.children, dict) and not _same(lower, found):
            return False
    return True


def _same(one: Node, other: Node) -> bool:
    return type(one.data) is type(other.data) and bool(one.data == other.data)


def _entries(layer: LayerFile) -> list[tuple[str, Node]]:
    """Return what a policy extends: the file as positions name it, and the entry."""
    node = layer.root.get("extends") if layer.kind == "Policy" else None
    if node is None:
        return []
    found = node.items if isinstance(node.children, tuple) else (node,)
    return [(_file(str(entry.data), layer), entry) for entry in found]


def _file(name: str, layer: LayerFile) -> str:
    if not is_path(name):
        return f"policy:{name}"
    return os.path.normpath(os.path.join(os.path.dirname(layer.file), name))


def _below(file: str, by_file: dict[str, LayerFile]) -> set[str]:
    """Return every file that a file extends, directly or through others."""
    found: set[str] = set()
    waiting = [file]
    while waiting:
        layer = by_file.get(waiting.pop())
        for name, _ in _entries(layer) if layer else []:
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def _short(file: str | None) -> str:
    return (file or "").removeprefix("policy:")


def _same_file(one: str, other: str) -> bool:
    return os.path.realpath(Path(one)) == os.path.realpath(Path(other))
