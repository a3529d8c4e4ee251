"""A positioned problem in a policy, and how it is printed.

Knows: the error format of docs/policy-format.md. Must not know: how problems are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal
from unicodedata import combining, east_asian_width

import msgspec

from policyengine.errors import ConfigError, ExtensionError
from policyengine.visible import clean, clean_line

Format = Literal["short", "full", "json", "github"]
Severity = Literal["error", "warning", "info"]

WINDOW = 160
"""How many characters of a source line are shown; longer lines are cut around the problem."""


class Position(msgspec.Struct, frozen=True, order=True):
    """Where something stands: file as the user wrote it, line and column from 1 (0 = unknown)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem. `path` is the dotted key path; `length` is how many characters the caret line underlines."""

    code: str
    message: str
    position: Position
    path: str = ""
    severity: Severity = "error"
    help: str = ""
    note: str = ""
    source_line: str = ""
    length: int = 1

    def __str__(self) -> str:
        return self.short()

    def short(self) -> str:
        """Return the problem on one line."""
        path = f" {self.path}:" if self.path else ""
        # A file may have any name, and an extension may say anything: a terminal must not obey it.
        return clean_line(f"{self.position}: {self.severity}[{self.code}]{path} ") + clean(self.message)

    def told(self) -> str:
        """Return the problem with help and note, for whoever has only a text of it."""
        return "\n".join((self.short(), *self._advice()))

    def full(self) -> str:
        """Return the problem with its source line, help and note."""
        lines = [self.short()]
        if self.source_line and self.position.line:
            text, caret = _excerpt(self.source_line, self.position.column, self.length)
            lines += [f"{str(self.position.line).rjust(5)} | {text}", f"      | {caret}"]
        return "\n".join((*lines, *self._advice()))

    def _advice(self) -> Iterator[str]:
        if self.help:
            yield f"  help: {clean(self.help)}"
        if self.note:
            yield f"  note: {clean(self.note)}"

    def github(self) -> str:
        """Return the problem as a workflow command that annotates the line in a pull request."""
        path = f"{self.path}: " if self.path else ""
        extra = "".join(f"\n{label}: {text}" for label, text in (("help", self.help), ("note", self.note)) if text)
        return annotation(self.severity, self.position, self.code, path + self.message + extra)


def annotation(severity: Severity, position: Position, title: str, text: str) -> str:
    """Return a workflow command of GitHub that puts a text beside a line."""
    level = "notice" if severity == "info" else severity
    facts = {"file": position.file, "line": position.line, "col": position.column, "title": title}
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in facts.items() if value)
    return f"::{level} {listed}::{_data(text)}"


def problems_of(error: ConfigError | ExtensionError, source: str = "") -> tuple[Problem, ...]:
    """Return what an error says as problems; `source` is the policy that an extension without position belongs to."""
    if isinstance(error, ConfigError):
        return error.problems
    return (Problem(error.code, str(error), Position(source or error.origin)),)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems sorted by file, line and column."""
    return tuple(sorted(problems, key=lambda problem: (problem.position, problem.code, problem.path)))


def render(problems: Sequence[Problem], form: Format = "full") -> str:
    """Return all problems as text: one line each, with source lines, as a JSON array, or as GitHub annotations."""
    if form == "json":
        return json.dumps(records(problems), ensure_ascii=False, indent=2)
    if form == "short":
        return "\n".join(problem.short() for problem in problems)
    if form == "github":
        return "\n".join(problem.github() for problem in problems)
    return "\n".join(problem.full() for problem in problems)


def records(problems: Iterable[Problem]) -> list[dict[str, str | int]]:
    """Return problems as plain data, as the JSON form has them."""
    return [
        {
            "code": problem.code,
            "severity": problem.severity,
            "file": problem.position.file,
            "line": problem.position.line,
            "column": problem.position.column,
            "path": problem.path,
            "message": problem.message,
            "help": problem.help,
            "note": problem.note,
        }
        for problem in problems
    ]


def _excerpt(line: str, column: int, length: int) -> tuple[str, str]:
    start = max(column - 1, 0)
    first = 0 if len(line) <= WINDOW else max(0, min(start - WINDOW // 2, len(line) - WINDOW))
    shown = "".join(" " if char == "\t" else char for char in line[first : first + WINDOW])
    # One character for one, so that the caret stays below its place.
    shown = "".join(char if clean(char) == char else "\ufffd" for char in shown)
    offset = min(start - first, len(shown))
    marked = shown[offset : offset + max(length, 1)]
    return shown, " " * _width(shown[:offset]) + "^" * max(_width(marked), 1)


def _width(text: str) -> int:
    return sum(0 if combining(char) else 1 + (east_asian_width(char) in "WF") for char in text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
