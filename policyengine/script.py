"""Scripted turns: what a model does, and what its tools answer, written down as data.

Knows: the shape of a script. Must not know: the loop, guards, files.

One format serves the embedded model of `policyengine run`, the sequences of `prove` and the tests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from policyengine.messages import ProviderError, Status, ToolError, Usage


class ScriptedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call of a turn and the result its tool will give if the call runs.

    `args` is any JSON value; `arguments`, if set, is sent instead as raw text (for malformed calls).
    """

    tool: str
    args: Any = {}
    result: str = "ok"
    status: Status = "ok"
    error: ToolError | None = None
    exit_code: int | None = None
    arguments: str | None = None


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model response. Several `calls` are one parallel batch. `model` is who says so, `scripted` if empty.

    With an `error` there is no response: the request fails with it.
    """

    calls: tuple[ScriptedCall, ...] = ()
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    model: str = ""
    error: ProviderError | None = None


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task and the turns a scripted model takes on it."""

    task: str
    turns: tuple[Turn, ...]
    about: str = ""
    protocol: str = "native"
    tools: dict[str, str] = {}


def call(tool: str, args: Any = None, result: str = "ok", **facts: Any) -> Turn:
    """Return a turn that makes one tool call."""
    return Turn(calls=(ScriptedCall(tool, {} if args is None else args, result, **facts),))


def batch(*calls: ScriptedCall) -> Turn:
    """Return a turn that makes several tool calls at once."""
    return Turn(calls=calls)


def fail(code: str, message: str = "", **facts: Any) -> Turn:
    """Return a turn in which the request fails; without `remedies` they are those of the error's class."""
    return Turn(error=ProviderError(code, message, **facts))


def say(text: str, **facts: Any) -> Turn:
    """Return a turn that only says something."""
    return Turn(text=text, **facts)
