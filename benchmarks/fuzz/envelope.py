"""What must hold for whatever becomes of a tool call: something can be read, and the envelope has its one shape.

Knows: values as tools return them, the odd ones most of all. Must not know: how results are classified.
"""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from benchmarks.fuzz.source import Source, happens, pick
from policyengine.messages import Failure, ToolError, ToolFacts, ToolResult
from policyengine.parsing.strict import loads
from policyengine.results import Classified, as_result, classify_tool_result, tool_result_envelope
from policyengine.results import plain as limits

MEMBERS = ["status", "tool", "data", "error", "meta", "partial", "truncated"]
KEYS = (
    *("status", "success", "ok", "error", "errors", "data", "results", "isError", "exit_code", "content", "code"),
    *("type", "text", "structuredContent", "stdout", "stderr", "returncode", "message", "jsonrpc", "partial", "meta"),
    *("tool", "result", "signal", "retryable", "truncated", "", "a", "\ud800", "resource", "blob", "uri", "blocked"),
)
WORDS = (
    *("ok", "error", "failed", "timeout", "success", "text", "image", "", " ", "\n", "x", "Exit code: 2", "Error: x"),
    *('{"success": false, "error": "no"}', '{"status": "error", "data": null, "error": {"code": "e"}}', "[1, 2]"),
    *('{"a": NaN}', '{"a": "\\ud800"}', "{" * 250, "[" * 300, "\ud83d", "\ude00", "\x00\x1b[0m", "9" * 400, "\u0663"),
    *('{"a": 1, "a": 2}', "-1", "1e400", "\ufeff{}", "true", "null"),
)
COMMANDS = ("", "grep x", "a | grep x;", "git diff", "'", "test -f x", "x=1", "\ud800", "diff a b &&")
limits.MAX_NODES, limits.MAX_CHARS = 2_000, 10_000
"""With the real limits too few cases would be too large, and each would take seconds."""

FACTS = (
    ToolFacts(),
    ToolFacts(effect="poll"),
    ToolFacts(failure=Failure(text_prefix=("Error:", ""))),
)


class Case(NamedTuple):
    """An outcome and what is known about the call."""

    outcome: Any
    kind: str
    tool: str
    facts: ToolFacts
    step: int | None
    trace_id: str | None
    options: dict[str, Any]


def generate(source: Source) -> Case:
    """Return a case."""
    kind = pick(source, ("python", "content", "json", "process", "structured"))
    tool = pick(source, ("search", "grep", "", "\ud800", "a\x00b"))
    options = {
        "exit_code": pick(source, (None, None, 0, 1, -9, 300)),
        "is_error": pick(source, (None, None, True, False)),
        "command": pick(source, COMMANDS),
        "limit": pick(source, (None, None, 0, 1, 7, 50, -3)),
    }
    facts, step = pick(source, FACTS), pick(source, (None, 3, 0))
    return Case(_outcome(source), kind, tool, facts, step, pick(source, (None, "t", "\ud800")), options)


def check(case: Case) -> None:
    """Classify the outcome and put it into an envelope.

    Raises:
        AssertionError: an envelope that must not be.
    """
    seen = classify_tool_result(case.outcome, tool=case.tool, kind=case.kind, facts=case.facts, **case.options)
    _check_seen(seen, case)
    plainly = classify_tool_result(case.outcome, tool=case.tool, kind=case.kind, facts=case.facts)
    _check_seen(plainly, None)
    settings = {"tool": case.tool, "step": case.step, "trace_id": case.trace_id}
    assert msgspec.json.encode(as_result("1", seen))
    for outcome in (case.outcome, seen, as_result("1", seen, 0.5)):
        envelope = tool_result_envelope(outcome, kind=case.kind, facts=case.facts, **settings)
        _check_envelope(envelope, case)
        if issubclass(type(outcome), Classified):
            again = tool_result_envelope(json.loads(json.dumps(envelope)), kind="python", **settings)
            _check_envelope(again, case)
            assert again["status"] == envelope["status"], (envelope, again)


def _check_seen(seen: Classified, case: Case | None) -> None:
    assert seen.content.strip(), "the model reads nothing"
    seen.content.encode()
    assert seen.ok == (not seen.reason), seen
    if not seen.ok:
        assert seen.message.strip(), "a failure without a word"
        assert seen.code.strip(), seen
        assert seen.evidence.strip(), seen
    for text in (seen.message, seen.evidence, seen.code, *seen.notes):
        text.encode()
    _strict(seen.data)
    if case is not None and not issubclass(type(case.outcome), ToolResult | BaseException) and case.options["is_error"]:
        assert not seen.ok, "an error flag was lost"


