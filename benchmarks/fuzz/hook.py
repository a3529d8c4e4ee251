"""What must hold for every event of a coding agent's hooks: an answer, or a reason to block.

Knows: events of every dialect. Must not know: how one is judged.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from benchmarks.fuzz.mutate import ODD, either
from benchmarks.fuzz.place import folder
from benchmarks.fuzz.source import Source, happens, pick
from policyengine.errors import PolicyEngineError
from policyengine.hook.dialects import DIALECTS, KINDS
from policyengine.hook.entry import Arguments
from policyengine.hook.verb import event_name, reply_to

BODY: dict[str, Any] = {
    "session_id": "s",
    "cwd": "/w",
    "prompt": "go",
    "message": "go",
    "tool_name": "Bash",
    "tool_input": {"command": "ls", "token": 1},
    "tool_use_id": "t1",
    "tool_response": {"stdout": "a", "exit_code": 0, "metadata": {"exit_code": 1}, "llmContent": [{"text": "a"}]},
    "error": "no",
    "agent_id": "a",
    "agent_type": "worker",
    "permission_mode": "auto",
    "source": "startup",
}


class Case(NamedTuple):
    """Events for one host, one after the other."""

    host: str
    events: tuple[bytes, ...]


def generate(source: Source) -> Case:
    """Return a case."""
    dialect = DIALECTS[pick(source, tuple(DIALECTS))]
    names = (*dialect.events, *dialect.installed, *KINDS)
    events = []
    for _ in range(source.number(1, 4)):
        body = {
            dialect.event_key: pick(source, names),
            **BODY,
            "session_id": pick(source, ("s", "t", "a/b%", "\ud800")),
        }
        if happens(source, 4):
            body["tool_response"] = pick(source, ODD)
        events.append(either(source, [body]))
    return Case(dialect.name, tuple(events))


def check(case: Case) -> None:
    """Answer the events.

    Raises:
        AssertionError: an answer that is no JSON object.
    """
    state = folder() / "state"
    given = Arguments([case.host, "--policy", "default", "--state", str(state)])
    for event in case.events:
        event_name(given, event)
        try:
            out = reply_to(given, event)
        except (ValueError, PolicyEngineError):  # what the process says before it blocks
            continue
        assert not out or isinstance(json.loads(out), dict)
