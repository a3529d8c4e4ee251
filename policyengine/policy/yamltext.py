"""YAML bytes to plain data with the position of every key and value.

Knows: the part of YAML that policies may use, and every way in which YAML readers disagree about a text.
Must not know: what a policy is.

PyYAML is used for events only; limits are checked while they stream, and the data is built here. A plain scalar
whose meaning differs between YAML 1.1 and 1.2 is an error, except `on`, `off`, `yes` and `no`, which are strings.
What the two parsers of PyYAML disagree about is settled by the one written in Python, so both give the same answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import yaml

from policyengine.errors import ConfigError, UsageError
from policyengine.policy.nodes import Document, Node, Source
from policyengine.policy.problems import Position, Problem, in_order
from policyengine.policy.text import MAX_DEPTH, decode
from policyengine.policy.wording import KeyPath, shown

YamlLoader = Literal["auto", "c", "pure"]

MAX_EVENTS = 200_000
"""Largest accepted number of parser events, about one per key, value and bracket."""

# libyaml is only given texts whose brackets cannot be nested deeper than this. The count knows nothing of quotes and
# comments; a text above it is not refused but read by the parser that cannot overflow the stack.
_C_DEPTH = 500

# Syntax errors, anchors, tags and tabs: the parsers accept different ones and name different places.
_DISPUTED = ("Y104", "Y108", "Y109", "Y118")

_HELP = {
    "mapping values are not allowed": 'a value that holds ": " needs quotes; or the line is indented wrongly',
    "cannot start any token": "a value that starts with this character needs quotes",
    "expected <block end>": "check the indentation, and quote values that start with a quote, a bracket or a brace",
    "could not find expected ':'": "a colon and a blank are missing after the key",
    "but got '?'": "a text with ? needs quotes inside brackets",
    "expected ',' or": "a bracket or brace is not closed, or a comma is missing",
    "unexpected end of stream": "a quote is not closed",
}


def read_yaml(data: bytes, file: str, *, loader: YamlLoader = "auto") -> Document:
    """Return the document in `data`; `file` is its name in positions.

    `loader` picks the parser of PyYAML (`auto`: libyaml where it is installed); the answer is the same.
    Raises ConfigError with every problem of the text.
    """
    source = decode(data, file)
    fast = loader == "c" or (loader == "auto" and yaml.__with_libyaml__)
    if loader == "c" and not yaml.__with_libyaml__:
        raise UsageError("PyYAML was built without libyaml: there is no C loader")
    if fast and _bracket_depth(source.text) <= _C_DEPTH:
        document = _read_with_c(source)
        if document is not None:
            return document
    return _Builder(source).read(yaml.SafeLoader(source.text))


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for match in re.finditer(r"[\[{]+|[\]}]+", text):
        length = match.end() - match.start()
        if match.group()[0] in "[{":
            depth += length
            deepest = max(deepest, depth)
        else:
            depth = max(depth - length, 0)
    return deepest


def _read_with_c(source: Source) -> Document | None:
    """Return the document, or `None` where the other parser has the last word."""
    builder = _Builder(source)
    try:
        document = builder.read(yaml.CSafeLoader(source.text))
    except ConfigError as error:
        if builder.disputed() or any(problem.code in _DISPUTED for problem in error.problems):
            return None
        raise
    return None if builder.disputed() else document


class _Refused(Exception):
    """Reading cannot go on."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class _Open:
    """A mapping or list whose end has not been seen."""

    __slots__ = ("at", "fields", "flow", "items", "key", "skipped")

    def __init__(self, at: Position, is_mapping: bool, flow: bool) -> None:
        self.at = at
        self.flow = flow
        self.fields: dict[str, Node] | None = {} if is_mapping else None
        self.items: list[Node] = []
        self.key: tuple[str, Position, int] | None = None
        self.skipped = False
        """Whether the value of a refused key is being read."""


