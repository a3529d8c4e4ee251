"""Reader for the engine's own journal.

Knows: which journal lines say what the user, the model and the tools did.
Must not know: decisions; a recording holds what happened, not what the engine thought of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import msgspec

from policyengine.messages import ModelResponse, ToolCall
from policyengine.recordings.conversation import Pairing, RawCall
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ToolAnswered,
    Unreadable,
    UserSaid,
    ending,
)
from policyengine.telemetry.journal import ARGUMENTS, RESUME, Decoder, JournalError, Line

NAME = "journal"


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a journal line."""
    return isinstance(value, dict) and {"v", "type", "run", "payload"} <= value.keys()


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield every run of a journal.

    What follows a broken line is not used: a run with a hole is no faithful record. A run that was resumed after it has
    none: a crash cut that line off, and what was on it is done again or is part of what was resumed.
    """
    values, end = document.whole()
    broken = sorted(problem.line for problem in document.broken if end is not None and problem.line >= end)
    decoder = Decoder()
    runs: dict[str, _Run] = {}
    resumed: dict[str, int] = {}
    for number, value in values:
        before = bisect_left(broken, number)
        last = broken[before - 1] if before else 0
        try:
            if last and not _resumes(value) and resumed.get(_run_of(value), 0) < last:
                continue
            line = decoder.line(value, number)
            if line.type == RESUME:
                resumed[line.run] = number
            run = runs.setdefault(line.run, _Run(line.run, number))
            run.add(line, decoder.arguments(line, number) if line.type in ARGUMENTS else line.payload)
        except JournalError as error:
            yield Unreadable(document.source, number, error.reason)
            break
    for run in runs.values():
        yield run.recording(document.source)


def _resumes(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == RESUME


def _run_of(value: Any) -> str:
    return str(value.get("run", "")) if isinstance(value, dict) else ""


class _Run:
    """Collects the events of one run. A response is held back until it is known not to be asked for again.

    Plans, summaries and corrected arguments are no rounds: what came of them is in the rounds that follow.
    """

    def __init__(self, run_id: str, line: int) -> None:
        self.id = run_id
        self.line = line
        self.task = ""
        self.error = ""
        self.protocol = "native"
        self.agent = ""
        self.policy = ""
        self._events: list[Event] = []
        self._pairing = Pairing()
        self._said: ModelSaid | None = None
        self._batch = ""
        self._purpose = "main"

    def recording(self, source: str) -> Recording:
        """Return what was collected."""
        self._settle()
        happened = tuple(self._events)
        return Recording(
            id=self.id,
            source=source,
            format=NAME,
            events=happened,
            ended=ending(happened),
            group=self.agent,
            task=self.task,
            protocol="text" if self.protocol == "text" else "native",
            error=self.error,
            line=self.line,
            policy=self.policy,
        )

    def add(self, line: Line, arguments: dict[str, Any]) -> None:
        """Take one line of the run."""
        match line.type:
            case "run":
                self.agent, self.protocol = arguments.get("agent", ""), arguments.get("protocol", "native")
                self.policy = str(arguments.get("policy", ""))
            case "start":
                self.task = arguments["task"]
                self._events.append(UserSaid(self.task, at=line.now))
            case "user_message":
                self._settle()
                self._events.append(UserSaid(arguments["text"], arguments["injected"], line.now))
            case "begin_iteration":
                self._settle()
            case "before_model_call":
                self._purpose = arguments["request"].purpose
            case "after_model_response" if self._purpose == "main":
                self._said = ModelSaid(arguments["response"], line.now)
            case "after_parse":
                self._parsed(arguments["verdict"])
            case "before_tool_call":
                self._judged(arguments["call"], arguments["batch"].id, line.now)
            case "after_tool_call":
                self._answered(arguments, line.now)
            case "end":
                self._settle()
                self.error = arguments["outcome"].error

    def _parsed(self, verdict: Any) -> None:
        # The calls that were judged are the parser's: in the text protocol the response itself has none.
        if self._said is not None and verdict.usable and verdict.calls:
            response = msgspec.structs.replace(self._said.response, tool_calls=verdict.calls)
            self._said = msgspec.structs.replace(self._said, response=response)

    def _judged(self, call: ToolCall, batch: str, now: float) -> None:
        if self._said is not None and any(known.id == call.id for known in self._said.response.tool_calls):
            self._batch = batch
            return
        # A host that reports only its tool calls: the calls of one batch are one response.
        if self._said is None or (self._batch != batch and self._said.response.tool_calls):
            self._settle()
            self._said = ModelSaid(ModelResponse(), now)
        self._batch = batch
        response = self._said.response
        response = msgspec.structs.replace(response, tool_calls=(*response.tool_calls, call))
        self._said = msgspec.structs.replace(self._said, response=response)

    def _answered(self, arguments: dict[str, Any], now: float) -> None:
        self._settle()
        call, result = arguments["call"], arguments["result"]
        call_id = self._pairing.answer(call.id, call.name)
        if call_id is not None:
            self._events.append(ToolAnswered(call_id, msgspec.structs.replace(result, call_id=call_id), now))

    def _settle(self) -> None:
        """Take over the response that was held back, with ids that are unique in the recording."""
        if self._said is None:
            return
        response = self._said.response
        calls = response.tool_calls
        unique = self._pairing.batch(RawCall(call.id, call.name, call.arguments, call.args) for call in calls)
        response = msgspec.structs.replace(response, tool_calls=unique)
        self._events.append(msgspec.structs.replace(self._said, response=response))
        self._said = None
