"""Plain data together with where each key and value was written.

Knows: files as text, nodes, documents. Must not know: YAML, JSON, schemas, how layers merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policyengine.policy.model import Layer
from policyengine.policy.problems import Position, Problem, Severity
from policyengine.policy.wording import KeyPath, dotted

BUILT_IN = Position("default")
"""The position of a value that nobody wrote."""


class Source:
    """The text of one file, for positions and source lines."""

    __slots__ = ("_hidden", "_lines", "file", "text")

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._lines: list[str] | None = None
        self._hidden: set[int] = set()

    def hide(self, number: int) -> None:
        """Never show a line again, by its number from 1."""
        self._hidden.add(number)

    def line(self, number: int) -> str:
        """Return a line by its number from 1; empty where there is none, or where it is not to be shown."""
        if number in self._hidden:
            return ""
        if self._lines is None:
            self._lines = self.text.split("\n")
        return self._lines[number - 1].rstrip("\r") if 0 < number <= len(self._lines) else ""

    def at(self, index: int) -> Position:
        """Return the position of a character by its index."""
        return Position(self.file, self.text.count("\n", 0, index) + 1, index - self.text.rfind("\n", 0, index))

    def problem(
        self,
        code: str,
        message: str,
        position: Position,
        *,
        length: int = 1,
        path: KeyPath = (),
        help: str = "",
        note: str = "",
        severity: Severity = "error",
    ) -> Problem:
        """Return a problem in this file, with its source line."""
        return Problem(
            code, message, position, dotted(path), severity, help, note, self.line(position.line), max(length, 1)
        )


class Node(msgspec.Struct, frozen=True):
    """A value, its parts, and where it and its key stand.

    `data` is the whole value as plain data and `children` the same as nodes (`None` for a scalar). `history` are the
    values of lower layers and this one, lowest first; a node that no layer has touched has none and counts as its own.
    """

    data: Any
    at: Position
    length: int = 1
    key_at: Position | None = None
    key_length: int = 1
    children: dict[str, Node] | tuple[Node, ...] | None = None
    history: tuple[Layer, ...] = ()

    @property
    def where(self) -> Position:
        """Where the key stands, or the value where there is no key."""
        return self.key_at or self.at

    @property
    def where_length(self) -> int:
        """How long that key or value is."""
        return self.key_length if self.key_at else self.length

    @property
    def fields(self) -> dict[str, Node]:
        """The children of a mapping; empty for anything else."""
        return self.children if isinstance(self.children, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """The children of a list; empty for anything else."""
        return self.children if isinstance(self.children, tuple) else ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every value this setting had, lowest layer first."""
        return self.history or (Layer(self.data, self.where if isinstance(self.children, dict) else self.at),)

    def child(self, key: str | int) -> Node | None:
        """Return one child."""
        if isinstance(self.children, dict):
            return self.children.get(key) if isinstance(key, str) else None
        if isinstance(self.children, tuple) and isinstance(key, int) and key < len(self.children):
            return self.children[key]
        return None

    def find(self, path: KeyPath) -> tuple[Node, bool]:
        """Return the node at a path and true, or the deepest one on the way and false."""
        node = self
        for key in path:
            child = node.child(key)
            if child is None:
                return node, False
            node = child
        return node, True

    def get(self, *path: str | int) -> Node | None:
        """Return the node at a path, or `None`."""
        node, found = self.find(path)
        return node if found else None


def mapping(fields: dict[str, Node], like: Node, history: tuple[Layer, ...] | None = None) -> Node:
    """Return a mapping node of these fields that stands where `like` stands."""
    data = {key: child.data for key, child in fields.items()}
    kept = like.layers if history is None else history
    return Node(data, like.at, like.length, like.key_at, like.key_length, fields, kept)


def built_in(value: Any) -> Node:
    """Return a node for a value that nobody wrote."""
    if isinstance(value, Mapping):
        fields = {key: built_in(item) for key, item in value.items()}
        data: Any = {key: child.data for key, child in fields.items()}
        return Node(data, BUILT_IN, children=fields)
    if isinstance(value, list | tuple):
        items = tuple(built_in(item) for item in value)
        return Node([item.data for item in items], BUILT_IN, children=items)
    return Node(value, BUILT_IN)


def walk(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every node below `node` with its path, parents first."""
    stack: list[tuple[KeyPath, Node]] = [(path, node)]
    while stack:
        here, current = stack.pop()
        yield here, current
        if isinstance(current.children, dict):
            stack += [((*here, key), child) for key, child in reversed(current.children.items())]
        elif isinstance(current.children, tuple):
            stack += [((*here, index), child) for index, child in reversed(list(enumerate(current.children)))]


class Document(msgspec.Struct, frozen=True):
    """One file as it was read: its root (always a mapping), its text, warnings about the text."""

    source: Source
    root: Node
    warnings: tuple[Problem, ...] = ()


class Sources:
    """The texts of all files of a policy, to make problems that show the source line."""

    def __init__(self) -> None:
        self._by_file: dict[str, Source] = {}

    def add(self, source: Source) -> None:
        """Remember a file."""
        self._by_file[source.file] = source

    def problem(
        self,
        code: str,
        message: str,
        position: Position,
        *,
        length: int = 1,
        path: KeyPath = (),
        help: str = "",
        note: str = "",
        severity: Severity = "error",
    ) -> Problem:
        """Return a problem at a position in any of the files."""
        source = self._by_file.get(position.file) or Source(position.file, "")
        return source.problem(
            code, message, position, length=length, path=path, help=help, note=note, severity=severity
        )

    def at_key(self, code: str, message: str, node: Node, path: KeyPath, **facts: Any) -> Problem:
        """Return a problem at the key of a node."""
        return self.problem(code, message, node.where, length=node.where_length, path=path, **facts)

    def at_value(self, code: str, message: str, node: Node, path: KeyPath, **facts: Any) -> Problem:
        """Return a problem at the value of a node; at its key where the value is a block or empty."""
        if isinstance(node.children, dict) or (node.data is None and node.key_at):
            return self.at_key(code, message, node, path, **facts)
        return self.problem(code, message, node.at, length=node.length, path=path, **facts)
