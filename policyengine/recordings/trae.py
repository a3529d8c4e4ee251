"""Reader for trae-agent trajectories.

Knows: `{"task", "model", "agent_steps": [{llm_response, tool_calls, tool_results, llm_messages, error}]}`, one run per
file; a result says whether its call succeeded.
Must not know: other harnesses.

The `success` of a file says that the agent declared itself done and is no label. A step whose request to the model
failed has no response and is no turn; its error is the run's. A call that stands only in the response was never run
and has no result. The user speaks once; what a later step sends beside results is the harness's. `llm_interactions`
repeat the steps and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.messages import ModelResponse, ToolError, ToolResult
from policyengine.recordings.clock import Clock
from policyengine.recordings.conversation import Pairing, RawCall, raw_call, text_of, usage_of
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ToolAnswered,
    Unreadable,
    UserSaid,
    ending,
    mapping,
    runs_of,
    sequence,
    string,
    text_or_empty,
)

NAME = "trae"


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a trae-agent trajectory."""
    return isinstance(value, dict) and value.keys() >= {"agent_steps", "llm_interactions"}


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of a file."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    clock, pairing = Clock(), Pairing()
    happened: list[Event] = []
    if (task := string(run.get("task"), "task")) or run.get("start_time"):
        happened.append(UserSaid(task, at=clock.at(run.get("start_time"))))
    failure = ""
    steps = [mapping(step, "a step") for step in sequence(run.get("agent_steps"), "agent_steps")]
    for number, step in enumerate(steps, start=1):
        happened += _step(step, pairing, clock, last=number == len(steps))
        failure = string(step.get("error"), "error of a step") or failure
    return Recording(
        id=PurePath(source).stem,
        source=source,
        format=NAME,
        events=tuple(happened),
        ended=ending(tuple(happened)),
        group=string(run.get("model"), "model"),
        error=failure,
        line=line,
    )


def _step(step: Mapping[str, Any], pairing: Pairing, clock: Clock, *, last: bool) -> Iterator[Event]:
    if step.get("llm_response") is None:
        return
    at = clock.at(step.get("timestamp"))
    yield ModelSaid(_response(mapping(step["llm_response"], "llm_response"), step, pairing), at)
    for value in sequence(step.get("tool_results"), "tool_results"):
        result = mapping(value, "a tool result")
        call_id = pairing.answer(string(result.get("call_id"), "call_id"), "")
        if call_id is not None:
            yield ToolAnswered(call_id, _result(result, call_id), at)
    # The messages of a step are what is sent after it, but those of the last step may be what was sent before it.
    sent = [] if last else [mapping(message, "a message") for message in sequence(step.get("llm_messages"), "messages")]
    if all(message.get("role") == "user" for message in sent):
        yield from (UserSaid(text_of(message["content"]), True, at) for message in sent if message.get("content"))


def _response(response: Mapping[str, Any], step: Mapping[str, Any], pairing: Pairing) -> ModelResponse:
    calls = response.get("tool_calls") or step.get("tool_calls")
    return ModelResponse(
        text_of(response.get("content")),
        pairing.batch(_call(call) for call in sequence(calls, "tool_calls")),
        finish_reason=text_or_empty(response.get("finish_reason")),
        usage=usage_of(response.get("usage")),
        model=text_or_empty(response.get("model")),
    )


def _call(value: Any) -> RawCall:
    entry = mapping(value, "a tool call")
    return raw_call(entry.get("call_id"), entry.get("name"), entry.get("arguments"))


def _result(result: Mapping[str, Any], call_id: str) -> ToolResult:
    said, error = string(result.get("result"), "result"), string(result.get("error"), "error of a result")
    text = f"{said}\n{error}" if said and error else said or error
    if result.get("success") is not False:
        return ToolResult(call_id, text)
    return ToolResult(call_id, text, "error", ToolError("tool_failed", error) if error else None)
