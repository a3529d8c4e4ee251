"""Reader for SWE-agent trajectories (`.traj`).

Knows: `{"trajectory": [{action, observation, response, thought}], "history", "info"}`, one run per file, which is named
after its task; one command per step.
Must not know: other harnesses.

A command is a call of the tool `shell` with the argument `command`. What the harness writes when it gives up
(`exit_cost`, `exit_context` and so on in the place of a command) is no response of the model and left out, except for
`exit_format`: there the response is the model's, and no command could be read in it. Nothing says whether a command
failed, so every result is `ok`. Of `history` only the task is read: the rest is demonstrations and what the steps hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.messages import ModelResponse, ToolCall, ToolResult
from policyengine.recordings.conversation import text_of
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
)

NAME = "sweagent"

TOOL = "shell"
GIVEN_UP = "exit_"
"""How the word begins that the harness writes in the place of a command when it gives up."""
UNREADABLE = "exit_format"


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a SWE-agent trajectory."""
    if not isinstance(value, dict) or not value.keys() >= {"trajectory", "info"}:
        return False
    steps = value["trajectory"]
    if not isinstance(steps, list):
        return False
    return not steps or (isinstance(steps[0], dict) and steps[0].keys() >= {"action", "observation"})


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of a file."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    status = string(mapping(run.get("info"), "info").get("exit_status"), "exit_status")
    task = _task(run)
    happened: list[Event] = [] if task is None else [UserSaid(task)]
    for number, step in enumerate(sequence(run.get("trajectory"), "trajectory"), start=1):
        happened += _step(mapping(step, "a step"), f"step-{number}")
    name = PurePath(source).name.partition(".traj")[0]
    return Recording(
        id=name,
        source=source,
        format=NAME,
        events=tuple(happened),
        ended=ending(tuple(happened)),
        task=name,
        error="" if status.startswith("submitted") else status,
        line=line,
    )


def _task(run: Mapping[str, Any]) -> str | None:
    for value in sequence(run.get("history"), "history"):
        message = mapping(value, "a message")
        if message.get("role") == "user" and not message.get("is_demo"):
            return text_of(message.get("content"))
    return None


def _step(step: Mapping[str, Any], call_id: str) -> Iterator[Event]:
    action, response = string(step.get("action"), "action"), string(step.get("response"), "response")
    if action.startswith(GIVEN_UP) or not action.strip():
        if response and (action == UNREADABLE or not action.strip()):
            yield ModelSaid(ModelResponse(response))
        return
    yield ModelSaid(ModelResponse(response, (ToolCall(call_id, TOOL, args={"command": action}),)))
    if step.get("observation") is not None:
        took = step.get("execution_time")
        duration = float(took) if isinstance(took, float | int) and not isinstance(took, bool) else None
        yield ToolAnswered(call_id, ToolResult(call_id, text_of(step["observation"]), duration_s=duration))
