"""A recorded run in one typed form, whatever format it came from.

Knows: what happened in a run, in order, and how a file failed to be one.
Must not know: file formats, policies, guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Literal

import msgspec

from policyengine.messages import ModelResponse, ToolResult
from policyengine.parsing.forms import Form

Ended = Literal["final_answer", "tool_result", "user_message", "call", "empty"]


class UserSaid(msgspec.Struct, frozen=True, tag="user", tag_field="event", omit_defaults=True):
    """A user message. `injected` marks text that the harness sent in the user's name; it closes no step.

    `at` is the time in seconds where the recording has one.
    """

    text: str
    injected: bool = False
    at: float | None = None


class ModelSaid(msgspec.Struct, frozen=True, tag="model", tag_field="event", omit_defaults=True):
    """One model response. Its calls are one batch."""

    response: ModelResponse
    at: float | None = None


class ToolAnswered(msgspec.Struct, frozen=True, tag="tool", tag_field="event", omit_defaults=True):
    """The recorded result of one call. `call_id` is unique in the recording.

    It is empty where the recording is undecided: then the result is that of the calls in the text before it.
    """

    call_id: str
    result: ToolResult
    at: float | None = None


Event = UserSaid | ModelSaid | ToolAnswered


class Recording(msgspec.Struct, frozen=True, omit_defaults=True):
    """One recorded run.

    `id` is the run's id in its own set, `set` that set (the folder of its index, or of its file), `source` the file it
    came from and `line` where it starts there (0 = the file has no lines). `label` says whether the run did its task,
    where somebody judged it. `group` names the model or the series of runs. `protocol` says how calls were written;
    `forms` are those of the text protocol that the format itself declares. `ended` is how the recording ends, `error`
    what the harness reported as an error. `undecided`: which texts are calls is left to the policy; the user's message
    behind such a text (or the tools' messages there) is its result. `policy` is the one that was in force, as far as a
    recording says: name and digest.
    """

    id: str
    source: str
    format: str
    events: tuple[Event, ...]
    ended: Ended
    label: bool | None = None
    group: str = ""
    task: str = ""
    protocol: Literal["native", "text"] = "native"
    error: str = ""
    line: int = 0
    set: str = ""
    forms: tuple[Form, ...] = ()
    undecided: bool = False
    policy: str = ""


class Skipped(msgspec.Struct, frozen=True):
    """A file or folder that is no recording, and why it was left out."""

    source: str
    reason: str


class Unreadable(msgspec.Struct, frozen=True):
    """A recording that cannot be read. `line` is counted from 1; 0 stands for the whole file."""

    source: str
    line: int
    reason: str


@dataclass(slots=True)
class Document:
    """A file that is decoded while it is read.

    `first` is its first JSON value; `values` yields all of them once, each with its line number from 1. `lines` is
    true if every line of the file is a value of its own; then only one of them is in memory, and `broken` grows by the
    lines that are not JSON as they are met. `part` is true if other lines of the file are read elsewhere; `first` is
    that of the whole file all the same, and `head` yields the values from there on.
    """

    source: str
    first: Any
    values: Iterator[tuple[int, Any]]
    broken: list[Unreadable] = field(default_factory=list)
    lines: bool = False
    part: bool = False
    head: Iterator[tuple[int, Any]] | None = None
    _ahead: set[int] = field(default_factory=set)

    def look(self, most: int) -> Iterator[tuple[int, Any]]:
        """Yield the first values of the file, of one that is not of lines the only one; they stay in `values`."""
        if not self.lines:
            yield 1, self.first
        elif self.head is not None:
            yield from islice(self.head, most)
        else:
            held: list[tuple[int, Any]] = []
            rest = iter(self.values)
            for item in islice(rest, most):
                held.append(item)
                self.values = chain(tuple(held), rest)
                yield item

    def begin(self, line: int, value: Any, why: Callable[[Any], str]) -> None:
        """Let the file begin with the value on this line; those before it are broken, `why` says for which reason."""
        self.first = value
        self.values = self._from(line, self.values, why)

    def _from(
        self, begin: int, values: Iterator[tuple[int, Any]], why: Callable[[Any], str]
    ) -> Iterator[tuple[int, Any]]:
        for line, value in values:
            if line < begin:
                self._ahead.add(line)
                self.broken.append(Unreadable(self.source, line, why(value)))
            else:
                yield line, value

    def whole(self) -> tuple[list[tuple[int, Any]], int | None]:
        """Return all values of a file that is one run, and the number of its first broken line, if any.

        A value ahead of the first that is part of the run breaks nothing off.
        """
        values = list(self.values)
        return values, min((problem.line for problem in self.broken if problem.line not in self._ahead), default=None)


class ShapeError(ValueError):
    """A value of a recording does not have the shape its format promises."""


def runs_of(document: Document, read: Callable[[Any, str, int], Recording]) -> Iterator[Recording | Unreadable]:
    """Yield the run of every value of a file, and what is no run; `read` is given a value, its source and its line."""
    for line, value in document.values:
        try:
            yield read(value, document.source, line)
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))


def ending(events: tuple[Event, ...]) -> Ended:
    """Return how a recording with these events ends."""
    match events[-1] if events else None:
        case ModelSaid(response=response):
            if response.tool_calls:
                return "call"
            return "final_answer" if response.text.strip() else "empty"
        case ToolAnswered():
            return "tool_result"
        case UserSaid():
            return "user_message"
        case _:
            return "empty"


def text_ending(events: tuple[Event, ...], *, answered: bool) -> Ended:
    """Return how a recording in a text protocol ends; `answered`: its last reply was an answer to its harness.

    A reply that was neither answer nor call ends a run as an empty one does: there is nothing to go on with.
    """
    ended = ending(events)
    return "empty" if ended == "final_answer" and not answered else ended


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return `value` if it is an object, else raise `ShapeError`."""
    if not isinstance(value, dict):
        raise ShapeError(f"{what} is {_kind(value)}, not an object")
    return value


def sequence(value: Any, what: str) -> list[Any]:
    """Return `value` if it is a list (nothing for a null), else raise `ShapeError`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ShapeError(f"{what} is {_kind(value)}, not a list")
    return value


def string(value: Any, what: str) -> str:
    """Return `value` as text: a null is empty, a number is written out, anything else raises `ShapeError`."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ShapeError(f"{what} is {_kind(value)}, not a string")


def text_or_empty(value: Any) -> str:
    """Return `value` if it is a text, and an empty one for anything else."""
    return value if isinstance(value, str) else ""


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
