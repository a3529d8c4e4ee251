"""Reader for mini-swe-agent trajectories (`trajectory_format` "mini-swe-agent-1.1").

Knows: chat messages with what the harness noted under `extra`: the return code of a command, the provider's answer,
what a later user message is about. One run per file.
Must not know: other harnesses.

A command failed if its return code is not zero or an exception kept it from running. The user speaks once; later user
messages are the harness's unless their `interrupt_type` says that the user interrupted, refused or asked for more. The
message with the role `exit` tells how the run ended: it is no event. The command that hands the work in has no result.
Of the older format "mini-swe-agent-1", where commands stand in the text, runs are unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from policyengine.messages import ModelResponse, ToolError, ToolResult
from policyengine.recordings.clock import Clock
from policyengine.recordings.conversation import Pairing, openai_call, reasoning_of, text_of, usage_of
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ShapeError,
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

NAME = "mini_swe_agent"

FORMAT = "mini-swe-agent-"
OLD = "mini-swe-agent-1"
SUBMITTED = "submitted"
BY_THE_USER = "User"
"""How the `interrupt_type` of a message begins that is really the user's."""


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a mini-swe-agent trajectory."""
    return (
        isinstance(value, dict)
        and isinstance(named := value.get("trajectory_format"), str)
        and named.startswith(FORMAT)
        and "messages" in value
    )


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of a file."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    if run.get("trajectory_format") == OLD:
        raise ShapeError(f"the older format {OLD}, where commands stand in the text")
    info = run.get("info")
    about = info if isinstance(info, dict) else {}
    happened = tuple(_events(run.get("messages")))
    status = string(about.get("exit_status"), "exit_status")
    task = string(run.get("instance_id"), "instance_id") or PurePath(source).name.partition(".traj")[0]
    return Recording(
        id=task,
        source=source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        group=_model(about),
        task=task,
        error="" if status.lower() == SUBMITTED else string(about.get("exception_str"), "exception_str") or status,
        line=line,
    )


def _model(info: Mapping[str, Any]) -> str:
    named: Any = info
    for key in ("config", "model", "model_name"):
        named = named.get(key) if isinstance(named, dict) else None
    return text_or_empty(named)


def _events(messages: Any) -> Iterator[Event]:
    clock, pairing = Clock(), Pairing()
    asked = False
    for value in sequence(messages, "messages"):
        message = mapping(value, "a message")
        role = message.get("role")
        noted = message.get("extra")
        extra = noted if isinstance(noted, dict) else {}
        if role == "user":
            why = extra.get("interrupt_type")
            injected = asked and not (isinstance(why, str) and why.startswith(BY_THE_USER))
            yield UserSaid(text_of(message.get("content")), injected, clock.at(extra.get("timestamp")))
            asked = True
        elif role == "assistant":
            yield ModelSaid(_response(message, extra, pairing), clock.at(extra.get("timestamp")))
        elif role == "tool":
            call_id = pairing.answer(string(message.get("tool_call_id"), "tool_call_id"), "")
            if call_id is not None:
                yield ToolAnswered(call_id, _result(message, extra, call_id), clock.at(extra.get("timestamp")))
        elif role not in ("system", "exit"):
            raise ShapeError(f"a message has the role {role!r}")


def _response(message: Mapping[str, Any], extra: Mapping[str, Any], pairing: Pairing) -> ModelResponse:
    answer = extra.get("response")
    provider = answer if isinstance(answer, dict) else {}
    choices = provider.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    return ModelResponse(
        text_of(message.get("content")),
        pairing.batch(openai_call(call) for call in sequence(message.get("tool_calls"), "tool_calls")),
        reasoning=reasoning_of(message),
        finish_reason=text_or_empty(choice.get("finish_reason")),
        usage=usage_of(provider.get("usage")),
        model=text_or_empty(provider.get("model")),
    )


def _result(message: Mapping[str, Any], extra: Mapping[str, Any], call_id: str) -> ToolResult:
    code, raised = extra.get("returncode"), string(extra.get("exception_info"), "exception_info")
    result = ToolResult(call_id, text_of(message.get("content")))
    if isinstance(code, int) and not isinstance(code, bool):
        result = msgspec.structs.replace(result, exit_code=code)
    if not raised and not result.exit_code:
        return result
    return msgspec.structs.replace(result, status="error", error=ToolError("tool_failed", raised) if raised else None)