def _check_envelope(envelope: dict[str, Any], case: Case) -> None:
    _strict(envelope)
    assert list(envelope) == [name for name in MEMBERS if name in envelope], "another shape"
    assert set(MEMBERS[:5]) <= set(envelope), "another shape"
    assert envelope["status"] in ("ok", "error")
    assert all(envelope.get(name, True) is True for name in MEMBERS[5:])
    assert isinstance(envelope["data"], dict | None)
    meta = envelope["meta"]
    assert list(meta) in (["step", "trace_id"], ["step", "trace_id", "notes"])
    assert meta["step"] == case.step
    error = envelope["error"]
    if envelope["status"] == "ok":
        assert error is None
        assert isinstance(envelope["data"], dict), "a success without data"
        return
    assert list(error) == ["code", "message", "retryable"], "another shape"
    assert all(isinstance(error[name], str) and error[name].strip() for name in ("code", "message"))
    assert error["retryable"] in (None, True, False)
    assert envelope["data"] is None or envelope.get("partial") is True, "data beside an error that is not partial"


def _strict(data: Any) -> None:
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    text.encode()
    assert loads(text) == data, "not strict JSON"


# ---- outcomes


def _outcome(source: Source) -> Any:
    kind = source.number(0, 12)
    if kind == 0:
        return pick(source, WORDS)
    if kind == 1:
        return source.text(60)
    if kind == 2:
        return _raised(source)
    if kind == 3:
        words = (*WORDS, None, b"\xff", 5, Silent())
        error = ToolError(pick(source, words), pick(source, words), pick(source, (None, True)), happens(source, 2))
        status = pick(source, ("ok", "error", "timeout", "denied", "not_run"))
        return ToolResult("1", pick(source, words), status, pick(source, (None, error)), pick(source, (None, 0, 2)))
    if kind == 4:
        text = json.dumps(limits.plain(_value(source, 3)).value)
        return text.replace("null", "NaN") if happens(source, 8) else text
    if kind == 5:
        return SimpleNamespace(
            isError=happens(source, 2), content=_value(source, 2), structuredContent=_value(source, 2)
        )
    return _value(source, 4)


def _value(source: Source, depth: int) -> Any:
    kind = source.number(0, 9 if depth else 5)
    if kind <= 1:
        return pick(source, WORDS)
    if kind == 2:
        return pick(
            source, (None, True, False, 0, 1, 1.5, -0.0, 1e308, float("nan"), float("-inf"), 10**4000, 10**20000)
        )
    if kind == 3:
        return source.data(40) if happens(source, 2) else source.text(20)
    if kind <= 5:
        return pick(source, ODD)() if depth else None
    if kind == 6:
        items = [_value(source, depth - 1) for _ in range(source.number(0, 4))]
        if happens(source, 10):
            items.append(items)
        return tuple(items) if happens(source, 4) else items
    if kind == 7 and happens(source, 20):
        return pick(source, HUGE)()
    made: dict[Any, Any] = {pick(source, KEYS): _value(source, depth - 1) for _ in range(source.number(0, 5))}
    if happens(source, 10):
        made[pick(source, (None, 1, True, 1.0, (1, 2), b"k", float("nan"), Silent(), frozenset([1])))] = 1
    if happens(source, 20):
        made["self"] = made
    if happens(source, 12):
        return pick(source, (OrderedDict, UserDict, Members, RaisingItems))(made)
    return made


class Silent:
    """An object that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("\ud800")

    __repr__ = __str__


class Blank:
    """An object that says nothing."""

    def __str__(self) -> str:
        return ""


class NoText:
    """An object whose text is none."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Unbound:
    """A proxy without anything behind it: it refuses to say even what it is."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("unbound")


class Posing:
    """An object that says it is of another kind."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property
    def __class__(self) -> Any:
        return self._kind


class Refusing(type):
    """A class that refuses questions."""

    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Unasked(metaclass=Refusing):
    """An object whose class refuses questions."""


class Endless(list):  # type: ignore[type-arg]
    """A list without an end."""

    def __iter__(self) -> Any:
        return count()


