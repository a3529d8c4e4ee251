"""What any guard can be told of a recorded run, and how one is asked whether the run should end.

Knows: recordings, the order in which a loop asks its guards. Must not know: any guard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol

from policyengine.context import failed
from policyengine.messages import UNDECLARED, ModelResponse, ToolCall, ToolResult
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid


class Made(NamedTuple):
    """One call with its result; `result` is `None` where none is recorded."""

    call: ToolCall
    args: dict[str, Any]
    result: ToolResult | None
    failed: bool

    @property
    def text(self) -> str:
        """The result as the model read it."""
        return self.result.text if self.result is not None else ""


class Turn(NamedTuple):
    """One model response (`number` from 1), what the user said before it, and its calls with their results."""

    number: int
    said: tuple[str, ...]
    response: ModelResponse
    calls: tuple[Made, ...]


class Played(NamedTuple):
    """A recorded run as guards see it."""

    task: str
    turns: tuple[Turn, ...]


Check = Callable[[], bool]
"""One question to a guard, with everything it needs at hand: whether the run ends now. Only this is timed."""


class Guard(Protocol):
    """A guard of one run."""

    def checks(self, turn: Turn) -> Iterator[Check]:
        """Yield what a loop asks in this turn, in order; what the loop only reports happens in between."""
        ...


class Peer(NamedTuple):
    """A guard of a package.

    `distribution` is what is installed, `policy` our restatement of its rules, `stops` what counts as the end of the
    run. `texts`: it judges by words, so that hashes tell it nothing. `ends` is false for what is counted as a stop here
    and is none.
    """

    name: str
    distribution: str
    stops: str
    start: Callable[[Played], Guard]
    policy: str = ""
    texts: bool = False
    ends: bool = True

    @property
    def version(self) -> str:
        """The installed version, or nothing."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return ""

    def decide(self, recording: Recording) -> int | None:
        """Return the turn in which the guard would have ended a recorded run."""
        return first_stop(self.start, played(recording))


def first_stop(start: Callable[[Played], Guard], run: Played) -> int | None:
    """Return the turn in which a guard ends a run."""
    guard = start(run)
    return next((turn.number for turn in run.turns if any(check() for check in guard.checks(turn))), None)


def played(recording: Recording) -> Played:
    """Return a recording as guards see it. What a harness said in the user's name is left out."""
    results = {event.call_id: event.result for event in recording.events if isinstance(event, ToolAnswered)}
    turns: list[Turn] = []
    said: list[str] = []
    task = ""
    for event in recording.events:
        if isinstance(event, UserSaid) and not event.injected:
            task = task or event.text
            said.append(event.text)
        elif isinstance(event, ModelSaid):
            calls = tuple(_made(call, results.get(call.id)) for call in event.response.tool_calls)
            turns.append(Turn(len(turns) + 1, tuple(said), event.response, calls))
            said = []
    return Played(task, tuple(turns))


def _made(call: ToolCall, result: ToolResult | None) -> Made:
    args = call.args if isinstance(call.args, dict) else {"arguments": call.arguments}
    return Made(call, args, result, result is not None and failed(result, UNDECLARED))


def arguments_text(made: Made) -> str:
    """Return the arguments of a call as JSON text, also where a recording has none that is JSON."""
    written = made.call.arguments
    return written if written and isinstance(made.call.args, dict) else json.dumps(made.args)
