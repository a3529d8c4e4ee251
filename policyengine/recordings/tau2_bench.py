"""Reader for tau2-bench result files.

Knows: `{info, tasks, simulations}`; a tool message with `error: true` failed; a reward of 1 is a success; a reason to
end that names an error is the run's error.
Must not know: other harnesses.

The simulated user has tools of its own. Its calls and their results (`requestor: "user"`) are not the agent's and are
left out; what it says is a user message. The greeting that the harness puts before every run counts as a response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.recordings.conversation import text_of, usage_of
from policyengine.recordings.model import (
    Document,
    Recording,
    ShapeError,
    Unreadable,
    mapping,
    sequence,
    string,
    text_or_empty,
)
from policyengine.recordings.tape import Tape, object_call

NAME = "tau2_bench"

SUCCESS = 1.0
TOLERANCE = 1e-6
"""Rewards are products of floats; the harness itself compares them with this tolerance."""


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like tau2-bench results."""
    return isinstance(value, dict) and isinstance(value.get("simulations"), list) and "tasks" in value


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield every simulation of a result file."""
    for line, value in document.values:
        try:
            results = mapping(value, "a result file")
            model = _model(results)
            simulations = sequence(results.get("simulations"), "simulations")
        except ShapeError as error:
            yield Unreadable(document.source, line, str(error))
            continue
        if not simulations:
            yield Unreadable(document.source, line, "there are no simulations")
        for simulation in simulations:
            try:
                yield _recording(simulation, model, document.source, line)
            except ShapeError as error:
                yield Unreadable(document.source, line, str(error))


def _model(results: Mapping[str, Any]) -> str:
    info = results.get("info")
    agent = info.get("agent_info") if isinstance(info, dict) else None
    return text_or_empty(agent.get("llm")) if isinstance(agent, dict) else ""


def _recording(value: Any, model: str, source: str, line: int) -> Recording:
    run = mapping(value, "a simulation")
    task = string(run.get("task_id"), "task_id")
    reason = string(run.get("termination_reason"), "termination_reason")
    tape = Tape()
    for message in sequence(run.get("messages"), "messages"):
        _add(tape, mapping(message, "a message"), model)
    return Recording(
        id=string(run.get("id"), "id of a simulation") or f"{task}/{string(run.get('trial', 0), 'trial')}",
        source=source,
        format=NAME,
        events=tape.events,
        ended=tape.ended,
        label=_label(run.get("reward_info")),
        group=model or PurePath(source).stem,
        task=task,
        error=reason if "error" in reason else "",
        line=line,
    )


def _add(tape: Tape, message: Mapping[str, Any], model: str) -> None:
    role = message.get("role")
    at = message.get("timestamp")
    if role == "assistant":
        calls = sequence(message.get("tool_calls"), "tool_calls")
        entries = [mapping(call, "a tool call") for call in calls]
        tape.model(
            text_of(message.get("content")),
            [object_call(call.get("id"), call.get("name"), call.get("arguments")) for call in entries],
            reasoning=string(message.get("reasoning"), "reasoning"),
            finish_reason=_finish(message.get("raw_data")),
            usage=usage_of(message.get("usage")),
            model=model,
            at=at,
        )
    elif role == "user":
        text = text_of(message.get("content"))
        if text or not message.get("tool_calls"):
            tape.user(text, at=at)
    elif role == "tool":
        for item in sequence(message.get("tool_messages"), "tool_messages") or [message]:
            result = mapping(item, "a tool message")
            if result.get("requestor") != "user":
                call_id = string(result.get("id"), "id of a tool message")
                failed = result.get("error") is True
                tape.tool(call_id, "", text_of(result.get("content")), status="error" if failed else "ok", at=at)
    elif role != "system":
        raise ShapeError(f"a message has the role {role!r}")


def _finish(raw: Any) -> str:
    return text_or_empty(raw.get("finish_reason")) if isinstance(raw, dict) else ""


def _label(info: Any) -> bool | None:
    reward = info.get("reward") if isinstance(info, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    return abs(reward - SUCCESS) <= TOLERANCE