class Members(dict):  # type: ignore[type-arg]
    """A dict of another kind."""


class RaisingItems(dict):  # type: ignore[type-arg]
    """A dict that cannot be gone through."""

    def items(self) -> Any:
        """Refuse."""
        raise KeyError("\ud800")


class Dumping:
    """An object that never comes to an end of what it holds."""

    def model_dump(self) -> Any:
        """Return one more."""
        return {"next": Dumping(), 1: Silent()}


class Array:
    """An array that turns into itself."""

    dtype = "x"

    def tolist(self) -> Any:
        """Return this array."""
        return self


class Text(str):
    """Text with methods of its own."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    def strip(self, *_: Any) -> Any:
        """Return no text."""

    def encode(self, *_: Any) -> Any:
        """Return no bytes."""


class Number(int):
    """A number with methods of its own."""

    def __repr__(self) -> str:
        return "x"

    def __add__(self, other: Any) -> Any:
        raise RuntimeError


class Real(float):
    """A number with methods of its own."""

    def __repr__(self) -> str:
        return "x"

    def __float__(self) -> float:
        raise RuntimeError


class Colour(Enum):
    """Choices whose values are no JSON."""

    RED = b"\xff"
    NOTHING = float("nan")


@dataclass
class Point:
    """A record that may lack what it declares."""

    x: Any
    y: Any = 1


def _incomplete() -> Point:
    point = Point(1)
    del point.x
    return point


def _finished() -> Any:
    class Finished:
        returncode, stdout, stderr = 1, b"\xff", None

        def check_returncode(self) -> None:
            raise AssertionError

    return Finished()


ODD = (
    *(Silent, Blank, NoText, Unbound, Unasked, Dumping, Array, _incomplete, _finished, object),
    *(partial(Posing, kind) for kind in (str, int, float, bytes, bytearray, dict, list, ToolResult, Classified)),
    lambda: Posing(ValueError),
    lambda: Endless([1]),
    lambda: Text("x"),
    lambda: Number(3),
    lambda: Real(1.5),
    lambda: Colour.RED,
    lambda: Colour.NOTHING,
    lambda: Silent,
    lambda: {1, "a", None},
    lambda: frozenset([(1, 2), b"x"]),
    lambda: memoryview(b"ab\xff")[::2],
    lambda: memoryview(b"abcd").cast("I"),
    lambda: bytearray(b"\x00\xff"),
    lambda: Decimal("NaN"),
    lambda: 1j,
    lambda: (n for n in range(3)),
    lambda: json,
    lambda: len,
    lambda: Exception(Silent()),
)
HUGE = (
    lambda: "x" * 20_000,
    lambda: list(range(5_000)),
    lambda: {"k" * 5_000: {n: n for n in range(1_000)}},
    lambda: b"\xff" * 10_000,
    lambda: _deep(500),
    lambda: _unfolding(40),
    lambda: 10**100_000,
)


def _deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = {"a": [value]}
    return value


def _unfolding(depth: int) -> Any:
    value: Any = ["x" * 10]
    for _ in range(depth):
        value = [value, value]
    return value


class SilentError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


class NoTextError(Exception):
    """An exception whose text is none."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class OddTextError(Exception):
    """An exception whose text is of another kind, and too long."""

    def __str__(self) -> str:
        return Text("\ud800" * 30_000)


class ProcessError(Exception):
    """An exception with an exit code that cannot be asked for."""

    @property
    def returncode(self) -> int:
        """Refuse."""
        raise RuntimeError


class ExitError(Exception):
    """An exception with an odd exit code."""

    returncode = pow(10, 5000)


def _raised(source: Source) -> BaseException:
    kind = source.number(0, 9)
    if kind <= 3:
        message = pick(source, (*WORDS, Silent(), None, b"\xff", 10**5000))
        plain = (ValueError, TimeoutError, KeyError, OSError, KeyboardInterrupt, SystemExit)
        return pick(source, plain)(_value(source, 2) if happens(source, 4) else message)  # type: ignore[no-any-return]
    if kind == 4:
        return ExceptionGroup("\ud800", [ValueError("x"), SilentError()])
    if kind == 5:
        return UnicodeDecodeError("utf-8", source.data(9), 0, 1, "\ud800")
    return pick(source, (SilentError, NoTextError, OddTextError, ProcessError, ExitError))()  # type: ignore[no-any-return]
