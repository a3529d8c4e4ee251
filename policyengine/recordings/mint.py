"""Reader for MINT result files (`results.jsonl`): one run a line, calls in a text protocol.

Knows: `{"state": {history, success, error}, "task": {...}}`; the model writes `<execute>code</execute>`
(in later prompts a fence, ```` ```python ````) or `<solution>answer</solution>`, and the harness joins all of a kind;
a reply with a solution is an answer, whatever else it holds. Must not know: other harnesses.

The call that the harness read is in `tool_calls`; the message behind it is its result. Taken off is what the harness
writes around texts: `Assistant:` before a reply, `Observation:` before a result, and behind it the steps that are
left, which would make equal results differ. A result is an error if it begins as the harness's Python shell begins the
report of an exception.

Every later message of the user is the harness's. A reply that was empty is not in the file; only what the harness said
to it is. The tokens of the file are those of the whole run, so no response has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from policyengine.messages import ModelResponse, ToolResult
from policyengine.parsing.notation import Form
from policyengine.recordings.conversation import Pairing, parsed_call
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ShapeError,
    ToolAnswered,
    Unreadable,
    UserSaid,
    mapping,
    runs_of,
    sequence,
    string,
    text_ending,
)

NAME = "mint"

FORMS = (Form("tag", "execute", "code"), Form("tag", "solution", "answer", answer=True))
"""The protocol that the prompts declare."""

_CODE = ("<execute>", "</execute>")
_FENCE = ("```python", "```")
_ANSWER = ("<solution>", "</solution>")
_HEAD = "Observation:\n"
_LEFT = re.compile(
    r"\n?You have -?\d+ steps left(?: and -?\d+ chances to propose solution left)?\.\n"
    r"(?:You should take the last step to propose a solution\.\n)?\Z"
)
_FAILED = re.compile(
    r"-{75}\n\w+ +Traceback \(most recent call last\)|Cell In\[\d+\], line \d+\n(?s:.)*^\w*Error: ", re.M
)


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a MINT run."""
    state = value.get("state") if isinstance(value, dict) and "task" in value else None
    return isinstance(state, dict) and {"history", "agent_action_count"} <= state.keys()


def run_a_line(value: Any) -> bool:
    """Return true: every line is a run."""
    return True


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of every line."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    state, task = mapping(run.get("state"), "state"), mapping(run.get("task"), "task")
    history = [_message(item) for item in sequence(state.get("history"), "history")]
    happened, answered = _events(history)
    success = state.get("success")
    name = f"{string(task.get('task_name'), 'task_name')}/{string(task.get('task_id'), 'task_id')}"
    return Recording(
        id=name,
        source=source,
        format=NAME,
        events=happened,
        ended=text_ending(happened, answered=answered),
        label=success if isinstance(success, bool) else None,
        group=_model(source),
        task=name,
        protocol="text",
        error=string(state.get("error"), "error of a run"),
        line=line,
        forms=FORMS,
    )


def _model(source: str) -> str:
    """Return the model, which the harness puts into the path: `<model>/F=<feedback>/...`."""
    folders = PurePath(source).parts
    return next((name for name, below in pairwise(folders) if below.startswith("F=")), "")


def _message(value: Any) -> tuple[str, str]:
    message: Mapping[str, Any] = mapping(value, "a message")
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise ShapeError(f"a message has the role {role!r}")
    return role, string(message.get("content"), "content")


def _events(history: list[tuple[str, str]]) -> tuple[tuple[Event, ...], bool]:
    """Return what happened, and whether the last reply was an answer to the harness."""
    pairing = Pairing()
    happened: list[Event] = []
    answered = False
    prompt = history[0][1] if history else ""
    calls = _FENCE if "```python" in prompt and "<execute>" not in prompt else _CODE
    waiting = ""
    for place, (role, text) in enumerate(history):
        if role == "assistant":
            said = text.removeprefix("Assistant:\n").removesuffix("\n")
            code, answered = _read(said, calls)
            batch = pairing.batch([parsed_call("execute", {"code": code})] if code else [])
            waiting = batch[0].id if batch else ""
            happened.append(ModelSaid(ModelResponse(said, batch)))
        elif waiting:
            happened.append(ToolAnswered(waiting, _result(waiting, text)))
            waiting = ""
        else:
            happened.append(UserSaid(text, injected=place > 0))
    return tuple(happened), answered


def _read(text: str, calls: tuple[str, str]) -> tuple[str, bool]:
    """Return the code that the harness ran, and whether it took the reply for an answer."""
    if "<solution>" in text:
        return "", bool(_joined(_ANSWER, text))
    return _joined(calls, text), False


def _joined(marks: tuple[str, str], text: str) -> str:
    """Return what stands between two marks, wherever it does; in time that grows with the text and no faster."""
    opening, closing = marks
    found, at = [], 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        found.append(text[start + len(opening) : end].strip())
        at = end + len(closing)
    return "\n".join(found)


def _result(call_id: str, text: str) -> ToolResult:
    text = _LEFT.sub("", text.removeprefix(_HEAD))
    return ToolResult(call_id, text, "error" if _FAILED.match(text) else "ok")
