"""Reader for MedAgentBench run files (`runs.jsonl`): one run a line, calls in a text protocol.

Knows: `{"index", "output": {"status", "history": [{"role": "user" or "agent", "content"}]}}`; the model answers
`GET url`, `POST url` with JSON below, or `FINISH([...])`, and the harness drops the fence of a reply. Must not know:
other harnesses, other benchmarks of the same container (the prompt tells them apart).

The call that the harness read is in `tool_calls`; the message behind it is its result, and an error where the harness
says that a GET could not be sent. A POST whose JSON it could not read is no call. The file has no label: whether the
answer was right is judged elsewhere. A status other than `completed` is the run's error. Later messages of the user are
the harness's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from policyengine.messages import ModelResponse, ToolResult
from policyengine.parsing.notation import Form
from policyengine.recordings.conversation import Pairing, RawCall, parsed_call
from policyengine.recordings.loading import NotJsonError, decode
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

NAME = "medagentbench"

FORMS = (
    Form("line", "GET", "url"),
    Form("line", "POST", "url", "payload"),
    Form("call", "FINISH", "answers", answer=True),
)
"""The protocol that the prompt declares."""

_FAILED = "Error in sending the GET request:"
_COMPLETED = "completed"
_FILE = "runs"


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a MedAgentBench run."""
    output = value.get("output") if isinstance(value, dict) and "index" in value else None
    history = output.get("history") if isinstance(output, dict) and "status" in output else None
    first = history[0] if isinstance(history, list) and history else None
    prompt = first.get("content") if isinstance(first, dict) else None
    return isinstance(prompt, str) and all(word in prompt for word in ("GET ", "POST ", "FINISH("))


def run_a_line(value: Any) -> bool:
    """Return true: every line is a run."""
    return True


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of every line."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    number = string(run.get("index"), "index")
    output = mapping(run.get("output") or {}, "output")
    happened, answered = _events(sequence(output.get("history"), "history"))
    status = string(output.get("status"), "status")
    model = _model(source)
    return Recording(
        id=f"{model}/{number}" if model else number,
        source=source,
        format=NAME,
        events=happened,
        ended=text_ending(happened, answered=answered),
        group=model,
        task=number,
        protocol="text",
        error=string(run.get("error"), "error of a run") or ("" if status == _COMPLETED else status),
        line=line,
        forms=FORMS,
    )


def _model(source: str) -> str:
    """Return the model of `<model>_runs.jsonl`, or of `<model>/<task>/runs.jsonl` as the harness writes it."""
    path = PurePath(source)
    if path.stem == _FILE:
        return path.parent.parent.name
    return path.stem.removesuffix(f"_{_FILE}") if path.stem.endswith(f"_{_FILE}") else ""


def _events(history: list[Any]) -> tuple[tuple[Event, ...], bool]:
    """Return what happened, and whether the last reply was the answer."""
    pairing = Pairing()
    happened: list[Event] = []
    answered = False
    waiting = ""
    for place, item in enumerate(history):
        message = mapping(item, "a message")
        role, text = message.get("role"), string(message.get("content"), "content")
        if role == "agent":
            said = text.strip().replace("```tool_code", "").replace("```", "").strip()
            call = _read(said)
            answered = said.startswith("FINISH(")
            batch = pairing.batch([] if call is None else [call])
            waiting = batch[0].id if batch else ""
            happened.append(ModelSaid(ModelResponse(text, batch)))
        elif role != "user":
            raise ShapeError(f"a message has the role {role!r}")
        elif waiting:
            failed = text.startswith(_FAILED)
            happened.append(ToolAnswered(waiting, ToolResult(waiting, text, "error" if failed else "ok")))
            waiting = ""
        else:
            happened.append(UserSaid(text, injected=place > 0))
    return tuple(happened), answered


def _read(text: str) -> RawCall | None:
    """Return the call that the harness made of a reply."""
    if text.startswith("GET"):
        return parsed_call("GET", {"url": text.removeprefix("GET").strip()})
    if not text.startswith("POST"):
        return None
    line, _, below = text.partition("\n")
    try:
        payload = decode(below)
    except NotJsonError:
        return None
    return parsed_call("POST", {"url": line.removeprefix("POST").strip(), "payload": payload})
