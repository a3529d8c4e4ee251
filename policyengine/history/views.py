"""What all shapes have in common: messages with calls and results, and what each call and result is.

Knows: the common view. Must not know: any shape, any rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from policyengine.parsing.strict import StrictError, loads

Arguments = Literal["ok", "not_json", "not_object"]

WHOLE = -1
"""The position of what is not one of several parts: the content as a whole, or the message itself."""


class Call(msgspec.Struct, frozen=True):
    """A call: where it is, and what is wrong with it by itself."""

    index: int
    part: int
    id: str
    name: str
    arguments: Arguments = "ok"
    signed: bool = True


class Result(msgspec.Struct, frozen=True):
    """A result. `late` says that something else stands before it in its message, `mute` that it is an error without
    content."""

    index: int
    part: int
    id: str
    name: str = ""
    late: bool = False
    mute: bool = False


class View(msgspec.Struct, frozen=True):
    """One message.

    `model` says that the model said it; `other` that it holds something besides results. `empty` are the positions of
    empty texts, `hollow` says that nothing but empty text is there. `reasoning` is `None` where the question makes no
    sense. `thinking` are the positions of thinking blocks, `unsigned` of those without a signature; `leads` says that
    one comes first. `refers` says that the message stands for another that is not here.
    """

    index: int
    model: bool = False
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    other: bool = True
    empty: tuple[int, ...] = ()
    hollow: bool = False
    reasoning: bool | None = None
    thinking: tuple[int, ...] = ()
    unsigned: tuple[int, ...] = ()
    leads: bool = False
    refers: bool = False


class Edit:
    """What is to change in one message; positions are those before the change."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.arguments: dict[int, dict[str, Any]] = {}
        self.results: dict[int, Mapping[str, Any]] = {}
        self.drop: set[int] = set()
        self.first: list[Mapping[str, Any]] = []
        self.strip_reasoning = False
        self.gone = False

    def __bool__(self) -> bool:
        return any(vars(self).values())


class Shape(Protocol):
    """One provider's form of messages. `keyed`: results are matched by id alone. `joined`: they share a message."""

    NAME: str
    KEYED: bool
    JOINED: bool
    RUNS: bool
    NAME_PATTERN: str

    def view(self, message: Mapping[str, Any], index: int) -> View:
        """Return the common view of a message."""
        ...

    def edited(self, message: Mapping[str, Any], edit: Edit) -> dict[str, Any] | None:
        """Return the message with the changes, or `None` if nothing is left of it."""
        ...

    def result(self, message: Mapping[str, Any], part: int) -> Mapping[str, Any]:
        """Return one result of a message as it is stored."""
        ...

    def renamed(self, result: Mapping[str, Any], id: str | None, name: str | None) -> Mapping[str, Any]:
        """Return a result that answers another id, or names another tool; `None` leaves that as it is."""
        ...

    def worded(self, result: Mapping[str, Any], text: str) -> Mapping[str, Any]:
        """Return a mute result with a text as its content."""
        ...

    def synthetic(self, message: Mapping[str, Any], call: Call, id: str, name: str, text: str) -> Mapping[str, Any]:
        """Return a result that says that there was none, for a call of `message`."""
        ...

    def carrier(self, message: Mapping[str, Any] | None, results: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a message of nothing but results, with the other fields of `message`."""
        ...

    def takes_results(self, message: Mapping[str, Any]) -> bool:
        """Return whether results may be put in front of what a message without any says."""
        ...

    def raw_arguments(self, message: Mapping[str, Any], part: int) -> Any:
        """Return the arguments of a call as they are stored."""
        ...


def listed(value: Any) -> Sequence[Any]:
    """Return `value` if it is a list, else an empty one. Frozen histories have tuples."""
    return value if isinstance(value, list | tuple) else ()


def mapped(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def text_of(value: Any) -> str:
    """Return `value` if it is text, else an empty one."""
    return value if isinstance(value, str) else ""


def state_of_text(text: Any) -> Arguments:
    """Return what arguments are that have to be JSON text."""
    if not isinstance(text, str):
        return "not_json"
    try:
        value = loads(text)
    except StrictError as error:
        if error.reason != "duplicate_key":
            return "not_json"
        # Whoever reads JSON reads duplicate keys; which of them counts is not what makes a history invalid.
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "not_json"
    return "ok" if isinstance(value, dict) else "not_object"


def state_of_object(value: Any) -> Arguments:
    """Return what arguments are that have to be an object."""
    return "ok" if isinstance(value, Mapping) else "not_object"
