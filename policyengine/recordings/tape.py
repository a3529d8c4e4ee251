"""Collects the events of one run while a reader goes through a file.

Knows: unique call ids, results without a call, times as they were recorded (see `clock`).
Must not know: any format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from policyengine.messages import ModelResponse, Status, ToolError, ToolResult, Usage
from policyengine.recordings.clock import Clock
from policyengine.recordings.conversation import Pairing, RawCall, raw_call
from policyengine.recordings.model import Ended, Event, ModelSaid, ToolAnswered, UserSaid, ending, string

_encode = msgspec.json.Encoder().encode


class Tape:
    """The events of one run. `task` is the first text of the user that no harness wrote."""

    def __init__(self) -> None:
        self.task = ""
        self._events: list[Event] = []
        self._pairing = Pairing()
        self._clock = Clock()

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that happened so far."""
        return tuple(self._events)

    @property
    def ended(self) -> Ended:
        """How the run ends so far."""
        return ending(self.events)

    def __bool__(self) -> bool:
        return bool(self._events)

    def user(self, text: str, *, injected: bool = False, at: Any = None) -> None:
        """Add a text that was sent as the user."""
        if not self.task and not injected:
            self.task = text
        self._events.append(UserSaid(text, injected, self._clock.at(at)))

    def model(
        self,
        text: str,
        calls: Iterable[RawCall] = (),
        *,
        reasoning: str = "",
        finish_reason: str = "",
        usage: Usage | None = None,
        model: str = "",
        at: Any = None,
    ) -> None:
        """Add a response of the model."""
        response = ModelResponse(text, self._pairing.batch(calls), reasoning, finish_reason, usage, model)
        self._events.append(ModelSaid(response, self._clock.at(at)))

    def tool(
        self,
        call_id: str,
        name: str,
        text: str,
        *,
        status: Status = "ok",
        error: str = "",
        code: str = "tool_failed",
        duration_s: float | None = None,
        at: Any = None,
    ) -> bool:
        """Add a result; one that answers no waiting call is left out. Return whether it answered one."""
        found = self._pairing.answer(call_id, name)
        if found is None:
            return False
        why = ToolError(code, error) if error else None
        result = ToolResult(found, text, status, why, duration_s=duration_s)
        self._events.append(ToolAnswered(found, result, self._clock.at(at)))
        return True


def object_call(call_id: Any, name: Any, arguments: Any) -> RawCall:
    """Return a call whose arguments were recorded as an object; anything else is read as `raw_call` does."""
    if not isinstance(arguments, dict):
        return raw_call(call_id, name, arguments)
    return RawCall(string(call_id, "id of a call"), string(name, "name of a call"), json_text(arguments), arguments)


def json_text(value: Any) -> str:
    """Return `value` as JSON text; lone surrogates stay as they are."""
    try:
        return _encode(value).decode()
    except (UnicodeEncodeError, RecursionError, msgspec.EncodeError):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def number(value: Any) -> float | None:
    """Return a number that is no boolean and not negative as a float, else nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def count(value: Any) -> int:
    """Return a count of tokens, 0 where none was recorded."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