class _Builder:
    """Turns the events of one parse into a document."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []
        self._open: list[_Open] = []
        self._root: Node | None = None
        self._spans: list[tuple[int, int, bool]] = []
        self._tabs = "\t" in source.text
        self._disputed = False

    def read(self, parser: Any) -> Document:
        """Read all events. Raises ConfigError with the problems found up to where reading had to stop."""
        try:
            for event in self._events(parser):
                self._take(event)
        except _Refused as refusal:
            self._problems.append(refusal.problem)
        else:
            self._check_root()
        finally:
            parser.dispose()
        if self._problems or self._root is None:
            raise ConfigError(in_order(self._problems))
        return Document(self._source, self._root, tuple(self._warnings))

    def _events(self, parser: Any) -> Iterator[Any]:
        for _ in range(MAX_EVENTS):
            try:
                event = parser.get_event()
            except yaml.YAMLError as error:
                raise _Refused(self._syntax(error)) from None
            except (ValueError, OverflowError, RecursionError):
                # The pure parser lets the errors of int() and chr() through.
                mark = parser.get_mark()
                message = "not valid YAML: an escape or a number that cannot be read"
                problem = self._source.problem("Y104", message, self._position(mark))
                raise _Refused(problem) from None
            yield event
            if isinstance(event, yaml.StreamEndEvent):
                return
        message = f"the file has more than {MAX_EVENTS:,} elements"
        raise _Refused(self._source.problem("Y106", message, Position(self._source.file, 1, 1)))

    def _syntax(self, error: yaml.YAMLError) -> Problem:
        marked = error if isinstance(error, yaml.MarkedYAMLError) else yaml.MarkedYAMLError()
        what = marked.problem or "the text cannot be read"
        mark = marked.problem_mark or marked.context_mark
        if what == "could not find expected ':'" and marked.context_mark:
            mark = marked.context_mark  # the key without a colon; the parser notices only further down
        if mark is None:
            return self._source.problem("Y104", f"not valid YAML: {what}", Position(self._source.file, 1, 1))
        position = self._position(mark)
        if self._source.text[mark.index : mark.index + 1] == "\t":
            return self._source.problem("Y118", "a tab outside of quotes", position, help="use blanks")
        context = marked.context_mark
        if marked.context == "while scanning an alias" and context is not None:
            pattern = self._word(context.index) or "*"
            message = "not valid YAML: a * without quotes starts an alias"
            advice = f'a pattern needs quotes: "{pattern}"'
            return self._source.problem("Y104", message, self._position(context), length=len(pattern), help=advice)
        hint = next((advice for start, advice in _HELP.items() if start in what), "")
        note = f"{marked.context} at {self._position(context)}" if context and context.index != mark.index else ""
        return self._source.problem("Y104", f"not valid YAML: {what}", position, help=hint, note=note)

    def _position(self, mark: Any) -> Position:
        return Position(self._source.file, mark.line + 1, mark.column + 1)

    def _report(self, code: str, message: str, at: Position, length: int = 1, help: str = "", note: str = "") -> None:
        path = self._path()
        self._problems.append(self._source.problem(code, message, at, length=length, path=path, help=help, note=note))

    def _path(self) -> KeyPath:
        path: list[str | int] = []
        for level in self._open:
            if level.fields is None:
                path.append(len(level.items))
            elif level.key is not None:
                path.append(level.key[0])
        return tuple(path)

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._document(event)

    def _alias(self, event: Any) -> None:
        at = self._position(event.start_mark)
        pattern = self._word(event.start_mark.index)
        advice = f'a pattern needs quotes: "{pattern}"; anything else is written out, or shared with `extends`'
        self._report("Y108", f"alias *{event.anchor} is refused", at, len(pattern), help=advice)
        self._place(Node(None, at), alias=True)

    def _document(self, event: Any) -> None:
        at = self._position(event.start_mark)
        if self._root is not None:
            raise _Refused(self._source.problem("Y107", "a second document starts here", at, length=3))
        if event.version or event.tags:
            self._report("Y110", "directives are refused", at, help="remove the line that starts with %")

    def _check_properties(self, event: Any) -> None:
        if event.anchor is not None:
            self._report("Y108", f"anchor &{event.anchor} is refused", self._position(event.start_mark))
        if event.tag is not None:
            found = f"tag {shown(event.tag)} is refused"
            self._report("Y109", found, self._position(event.start_mark), help="quote the value if it is a text")

    def _start(self, event: Any) -> None:
        self._check_properties(event)
        at = self._position(event.start_mark)
        if len(self._open) >= MAX_DEPTH:
            raise _Refused(
                self._source.problem("Y105", f"nested more than {MAX_DEPTH} levels deep", at, path=self._path())
            )
        self._open.append(_Open(at, isinstance(event, yaml.MappingStartEvent), bool(event.flow_style)))

    def _end(self) -> None:
        level = self._open.pop()
        if level.fields is not None:
            data: Any = {key: child.data for key, child in level.fields.items()}
            self._place(Node(data, level.at, children=level.fields))
        else:
            items = tuple(level.items)
            self._place(Node([item.data for item in items], level.at, children=items))

    def _scalar(self, event: Any) -> None:
        self._check_properties(event)
        start, end = event.start_mark, event.end_mark
        at = self._position(start)
        length = end.column - start.column if end.line == start.line else 1
        plain = not event.style
        if self._tabs:
            self._spans.append((start.index, end.index, plain))
        level = self._open[-1] if self._open else None
        if event.style in ("|", ">"):
            length = 1
            self._disputed |= _GLUED_HEADER.match(self._source.text, start.index) is not None
        elif plain and level is not None:
            absent = not event.value and level.key is None
            self._disputed |= absent or (level.flow and "?" in event.value)
        if level is not None and level.fields is not None and level.key is None:
            self._key(level, event.value, plain, at, length)
            return
        if level is not None and level.key and plain and not event.value:
            at, length = level.key[1:]  # the parsers place what is not there at different ends of the gap
        value = self._value(event.value, plain, at, length)
        if plain and isinstance(value, str):
            self._check_comment(event)
        self._place(Node(value, at, max(length, 1)))

    def _value(self, text: str, plain: bool, at: Position, length: int) -> Any:
        if not plain:
            self._check_surrogates(text, at, length)
            return text
        value, problem = resolve(text)
        if problem:
            code, message, advice = problem
            self._report(code, message, at, length, help=advice)
        return value

    def _check_surrogates(self, text: str, at: Position, length: int) -> None:
        if any("\ud800" <= char <= "\udfff" for char in text):
            self._report("Y121", "half a surrogate pair", at, length, help="write the character itself")

    def _key(self, level: _Open, text: str, plain: bool, at: Position, length: int) -> None:
        level.key = (text, at, length)
        value, problem = resolve(text) if plain else (text, None)
        assert level.fields is not None
        level.skipped = True
        if not plain:
            self._check_surrogates(text, at, length)
        if plain and text == "<<":
            self._report("Y111", "merge keys are refused", at, length, help="write the keys out, or use `extends`")
        elif not text:
            self._report("Y113", "the key is empty", at, length)
        elif problem or not isinstance(value, str):
            found = "null" if value is None and not problem else f"read as {_kind(value)}"
            self._report("Y113", f"the key {shown(text)} is not a string: {found}", at, length, help=f'write "{text}"')
        elif text in level.fields:
            first = level.fields[text].key_at
            self._report("Y112", "the key stands twice in this mapping", at, length, note=f"it stands first at {first}")
        else:
            level.skipped = False

    def _word(self, index: int) -> str:
        """Return the text at an index up to where a plain scalar would end."""
        match = _WORD.match(self._source.text, index)
        return match.group() if match else ""

    def _place(self, node: Node, *, alias: bool = False) -> None:
        if not self._open:
            self._root = node
            return
        level = self._open[-1]
        if level.fields is None:
            level.items.append(node)
        elif level.key is None:
            if not alias:  # which was reported as such
                what = "list" if isinstance(node.children, tuple) else "mapping"
                self._report("Y113", f"a {what} cannot be a key", node.at, help="a key is a string")
            level.key, level.skipped = ("", node.at, 1), True
        else:
            key, key_at, key_length = level.key
            level.key = None
            if not level.skipped:
                level.fields[key] = Node(node.data, node.at, node.length, key_at, key_length, node.children)

    def _check_comment(self, event: Any) -> None:
        text, index = self._source.text, event.end_mark.index
        match = _GLUED_COMMENT.match(text, index)
        if match is None:
            return
        end = event.end_mark
        at = Position(self._source.file, end.line + 1, end.column + 1 + match.start(1) - end.index)
        message = "everything from ` #` on is a comment, not part of the value"
        advice = "quote the value if the text belongs to it, or put a blank after #"
        length = len(match.group(1))
        self._warnings.append(
            self._source.problem("Y120", message, at, length=length, path=self._path(), help=advice, severity="warning")
        )

    def _check_root(self) -> None:
        root, start = self._root, Position(self._source.file, 1, 1)
        if self._problems:
            return
        if root is None or (root.data is None and root.children is None):
            self._report("Y116", "the file is empty", start, help="a policy starts with `apiVersion: policyengine/v1`")
        elif not isinstance(root.children, dict):
            found = _kind(root.data)
            missing = isinstance(root.data, str) and re.match(r"[\w-]+:\S", root.data)
            advice = "put a blank after the colon" if missing else "a policy is made of `key: value` lines"
            self._report("Y117", f"the document is {found}, not a mapping", root.at, root.length, help=advice)

    def disputed(self) -> bool:
        """Return whether libyaml accepted something that the other parser refuses.

        These are `|#`, a bare `?` inside brackets, and tabs outside of quotes, block texts and comments; absent keys
        and list items are placed differently.
        """
        return self._disputed or (self._tabs and self._stray_tab())

    def _stray_tab(self) -> bool:
        text, outside = self._source.text, 0
        for start, end, plain in [*self._spans, (len(text), len(text), False)]:
            gap, inside = text[outside:start], text[start:end]
            if _holds_tab(gap) or (plain and "\t" in inside) or (inside[:1] in ("|", ">") and _holds_tab(inside, 1)):
                return True
            outside = end
        return False


def _holds_tab(gap: str, lines: int = -1) -> bool:
    """Return whether a tab stands before a comment in any of the first `lines` lines."""
    return "\t" in gap and any(
        "\t" in line.partition("#")[0] for line in gap.split("\n")[: lines if lines > 0 else None]
    )


_WORD = re.compile(r"(?:[^\s,:\[\]{}\"]|:(?=[^\s,\[\]{}\"])){1,60}")
_GLUED_HEADER = re.compile(r"[|>][-+0-9]*#")
_GLUED_COMMENT = re.compile(r" +(#[^\s#][^\n]*)")

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_MAYBE_SPECIAL = frozenset("0123456789+-.~nNtTfF=<")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t]|\Z)")
_AMBIGUOUS = (
    (re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z"), "a number to the base of 60 in YAML 1.1"),
    (re.compile(r"[-+]?0(?:[xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)\Z"), "a hexadecimal, octal or binary number"),
    (re.compile(r"[-+]?0[0-9_]+\Z"), "an octal number in YAML 1.1 and a decimal one in YAML 1.2"),
    (re.compile(r"[-+]?[0-9_]+(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?\Z"), "a number only for some YAML readers"),
    (re.compile(r"[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?\Z"), "a number only for some YAML readers"),
)
_BOUND = 2**63

Trouble = tuple[str, str, str]


def resolve(text: str) -> tuple[Any, Trouble | None]:
    """Return the value of a plain scalar, and code, message and help if it must be refused."""
    if text and text[0] not in _MAYBE_SPECIAL:
        return text, _odd_space(text)
    if text in _NULLS:
        return None, None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE, None
    if _INTEGER.match(text):
        too_long = len(text) > 20
        value = 0 if too_long else int(text)
        if too_long or not -_BOUND <= value < _BOUND:
            return 0, ("Y115", "the integer does not fit into 64 bits", "quote it if it is a text")
        return value, None
    if _FLOAT.match(text):
        number = float(text)
        if not math.isfinite(number):
            return 0.0, ("Y115", "the number is too large", "quote it if it is a text")
        return number, None
    return _refuse(text)


def _refuse(text: str) -> tuple[Any, Trouble | None]:
    if _NOT_FINITE.match(text):
        return 0.0, ("Y115", f"{text} is not a finite number", "quote it if it is a text")
    if text in ("=", "<<"):
        return text, ("Y114", f"{shown(text)} has a special meaning in YAML 1.1", f"write '{text}'")
    if _DATE.match(text):
        return text, ("Y114", f"{shown(text)} is a date for some YAML readers", f"write '{shown(text)[1:-1]}'")
    for pattern, meaning in _AMBIGUOUS:
        if pattern.match(text):
            advice = "write a plain decimal number, or quote it if it is a text"
            return 0, ("Y114", f"{shown(text)} is {meaning}", advice)
    return text, _odd_space(text)


def _odd_space(text: str) -> Trouble | None:
    odd = next((char for char in text if char.isspace() and char not in " \n"), None) if not text.isascii() else None
    if odd is None:
        return None
    message = f"U+{ord(odd):04X} looks like a blank but is part of the value"
    return ("Y103", message, "replace it with an ordinary blank, or quote the value")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a mapping", type(None): "null"}
    return names[type(value)]
