"""JSON and JSON5 bytes to plain data with the key path of every value.

Knows: how to read JSON5 within limits. Must not know: what a policy is, YAML.

Plain JSON is tried first, because `json5` is hundreds of times slower; it gets small files only. Syntax errors have a
line and a column; everything else has the file and the key path.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from policyengine.errors import ConfigError
from policyengine.policy.nodes import Document, Node, Source
from policyengine.policy.problems import Position, Problem, in_order
from policyengine.policy.text import MAX_DEPTH, decode
from policyengine.policy.wording import KeyPath

MAX_JSON5_CHARS = 32 * 1024
"""Largest file that is read with `json5`; it takes about half a second."""

_BOUND = 2**63
_STOPS = re.compile(r"""["'/\[{\]}]""")
_STRINGS = {
    '"': re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    "'": re.compile(r"'[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL),
}
_PLACE = re.compile(r"<string>:(\d+) (.*) at column (\d+)\Z", re.DOTALL)


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, duplicates included."""


class _BadNumber:
    """A number that no policy may hold, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def read_json5(data: bytes, file: str) -> Document:
    """Return the document in `data`; `file` is its name in positions. Raises ConfigError with every problem."""
    source = decode(data, file)
    if not source.text.strip():
        raise ConfigError([source.problem("Y116", "the file is empty", Position(file, 1, 1))])
    _check_depth(source)
    reader = _Reader(source)
    root = reader.node(_parse(source), ())
    if not reader.problems and not isinstance(root.children, dict):
        reader.report("Y117", "the document is not a mapping", ())
    if reader.problems:
        raise ConfigError(in_order(reader.problems))
    return Document(source, root)


def _parse(source: Source) -> Any:
    hooks: dict[str, Any] = {
        "object_pairs_hook": _Pairs,
        "parse_int": _integer,
        "parse_float": _number,
        "parse_constant": lambda text: _BadNumber(f"{text} is not a finite number"),
    }
    try:
        return json.loads(source.text, **hooks)
    except json.JSONDecodeError as error:
        strict = error
    if len(source.text) > MAX_JSON5_CHARS:
        position = Position(source.file, strict.lineno, strict.colno)
        message = f"not plain JSON ({strict.msg}), and JSON5 is read only up to {MAX_JSON5_CHARS:,} characters"
        raise ConfigError([source.problem("Y119", message, position, help="write plain JSON, or YAML")])
    import json5  # here, because importing it takes longer than loading a policy

    try:
        return json5.loads(source.text, **hooks)
    except RecursionError:
        problem = source.problem("Y105", "nested too deeply to be read", Position(source.file, 1, 1))
    except ValueError as error:
        problem = _syntax(source, str(error))
    raise ConfigError([problem])


def _syntax(source: Source, text: str) -> Problem:
    match = _PLACE.match(text)
    if match is None:
        return source.problem("Y104", f"not valid JSON5: {text}", Position(source.file, 1, 1))
    position = Position(source.file, int(match.group(1)), int(match.group(3)))
    what = match.group(2)
    return source.problem("Y104", f"not valid JSON5: {what[0].lower() + what[1:]}", position)


def _integer(text: str, base: int = 10) -> Any:
    if len(text) > 22:
        return _BadNumber("the integer does not fit into 64 bits")
    value = int(text, base)
    return value if -_BOUND <= value < _BOUND else _BadNumber("the integer does not fit into 64 bits")


def _number(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _BadNumber("the number is too large")


def _check_depth(source: Source) -> None:
    """Refuse deep nesting before a recursive parser sees it. Strings and comments do not count."""
    text, depth, index = source.text, 0, 0
    while stop := _STOPS.search(text, index):
        char, index = stop.group(), stop.end()
        if char in _STRINGS:
            string = _STRINGS[char].match(text, stop.start())
            if string is None:
                return
            index = string.end()
        elif char == "/" and text[index : index + 1] in ("/", "*"):
            ending = "\n" if text[index] == "/" else "*/"
            closed = text.find(ending, index + 1)
            if closed < 0:
                return
            index = closed + len(ending)
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                message = f"nested more than {MAX_DEPTH} levels deep"
                raise ConfigError([source.problem("Y105", message, source.at(stop.start()))])
        elif char != "/":
            depth -= 1


class _Reader:
    """Turns what the parsers return into nodes, finding duplicates and bad numbers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = Position(source.file)
        self.problems: list[Problem] = []

    def report(self, code: str, message: str, path: KeyPath, help: str = "") -> None:
        """Add a problem."""
        self.problems.append(self._source.problem(code, message, self._at, path=path, help=help))

    def node(self, value: Any, path: KeyPath, key_at: Position | None = None) -> Node:
        """Return the node of a parsed value."""
        if isinstance(value, _Pairs):
            fields: dict[str, Node] = {}
            for key, item in value:
                self._check_key(key, path, fields)
                fields[key] = self.node(item, (*path, key), self._at)
            data: Any = {key: child.data for key, child in fields.items()}
            return Node(data, self._at, 1, key_at, 1, fields)
        if isinstance(value, list):
            items = tuple(self.node(item, (*path, index)) for index, item in enumerate(value))
            return Node([item.data for item in items], self._at, 1, key_at, 1, items)
        if isinstance(value, _BadNumber):
            self.report("Y115", value.reason, path)
            value = 0
        elif isinstance(value, str):
            self._check_text(value, path)
        return Node(value, self._at, 1, key_at)

    def _check_key(self, key: str, path: KeyPath, fields: dict[str, Node]) -> None:
        if not key:
            self.report("Y113", "a key is empty", path)
        elif key in fields:
            self.report("Y112", "the key stands twice in this mapping", (*path, key))
        self._check_text(key, path)

    def _check_text(self, text: str, path: KeyPath) -> None:
        if any("\ud800" <= char <= "\udfff" for char in text):
            self.report("Y121", "half a surrogate pair", path, help="write the character itself")
