"""An agent as a tool of another agent.

Knows: what becomes of a sub-agent's outcome, which conversation it shares.
Must not know: guards, how a tool is run.

A sub-agent that is stopped ends its own run and nothing else: the parent reads an error envelope and goes on (Agent
Zero's A6 unwinds the parent, too). State of scope `conversation` is shared with the parent, so that a budget with
`scope: conversation` is one budget for the whole tree.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from policyengine.messages import ToolSpec
from policyengine.outcome import Outcome
from policyengine.run import Run
from policyengine.toolset import Tool

if TYPE_CHECKING:
    from policyengine.agent import Agent

_RUNNING: ContextVar[tuple[Run, ...]] = ContextVar("policyengine_running", default=())
"""The runs whose tools are being run in this context, the outermost first."""

MAX_DEPTH = 8
"""How many agents may work below each other: one that is its own tool must not go on for ever."""


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Say whose tools are being run, so that a sub-agent knows its parent; sinks may surround it (`around`)."""
    token = _RUNNING.set((*_RUNNING.get(), run))
    try:
        with ExitStack() as stack:
            for sink in run.sinks:
                around = getattr(sink, "around", None)
                if around is not None:
                    stack.enter_context(around(run))
            yield
    finally:
        _RUNNING.reset(token)


def parent_run() -> Run | None:
    """Return the run whose tools are being run here, the innermost."""
    above = _RUNNING.get()
    return above[-1] if above else None


def runs_above() -> tuple[Run, ...]:
    """Return the runs whose tools are being run here, the outermost first.

    Raises:
        RecursionError: there are so many that no other agent may work below them.
    """
    above = _RUNNING.get()
    if len(above) >= MAX_DEPTH:
        raise RecursionError(f"{len(above)} agents work below each other already; {MAX_DEPTH} is the most")
    return above


def agent_tool(agent: Agent, name: str, description: str, *, shared: bool) -> Tool:
    """Return a tool that hands a task to `agent` and answers with its outcome."""
    schema = {
        "type": "object",
        "properties": {"task": {"type": "string", "minLength": 1, "description": "What the agent is to do."}},
        "required": ["task"],
        "additionalProperties": False,
    }
    spec = ToolSpec(name, description, schema)

    def options() -> dict[str, Any]:
        above = runs_above()
        return {"agent": name, **({"conversation": above[-1].conversation} if shared and above else {})}

    def work(task: str) -> Any:
        return envelope(name, agent.run(task, **options()))

    async def awork(task: str) -> Any:
        return envelope(name, await agent.arun(task, **options()))

    is_async = inspect.iscoroutinefunction(getattr(agent.model, "complete", None))
    return Tool(spec, awork if is_async else work, is_async)


def envelope(name: str, outcome: Outcome) -> Any:
    """Return what the parent reads: the answer, or an error that says how the sub-agent ended, with what it had."""
    if outcome.status == "completed":
        return outcome.output
    stop = outcome.stop
    code = stop.code if stop is not None else (outcome.error.partition(":")[0] or outcome.status)
    # What a wind-down told the sub-agent to do is nothing for its parent to do.
    said = (stop.message if stop.action != "wind_down" else "") if stop is not None else outcome.error
    message = f"The agent {name} did not finish its task ({outcome.status}: {code}). {said}".strip()
    return {
        "status": "error",
        "tool": name,
        "data": {"output": outcome.output} if outcome.output else None,
        "error": {"code": code, "message": message, "retryable": False},
        "meta": {"iterations": outcome.iterations, "calls": outcome.calls, "rule": stop.rule if stop else ""},
        **({"partial": True} if outcome.output else {}),
    }
